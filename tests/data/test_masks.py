"""Pairs of pictures and masks: found, read, checked; and moved together."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from vitrail.data.augment.crop import Canvas, image_sizes
from vitrail.data.augment.masks import JointAugmenter, JointPolicy, fit_mask, fitted_pairs, shrunk_pairs
from vitrail.tasks.detect.export import apart
from vitrail.data.maps import fitted_part
from vitrail.explain.deletion_insertion import paired
from vitrail.data.augment.random_keys import uniforms
from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.data.sources.masks import open_masks, pixels_of
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(path: Path, size: tuple[int, int] = (20, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1], "teal").save(path)
    return path


def mask(path: Path, values: list[int], size: tuple[int, int] = (20, 30), mode: str = "L") -> Path:
    """Stripes of the values from left to right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = np.array(values)[np.arange(size[1]) * len(values) // size[1]]
    stripes = np.tile(columns, (size[0], 1))
    image = Image.fromarray(stripes.astype(np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        image = Image.frombytes("P", size[::-1], stripes.astype(np.uint8).tobytes())
        image.putpalette([0, 0, 0, 200, 0, 0, 0, 0, 200])
    elif mode in ("RGB", "1"):
        image = image.convert("RGB") if mode == "RGB" else Image.fromarray(stripes > 0)
    image.save(path)
    return path


def pairs(root: Path, **masks: list[int]) -> Path:
    for name, values in masks.items():
        picture(root / "images" / f"{name}.jpg")
        mask(root / "masks" / f"{name}.png", values)
    return root


# Sources


def test_pixels_are_counted_of_any_part_of_the_pictures(tmp_path):
    source = open_masks(pairs(tmp_path, a=[0, 1], b=[1, 1, 2], c=[2]))
    one, two, three = ([sample] for sample in source.splits["all"])
    assert pixels_of(one, 3).tolist() == [300, 300, 0] and pixels_of([*two, *three], 3).tolist() == [0, 400, 800]
    assert source.pixels["all"].tolist() == [300, 700, 800]


@pytest.mark.parametrize("layout", ["images/{split}/{rest}", "{split}/images/{rest}"])
def test_folders_are_matched_by_the_path_below_them(tmp_path, layout):
    for split, words in (("train", "training"), ("val", "valid")):
        for rest in ("a/1", "b/1", "2"):
            where = layout.format(split=words, rest=rest)
            picture(tmp_path / f"{where}.jpg")
            mask(tmp_path / f"{where.replace('images', 'masks')}.png", [0, 1, 2] if split == "train" else [2, 1])
    source = open_masks(tmp_path)
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 3, "val": 3}
    assert source.classes == ["class 0", "class 1", "class 2"]
    sample = source.splits["val"][0]
    assert sample.labels == (1, 2) and np.unique(sample.mask_pixels()).tolist() == [1, 2]
    assert source.pixels["train"].tolist() == [600, 600, 600] and source.left_out == {}
    assert sample.name.endswith("2.jpg") and sample.decode().size == (30, 20)


def test_without_splits_everything_is_all_and_a_mask_may_say_that_it_is_one(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    mask(tmp_path / "annotations" / "a_mask.png", [0, 1])
    assert [*open_masks(tmp_path).splits] == ["all"]


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "RGB", "1"])
def test_grey_palette_wide_and_binary_files_hold_the_same_classes(tmp_path, mode):
    picture(tmp_path / "images" / "a.jpg")
    mask(tmp_path / "masks" / "a.png", [0, 1], mode=mode)
    source = open_masks(tmp_path)
    found = source.splits["all"][0].mask_pixels()
    assert found.dtype == np.uint8 and found[0].tolist() == [0] * 15 + [1] * 15
    assert source.colours == ([(0, 0, 0), (200, 0, 0)] if mode == "P" else None)


def test_names_come_from_files_beside_the_data_or_from_the_caller(tmp_path):
    root = pairs(tmp_path, a=[0, 3, 255])
    assert open_masks(root).classes == ["class 0", "class 3"]
    (root / "classes.json").write_text('{"3": "cat", "0": "ground", "7": "dog"}')
    source = open_masks(root)
    assert source.classes == ["ground", "cat", "dog"]
    assert source.splits["all"][0].mask_pixels()[0, ::10].tolist() == [0, 1, IGNORE]
    (root / "classes.txt").write_text("w\nx\ny\nz\n")
    assert open_masks(root).classes == ["w", "x", "y", "z"]
    assert open_masks(root, classes=["1", "2", "3", "4", "5"]).classes == ["1", "2", "3", "4", "5"]
    # a value that is ignored is no class
    source = open_masks(root, ignore=[0, 255])
    assert source.classes == ["x", "y", "z"] and source.splits["all"][0].labels == (2,)
    (root / "classes.txt").unlink()
    (root / "classes.json").write_text('{"0": null, "3": "cat", "7": "dog"}')
    source = open_masks(root)
    assert source.classes == ["cat", "dog"]
    assert source.splits["all"][0].mask_pixels()[0, ::10].tolist() == [IGNORE, 0, IGNORE]
    (root / "classes.json").write_text('{"-1": "none", "0": "ground", "3": "cat"}')
    with pytest.raises(VitrailError, match="-1 is no value of a mask"):
        open_masks(root)


def test_black_and_white_masks_are_a_thing_and_its_background(tmp_path):
    source = open_masks(pairs(tmp_path, a=[0, 255], b=[0]))
    assert source.classes == ["background", "foreground"] and "0 and 255" in source.notes[0]
    assert source.splits["all"][0].labels == (0, 1)


def test_every_bad_pair_is_left_out_with_its_reason_and_the_rest_remains(tmp_path):
    root = pairs(tmp_path, good=[0, 1, 2], value=[0, 1, 9], empty=[255], torn=[0, 1], other=[0, 1])
    (root / "classes.txt").write_text("ground\ncat\ndog")
    mask(root / "masks" / "other.png", [0, 1], size=(30, 20))
    (root / "masks" / "torn.png").write_bytes((root / "masks" / "torn.png").read_bytes()[:60])
    picture(root / "images" / "alone.jpg")
    mask(root / "masks" / "widow.png", [0, 1])
    picture(root / "images" / "nobody.jpg").write_bytes(b"")
    mask(root / "masks" / "nobody.png", [0, 1])
    picture(root / "images" / "coloured.jpg")
    Image.merge("RGB", [Image.new("L", (30, 20), v) for v in (9, 8, 7)]).save(root / "masks" / "coloured.png")
    picture(root / "images" / "lossy.jpg")
    picture(root / "masks" / "lossy.jpg")
    source = open_masks(root)
    assert [sample.name for sample in source.splits["all"]] == ["images/good.jpg"]
    reasons = {Path(name).stem: reason for name, reason in source.left_out.items()}
    assert reasons.keys() == {
        "value", "empty", "torn", "other", "alone", "widow", "nobody", "coloured", "lossy",
    }  # fmt: skip
    for stem, words in {
        "value": "holds 9, outside the 3 classes (0 to 2)",
        "empty": "ignored pixels alone",
        "torn": "damaged",
        "other": "20×30 and the upright picture 30×20",
        "alone": "has no mask",
        "widow": "has no image",
        "nobody": "empty",
        "coloured": "holds colours",
        "lossy": "JPEG",
    }.items():
        assert words in reasons[stem], stem
    notes = " ".join(source.notes)
    assert "1 image without a mask left out (images/alone.jpg)." in notes
    assert "3 unreadable masks left out" in notes


def test_a_turned_photograph_is_compared_upright(tmp_path):
    tall = Image.new("RGB", (30, 20))
    exif = tall.getexif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    tall.save(tmp_path / "images" / "a.jpg", exif=exif)
    mask(tmp_path / "masks" / "a.png", [0, 1], size=(30, 20))
    sample = open_masks(tmp_path).splits["all"][0]
    assert sample.decode().size == (20, 30) and sample.mask_pixels().shape == (30, 20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root, "images/ beside masks/"),
        (lambda root: root / "nowhere", "There is no "),
        (lambda root: pairs(root, a=[0]), "one class only"),
        (lambda root: pairs(root, a=[*range(25)]) and picture(root / "a.png"), "neither a folder"),
        (lambda root: [mask(root / "masks" / "a.png", [0, 1]), (root / "images").mkdir(), root][-1], "has no image"),
    ],
)
def test_a_source_that_teaches_nothing_is_refused_in_a_sentence(tmp_path, make, words):
    with pytest.raises(VitrailError, match=words):
        open_masks(make(tmp_path))


