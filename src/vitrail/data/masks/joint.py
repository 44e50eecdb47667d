"""A picture and its mask through the same geometry: for training at random, for figures as `predict` sees it.

The mask travels as one more channel behind the colours, uint8 [C + 1, h, w], so that decoding, caching and loading are
those of every picture here. `JointAugmenter` parts them: colours are resampled with antialiasing and may be changed,
classes are taken from the nearest pixel and never mixed, and what lies outside of the picture is the mean colour and
IGNORE. What happens to a pair is a function of (seed, epoch, sample), as in `augment`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.crop import DRAWN, KERNELS, Axis, Canvas, axis_weights, crop_boxes, image_sizes, in_full_precision
from vitrail.data.keyed import uniforms
from vitrail.data.masks import IGNORE, MaskedSample
from vitrail.data.pictures import ROOM, WORTH, Pictures, as_pixels, shrunk_pixels, store_of
from vitrail.data.preprocess import fit_image
from vitrail.data.randaugment import brightness, column, contrast, saturation
from vitrail.data.randaugment import to_device as send
from vitrail.data.samples import Sample
from vitrail.errors import VitrailError, nearest
from vitrail.models.preprocessing import Preprocessing

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
    jitter: tuple[float, float] | None = None  # or the picture at a scale, 1 just covers the size, and a window of it
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
    """From uint8 pairs of any size to a normalised batch [B, C, H, W] and its masks, uint8 [B, H, W]."""

    def __init__(
        self,
        policy: JointPolicy,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        interpolation: str = "bilinear",
        fit: str = "stretch",
    ) -> None:
        """`fit` is Preprocessing's, for a policy that shows the whole."""
        if interpolation not in KERNELS:
            raise VitrailError(f'"{interpolation}" is not an interpolation for training: use {" or ".join(KERNELS)}.')
        _refuse_crop(fit)
        self.policy, self.size, self.seed, self.interpolation, self.fit = policy, size, seed, interpolation, fit
        self.mean, self.std = np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def __call__(
        self,
        pairs: Sequence[Tensor] | Canvas,
        samples: np.ndarray,
        epoch: int,
        device: torch.device | str,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`samples` [B] says which sample each is; `out` is a batch to write into."""
        device, sizes = torch.device(device), image_sizes(pairs)
        pixels = pairs.pixels if isinstance(pairs, Canvas) else pairs
        if len(pixels) and len(pixels[0]) != len(self.mean) + 1:
            raise VitrailError(
                f"The pairs have {len(pixels[0])} channels: expected {len(self.mean)} of the picture and the mask."
            )
        drawn = uniforms(self.seed, epoch, samples, _JITTER.stop)
        boxes, flip = self.boxes(sizes, drawn), drawn[:, _FLIP] < self.policy.flip
        lowest, highest = max(0.0, 1 - self.policy.colour), 1 + self.policy.colour
        factors = lowest + drawn[:, _COLOUR] * (highest - lowest)
        if out is None:
            out = torch.empty(len(sizes), len(self.mean), *self.size, device=device)
        masks = torch.empty(len(sizes), *self.size, dtype=torch.uint8, device=device)
        mean, std = (send(each, device).view(-1, 1, 1) for each in (self.mean, self.std))
        for part, given in _parts(pairs, device):
            down = _along(boxes[part, 0], boxes[part, 2], sizes[part, 0], self.size[0], np.zeros_like(flip[part]))
            across = _along(boxes[part, 1], boxes[part, 3], sizes[part, 1], self.size[1], flip[part])
            inside = send(down.inside[:, :, None] & across.inside[:, None, :], device)
            values = self._resampled(given[:, :-1], down.axis, across.axis).div_(255)
            if self.policy.colour:
                for change, factor in zip((brightness, contrast, saturation), factors[part].T, strict=True):
                    values = change(values, column(factor, values))
            out[part] = values.sub_(mean).div_(std).mul_(inside[:, None])  # 0 is the mean colour
            masks[part] = _nearest(given[:, -1], down.nearest, across.nearest).masked_fill_(~inside, IGNORE)
        return out, masks

    def boxes(self, sizes: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """float64 [B, 4]: top, left, height and width, in pixels of the picture, of what fills the size. It may reach
        beyond the picture."""
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


def _nearest(masks: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """[b, h, w] -> [b, H, W]."""
    batch = torch.arange(len(masks), device=masks.device)[:, None, None]
    return masks[batch, send(rows, masks.device)[:, :, None], send(columns, masks.device)[:, None, :]]


def _parts(pairs: Sequence[Tensor] | Canvas, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """One by one on a CPU, where a pair then comes out the same to the bit in any company; many at once elsewhere."""
    pixels = pairs.pixels if isinstance(pairs, Canvas) else pairs
    step = _AT_ONCE if isinstance(pairs, Canvas) and device.type != "cpu" else 1
    for start in range(0, len(pixels), step):
        part = pixels[start : start + step]
        together = part if isinstance(part, Tensor) else torch.stack(list(part))
        yield slice(start, start + step), together.to(device)


# Pairs as pictures, for stores and loaders.


def shrunk_pairs(samples: list[MaskedSample], pre: Preprocessing, cache: str = "auto") -> Pictures:
    """For training: as `pictures.shrunk`, never padded, for augmentation pads where it must."""
    size = (math.ceil(pre.size[0] * ROOM), math.ceil(pre.size[1] * ROOM))

    def prepare(sample: Sample) -> np.ndarray:
        assert isinstance(sample, MaskedSample)
        pixels = sample.pixels("L" if len(pre.mean) == 1 else "RGB", at_least=size)
        ratio = max(size[0] / pixels.shape[0], size[1] / pixels.shape[1])
        pixels = shrunk_pixels(pixels, ratio) if ratio < WORTH else pixels
        return _joined(pixels, resized_mask(sample.mask_pixels(), pixels.shape[:2]))

    roomy = replace(pre, size=size, crop=1.0)
    return Pictures(list(samples), prepare, store_of(list(samples), "shrunk pairs", roomy, cache))


def fitted_pairs(samples: list[MaskedSample], pre: Preprocessing, cache: str = "auto") -> Pictures:
    """For figures: exactly as `predict` prepares the picture, and the mask through the same geometry."""

    def prepare(sample: Sample) -> np.ndarray:
        assert isinstance(sample, MaskedSample)
        return _joined(as_pixels(fit_image(sample.decode(), pre)), fit_mask(sample.mask_pixels(), pre))

    return Pictures(list(samples), prepare, store_of(list(samples), "fitted pairs", pre, cache))


def fit_mask(mask: np.ndarray, pre: Preprocessing) -> np.ndarray:
    """uint8 [h, w] -> what `fit_image` makes of it with the nearest pixel, IGNORE where it pads."""
    of_masks = replace(pre, mean=(IGNORE / 255,), std=(1.0,), interpolation="nearest")
    return np.array(fit_image(Image.fromarray(mask), of_masks))


def fitted_part(logits: Tensor, size: tuple[int, int], pre: Preprocessing) -> Tensor:
    """What of the logits [..., h, w] of a fitted picture is of the picture itself, which had this height and width."""
    _refuse_crop(pre.fit)
    if pre.fit != "pad":
        return logits
    inside = fit_mask(np.zeros(size, np.uint8), pre) != IGNORE
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    return logits[..., rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _refuse_crop(fit: str) -> None:
    if fit == "crop":
        raise VitrailError('The fit "crop" loses the borders of a picture: segment with "stretch", "pad" or "native".')


def resized_mask(mask: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """The nearest pixel of each: [h, w] -> size."""
    if mask.shape == size:
        return mask
    rows, columns = (
        np.floor((np.arange(want) + 0.5) * have / want).astype(np.int64)
        for have, want in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]


def _joined(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.concatenate([pixels, mask[..., None]], axis=2)


def paired(pre: Preprocessing) -> Preprocessing:
    """With a mean and a deviation for the mask's channel that leave its values as they are."""
    return replace(pre, mean=(*pre.mean, 0.0), std=(*pre.std, 1 / 255))


def apart(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures [B, C, H, W] and masks, uint8 [B, H, W], of a batch that was normalised as `paired` says."""
    return pairs[:, :-1], pairs[:, -1].round().to(torch.uint8)
