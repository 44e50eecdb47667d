"""What happens to a training image between the decoder and the model: crop, flip, RandAugment, colour, erasing.

Workers hand over uint8 pixels and nothing else; all that is random happens here, on the training device, for a batch at
a time. Which crop, which colours: a function of (seed, epoch, sample), see `keyed`, so a sample looks the same whatever
batch or process it lands in, and a resumed run needs no state of a generator.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.crop import (
    DRAWN,
    KERNELS,
    Canvas,
    by_matrices,
    cover_and_centre,
    crop_boxes,
    cut_mirrored,
    erase_boxes,
    image_sizes,
    one_by_one,
)
from vitrail.data.augment.randaugment import (
    LARGEST_MAGNITUDE,
    brightness,
    column,
    contrast,
    draw,
    randaugment,
    saturation,
)
from vitrail.data.augment.randaugment import to_device as send
from vitrail.data.augment.random_keys import uniforms
from vitrail.errors import VitrailError, nearest

# The columns of the table of uniform numbers. Fixed, so that switching one thing on leaves what the others draw alone.
_CROP = slice(0, DRAWN)
_FLIP = _CROP.stop
_COLOUR = slice(_FLIP + 1, _FLIP + 4)
_ERASE = _COLOUR.stop
_ERASED = slice(_ERASE + 1, _ERASE + 1 + DRAWN)
_RANDAUGMENT = _ERASED.stop
_CACHED = 2**14  # pixels that a CPU treats at once


@dataclass(frozen=True)
class Policy:
    """What may happen to a training image; without a crop and with everything else at 0, nothing random does."""

    scale: tuple[float, float] | None  # the crop's share of the area; None: fitted as at evaluation
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of the crop's width to its height
    border: float = 0.0  # how far a crop may reach beyond the image, which is mirrored there, as a share of its sides
    flip: float = 0.5  # probability
    randaugment: tuple[int, float] | None = None  # how many operations, and their magnitude of 0 to 30
    colour: float = 0.0  # brightness, contrast and saturation change by a factor of at most 1 ± this
    erasing: float = 0.0  # probability

    def __post_init__(self) -> None:
        for name, pair in (("scale", self.scale), ("ratio", self.ratio)):
            if pair is not None and not (0 < pair[0] <= pair[1] and (name == "ratio" or pair[1] <= 1)):
                limits = "from above 0 to at most 1" if name == "scale" else "above 0"
                raise VitrailError(f"The crop's {name} is {pair}: expected a smaller and a larger number {limits}.")
        for name in ("flip", "erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise VitrailError(f"{name} is {getattr(self, name)}: expected a probability from 0 to 1.")
        if not 0 <= self.border <= 0.5:
            raise VitrailError(f"The border is {self.border}: expected a share from 0 to 0.5, such as 0.125.")
        if self.colour < 0:
            raise VitrailError(f"colour is {self.colour}: expected 0 (off) or more, such as 0.4.")
        if self.randaugment is not None:
            count, magnitude = self.randaugment
            if count < 0 or not 0 <= magnitude <= LARGEST_MAGNITUDE:
                raise VitrailError(
                    f"randaugment is {self.randaugment}: expected a number of operations and a magnitude of 0 to "
                    f"{LARGEST_MAGNITUDE}, such as (2, 9)."
                )

    @classmethod
    def named(cls, name: str) -> "Policy":
        """One of the four that `--augment` offers."""
        policies = {
            "none": cls(scale=None, flip=0.0),
            "light": cls(scale=(0.35, 1.0)),
            "medium": cls(scale=(0.2, 1.0), randaugment=(2, 7), erasing=0.1),
            "strong": cls(scale=(0.08, 1.0), randaugment=(2, 9), erasing=0.25),
        }
        if name not in policies:
            raise VitrailError(f'"{name}" is not an augmentation: use {", ".join(policies)}.{nearest(name, policies)}')
        return policies[name]

    @property
    def calm(self) -> "Policy":
        """The crops and mirror images alone."""
        return replace(self, randaugment=None, colour=0.0, erasing=0.0)


class Augmenter:
    """From uint8 images of any size to a normalised batch that a model takes."""

    def __init__(
        self,
        policy: Policy,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        interpolation: str = "bilinear",
        crop: float = 1.0,
        calm_from: float = math.inf,
    ) -> None:
        """`crop` is Preprocessing's: the share of the short side that a policy without random crops keeps. From the
        epoch `calm_from` on there are crops and mirror images alone."""
        if interpolation not in KERNELS:
            hint = nearest(interpolation, KERNELS)
            raise VitrailError(
                f'"{interpolation}" is not an interpolation for training: use {" or ".join(KERNELS)}.{hint}'
            )
        self.policy, self.size, self.seed, self.interpolation, self.crop = policy, size, seed, interpolation, crop
        self.mean, self.std, self.calm_from = np.asarray(mean, np.float32), np.asarray(std, np.float32), calm_from

    def __call__(
        self,
        images: Sequence[Tensor] | Canvas,
        samples: np.ndarray,
        epoch: int,
        device: torch.device | str,
        out: Tensor | None = None,
    ) -> Tensor:
        """float32 [B, C, H, W] on the device, from uint8 [C, h, w] each; `samples` [B] says which sample each is.

        `out` is a batch to write into, for a caller that knows when the last one is no longer needed: a fifth of a
        CPU's time here goes into memory that is touched for the first time.
        """
        device = torch.device(device)
        pixels = images.pixels if isinstance(images, Canvas) else images
        if len(pixels) and len(pixels[0]) != len(self.mean):
            raise VitrailError(
                f"The images have {len(pixels[0])} channels and the preprocessing {len(self.mean)} means: "
                "decode them as grey for one, as RGB for three."
            )
        policy = self.policy if epoch < self.calm_from else self.policy.calm
        sizes, rounds = image_sizes(images), policy.randaugment[0] if policy.randaugment else 0
        plan = self._plan(policy, sizes, uniforms(self.seed, epoch, samples, _RANDAUGMENT + 2 * rounds))
        if out is None:
            out = _empty((len(sizes), len(self.mean), *self.size), device)
        if not len(sizes):
            return out
        boxes = plan.boxes
        if policy.border:
            images, boxes = cut_mirrored(images, boxes, policy.border)
        crops = (images, boxes, self.size, plan.flip, self.interpolation, plan.cover)
        changing = bool(rounds or policy.colour)
        gain, shift = (send(each, device).view(-1, 1, 1) for each in (1 / self.std, self.mean / self.std))
        gain = gain if changing else gain / 255
        count = len(sizes)
        if device.type == "cpu":
            # One by one: an image then stays in the core's cache from the crop to the last operation. Of small ones,
            # as many as fit there.
            count = max(1, _CACHED // (self.size[0] * self.size[1]))
            made = _together(one_by_one(*crops), count)
        else:
            made = iter([by_matrices(*crops, device)])
        # On a CPU without the books that autograd keeps, which take as long as some of the operations.
        with torch.inference_mode(device.type == "cpu"):
            for index, (place, values) in enumerate(zip(out.split(count), made, strict=True)):
                if changing:
                    part = slice(index * count, (index + 1) * count)
                    factors = plan.factors[part] if policy.colour else None
                    values = self._recoloured(values, plan.operations[part], plan.strengths[part], factors)
                place.copy_(values).mul_(gain).sub_(shift)
        _erase(out, plan.erased)
        return out

    def _plan(self, policy: Policy, sizes: np.ndarray, drawn: np.ndarray) -> "_Plan":
        if policy.scale is None:
            boxes = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
            cover = cover_and_centre(sizes, self.size, self.crop)
        else:
            boxes = crop_boxes(sizes, drawn[:, _CROP], policy.scale, policy.ratio, policy.border)
            cover = np.tile([*self.size, 0, 0], (len(sizes), 1))
        magnitude = policy.randaugment[1] if policy.randaugment else 0.0
        operations, strengths = draw(drawn[:, _RANDAUGMENT:], magnitude, self.size)
        lowest, highest = max(0.0, 1 - policy.colour), 1 + policy.colour
        factors = lowest + drawn[:, _COLOUR] * (highest - lowest)
        erased = np.zeros((len(sizes), 4), np.int64)
        if policy.erasing:
            erased = erase_boxes(self.size, drawn[:, _ERASED]) * (drawn[:, _ERASE] < policy.erasing)[:, None]
        return _Plan(boxes, cover, drawn[:, _FLIP] < policy.flip, operations, strengths, factors, erased)

    def _recoloured(
        self, pixels: Tensor, operations: np.ndarray, strengths: np.ndarray, factors: np.ndarray | None
    ) -> Tensor:
        """float32 in 0 to 1, from uint8."""
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        values = randaugment(values, operations, strengths, self.mean)
        if factors is not None:
            for change, factor in zip((brightness, contrast, saturation), factors.T, strict=True):
                values = change(values, column(factor, values))
        return values


class _Plan(NamedTuple):
    """What each image of a batch has drawn."""

    boxes: np.ndarray  # [B, 4]
    cover: np.ndarray  # [B, 4], as `resized_crop` takes it
    flip: np.ndarray  # bool [B]
    operations: np.ndarray  # [B, rounds]: RandAugment's
    strengths: np.ndarray
    factors: np.ndarray  # [B, 3]: of brightness, contrast and saturation
    erased: np.ndarray  # [B, 4]: a box, empty where nothing is erased


def _erase(images: Tensor, boxes: np.ndarray) -> None:
    """Paints each image's box, if it has any, in the mean colour."""
    if not boxes[:, 2].any():
        return
    if images.device.type == "cpu":
        for index in np.flatnonzero(boxes[:, 2]):
            top, left, height, width = boxes[index].tolist()
            images[index, :, top : top + height, left : left + width] = 0
        return
    top, left, height, width = send(boxes, images.device)[:, :, None].unbind(1)  # [B, 1] each
    down, across = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    rows, columns = (down >= top) & (down < top + height), (across >= left) & (across < left + width)
    images.masked_fill_((rows[:, None, :, None] & columns[:, None, None, :]), 0)


def _together(images: Iterator[Tensor], count: int) -> Iterator[Tensor]:
    """[1, C, H, W] each, joined `count` at a time."""
    if count == 1:
        yield from images
    while part := list(islice(images, count)):
        yield torch.cat(part)


def _empty(shape: tuple[int, ...], device: torch.device) -> Tensor:
    if device.type == "cpu":
        # NumPy asks Linux for huge pages and PyTorch doesn't: a large batch then costs hundreds of times fewer faults.
        return torch.from_numpy(np.empty(shape, np.float32))
    return torch.empty(shape, device=device)
