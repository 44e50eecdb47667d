"""Crops are torchvision's to the level, on both paths; and a sample looks the same in any company."""

import math
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from vitrail.data.augment.crop import (
    Canvas,
    by_matrices,
    cover_and_centre,
    crop_boxes,
    cut_mirrored,
    erase_boxes,
    image_sizes,
    resized_crop,
)
from vitrail.data.augment.images import Augmenter, Policy
from vitrail.data.augment.random_keys import uniforms
from vitrail.data.preprocess import fit_image, to_tensor
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CPU = torch.device("cpu")
SIZES = [(64, 64), (48, 80), (150, 100)]  # smaller and larger than most crops, and not square


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> Tensor:
    """uint8 [C, h, w] in the memory order of a decoded file: smooth on the left, noise on the right."""
    generator = np.random.default_rng((seed, height, width))
    rows, columns = np.mgrid[:height, :width][..., None] * generator.uniform(0.02, 0.3, (2, 1, 1, channels))
    pixels = 127.5 + 127.5 * np.sin(rows + columns)
    noise = generator.uniform(0, 255, pixels.shape)
    pixels[:, width // 2 :] = noise[:, width // 2 :]
    return torch.from_numpy(pixels.astype(np.uint8)).permute(2, 0, 1)


def pictures(count: int, channels: int = 3) -> list[Tensor]:
    shapes = np.random.default_rng(count).integers(20, 180, (count, 2))
    return [picture(int(height), int(width), channels, seed) for seed, (height, width) in enumerate(shapes)]


def on_canvas(images: list[Tensor]) -> Canvas:
    """With rubbish beside the pictures, which nobody may see."""
    sizes = image_sizes(images)
    pixels = torch.randint(0, 256, (len(images), images[0].shape[0], *sizes.max(0).tolist()), dtype=torch.uint8)
    for place, image in zip(pixels, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return Canvas(pixels, sizes)


def augmenter(policy: Policy | str, size: tuple[int, int] = (32, 48), **settings) -> Augmenter:
    policy = Policy.named(policy) if isinstance(policy, str) else policy
    return Augmenter(policy, size, MEAN, STD, seed=0, **settings)


def levels(batch: Tensor) -> Tensor:
    """Back from normalised to 0–255."""
    return (batch * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


def furthest(ours: Tensor, theirs: Tensor) -> int:
    return int((ours.int() - theirs.int()).abs().max())


# Crops


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [3, 1])
def test_resized_crop_is_torchvisions_on_both_paths(size: tuple[int, int], interpolation: str, channels: int) -> None:
    images = pictures(24, channels)
    boxes = crop_boxes(image_sizes(images), uniforms(0, 0, np.arange(24), 22), (0.08, 1.0), (0.5, 2.0))
    flip = np.arange(24) % 2 == 1
    theirs = torch.stack(
        [
            functional.resized_crop(
                image, *box, size=list(size), interpolation=v2.InterpolationMode(interpolation), antialias=True
            )
            for image, box in zip(images, boxes.tolist(), strict=True)
        ]
    )
    theirs[flip] = theirs[flip].flip(-1)
    whole = np.tile([*size, 0, 0], (24, 1))

    assert furthest(resized_crop(images, boxes, size, flip, interpolation, "cpu"), theirs) == 0
    assert furthest(resized_crop(on_canvas(images), boxes, size, flip, interpolation, "cpu"), theirs) == 0
    # What a GPU does, done here: the same to the level but for what float32 rounds.
    for given in (images, on_canvas(images)):
        assert furthest(by_matrices(given, boxes, size, flip, interpolation, whole, CPU), theirs) <= 1


def test_matrices_are_not_upset_by_a_batch_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(9)
    boxes = crop_boxes(image_sizes(images), uniforms(0, 0, np.arange(9), 22), (0.08, 1.0), (0.5, 2.0))
    flip, whole = np.zeros(9, bool), np.tile([32, 32, 0, 0], (9, 1))
    at_once = by_matrices(images, boxes, (32, 32), flip, "bilinear", whole, CPU)
    monkeypatch.setattr("vitrail.data.augment.crop._PIXELS_AT_ONCE", 60_000)
    for given in (images, on_canvas(images)):
        assert torch.equal(by_matrices(given, boxes, (32, 32), flip, "bilinear", whole, CPU), at_once)


def test_matrices_keep_their_precision_under_autocast() -> None:
    images, flip, whole = [picture(60, 60)], np.zeros(1, bool), np.array([[32, 32, 0, 0]])
    boxes = np.array([[5, 5, 50, 40]])
    plain = by_matrices(images, boxes, (32, 32), flip, "bilinear", whole, CPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(by_matrices(images, boxes, (32, 32), flip, "bilinear", whole, CPU), plain)


class Casts(TorchDispatchMode):
    """Counts conversions between kinds of numbers."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_pictures_made_by_a_thread_leave_the_cache_of_autocast_alone() -> None:
    """It is one for all threads, and was cleared by whoever left an autocast, even of nothing. Beside a thread that
    traces a model under autocast, as torch.compile does, the two could wait for each other for ever."""
    images, flip, whole = [picture(60, 60)], np.zeros(1, bool), np.array([[32, 32, 0, 0]])

    def made() -> None:
        by_matrices(images, np.array([[5, 5, 50, 40]]), (32, 32), flip, "bilinear", whole, CPU)

    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16), Casts() as casts:
        linear, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
        linear(x)
        first = casts.count  # of the input, the weight and the bias
        thread = threading.Thread(target=made)
        thread.start()
        thread.join()
        linear(x)
    assert first == 3 and casts.count == first + 1  # of the input alone


def test_crop_boxes_are_torchvisions_draw_for_draw() -> None:
    """RandomResizedCrop's loop written out, with our numbers in place of its own."""
    scale, ratio = (0.3, 1.0), (3 / 4, 4 / 3)
    sizes = np.random.default_rng(0).integers(8, 300, (300, 2))
    sizes[:3] = (10, 300), (300, 10), (1, 1)  # nothing fits the first two: the centre
    drawn = uniforms(0, 0, np.arange(300), 22)
    for (height, width), numbers, box in zip(
        sizes.tolist(), drawn, crop_boxes(sizes, drawn, scale, ratio), strict=True
    ):
        for area, aspect in zip(numbers[:10], numbers[10:20], strict=True):
            target = height * width * (scale[0] + area * (scale[1] - scale[0]))
            aspect = math.exp(math.log(ratio[0]) + aspect * (math.log(ratio[1]) - math.log(ratio[0])))
            box_width, box_height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < box_width <= width and 0 < box_height <= height:
                top, left = int(numbers[20] * (height - box_height + 1)), int(numbers[21] * (width - box_width + 1))
                break
        else:
            box_width, box_height = width, height
            if width / height < ratio[0]:
                box_height = round(width / ratio[0])
            elif width / height > ratio[1]:
                box_width = round(height * ratio[1])
            top, left = (height - box_height) // 2, (width - box_width) // 2
        assert box.tolist() == [top, left, box_height, box_width]


def test_crops_have_torchvisions_distribution() -> None:
    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(224, scale=(0.08, 1.0))
    image = torch.zeros(3, 256, 340, dtype=torch.uint8)
    theirs = np.array([list(transform.make_params([image]).values()) for _ in range(3000)])
    ours = crop_boxes(np.tile([256, 340], (3000, 1)), uniforms(0, 0, np.arange(3000), 22), (0.08, 1.0), (3 / 4, 4 / 3))
    # Standard errors of the means are about 1.2 pixels.
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=5)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), atol=4)


