"""Images with a map per pixel, such as a class mask or a depth: read, kept, and augmented together."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from tests.data.test_masks import picture
from vitrail.data.augment.crop import Canvas, image_sizes
from vitrail.data.augment.masks import JointAugmenter, JointPolicy
from vitrail.data.augment.random_keys import uniforms
from vitrail.data.image_set import WithMaps
from vitrail.data.loader import Loader
from vitrail.data.maps import MapKind, fit_map, fitted_part, fitted_with_maps, inside, resized_map, shrunk_with_maps
from vitrail.data.samples import Sample
from vitrail.data.sources.masks import open_masks
from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def ramps(height: int, width: int) -> torch.Tensor:
    """uint8 [3, h, w]: red is the column and green the row."""
    rows, columns = np.mgrid[:height, :width]
    return torch.from_numpy(np.stack([columns, rows, 0 * rows + 90]).astype(np.uint8))


def board(height: int, width: int) -> torch.Tensor:
    """uint8 [h, w]: a chess-board of 16 pixels, so that a pixel's colour in `ramps` says what its class must be."""
    rows, columns = np.mgrid[:height, :width]
    return torch.from_numpy((rows // 16 % 2 * 2 + columns // 16 % 2).astype(np.uint8))


def with_boards(*sizes: tuple[int, int]) -> WithMaps:
    return WithMaps([ramps(*size) for size in sizes], [board(*size) for size in sizes])


POLICIES = {
    "none": JointPolicy(flip=0.0),
    "flip": JointPolicy(flip=1.0),
    "resized": JointPolicy(scale=(0.2, 1.0)),
    "jitter": JointPolicy(jitter=(0.5, 2.0)),
    "small": JointPolicy(jitter=(0.3, 0.6)),
}


def augmenter(policy: JointPolicy, size=(64, 80), seed: int = 0, **more) -> JointAugmenter:
    return JointAugmenter(policy, size, MEAN, STD, seed, **more)


def one_channel() -> WithMaps:
    return WithMaps([ramps(8, 8)[:1]], [board(8, 8)])


def levels(batch: torch.Tensor) -> torch.Tensor:
    return (batch * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_a_mask_painted_from_the_colours_still_matches_them(name, fit, kernel):
    sizes = [(96, 128), (128, 96), (200, 40), (64, 80), (50, 250)]
    pairs = with_boards(*sizes)
    pixels, masks = augmenter(POLICIES[name], fit=fit, interpolation=kernel)(pairs, np.arange(5), 3, "cpu")
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
    pairs = with_boards((90, 120), (150, 70))
    images, boards = pairs
    maker = augmenter(JointPolicy(scale=(0.3, 0.8), flip=0.0))
    boxes = maker.boxes(image_sizes(images), uniforms(0, 0, np.arange(2), 64)).astype(int)
    pixels, masks = maker(pairs, np.arange(2), 0, "cpu")
    for image, given, box, ours, mask_ in zip(images, boards, boxes, levels(pixels), masks, strict=True):
        top, left, height, width = box
        theirs = functional.resized_crop(tv_tensors.Image(image), *box, size=[64, 80], antialias=True)
        assert (ours - theirs.float()).abs().max() <= 1
        # Its masks it takes half a pixel off ("nearest"); "nearest-exact" lies where the colours do.
        crop = given[None, None, top : top + height, left : left + width]
        assert torch.equal(mask_, torch.nn.functional.interpolate(crop, (64, 80), mode="nearest-exact")[0, 0])
        theirs = functional.resized_crop(tv_tensors.Mask(given[None]), *box, size=[64, 80])
        assert (mask_ == theirs[0]).float().mean() > 0.9


def test_what_happens_to_a_pair_depends_on_seed_epoch_and_sample_alone():
    pairs = with_boards((96, 128), (128, 96), (70, 70))
    maker = augmenter(JointPolicy(jitter=(0.5, 2.0), colour=0.4))
    pixels, masks = maker(pairs, np.array([5, 6, 7]), 1, "cpu")
    one, mask_ = maker(with_boards((128, 96)), np.array([6]), 1, "cpu")
    assert torch.equal(one[0], pixels[1]) and torch.equal(mask_[0], masks[1])
    assert not torch.equal(maker(pairs, np.array([5, 6, 7]), 2, "cpu")[1], masks)
    sizes = image_sizes(pairs.images)
    canvas, maps = (torch.full(shape, 7, dtype=torch.uint8) for shape in ((3, 3, 128, 128), (3, 128, 128)))
    for place, room, image, values in zip(canvas, maps, *pairs, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
        room[: image.shape[1], : image.shape[2]] = values
    again, masks_again = maker(WithMaps(Canvas(canvas, sizes), maps), np.array([5, 6, 7]), 1, "cpu")
    assert torch.allclose(again, pixels, atol=1e-5) and torch.equal(masks_again, masks)


def test_colour_changes_the_image_and_never_the_mask():
    pairs = with_boards(*[(64, 80)] * 8)
    plain, masks = augmenter(JointPolicy(flip=0.0))(pairs, np.arange(8), 0, "cpu")
    coloured, same = augmenter(JointPolicy(flip=0.0, colour=0.5))(pairs, np.arange(8), 0, "cpu")
    assert torch.equal(masks, same) and torch.equal(masks[0], pairs.maps[0])
    assert (coloured - plain).abs().mean() > 0.1


@pytest.mark.parametrize(
    ("dtype", "value", "fill"), [(torch.int32, 70_001, -1.0), (torch.float32, 1.2345678, float("nan"))]
)
def test_a_map_keeps_its_own_type_and_values_and_is_filled_outside_of_the_image(dtype, value, fill):
    """Depth, or more classes than a byte holds: nothing is rounded to 256 levels, and nothing is mixed."""
    values = torch.full((40, 60), value, dtype=dtype)
    values[:20] = 3
    pixels, maps = augmenter(JointPolicy(jitter=(0.3, 0.6)), fill=fill)(
        WithMaps([ramps(40, 60)], [values]), np.array([2]), 0, "cpu"
    )
    outside = maps.isnan() if fill != fill else maps == fill
    assert maps.dtype == dtype and {*maps[~outside].tolist()} == {*values.unique().tolist()}
    assert 0 < outside.sum() < outside.numel() and (pixels.abs().amax(1)[outside] == 0).all()


def mask_pixels(sample):
    return sample.mask_pixels()


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_images_and_masks_are_shrunk_and_fitted_together(tmp_path, fit):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    made = board(120, 200)
    Image.fromarray(ramps(120, 200).permute(1, 2, 0).numpy()).save(tmp_path / "images" / "a.png")
    Image.fromarray(made.numpy()).save(tmp_path / "masks" / "a.png")
    source, kind = open_masks(tmp_path), MapKind("masks", mask_pixels)
    pre = Preprocessing(size=(48, 64), mean=MEAN, std=STD, fit=fit, interpolation="bilinear")
    image, mask_ = shrunk_with_maps(source.splits["all"], pre, kind, "off").pair(0)
    assert image.shape == (3, 54, 90) and mask_.shape == (54, 90)
    assert np.array_equal(mask_.numpy(), resized_map(made.numpy(), (54, 90)))
    image, mask_ = fitted_with_maps(source.splits["all"], pre, kind, "off").pair(0)
    assert image.shape == (3, 48, 64) and mask_.shape == (48, 64) and mask_.dtype == torch.uint8
    assert np.array_equal(mask_.numpy(), fit_map(made.numpy(), pre))
    # What is filled is what lies outside of the image, and nothing else.
    outside = torch.ones(48, 64, dtype=torch.bool)
    outside[inside((120, 200), pre)] = False
    assert torch.equal(mask_ == IGNORE, outside) and outside.any() == (fit == "pad")
    # And back to the image's own size.
    logits = torch.nn.functional.one_hot(mask_.long() % 4, 4).permute(2, 0, 1)[None].float()
    part = fitted_part(logits, (120, 200), pre)
    back = torch.nn.functional.interpolate(part, (120, 200), mode="bilinear").argmax(1)[0]
    assert (back == made).float().mean() > 0.85


@pytest.mark.parametrize("cache", ["off", "memory", "disk"])
def test_maps_of_any_type_come_back_from_a_store_and_from_the_loader_as_they_were(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    chance = np.random.default_rng(0)
    depth = chance.random((3, 20, 30), dtype=np.float32)
    samples = [Sample(f"{n}.png", picture(tmp_path / f"{n}.png"), (n,)) for n in range(3)]
    pre = Preprocessing(size=(16, 24), fit="stretch")
    read: list[int] = []

    def of(sample: Sample) -> np.ndarray:
        read.append(sample.labels[0])
        return depth[sample.labels[0]]

    def opened():
        return shrunk_with_maps(samples, pre, MapKind("depth", of, np.float32, float("nan")), cache)

    images = opened()
    images.read(range(3), workers=1)
    assert read == [0, 1, 2]
    for again in (images, opened() if cache == "disk" else images):
        ((numbers, batch),) = Loader(again, torch.device("cpu"), 0).batches([np.array([2, 0])])
        assert isinstance(batch, WithMaps) and numbers.tolist() == [2, 0]
        for number, image, values in zip(numbers, *batch, strict=True):
            assert values.dtype == torch.float32 and np.array_equal(values.numpy(), depth[number])
            assert torch.equal(image, images[number]) and image.shape[1:] == values.shape
    assert len(read) == (11 if cache == "off" else 3)


def test_a_mask_that_cannot_be_read_leaves_its_image_out(tmp_path):
    samples = [Sample(f"{n}.png", picture(tmp_path / f"{n}.png"), (n,)) for n in range(3)]

    def of(sample: Sample) -> np.ndarray:
        if sample.labels == (1,):
            raise VitrailError("a damaged mask")
        return np.full((20, 30), sample.labels[0], np.uint8)

    images = shrunk_with_maps(samples, Preprocessing(size=(16, 24)), MapKind("masks", of), "memory")
    numbers, batch = images.batch(np.array([0, 1, 2]))
    assert numbers.tolist() == [0, 2, 2] and [int(values[0, 0]) for values in batch.maps] == [0, 2, 2]
    assert images.bad == {1: "a damaged mask"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: JointPolicy(scale=(0.5, 1), jitter=(1, 2)), "leave one out"),
        (lambda: JointPolicy(jitter=(2, 1)), "jitter"),
        (lambda: JointPolicy.named("lite"), 'Did you mean "light"'),
        (lambda: augmenter(JointPolicy(), fit="crop"), "loses the borders"),
        (lambda: augmenter(JointPolicy())(one_channel(), np.arange(1), 0, "cpu"), "1 channels"),
    ],
)
def test_policies_that_mean_nothing_are_refused(make, words):
    with pytest.raises(VitrailError, match=words):
        make()
