"""Pairs of images and masks: found, read and checked."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.masks import open_masks, pixels_of
from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.errors import VitrailError


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


@pytest.mark.data
def test_the_trimaps_of_the_pets_are_three_classes_of_whole_pairs(real_data):
    source = open_masks(real_data / "pets", classes=["pet", "background", "border"])
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 1110, "test": 555}
    assert source.left_out == {} and source.pixels["train"].sum() == 1110 * 256 * 256
    share = source.pixels["train"] / source.pixels["train"].sum()
    assert share.round(2).tolist() == [0.29, 0.59, 0.11]
