"""Each operation of a batch is torchvision's of each image, and each image has its own."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from vitrail.data.augment.randaugment import OPERATIONS, draw, randaugment, strengths
from vitrail.data.augment.random_keys import uniforms

FILL = [0.485, 0.456, 0.406]
SIZES = [(40, 40), (33, 56)]


def photographs(size: tuple[int, int], count: int = 5, channels: int = 3) -> Tensor:
    """Smooth colour with noise on top, in whole levels; one is flat, and one dark."""
    smooth = torch.nn.functional.interpolate(torch.rand(count, channels, 5, 5), size=size, mode="bicubic")
    images = (smooth + 0.1 * torch.randn(count, channels, *size)).clamp(0, 1)
    images[1:2] *= 0.3
    images[2:3] = 0.4
    return images.mul(255).round().div(255)


def by_torchvision(image: Tensor, operation: str, strength: float, fill: list[float]) -> Tensor:
    """torchvision's own dispatch, given the operation and its strength."""
    transform = v2.RandAugment(fill=fill)
    mode = v2.InterpolationMode.BILINEAR
    return transform._apply_image_or_video_transform(image, operation, strength, mode, transform._fill)


def batched(images: Tensor, operation: str, amounts: list[float], fill: list[float]) -> Tensor:
    kinds = np.full((len(images), 1), OPERATIONS.index(operation))
    return randaugment(images, kinds, np.array(amounts)[:, None], fill)


def test_the_operations_and_their_magnitudes_are_torchvisions() -> None:
    space = v2.RandAugment._AUGMENTATION_SPACE
    assert tuple(space) == OPERATIONS
    for size in SIZES + [(224, 224), (331, 331)]:
        for magnitude in range(31):
            ours = strengths(magnitude, size)
            for operation, strength in zip(OPERATIONS, ours, strict=True):
                table = space[operation][0](31, *size)
                theirs = 0.0 if table is None else float(table[magnitude])
                if operation.startswith("Translate"):
                    theirs = int(theirs)  # as where it is applied
                assert strength == theirs, (operation, magnitude)


def test_a_magnitude_between_two_bins_lies_between_their_strengths() -> None:
    low, high, between = (strengths(magnitude, (224, 224)) for magnitude in (9, 10, 9.5))
    rotate = OPERATIONS.index("Rotate")
    assert between[rotate] == pytest.approx((low[rotate] + high[rotate]) / 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_is_torchvisions_on_floating_point_images(
    operation: str, channels: int, size: tuple[int, int]
) -> None:
    images = photographs(size, channels=channels)
    fill = FILL[:channels]
    before = images.clone()
    # Each image at another magnitude and sign.
    amounts = [strengths(magnitude, size)[OPERATIONS.index(operation)] for magnitude in (3, 9, 15, 30, 20)]
    if OPERATIONS.index("ShearX") <= OPERATIONS.index(operation) <= OPERATIONS.index("Sharpness"):
        amounts = [amount * sign for amount, sign in zip(amounts, (1, -1, 1, -1, -1), strict=True)]
    ours = batched(images, operation, amounts, fill)
    theirs = torch.stack(
        [by_torchvision(image, operation, amount, fill) for image, amount in zip(images, amounts, strict=True)]
    )
    assert torch.equal(images, before)
    assert ours.min() >= 0 and ours.max() <= 1
    # Moving pixels goes through coordinates, whose rounding a steep edge enlarges.
    tolerance = 1e-4 if operation.startswith(("Shear", "Translate", "Rotate")) else 1e-6
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "Posterize"])
def test_on_whole_levels_it_is_torchvisions_uint8_too(operation: str) -> None:
    """To a level, for uint8 rounds down. Not Posterize, where torchvision's uint8 has other steps than its float."""
    images = photographs((40, 40))
    amount = strengths(9, (40, 40))[OPERATIONS.index(operation)]
    fill = [value * 255 for value in FILL]
    theirs = [by_torchvision(image.mul(255).round().byte(), operation, amount, fill) for image in images]
    ours = batched(images, operation, [amount] * len(images), FILL)
    assert (ours.mul(255).round() - torch.stack(theirs)).abs().max() <= 1


def test_a_shear_is_the_matrix_of_the_paper() -> None:
    """x ← x + m·y from the upper left corner, seen in a picture of one vertical line."""
    image = torch.zeros(1, 1, 64, 64)
    image[..., 32] = 1
    sheared = batched(image, "ShearX", [0.25], [0.0])
    for row in (0, 20, 60):
        # Pixel centres are at halves: what lands in column c was at c + ½ + m·(row + ½).
        assert float(sheared[0, 0, row].argmax()) == pytest.approx(32 - 0.25 * (row + 0.5), abs=0.51)


def test_a_mixed_batch_gives_each_image_what_it_gets_alone_to_the_bit() -> None:
    images = photographs((32, 48), count=64)
    operations, amounts = draw(uniforms(0, 0, np.arange(64), 6), 9, (32, 48))
    assert len(np.unique(operations)) == len(OPERATIONS)
    together = randaugment(images, operations, amounts, FILL)
    for index in range(64):
        one = slice(index, index + 1)
        assert torch.equal(together[one], randaugment(images[one], operations[one], amounts[one], FILL)), index
    backwards = randaugment(images.flip(0), operations[::-1], amounts[::-1], FILL)
    assert torch.equal(backwards.flip(0), together)


def test_rounds_are_applied_one_after_the_other() -> None:
    image = photographs((40, 40), count=1)
    kinds = [OPERATIONS.index(name) for name in ("Rotate", "Contrast", "Posterize")]
    amounts = [12.0, -0.4, 5.0]
    expected = image[0]
    for kind, amount in zip(kinds, amounts, strict=True):
        expected = by_torchvision(expected, OPERATIONS[kind], amount, FILL)
    ours = randaugment(image, np.array([kinds]), np.array([amounts]), FILL)[0]
    # A rounding may put a pixel on the other side of one of Posterize's steps.
    assert ((ours - expected).abs() > 1e-4).float().mean() < 0.002


def test_operations_are_drawn_evenly_with_signs_only_where_there_is_a_direction() -> None:
    operations, amounts = draw(uniforms(0, 0, np.arange(14_000), 4), 9, (224, 224))
    assert operations.shape == amounts.shape == (14_000, 2)
    counts = np.bincount(operations.ravel(), minlength=14)
    assert (np.abs(counts - 2000) < 200).all()  # standard deviation 43
    table = strengths(9, (224, 224))
    for index, name in enumerate(OPERATIONS):
        drawn = amounts[operations == index]
        np.testing.assert_allclose(np.abs(drawn), table[index])
        signed = name.startswith(("Shear", "Translate", "Rotate")) or name in ("Brightness", "Color", "Contrast")
        share = 0.5 if signed or name == "Sharpness" else 0.0
        assert (drawn < 0).mean() == pytest.approx(share, abs=0.05), name


def test_rotation_has_torchvisions_sense() -> None:
    image = photographs((40, 40), count=1)
    ours = batched(image, "Rotate", [25.0], FILL)[0]
    theirs = functional.rotate(image[0], 25.0, interpolation=v2.InterpolationMode.BILINEAR, fill=FILL)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert math.isclose(float(ours[0, 0, 0]), FILL[0], abs_tol=1e-6)
