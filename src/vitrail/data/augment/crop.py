"""Random-resized crops of a batch: where they lie, and their pixels at the model's size.

The boxes are drawn on the host, for the whole batch at once. The pixels come from PyTorch's uint8 kernel on a CPU, and
on a GPU, which has no such kernel, from two matrix products an image that repeat its arithmetic to the level.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment.randaugment import to_device as send

# A box that doesn't fit the image is drawn again, as in torchvision, at most this often.
_TRIES = 10
DRAWN = 2 * _TRIES + 2  # the uniform numbers that a box takes

_ERASED_AREA, _ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)  # torchvision's RandomErasing

# Pixels of a canvas treated at once on a GPU, which takes half a gigabyte: some 130 images of 256×340.
_PIXELS_AT_ONCE = 2**25


@dataclass(frozen=True)
class Canvas:
    """Images of differing sizes in one tensor on the training device, each in the upper left corner."""

    pixels: Tensor  # uint8 [B, C, largest height, largest width]
    sizes: np.ndarray | Tensor  # int64 [B, 2]: true heights and widths; kept on the host, or a GPU has to be waited for

    def __len__(self) -> int:
        return len(self.pixels)


def image_sizes(images: Sequence[Tensor] | Canvas) -> np.ndarray:
    """int64 [B, 2]: heights and widths."""
    if isinstance(images, Canvas):
        return np.asarray(images.sizes.cpu() if isinstance(images.sizes, Tensor) else images.sizes, np.int64)
    return np.array([image.shape[-2:] for image in images], np.int64).reshape(-1, 2)


# Boxes: int64 [B, 4], top, left, height, width.


def crop_boxes(
    sizes: np.ndarray, drawn: np.ndarray, scale: tuple[float, float], ratio: tuple[float, float], border: float = 0.0
) -> np.ndarray:
    """torchvision's RandomResizedCrop from [B, 22] uniform numbers, for a whole batch.

    The area is uniform, and so is the logarithm of the ratio; a box that fits in none of ten tries becomes the
    largest centred one within the ratios. With a `border`, so much of each side wide, a box may lie in there too, for
    `cut_mirrored` to fill; its share is then that of the largest box of such a ratio in the image, so that all of that
    is moved and little of it lost.
    """
    height, width = sizes[:, :1], sizes[:, 1:]
    area = height * width
    if border:
        middle = (ratio[0] * ratio[1]) ** 0.5
        area = np.minimum(height, width / middle) ** 2 * middle
        sizes = sizes + 2 * _extra(sizes, border)
        height, width = sizes[:, :1], sizes[:, 1:]
    box_width, box_height = _sides(area, drawn, scale, ratio)
    fits = (box_width > 0) & (box_width <= width) & (box_height > 0) & (box_height <= height)
    tallest = np.minimum(height, np.rint(width / ratio[0]).astype(np.int64))
    widest = np.minimum(width, np.rint(height * ratio[1]).astype(np.int64))
    return _place(sizes, drawn, fits, (box_height, box_width), (np.maximum(tallest, 1), np.maximum(widest, 1)))


def erase_boxes(size: tuple[int, int], drawn: np.ndarray) -> np.ndarray:
    """torchvision's RandomErasing; empty where none of ten tries is smaller than the image."""
    sizes = np.tile(np.array(size, np.int64), (len(drawn), 1))
    height, width = sizes[:, :1], sizes[:, 1:]
    box_height, box_width = _sides(height * width, drawn, _ERASED_AREA, _ERASED_RATIO)
    fits = (box_height < height) & (box_width < width)
    return _place(sizes, drawn, fits, (box_height, box_width), (0 * height, 0 * width))