def test_tables_of_pairs(tmp_path):
    for name in "abc":
        picture(tmp_path / f"{name}.jpg")
        mask(tmp_path / f"{name}.png", [0, 1])
    rows = ["a.jpg,a.png,train", "b.jpg,b.png,test", "c.jpg,gone.png,train", "c.jpg,,train"]
    (tmp_path / "pairs.csv").write_text("\n".join(["path,mask,split", *rows]))
    source = open_masks(tmp_path / "pairs.csv")
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 1, "test": 1}
    assert "has no mask" in source.left_out["c.jpg"]
    (tmp_path / "pairs.csv").write_text("path,masks\na.jpg,a.png")
    with pytest.raises(VitrailError, match=r'no column mask.*Did you mean "masks"'):
        open_masks(tmp_path / "pairs.csv")


# COCO


def test_panoptic_segments_become_classes(tmp_path):
    ids = np.zeros((20, 30), np.int64)
    ids[:, 5:15], ids[:, 15:] = 70_001, 300
    folder = tmp_path / "annotations" / "panoptic_val2017"
    folder.mkdir(parents=True)
    channels = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=2).astype(np.uint8)
    Image.fromarray(channels).save(folder / "1.png")
    picture(tmp_path / "val2017" / "1.jpg")
    segments = [{"id": 70_001, "category_id": 17}, {"id": 300, "category_id": 3}]
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 20, "width": 30}, {"id": 2, "file_name": "2.jpg"}],
        "annotations": [{"image_id": 1, "file_name": "1.png", "segments_info": segments}],
        "categories": [{"id": 17, "name": "cat", "color": [1, 2, 3]}, {"id": 3, "name": "car", "color": [4, 5, 6]}],
    }
    path = tmp_path / "annotations" / "panoptic_val2017.json"
    path.write_text(json.dumps(content))
    source = open_masks(path)
    assert source.classes == ["car", "cat"] and source.colours == [(4, 5, 6), (1, 2, 3)] and [*source.splits] == ["val"]
    assert source.splits["val"][0].mask_pixels()[0].tolist() == [IGNORE] * 5 + [1] * 10 + [0] * 15
    assert source.left_out == {"2.jpg": "2.jpg has no mask."}


