"""RandAugment (Cubuk et al., 2020) on a batch where each image has its own operations and strengths.

The operations, their 31 magnitudes and their arithmetic are those of torchvision's v2 on floating-point images; there
one call treats one image. Here the images of a batch that drew the same operation go through it together, their
strengths a vector, and all that move pixels about share one `grid_sample`.

Nothing here fuses a multiplication with an addition or leaves a long sum to the library, for these round differently
with an image's place in the batch: on a CPU an image comes out the same to the bit in any company.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

OPERATIONS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"),
    *("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
LARGEST_MAGNITUDE = 30

_IDENTITY = OPERATIONS.index("Identity")
_GEOMETRIC = range(OPERATIONS.index("ShearX"), OPERATIONS.index("Rotate") + 1)
_WITH_SIGN = range(OPERATIONS.index("ShearX"), OPERATIONS.index("Sharpness") + 1)


def draw(uniforms: np.ndarray, magnitude: float, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Operations (an index of OPERATIONS) and strengths, each [B, rounds], from uniform numbers [B, 2 · rounds]."""
    operations = (uniforms[:, 0::2] * len(OPERATIONS)).astype(np.int64)
    negative = (uniforms[:, 1::2] < 0.5) & np.isin(operations, _WITH_SIGN)
    return operations, strengths(magnitude, size)[operations] * np.where(negative, -1, 1)


@lru_cache(maxsize=16)
def strengths(magnitude: float, size: tuple[int, int]) -> np.ndarray:
    """float64 [len(OPERATIONS)]: what a magnitude of 0 to 30 means to each operation.

    A slope, pixels, degrees, the change of a factor, bits, a threshold; 0 where there is nothing to choose. A magnitude
    between two whole ones lies between their strengths.
    """
    height, width = size
    steps = LARGEST_MAGNITUDE + 1
    tables = {
        **dict.fromkeys(("ShearX", "ShearY"), torch.linspace(0, 0.3, steps)),
        "TranslateX": torch.linspace(0, 150 / 331 * width, steps),
        "TranslateY": torch.linspace(0, 150 / 331 * height, steps),
        "Rotate": torch.linspace(0, 30, steps),
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), torch.linspace(0, 0.9, steps)),
        "Posterize": (8 - torch.arange(steps) / ((steps - 1) / 4)).round(),
        "Solarize": torch.linspace(1, 0, steps),
    }
    found = {name: float(np.interp(magnitude, np.arange(steps), table.numpy())) for name, table in tables.items()}
    found |= {name: np.trunc(found[name]) for name in ("TranslateX", "TranslateY")}  # whole pixels, whole bits
    found["Posterize"] = round(found["Posterize"])
    return np.array([found.get(name, 0.0) for name in OPERATIONS])


def randaugment(
    images: Tensor, operations: np.ndarray, strengths: np.ndarray, fill: Sequence[float] | np.ndarray
) -> Tensor:
    """[B, C, H, W] in 0 to 1, round after round; `fill` is the colour (one value a channel) of what moves into view.

    Give the mean colour, which normalisation takes to zero, as `fit_image` pads and erasing erases: no edge that a
    model could see is brighter than need be. torchvision's default is black.
    """
    images = images.clone()
    for kinds, amounts in zip(operations.T, strengths.T, strict=True):
        images = _one_round(images, kinds, amounts, fill)
    return images


def _one_round(images: Tensor, kinds: np.ndarray, amounts: np.ndarray, fill: Sequence[float] | np.ndarray) -> Tensor:
    """Changes `images`, or returns others."""
    groups = np.where(np.isin(kinds, _GEOMETRIC), _GEOMETRIC[0], kinds)  # all that move pixels go together
    for group in np.unique(groups[groups != _IDENTITY]):
        where = np.flatnonzero(groups == group)
        everyone = len(where) == len(images)  # then there is no need to pick them out and put them back
        index = to_device(where, images.device)
        part = images if everyone else images[index]
        if group in _GEOMETRIC:
            part = _move(part, _matrices(kinds[where], amounts[where], part.shape[-2:]), fill)
        else:
            part = _POINTWISE[OPERATIONS[group]](part, column(amounts[where], part))
        images = part if everyone else images.index_copy_(0, index, part)
    return images


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Without making the host wait for a GPU's queue, as a plain copy would."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def column(values: np.ndarray, images: Tensor) -> Tensor:
    """One number an image, [B, 1, 1, 1]."""
    return to_device(np.asarray(values, np.float32), images.device).view(-1, 1, 1, 1)