def _sides(
    area: np.ndarray, drawn: np.ndarray, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """The two sides, [B, tries] each, of boxes with the first to the second within `ratio`."""
    lowest, highest = np.log(ratio)
    target = area * (scale[0] + drawn[:, :_TRIES] * (scale[1] - scale[0]))
    aspect = np.exp(lowest + drawn[:, _TRIES : 2 * _TRIES] * (highest - lowest))
    return np.rint(np.sqrt(target * aspect)).astype(np.int64), np.rint(np.sqrt(target / aspect)).astype(np.int64)


def _place(
    sizes: np.ndarray,
    drawn: np.ndarray,
    fits: np.ndarray,
    tried: tuple[np.ndarray, np.ndarray],
    otherwise: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """The first of the tried boxes that fits, anywhere in the image; or the other one, in its middle."""
    first, any_fits = fits.argmax(1)[:, None], fits.any(1, keepdims=True)
    box = np.concatenate(
        [
            np.where(any_fits, np.take_along_axis(each, first, 1), other)
            for each, other in zip(tried, otherwise, strict=True)
        ],
        axis=1,
    )
    room = sizes - box
    corner = np.where(any_fits, (drawn[:, -2:] * (room + 1)).astype(np.int64), room // 2)
    return np.concatenate([corner, box], axis=1)


def cover_and_centre(sizes: np.ndarray, size: tuple[int, int], crop: float = 1.0) -> np.ndarray:
    """int64 [B, 4]: the height and width that cover the size, and the top and left of its centre, as in `fit_image`."""
    want = np.floor(np.array(size) / crop).astype(np.int64)
    if want[0] == want[1]:
        resized = want * sizes // sizes.min(1, keepdims=True)
    else:
        resized = np.rint(sizes / (sizes / want).min(1, keepdims=True)).astype(np.int64)
    return np.concatenate([resized, np.rint((resized - size) / 2).astype(np.int64)], axis=1)


def cut_mirrored(
    images: Sequence[Tensor] | Canvas, boxes: np.ndarray, border: float
) -> tuple[list[Tensor] | Canvas, np.ndarray]:
    """What the boxes show of images that have their own reflection around them, `border` of each side wide: images of
    the boxes' sizes, and the boxes that are all of these."""
    sizes = image_sizes(images)
    rows, columns = (_reflection(sizes[:, i], border, boxes[:, i], boxes[:, 2 + i]) for i in (0, 1))
    whole = np.concatenate([np.zeros_like(boxes[:, :2]), boxes[:, 2:]], axis=1)
    if isinstance(images, Canvas):
        pixels = images.pixels
        down, across = (send(each, pixels.device) for each in (rows, columns))
        which, colour = (torch.arange(count, device=pixels.device) for count in pixels.shape[:2])
        places = which[:, None, None, None], colour[:, None, None], down[:, None, :, None], across[:, None, None, :]
        return Canvas(pixels[places], whole[:, 2:]), whole
    down, across = (torch.from_numpy(each) for each in (rows, columns))
    sides = whole[:, 2:].tolist()
    return [image[:, down[i, : sides[i][0], None], across[i, : sides[i][1]]] for i, image in enumerate(images)], whole


def _extra(lengths: np.ndarray, border: float) -> np.ndarray:
    return np.rint(border * lengths).astype(np.int64)


def _reflection(lengths: np.ndarray, border: float, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """int64 [B, largest count]: which pixel is seen at each place from the first on, counted from the border's edge."""
    last = lengths[:, None] - 1
    places = np.abs(first[:, None] - _extra(lengths, border)[:, None] + np.arange(count.max(initial=0)))
    return np.clip(np.where(places > last, 2 * last - places, places), 0, last)


# Resampling.


def resized_crop(
    images: Sequence[Tensor] | Canvas,
    boxes: np.ndarray,
    size: tuple[int, int],
    flip: np.ndarray,
    interpolation: str,
    device: torch.device | str,
    cover: np.ndarray | None = None,
) -> Tensor:
    """uint8 [B, C, H, W] on the device: of each image the box, resized with antialiasing, mirrored where `flip` says.

    With `cover` [B, 4] (height, width, top, left), the box is resized to that height and width, and the size is cut
    out of it at top and left. The images are only read.
    """
    device = torch.device(device)
    if cover is None:
        cover = np.tile(np.array([*size, 0, 0]), (len(boxes), 1))
    if device.type == "cpu":
        return torch.cat([*one_by_one(images, boxes, size, flip, interpolation, cover)])
    return by_matrices(images, boxes, size, flip, interpolation, cover, device)


def one_by_one(
    images: Sequence[Tensor] | Canvas,
    boxes: np.ndarray,
    size: tuple[int, int],
    flip: np.ndarray,
    interpolation: str,
    cover: np.ndarray,
) -> Iterator[Tensor]:
    """By PyTorch's own uint8 kernel, which is fastest on pixels that have their colours side by side in memory.

    Yields [1, C, H, W] at a time.
    """
    height, width = size
    given = images.pixels if isinstance(images, Canvas) else images
    numbers = zip(given, boxes.tolist(), cover.tolist(), flip.tolist(), strict=True)
    for index, (image, (y, x, box_height, box_width), (tall, wide, top, left), mirrored) in enumerate(numbers):
        if tall * wide > 16 * height * width:  # a panorama: all of it resized, for its middle, would fill the memory
            one = slice(index, index + 1)
            yield by_matrices([image], boxes[one], size, flip[one], interpolation, cover[one], image.device)
            continue
        # image[None, :, y : y + box_height, x : x + box_width] in one step instead of four; and a copy of it, also of a
        # whole image: the strides must be beyond doubt.
        colour, down, across = image.stride()
        shape, begin = (1, len(image), box_height, box_width), image.storage_offset() + y * down + x * across
        box = image.as_strided(shape, (0, colour, down, across), begin).clone(memory_format=torch.channels_last)
        pixels = F.interpolate(box, size=(tall, wide), mode=interpolation, align_corners=False, antialias=True)
        if (tall, wide) != size:
            pixels = pixels[..., top : top + height, left : left + width]
        yield pixels.flip(-1) if mirrored else pixels


def by_matrices(
    images: Sequence[Tensor] | Canvas,
    boxes: np.ndarray,
    size: tuple[int, int],
    flip: np.ndarray,
    interpolation: str,
    cover: np.ndarray,
    device: torch.device,
) -> Tensor:
    """As two products with matrices that hold the kernel's weights, a pair for each image: no loop over the images.

    Rounded to whole levels after each, as by the uint8 kernel.
    """
    (y, x, box_height, box_width), (tall, wide, top, left) = boxes.T, cover.T
    down = _axis(y, box_height, tall, top, size[0], np.zeros_like(flip), interpolation)
    across = _axis(x, box_width, wide, left, size[1], flip, interpolation)
    if isinstance(images, Canvas):
        down, across = (axis._replace(first=np.zeros_like(axis.first)) for axis in (down, across))
    batch: list[Tensor] = []
    done = 0
    while done < len(boxes):
        # As many as the limit allows, on a canvas as large as the largest of them.
        tallest, widest = (np.maximum.accumulate((axis.last - axis.first)[done:]) for axis in (down, across))
        fitting = 3 * tallest * widest * np.arange(1, len(tallest) + 1) <= _PIXELS_AT_ONCE
        part = slice(done, done + max(1, int(fitting.sum())))
        some_down, some_across = down.part(part), across.part(part)
        if isinstance(images, Canvas):
            pixels = images.pixels[part, :, : some_down.last.max(), : some_across.last.max()]
        else:
            pixels = _canvas(images[part], some_down, some_across, device)
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        to_columns = axis_weights(some_across, pixels.shape[3], interpolation, device)
        to_rows = axis_weights(some_down, pixels.shape[2], interpolation, device)
        with in_full_precision(device):  # bfloat16 doesn't hold 256 levels
            narrow = torch.bmm(values.flatten(1, 2), to_columns.mT).add_(0.5).floor_().clamp_(0, 255)  # [B, C·h, W]
            made = torch.matmul(to_rows[:, None], narrow.view(*pixels.shape[:3], size[1]))  # [B, C, H, W]
        batch.append(made.add_(0.5).clamp_(0, 255).to(torch.uint8))
        done = part.stop
    return torch.cat(batch) if len(batch) > 1 else batch[0]


def in_full_precision(device: torch.device) -> AbstractContextManager:
    """No autocast inside. Where there is none anyway, nothing is entered, for leaving one clears a cache that all
    threads share: beside a thread that compiles under autocast, each would wait for what the other holds."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


class Axis(NamedTuple):
    """How one side of each image is resampled; all [B], in pixels of the image."""

    first: np.ndarray  # what is read: from here
    last: np.ndarray  # to before here
    low: np.ndarray  # the borders of the box, beyond which a kernel finds nothing
    high: np.ndarray
    stretch: np.ndarray  # the kernel's width: 1 when enlarging, more when shrinking
    centres: np.ndarray  # [B, size]: where each pixel to be made lies

    def part(self, part: slice) -> "Axis":
        return Axis(*(each[part] for each in self))


def _axis(
    low: np.ndarray,
    length: np.ndarray,
    resized: np.ndarray,
    offset: np.ndarray,
    size: int,
    flip: np.ndarray,
    interpolation: str,
) -> Axis:
    """Of the box at `low`, made `resized` long, the `size` pixels at `offset`."""
    scale = length / resized
    stretch = np.maximum(scale, 1)
    centres = low[:, None] + scale[:, None] * (offset[:, None] + np.arange(size) + 0.5)
    reach = KERNELS[interpolation].reach * stretch + 1
    first = np.maximum(low, np.floor(centres[:, 0] - reach).astype(np.int64))
    last = np.minimum(low + length, np.ceil(centres[:, -1] + reach).astype(np.int64))
    centres = np.where(flip[:, None], centres[:, ::-1], centres)
    return Axis(first, last, low, low + length, stretch, centres)


def _canvas(images: Sequence[Tensor], down: Axis, across: Axis, device: torch.device) -> Tensor:
    """uint8 [B, C, h, w] on the device, of each image just what is read; the rest is left as memory was."""
    height, width = (int((axis.last - axis.first).max()) for axis in (down, across))
    shape = (len(images), height, width, images[0].shape[0])
    canvas = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda").permute(0, 3, 1, 2)
    windows = zip(down.first.tolist(), down.last.tolist(), across.first.tolist(), across.last.tolist(), strict=True)
    for row, image, (top, bottom, left, right) in zip(canvas, images, windows, strict=True):
        row[:, : bottom - top, : right - left] = image[:, top:bottom, left:right]
    return canvas.to(device, non_blocking=True)


def axis_weights(axis: Axis, length: int, interpolation: str, device: torch.device) -> Tensor:
    """float32 [B, size, length]: what each pixel of a canvas gives to each that is made; 0 outside the box.

    Worked out in float64, for the few pixels that a kernel reaches, and then put in their places.
    """
    kernel = KERNELS[interpolation]
    taps = min(length, int(np.ceil(2 * kernel.reach * axis.stretch.max())) + 1)
    centres = axis.centres - axis.first[:, None]
    begin = np.clip(np.floor(centres - kernel.reach * axis.stretch[:, None]), 0, length - taps)
    borders = np.stack([axis.low - axis.first, axis.high - axis.first, axis.stretch], axis=1)
    numbers = send(np.concatenate([borders, centres, begin], axis=1), device)[..., None]
    low, high, stretch, at, begins = numbers.split([1, 1, 1, *[centres.shape[1]] * 2], dim=1)
    places = begins + torch.arange(taps, device=device)  # [B, size, taps]
    weights = kernel.curve((places + 0.5 - at).div_(stretch).abs_()).mul_((places >= low) & (places < high))
    weights.div_(weights.sum(-1, keepdim=True))
    # The uint8 kernel makes them whole numbers of 15 bits, over the largest power of two that leaves them so.
    power = torch.exp2(torch.floor(torch.log2((2**15 - 0.5) / weights.amax((1, 2), keepdim=True))).clamp_(max=22))
    weights.mul_(power).round_().div_(power)
    return torch.zeros(*centres.shape, length, device=device).scatter_(2, places.long(), weights.float())


class _Kernel(NamedTuple):
    reach: int
    curve: Callable[[Tensor], Tensor]  # of the distance from the centre


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp_(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = −½, as Pillow has it, and PyTorch where it antialiases."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


KERNELS = {"bilinear": _Kernel(1, _triangle), "bicubic": _Kernel(2, _cubic)}