# The deterministic fit


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_no_augmentation_is_resize_and_centre_crop(interpolation: str, as_on_a_gpu: bool) -> None:
    images = pictures(20)
    transform = v2.Compose([v2.Resize(56, v2.InterpolationMode(interpolation), antialias=True), v2.CenterCrop(56)])
    theirs = torch.stack([transform(image) for image in images])
    if as_on_a_gpu:
        sizes = image_sizes(images)
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        cover = cover_and_centre(sizes, (56, 56))
        ours = by_matrices(images, whole, (56, 56), np.zeros(20, bool), interpolation, cover, CPU)
        assert furthest(ours, theirs) <= 1
        return
    prepare = augmenter("none", (56, 56), interpolation=interpolation)
    ours = prepare(images, np.arange(20), 0, "cpu")
    assert (levels(ours) - theirs).abs().max() < 0.001
    assert torch.equal(ours, prepare(images, np.arange(20)[::-1].copy(), 7, "cpu")), "neither sample nor epoch matters"


@pytest.mark.parametrize("size", [(32, 32), (32, 48), (49, 31)])
@pytest.mark.parametrize("crop", [0.875, 1.0])
def test_no_augmentation_is_what_evaluation_sees(size: tuple[int, int], crop: float) -> None:
    pre = Preprocessing(size=size, mean=MEAN, std=STD, crop=crop, interpolation="bicubic", fit="crop")
    shapes = [(75, 100), (101, 67), (63, 64), (50, 50), (17, 20), (40, 400), (33, 32)]
    images = [picture(*shape) for shape in shapes]
    ours = augmenter("none", size, interpolation="bicubic", crop=crop)(images, np.arange(len(images)), 0, "cpu")
    for image, row in zip(images, ours, strict=True):
        expected = to_tensor(fit_image(Image.fromarray(image.permute(1, 2, 0).numpy()), pre), pre)
        difference = (levels(row) - levels(expected)).abs()
        # Pillow's weights have more bits: in noise, one pixel in a thousand is two levels off.
        assert difference.max() < 2.01 and (difference > 0.5).float().mean() < 0.03


