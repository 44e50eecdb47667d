"""Images with a map each, [h, w] of one number per pixel: class masks (uint8), depth (float32) and the like.

A map keeps its own type and travels beside its image: decoded, cached, loaded and augmented with it. It is resampled by
the nearest pixel, so that its values are never mixed, and what lies outside of the image gets the fill value.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.image_set import ROOM, WORTH, ImageSet, MapReader, as_pixels, shrunk_pixels, store_of
from vitrail.data.preprocess import fit_image, pad_image, resize_image
from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing


@dataclass(frozen=True)
class MapKind:
    """What the maps of a task are."""

    name: str  # in the key of a cache
    read: Callable[[Sample], np.ndarray]  # [h, w] at the size of the upright image
    dtype: type = np.uint8  # or np.int32, np.float32
    fill: float = 255  # outside of the image


def shrunk_with_maps(samples: list[Sample], pre: Preprocessing, kind: MapKind, cache: str = "auto") -> ImageSet:
    """For training: as `image_set.shrunk`, never padded, for augmentation pads where it must."""
    size = (math.ceil(pre.size[0] * ROOM), math.ceil(pre.size[1] * ROOM))

    def prepare(sample: Sample) -> np.ndarray:
        pixels = sample.pixels("L" if len(pre.mean) == 1 else "RGB", at_least=size)
        ratio = max(size[0] / pixels.shape[0], size[1] / pixels.shape[1])
        return shrunk_pixels(pixels, ratio) if ratio < WORTH else pixels

    def read_map(sample: Sample, shape: tuple[int, ...]) -> np.ndarray:
        return resized_map(kind.read(sample), shape[:2])

    return _with_maps(samples, prepare, read_map, "shrunk", replace(pre, size=size, crop=1.0), kind, cache)


def fitted_with_maps(samples: list[Sample], pre: Preprocessing, kind: MapKind, cache: str = "auto") -> ImageSet:
    """For figures: exactly as `predict` prepares the image, and the map through the same geometry."""

    def prepare(sample: Sample) -> np.ndarray:
        return as_pixels(fit_image(sample.decode(), pre))

    def read_map(sample: Sample, shape: tuple[int, ...]) -> np.ndarray:
        return fit_map(kind.read(sample), pre, kind.fill)

    return _with_maps(samples, prepare, read_map, "fitted", pre, kind, cache)


def _with_maps(
    samples: list[Sample], prepare: Callable[[Sample], np.ndarray],
    read_map: Callable[[Sample, tuple[int, ...]], np.ndarray], how: str, pre: Preprocessing, kind: MapKind, cache: str,
) -> ImageSet:  # fmt: skip
    store = store_of(samples, f"{how} beside {kind.name}", pre, cache)
    maps = MapReader(read_map, np.dtype(kind.dtype), store_of(samples, f"{how} {kind.name}", pre, cache))
    return ImageSet(list(samples), prepare, store, maps=maps)


def fit_map(values: np.ndarray, pre: Preprocessing, fill: float = 255) -> np.ndarray:
    """[h, w] -> what `fit_image` makes of an image of that size, with the nearest pixel, and `fill` where it pads."""
    refuse_crop(pre.fit)
    image, nearest = Image.fromarray(values), replace(pre, interpolation="nearest")
    if pre.fit == "stretch":
        image = resize_image(image, pre.size, nearest)
    elif pre.fit == "pad":
        image = pad_image(image, nearest, fill)
    return np.array(image)


def inside(size: tuple[int, int], pre: Preprocessing) -> tuple[slice, slice]:
    """Where a fitted image of this height and width lies in what the model sees: rows and columns."""
    refuse_crop(pre.fit)
    if pre.fit != "pad":
        return slice(None), slice(None)
    there = fit_map(np.zeros(size, np.uint8), pre) == 0
    rows, columns = np.flatnonzero(there.any(axis=1)), np.flatnonzero(there.any(axis=0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def fitted_part(values: Tensor, size: tuple[int, int], pre: Preprocessing) -> Tensor:
    """What of an answer [..., h, w] to a fitted image is of the image itself, which had this height and width."""
    rows, columns = inside(size, pre)
    return values[..., rows, columns]


def refuse_crop(fit: str) -> None:
    if fit == "crop":
        raise VitrailError('The fit "crop" loses the borders of an image: use "stretch", "pad" or "native" here.')


def resized_map(values: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """The nearest pixel of each: [h, w] -> size."""
    if values.shape == tuple(size):
        return values
    rows, columns = (
        np.floor((np.arange(want) + 0.5) * have / want).astype(np.int64)
        for have, want in zip(values.shape, size, strict=True)
    )
    return values[rows[:, None], columns]