# Pixels that change their value. `factor`: 0 gives the other extreme, 1 the image.


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Between black and the image, or beyond it."""
    return images.mul(factor).clamp_(0, 1)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Between grey and the image; a grey image has none to change."""
    return images if images.shape[1] == 1 else _between(_grey(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Between the image's mean grey and the image."""
    grey = _grey(images)
    rows = grey.sum(-1)  # in two steps: threads may split one long sum, and then its bits depend on their number
    return _between(rows.sum(-1, keepdim=True).unsqueeze(-1) / (grey.shape[-2] * grey.shape[-1]), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Between a blur and the image. The blur weighs a pixel 5 and its eight neighbours 1; the border has none."""
    if min(images.shape[-2:]) <= 2:
        return images
    inner = images[..., 1:-1, 1:-1]
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    blur = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    blur = blur.add_(inner.mul(4)).div_(13)
    sharpened = images.clone()
    sharpened[..., 1:-1, 1:-1] = blur.add_(inner.sub(blur).mul_(factor))
    return sharpened.clamp_(0, 1)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """2^bits levels."""
    levels = torch.exp2(bits).round_()  # exact on every device
    return images.mul(levels).floor_().minimum(levels - 1).div_(levels)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """All from the threshold upwards inverted."""
    return images.clone().ge_(threshold).sub_(images).abs_()  # |1 − x| or |0 − x|, faster than a choice


def autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched so that its darkest pixel is 0 and its brightest 1."""
    low, high = images.amin((-2, -1), keepdim=True), images.amax((-2, -1), keepdim=True)
    flat = high == low
    return images.sub(low.masked_fill(flat, 0)).div_((high - low).masked_fill(flat, 1)).clamp_(0, 1)


def equalize(images: Tensor) -> Tensor:
    """Each channel's histogram flattened, in 256 levels, by Pillow's rule (torchvision's too)."""
    levels = images.mul(256 - 1e-3).to(torch.uint8).flatten(2).long()  # [B, C, H·W]
    one = torch.ones((), dtype=torch.int32, device=images.device)
    histogram = torch.zeros(*levels.shape[:2], 256, dtype=torch.int32, device=images.device)
    histogram.scatter_add_(-1, levels, one.expand_as(levels))
    up_to = histogram.cumsum(-1)
    # The brightest level present doesn't count, and of a channel too small or too plain (step 0) nothing changes.
    brightest = histogram.gather(-1, up_to.argmax(-1, keepdim=True))
    step = (levels.shape[-1] - brightest) // 255
    below = F.pad(up_to[..., :-1], (1, 0))
    table = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table)
    return table.div(255).gather(-1, levels).view_as(images)


_POINTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": lambda images, change: brightness(images, 1 + change),
    "Color": lambda images, change: saturation(images, 1 + change),
    "Contrast": lambda images, change: contrast(images, 1 + change),
    "Sharpness": lambda images, change: sharpness(images, 1 + change),
    "Posterize": posterize,
    "Solarize": solarize,
    "AutoContrast": lambda images, _: autocontrast(images),
    "Equalize": lambda images, _: equalize(images),
}


def _grey(images: Tensor) -> Tensor:
    """[B, 1, H, W], by the weights of ITU-R 601."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return red.mul(0.2989).add_(green.mul(0.587)).add_(blue.mul(0.114))


def _between(zero: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    return images.mul(factor).add_(zero * (1 - factor)).clamp_(0, 1)


# Pixels that move.


def _matrices(kinds: np.ndarray, amounts: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """float32 [B, 2, 3]: where a pixel (x, y), counted from the image's centre, is fetched from.

    A shear leaves the image's upper or left edge where it is, as in AutoAugment, not its middle.
    """
    height, width = size
    shear_x, shear_y, move_x, move_y, turn = (np.where(kinds == kind, amounts, 0.0) for kind in _GEOMETRIC)
    cosine, sine = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    x = [cosine, shear_x - sine, shear_x * height / 2 - move_x]
    y = [shear_y + sine, cosine, shear_y * width / 2 - move_y]
    return np.stack([*x, *y], axis=1).reshape(-1, 2, 3).astype(np.float32)


def _move(images: Tensor, matrices: np.ndarray, fill: Sequence[float] | np.ndarray) -> Tensor:
    """Bilinear; what comes from outside is `fill`."""
    height, width = images.shape[-2:]
    halves = to_device(np.array([width, height], np.float32) / 2, images.device)
    x = torch.linspace((1 - width) / 2, (width - 1) / 2, width, device=images.device)
    y = torch.linspace((1 - height) / 2, (height - 1) / 2, height, device=images.device)
    # A grid has x and y side by side. Made as rows of 2W numbers, not as a stack of two planes, it takes a tenth of the
    # time: (x, y) of a row's pixels = their place in the row 0 + the row's number · the slope.
    along, slope, shift = to_device(matrices, images.device).div(halves[:, None])[:, None].unbind(-1)  # [B, 1, 2] each
    row = (x[:, None] * along + shift).flatten(1).unsqueeze(1)  # [B, 1, 2W]
    grid = y[:, None] * slope.repeat(1, 1, width) + row  # [B, H, 2W]
    moved = F.grid_sample(images, grid.view(-1, height, width, 2), padding_mode="zeros", align_corners=False)
    # How much of each pixel comes from inside. torchvision weighs the outermost pixel by it once more; so does this.
    ends = halves.repeat(width)
    inside_x, inside_y = (ends + 0.5 - grid.abs_().mul_(ends)).clamp_(0, 1).unflatten(-1, (width, 2)).unbind(-1)
    colour = to_device(np.asarray(fill, np.float32), images.device).view(-1, 1, 1)
    return moved.sub_(colour).mul_((inside_x * inside_y).unsqueeze(1)).add_(colour)