def test_a_panorama_is_fitted_without_resizing_all_of_it() -> None:
    image = picture(4, 20_000)  # would be 64 × 320,000
    resized = functional.resize(image[:, :, 9_000:11_000], [64, 32_000], antialias=True)
    expected = resized[:, :, 16_000 - 32 : 16_000 + 32]
    ours = augmenter("none", (64, 64))([image], np.arange(1), 0, "cpu")[0]
    assert (levels(ours) - expected).abs().max() < 1.01


# The augmenter


ALL = Policy(scale=(0.08, 1.0), randaugment=(2, 9), colour=0.4, erasing=0.5)
MOVED = Policy(scale=(1.0, 1.0), ratio=(1.0, 1.0), border=1 / 8)


@pytest.mark.parametrize("policy", ["none", "light", "medium", "strong", ALL])
def test_a_sample_looks_the_same_in_any_batch_at_any_place(policy: Policy | str) -> None:
    images = pictures(40)
    augment = augmenter(policy)
    together = augment(images, np.arange(40), 3, "cpu")
    order = np.random.default_rng(0).permutation(40)[:23]
    assert torch.equal(augment([images[i] for i in order], order, 3, "cpu"), together[order])
    for index in (0, 17, 39):
        assert torch.equal(augment([images[index]], np.array([index]), 3, "cpu")[0], together[index])
    assert torch.equal(augment(on_canvas(images), np.arange(40), 3, "cpu"), together)
    assert together.shape == (40, 3, 32, 48) and together.dtype == torch.float32 and together.is_contiguous()
    if policy != "none":
        for other in (augment(images, np.arange(40), 4, "cpu"), augment(images, np.arange(40) + 40, 3, "cpu")):
            assert (other != together).flatten(1).any(1).float().mean() > 0.8, "another epoch or sample, another look"


def test_switching_one_thing_on_leaves_what_the_others_draw_alone() -> None:
    images, samples = pictures(30), np.arange(30)
    plain = augmenter(Policy(scale=(0.3, 1.0)))(images, samples, 0, "cpu")
    erased = augmenter(Policy(scale=(0.3, 1.0), erasing=0.5))(images, samples, 0, "cpu")
    assert torch.equal(torch.where(erased == 0, plain, erased), plain)
    still = augmenter(Policy(scale=(0.3, 1.0), randaugment=(2, 0)))(images, samples, 0, "cpu")
    same = ((still - plain).abs() < 1e-5).flatten(1).all(1).float().mean()
    # At magnitude 0 only AutoContrast, Equalize and (on pure white) Solarize do something; Posterize keeps 8 bits.
    assert 0.4 < same <= 1


def test_normalisation_is_that_of_to_tensor() -> None:
    image = picture(64, 64)
    pre = Preprocessing(size=(64, 64), mean=MEAN, std=STD, crop=1.0, interpolation="bilinear", fit="crop")
    expected = to_tensor(Image.fromarray(image.permute(1, 2, 0).numpy()), pre)
    torch.testing.assert_close(augmenter("none", (64, 64))([image], np.arange(1), 0, "cpu")[0], expected)
    unmoved = Policy(scale=None, flip=0.0, colour=1e-9)  # the path of those that change colours
    torch.testing.assert_close(
        augmenter(unmoved, (64, 64))([image], np.arange(1), 0, "cpu")[0], expected, rtol=0, atol=1e-5
    )


def test_half_are_flipped_and_the_flip_is_exact() -> None:
    images = [picture(40, 50)] * 200
    samples = np.arange(200)
    always, never, half = (
        augmenter(Policy(scale=None, flip=flip))(images, samples, 0, "cpu") for flip in (1.0, 0.0, 0.5)
    )
    assert torch.equal(always.flip(-1), never)
    flipped = torch.tensor([torch.equal(a, b) for a, b in zip(half, always, strict=True)])
    assert torch.equal(half[~flipped], never[~flipped])
    assert 75 <= int(flipped.sum()) <= 125