def test_outlines_are_painted_the_largest_first(tmp_path):
    picture(tmp_path / "images" / "1.jpg")
    square = [0, 0, 20, 0, 20, 20, 0, 20]
    code = {"size": [20, 30], "counts": [20 * 5, 20 * 3, 20 * 22]}  # columns 5 to 7
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 20, "width": 30}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 2, "segmentation": code, "area": 60},
            {"id": 2, "image_id": 1, "category_id": 1, "segmentation": [square], "area": 400},
            {"id": 3, "image_id": 9, "category_id": 1, "segmentation": [square], "area": 400},
        ],
        "categories": [{"id": 1, "name": "sky"}, {"id": 2, "name": "kite"}],
    }
    path = tmp_path / "stuff.json"
    path.write_text(json.dumps(content))
    source = open_masks(path)
    assert source.classes == ["background", "sky", "kite"]
    row = source.splits["all"][0].mask_pixels()[10].tolist()
    assert row == [1] * 5 + [2] * 3 + [1] * 12 + [0] * 10
    assert "annotation 3 of image 9" in source.left_out
    content["categories"][0]["name"] = "other"
    path.write_text(json.dumps(content))
    source = open_masks(path)
    assert source.classes == ["other", "kite"] and source.splits["all"][0].mask_pixels()[10, -1] == IGNORE
    path.write_text(json.dumps({"images": []}))
    with pytest.raises(VitrailError, match="not COCO's JSON"):
        open_masks(path)


def test_what_one_picture_of_a_json_has_wrong_costs_that_picture_alone(tmp_path):
    wrong = {
        "2": ({"category_id": 9, "segmentation": [[0, 0, 9, 0, 9, 9]]}, "a category that the JSON does not declare"),
        "3": ({"category_id": 1, "segmentation": {"size": [20, 30], "counts": [5, 5]}}, "do not add up to its size"),
        "4": ({"category_id": 1, "segmentation": {"size": [2, 2], "counts": [2, 2]}}, "in a picture of 30×20"),
        "5": ({"category_id": 1, "segmentation": [[1, 2, 3, "x", 5, 6]]}, "an outline that can't be read"),
        "7": ({"category_id": 1, "segmentation": [[1, 2, float("nan"), 4, 5, 6]]}, "a corner is nowhere"),
        "6": ({"category_id": 1, "segmentation": [[0, 0, 9, 0, 9, 9]]}, "has no height and width in the JSON"),
    }
    annotations = [{"id": 1, "image_id": 1, "category_id": 1, "segmentation": [[0, 0, 9, 0, 9, 9]]}]
    annotations += [{"id": int(n), "image_id": int(n), **annotation} for n, (annotation, _) in wrong.items()]
    images = [{"id": n, "file_name": f"{n}.jpg", "height": 20, "width": 30} for n in range(1, 8)]
    del images[5]["height"], images[5]["width"]
    for each in images:
        picture(tmp_path / each["file_name"])
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "sky"}]}
    (tmp_path / "stuff.json").write_text(json.dumps(content))
    source = open_masks(tmp_path / "stuff.json")
    assert [sample.name for sample in source.splits["all"]] == ["1.jpg"]
    assert source.left_out.keys() == {f"{n}.jpg" for n in wrong}
    for n, (_, words) in wrong.items():
        assert words in source.left_out[f"{n}.jpg"]


