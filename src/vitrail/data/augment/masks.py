"""An image and its map through the same geometry, at random: what training segments, or any map per pixel, is shown.

Colours are resampled with antialiasing and may be changed; the values of a map are taken from the nearest pixel and
never mixed; what lies outside of the image is the mean colour, and the fill value of the map. What happens to a pair is
a function of (seed, epoch, sample), as for images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.crop import (
    DRAWN,
    KERNELS,
    Axis,
    Canvas,
    axis_weights,
    crop_boxes,
    image_sizes,
    in_full_precision,
)
from vitrail.data.augment.randaugment import brightness, column, contrast, saturation
from vitrail.data.augment.randaugment import to_device as send
from vitrail.data.augment.random_keys import uniforms
from vitrail.data.image_set import WithMaps
from vitrail.data.maps import refuse_crop
from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.errors import VitrailError, nearest

# The columns of the table of uniform numbers.
_CROP = slice(0, DRAWN)
_FLIP = _CROP.stop
_COLOUR = slice(_FLIP + 1, _FLIP + 4)
_JITTER = slice(_COLOUR.stop, _COLOUR.stop + 3)  # the scale, and the place down and across
_AT_ONCE = 64  # images that a GPU treats at once


@dataclass(frozen=True)
class JointPolicy:
    """What may happen to a pair. `scale` and `jitter` are two ways to crop; without either the whole is shown."""

    scale: tuple[float, float] | None = None  # a crop of this share of the area, resized: torchvision's
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of its width to its height
    jitter: tuple[float, float] | None = None  # or the image at a scale, 1 just covers the size, and a window of it
    flip: float = 0.5  # probability
    colour: float = 0.0  # brightness, contrast and saturation change by a factor of at most 1 ± this

    def __post_init__(self) -> None:
        if self.scale is not None and self.jitter is not None:
            raise VitrailError("A policy has a scale or a jitter, two ways to crop: leave one out.")
        for name, pair, most in (("scale", self.scale, 1), ("ratio", self.ratio, 100), ("jitter", self.jitter, 100)):
            if pair is not None and not 0 < pair[0] <= pair[1] <= most:
                raise VitrailError(f"The {name} is {pair}: expected a smaller and a larger number, up to {most}.")
        if not 0 <= self.flip <= 1:
            raise VitrailError(f"flip is {self.flip}: expected a probability from 0 to 1.")
        if self.colour < 0:
            raise VitrailError(f"colour is {self.colour}: expected 0 (off) or more, such as 0.4.")

    @classmethod
    def named(cls, name: str) -> "JointPolicy":
        """One of the four that `--augment` offers."""
        policies = {
            "none": cls(flip=0.0),
            "light": cls(scale=(0.5, 1.0)),
            "medium": cls(jitter=(0.5, 2.0), colour=0.2),
            "strong": cls(jitter=(0.5, 2.0), colour=0.4),
        }
        if name not in policies:
            raise VitrailError(f'"{name}" is not an augmentation: use {", ".join(policies)}.{nearest(name, policies)}')
        return policies[name]


class JointAugmenter:
    """From uint8 images of any size and their maps to a normalised batch [B, C, H, W] and its maps [B, H, W]."""

    def __init__(
        self,
        policy: JointPolicy,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        interpolation: str = "bilinear",
        fit: str = "stretch",
        fill: float = IGNORE,
    ) -> None:
        """`fit` is Preprocessing's, for a policy that shows the whole; `fill` is the value outside of an image."""
        if interpolation not in KERNELS:
            raise VitrailError(f'"{interpolation}" is not an interpolation for training: use {" or ".join(KERNELS)}.')
        refuse_crop(fit)
        self.policy, self.size, self.seed, self.interpolation, self.fit = policy, size, seed, interpolation, fit
        self.fill = fill
        self.mean, self.std = np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def __call__(
        self,
        pairs: WithMaps,
        samples: np.ndarray,
        epoch: int,
        device: torch.device | str,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`samples` [B] says which sample each is; `out` is a batch to write into."""
        device, sizes = torch.device(device), image_sizes(pairs.images)
        pixels = pairs.images.pixels if isinstance(pairs.images, Canvas) else pairs.images
        if len(pixels) and len(pixels[0]) != len(self.mean):
            raise VitrailError(f"The images have {len(pixels[0])} channels: expected {len(self.mean)}.")
        drawn = uniforms(self.seed, epoch, samples, _JITTER.stop)
        boxes, flip = self.boxes(sizes, drawn), drawn[:, _FLIP] < self.policy.flip
        lowest, highest = max(0.0, 1 - self.policy.colour), 1 + self.policy.colour
        factors = lowest + drawn[:, _COLOUR] * (highest - lowest)
        if out is None:
            out = torch.empty(len(sizes), len(self.mean), *self.size, device=device)
        maps = torch.empty(len(sizes), *self.size, dtype=pairs.maps[0].dtype, device=device)
        mean, std = (send(each, device).view(-1, 1, 1) for each in (self.mean, self.std))
        for part, colours, values_of in _parts(pairs, device):
            down = _along(boxes[part, 0], boxes[part, 2], sizes[part, 0], self.size[0], np.zeros_like(flip[part]))
            across = _along(boxes[part, 1], boxes[part, 3], sizes[part, 1], self.size[1], flip[part])
            inside = send(down.inside[:, :, None] & across.inside[:, None, :], device)
            values = self._resampled(colours, down.axis, across.axis).div_(255)
            if self.policy.colour:
                for change, factor in zip((brightness, contrast, saturation), factors[part].T, strict=True):
                    values = change(values, column(factor, values))
            out[part] = values.sub_(mean).div_(std).mul_(inside[:, None])  # 0 is the mean colour
            maps[part] = _nearest(values_of, down.nearest, across.nearest).masked_fill_(~inside, self.fill)
        return out, maps

    def boxes(self, sizes: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """float64 [B, 4]: top, left, height and width, in pixels of the image, of what fills the size. It may reach
        beyond the image."""
        if self.policy.scale is not None:
            return crop_boxes(sizes, drawn[:, _CROP], self.policy.scale, self.policy.ratio).astype(np.float64)
        size = np.array(self.size, np.float64)
        if self.policy.jitter is not None:
            least, most = self.policy.jitter
            scale, place = least + drawn[:, _JITTER][:, :1] * (most - least), drawn[:, _JITTER][:, 1:]
            zoom = scale * (size / sizes).max(axis=1, keepdims=True)
            box = size / zoom
            return np.concatenate([place * (sizes - box), box], axis=1)
        if self.fit == "pad":
            box = size * (sizes / size).max(axis=1, keepdims=True)
            return np.concatenate([(sizes - box) / 2, box], axis=1)
        return np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.float64)

    def _resampled(self, colours: Tensor, down: Axis, across: Axis) -> Tensor:
        """float32 [b, C, H, W] in 0 to 255, by two products with the kernel's weights."""
        device = colours.device
        if len(colours) == 1:  # only what is read, where there is no batch to keep together
            top, bottom, left, right = (int(each[0]) for each in (down.low, down.high, across.low, across.high))
            colours = colours[..., top:bottom, left:right]
            down, across = down._replace(first=down.low), across._replace(first=across.low)
        to_rows = axis_weights(down, colours.shape[2], self.interpolation, device)
        to_columns = axis_weights(across, colours.shape[3], self.interpolation, device)
        values = colours.to(torch.float32, memory_format=torch.contiguous_format)
        with in_full_precision(device):  # bfloat16 doesn't hold 256 levels
            narrow = torch.bmm(values.flatten(1, 2), to_columns.mT).view(*values.shape[:3], -1)
            return torch.matmul(to_rows[:, None], narrow).clamp_(0, 255)


@dataclass(frozen=True)
class _Along:
    """One side of each box."""

    axis: Axis
    nearest: np.ndarray  # int64 [b, size]: the pixel that each to be made lies in
    inside: np.ndarray  # bool [b, size]: is there one?


def _along(start: np.ndarray, length: np.ndarray, limit: np.ndarray, size: int, flip: np.ndarray) -> _Along:
    scale = length / size
    centres = start[:, None] + scale[:, None] * (np.arange(size) + 0.5)
    centres = np.where(flip[:, None], centres[:, ::-1], centres)
    low = np.maximum(0, np.floor(start)).astype(np.int64)
    high = np.minimum(limit, np.ceil(start + length)).astype(np.int64)
    within = centres.clip(low[:, None], high[:, None])  # outside, the nearest edge, which is painted over
    axis = Axis(np.zeros_like(low), high, low, high, np.maximum(scale, 1), within)
    nearest = np.floor(centres).astype(np.int64).clip(low[:, None], high[:, None] - 1)
    return _Along(axis, nearest, (centres >= 0) & (centres < limit[:, None]))


def _nearest(maps: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """[b, h, w] -> [b, H, W]."""
    batch = torch.arange(len(maps), device=maps.device)[:, None, None]
    return maps[batch, send(rows, maps.device)[:, :, None], send(columns, maps.device)[:, None, :]]


def _parts(pairs: WithMaps, device: torch.device) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """One by one on a CPU, where a pair then comes out the same to the bit in any company; many at once elsewhere."""
    images, maps = pairs
    pixels = images.pixels if isinstance(images, Canvas) else images
    step = _AT_ONCE if isinstance(images, Canvas) and device.type != "cpu" else 1
    for start in range(0, len(pixels), step):
        part = slice(start, start + step)
        both = [each[part] if isinstance(each, Tensor) else torch.stack(list(each[part])) for each in (pixels, maps)]
        yield part, both[0].to(device), both[1].to(device)