def test_colour_jitter_is_torchvisions_in_the_order_brightness_contrast_saturation() -> None:
    images, samples = pictures(12), np.arange(12)
    plain = levels(augmenter(Policy(scale=None, flip=0.0))(images, samples, 5, "cpu")) / 255
    ours = levels(augmenter(Policy(scale=None, flip=0.0, colour=0.4))(images, samples, 5, "cpu")) / 255
    factors = 0.6 + 0.8 * uniforms(0, 5, samples, 26)[:, 23:26]  # their columns never change
    for image, (bright, contrast, saturation), row in zip(plain, factors.tolist(), ours, strict=True):
        expected = functional.adjust_contrast(functional.adjust_brightness(image, bright), contrast)
        expected = functional.adjust_saturation(expected, saturation)
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)


def test_erasing_has_torchvisions_boxes_and_share() -> None:
    drawn = uniforms(0, 0, np.arange(3000), 22)
    boxes = erase_boxes((64, 96), drawn)
    torch.manual_seed(0)
    transform = v2.RandomErasing()
    image = torch.zeros(3, 64, 96)
    params = [transform.make_params([image]) for _ in range(3000)]
    theirs = np.array([[each["i"], each["j"], each["h"], each["w"]] for each in params])
    np.testing.assert_allclose(boxes.mean(0), theirs.mean(0), atol=2)
    np.testing.assert_allclose(boxes.std(0), theirs.std(0), atol=1.5)
    assert ((boxes[:, :2] >= 0) & (boxes[:, :2] + boxes[:, 2:] <= (64, 96))).all()

    images, samples = pictures(100), np.arange(100)
    batch = augmenter(Policy(scale=None, erasing=0.25))(images, samples, 0, "cpu")
    erased = (batch == 0).all(1)  # [B, H, W]: zero in all channels, the mean colour
    assert 12 <= int(erased.flatten(1).any(1).sum()) <= 40
    assert 0.01 < erased.float().mean() < 0.12