# Together


def ramps(height: int, width: int) -> torch.Tensor:
    """uint8 [4, h, w]: red is the column and green the row, and the mask is a chess-board of 16 pixels by them, so that
    a pixel's colour says what its class must be."""
    rows, columns = np.mgrid[:height, :width]
    board = (rows // 16 % 2 * 2 + columns // 16 % 2).astype(np.uint8)
    return torch.from_numpy(np.stack([columns, rows, 0 * rows + 90, board]).astype(np.uint8))


POLICIES = {
    "none": JointPolicy(flip=0.0),
    "flip": JointPolicy(flip=1.0),
    "resized": JointPolicy(scale=(0.2, 1.0)),
    "jitter": JointPolicy(jitter=(0.5, 2.0)),
    "small": JointPolicy(jitter=(0.3, 0.6)),
}


def augmenter(policy: JointPolicy, size=(64, 80), seed: int = 0, **more) -> JointAugmenter:
    return JointAugmenter(policy, size, MEAN, STD, seed, **more)


def levels(batch: torch.Tensor) -> torch.Tensor:
    return (batch * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_a_mask_painted_from_the_colours_still_matches_them(name, fit, kernel):
    sizes = [(96, 128), (128, 96), (200, 40), (64, 80), (50, 250)]
    images = [ramps(*size) for size in sizes]
    pixels, masks = augmenter(POLICIES[name], fit=fit, interpolation=kernel)(images, np.arange(5), 3, "cpu")
    assert pixels.shape == (5, 3, 64, 80) and masks.shape == (5, 64, 80) and masks.dtype == torch.uint8
    padded = masks == IGNORE
    assert (pixels.abs().amax(1)[padded] == 0).all()  # the mean colour
    assert padded.any() == (name in ("jitter", "small") or (fit == "pad" and name != "resized"))
    column, row, blue = levels(pixels).unbind(1)
    assert (blue[~padded] - 90).abs().max() < 0.6
    # A ramp is resampled exactly: colour + ½ is where the pixel lies in the picture.
    row, column = row + 0.5, column + 0.5
    wanted = (row / 16).floor() % 2 * 2 + (column / 16).floor() % 2
    # Where two classes meet, half a pixel may go either way; kernels also lean inwards at the picture's edge.
    edge = 1.0
    sure = ~padded
    for place, limit in ((row, 0), (column, 1)):
        far = (place % 16 > edge) & (place % 16 < 16 - edge)
        ends = torch.tensor([size[limit] for size in sizes]).view(-1, 1, 1)
        sure &= far & (place > 3) & (place < ends - 3)
    assert sure.float().mean() > 0.1
    assert (masks[sure] == wanted[sure]).all()


def test_a_resized_crop_is_torchvisions_of_typed_tensors():
    images = [ramps(90, 120), ramps(150, 70)]
    maker = augmenter(JointPolicy(scale=(0.3, 0.8), flip=0.0))
    boxes = maker.boxes(image_sizes(images), uniforms(0, 0, np.arange(2), 64)).astype(int)
    pixels, masks = maker(images, np.arange(2), 0, "cpu")
    for given, (top, left, height, width), ours, mask_ in zip(images, boxes, levels(pixels), masks, strict=True):
        box = (top, left, height, width)
        theirs = functional.resized_crop(tv_tensors.Image(given[:3]), *box, size=[64, 80], antialias=True)
        assert (ours - theirs.float()).abs().max() <= 1
        # Its masks it takes half a pixel off ("nearest"); "nearest-exact" lies where the colours do.
        crop = given[None, 3:, top : top + height, left : left + width]
        assert torch.equal(mask_, torch.nn.functional.interpolate(crop, (64, 80), mode="nearest-exact")[0, 0])
        theirs = functional.resized_crop(tv_tensors.Mask(given[3:]), *box, size=[64, 80])
        assert (mask_ == theirs[0]).float().mean() > 0.9


def test_what_happens_to_a_pair_depends_on_seed_epoch_and_sample_alone():
    images = [ramps(96, 128), ramps(128, 96), ramps(70, 70)]
    maker = augmenter(JointPolicy(jitter=(0.5, 2.0), colour=0.4))
    pixels, masks = maker(images, np.array([5, 6, 7]), 1, "cpu")
    one, mask_ = maker(images[1:2], np.array([6]), 1, "cpu")
    assert torch.equal(one[0], pixels[1]) and torch.equal(mask_[0], masks[1])
    assert not torch.equal(maker(images, np.array([5, 6, 7]), 2, "cpu")[1], masks)
    sizes = image_sizes(images)
    canvas = torch.full((3, 4, 128, 128), 7, dtype=torch.uint8)
    for place, image in zip(canvas, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    again, masks_again = maker(Canvas(canvas, sizes), np.array([5, 6, 7]), 1, "cpu")
    assert torch.allclose(again, pixels, atol=1e-5) and torch.equal(masks_again, masks)


def test_colour_changes_the_picture_and_never_the_mask():
    images = [ramps(64, 80)] * 8
    plain, masks = augmenter(JointPolicy(flip=0.0))(images, np.arange(8), 0, "cpu")
    coloured, same = augmenter(JointPolicy(flip=0.0, colour=0.5))(images, np.arange(8), 0, "cpu")
    assert torch.equal(masks, same) and torch.equal(masks[0], images[0][3])
    assert (coloured - plain).abs().mean() > 0.1


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_pairs_are_read_shrunk_and_fitted_like_pictures(tmp_path, fit):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    made = ramps(120, 200)
    Image.fromarray(made[:3].permute(1, 2, 0).numpy()).save(tmp_path / "images" / "a.png")
    Image.fromarray(made[3].numpy()).save(tmp_path / "masks" / "a.png")
    source = open_masks(tmp_path)
    pre = Preprocessing(size=(48, 64), mean=MEAN, std=STD, fit=fit, interpolation="bilinear")
    shrunk = shrunk_pairs(source.splits["all"], pre, "off")[0]
    assert shrunk.shape == (4, 54, 90)
    fitted = fitted_pairs(source.splits["all"], pre, "off")[0]
    assert fitted.shape == (4, 48, 64)
    assert (fitted[3] == IGNORE).any() == (fit == "pad")
    # through the normalisation of a batch and back
    wide = paired(pre)
    batch = (fitted[None].float() / 255 - torch.tensor(wide.mean).view(-1, 1, 1)) / torch.tensor(wide.std).view(
        -1, 1, 1
    )
    pictures, masks = apart(batch)
    assert pictures.shape == (1, 3, 48, 64) and torch.equal(masks[0], fitted[3])
    # and back to the picture's own size
    logits = torch.nn.functional.one_hot(fitted[3].long() % 4, 4).permute(2, 0, 1)[None].float()
    inside = fitted_part(logits, (120, 200), pre)
    back = torch.nn.functional.interpolate(inside, (120, 200), mode="bilinear").argmax(1)[0]
    assert (back == made[3]).float().mean() > 0.85
    assert fit_mask(made[3].numpy(), pre).shape == (48, 64)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: JointPolicy(scale=(0.5, 1), jitter=(1, 2)), "leave one out"),
        (lambda: JointPolicy(jitter=(2, 1)), "jitter"),
        (lambda: JointPolicy.named("lite"), 'Did you mean "light"'),
        (lambda: augmenter(JointPolicy(), fit="crop"), "loses the borders"),
        (lambda: augmenter(JointPolicy())([ramps(8, 8)[:3]], np.arange(1), 0, "cpu"), "3 channels"),
    ],
)
def test_policies_that_mean_nothing_are_refused(make, words):
    with pytest.raises(VitrailError, match=words):
        make()


@pytest.mark.data
def test_the_trimaps_of_the_pets_are_three_classes_of_whole_pairs(real_data):
    source = open_masks(real_data / "pets", classes=["pet", "background", "border"])
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 1110, "test": 555}
    assert source.left_out == {} and source.pixels["train"].sum() == 1110 * 256 * 256
    share = source.pixels["train"] / source.pixels["train"].sum()
    assert share.round(2).tolist() == [0.29, 0.59, 0.11]