def test_what_is_given_is_only_read_and_out_is_written() -> None:
    pixels = np.full((50, 60, 3), 7, np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    pixels.flags.writeable = False
    out = torch.full((1, 3, 32, 48), torch.nan)
    batch = augmenter(ALL)([image], np.arange(1), 0, "cpu", out=out)
    assert batch.data_ptr() == out.data_ptr() and torch.isfinite(out).all()
    assert (pixels == 7).all()


def test_beyond_the_image_a_box_shows_its_reflection() -> None:
    images = [*pictures(5), picture(1, 9), picture(9, 1)]
    extra = np.rint(image_sizes(images) / 8).astype(int)
    boxes = crop_boxes(image_sizes(images), uniforms(1, 0, np.arange(7), 22), (0.5, 1.0), (0.5, 2.0), border=1 / 8)
    (made, whole), (canvas, same) = cut_mirrored(images, boxes, 1 / 8), cut_mirrored(on_canvas(images), boxes, 1 / 8)
    assert np.array_equal(whole, same) and not whole[:, :2].any()
    for index, (image, (top, left, height, width)) in enumerate(zip(images, boxes, strict=True)):
        around = [(0, 0), *((each, each) for each in extra[index])]
        expected = np.pad(image.numpy(), around, mode="reflect")[:, top : top + height, left : left + width]
        assert np.array_equal(made[index].numpy(), expected)
        assert np.array_equal(canvas.pixels[index, :, :height, :width].numpy(), expected)


@pytest.mark.parametrize("size", [(36, 64), (64, 36), (40, 40), (30, 200)])
def test_in_a_border_the_largest_square_of_an_image_moves_everywhere(size: tuple[int, int]) -> None:
    sizes, drawn = np.tile(size, (400, 1)), uniforms(1, 0, np.arange(400), 22)
    boxes, short = crop_boxes(sizes, drawn, (1.0, 1.0), (1.0, 1.0), border=1 / 8), min(size)
    assert (boxes[:, 2:] == short).all()
    for axis in (0, 1):
        room = size[axis] + 2 * round(size[axis] / 8) - short
        assert boxes[:, axis].min() == 0 and boxes[:, axis].max() >= 0.95 * room


def test_a_crop_of_the_whole_area_in_a_border_moves_the_image() -> None:
    """As torchvision's RandomCrop with reflected padding does, by whole pixels in every direction."""
    image, policy = picture(32, 32), Policy(scale=(1.0, 1.0), ratio=(1.0, 1.0), border=1 / 8, flip=0.0)
    made = levels(augmenter(policy, (32, 32))([image] * 200, np.arange(200), 0, "cpu"))
    padded = functional.pad(image, [4], padding_mode="reflect")
    moved = {padded[:, y : y + 32, x : x + 32].numpy().tobytes() for y in range(9) for x in range(9)}
    seen = {one.round().to(torch.uint8).numpy().tobytes() for one in made}
    assert seen <= moved and len(seen) > 60  # of 81


def test_from_the_calm_epoch_on_images_are_cropped_and_mirrored_alone() -> None:
    images, samples = [picture(40, 40)] * 6, np.arange(6)
    settling, crops = augmenter(ALL, calm_from=3), augmenter(Policy(scale=ALL.scale))
    assert not torch.equal(settling(images, samples, 2, "cpu"), crops(images, samples, 2, "cpu"))
    assert torch.equal(settling(images, samples, 3, "cpu"), crops(images, samples, 3, "cpu"))


@pytest.mark.parametrize("policy", ["none", "strong", ALL])
def test_grey_images(policy: Policy | str) -> None:
    policy = Policy.named(policy) if isinstance(policy, str) else policy
    augment = Augmenter(policy, (28, 28), [0.5], [0.25], seed=0)
    images = pictures(30, channels=1)
    batch = augment(images, np.arange(30), 0, "cpu")
    assert batch.shape == (30, 1, 28, 28)
    assert batch.min() >= -2 and batch.max() <= 2 and batch.std() > 0.3


def test_an_empty_batch_is_empty() -> None:
    assert augmenter("strong")([], np.arange(0), 0, "cpu").shape == (0, 3, 32, 48)


@pytest.mark.data
def test_a_real_photograph_survives_every_policy(real_data) -> None:
    """Its mean colour stays within reach, and a strong crop is still a part of it."""
    path = sorted((real_data / "pets" / "images").rglob("*.jpg"))[0]
    image = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)
    centre = image.float().mean((1, 2))
    for name in ("none", "light", "medium", "strong"):
        batch = levels(augmenter(name, (224, 224))([image] * 16, np.arange(16), 0, "cpu"))
        assert float(batch.min()) >= -1e-2 and float(batch.max()) <= 255.01
        assert (batch.mean((0, 2, 3)) - centre).abs().max() < 60


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("policy", ["none", "light", "strong", ALL, MOVED])
def test_a_gpu_gives_what_a_cpu_gives(policy: Policy | str) -> None:
    images, samples = pictures(60), np.arange(60)
    augment = augmenter(policy, interpolation="bicubic")
    expected = augment(images, samples, 0, "cpu")
    canvas = on_canvas(images)
    for given in (images, Canvas(canvas.pixels.cuda(), canvas.sizes)):
        with torch.autocast("cuda", torch.bfloat16):
            difference = (augment(given, samples, 0, "cuda").cpu() - expected).abs()
        if policy in ("none", "light"):
            assert difference.max() < 1.01 / (255 * min(STD))  # a level
        # Elsewhere a rounding may put a pixel on the other side of a step of Posterize, Solarize or Equalize.
        assert (difference > 1e-3).float().mean() < 0.01


# Mistakes


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: Policy.named("stong"), '"stong" is not an augmentation: .* Did you mean "strong"'),
        (lambda: Policy(scale=(0.5, 0.2)), "scale is"),
        (lambda: Policy(scale=(1, 1), border=4), "border is 4: expected a share"),
        (lambda: Policy(scale=(0.0, 1.0)), "scale is"),
        (lambda: Policy(scale=(0.5, 1.5)), "scale is"),
        (lambda: Policy(scale=None, ratio=(2.0, 1.0)), "ratio is"),
        (lambda: Policy(scale=None, flip=1.5), "flip is 1.5: expected a probability"),
        (lambda: Policy(scale=None, erasing=-0.1), "erasing is -0.1"),
        (lambda: Policy(scale=None, colour=-1), "colour is -1"),
        (lambda: Policy(scale=None, randaugment=(2, 31)), "magnitude of 0 to 30"),
        (lambda: augmenter("none", interpolation="bicubik"), 'Did you mean "bicubic"'),
        (lambda: augmenter("none")([picture(9, 9, 1)], np.arange(1), 0, "cpu"), "1 channels and the preprocessing 3"),
    ],
)
def test_mistakes_are_told_in_a_sentence(make, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        make()


def test_the_named_policies() -> None:
    assert Policy.named("none") == Policy(scale=None, flip=0.0)
    assert Policy.named("light") == Policy(scale=(0.35, 1.0))
    assert Policy.named("medium") == Policy(scale=(0.2, 1.0), randaugment=(2, 7), erasing=0.1)
    assert Policy.named("strong") == Policy(scale=(0.08, 1.0), randaugment=(2, 9), erasing=0.25)
