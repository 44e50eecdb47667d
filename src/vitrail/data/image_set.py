"""The images of a data set as uint8 tensors: decoded by threads, shrunk once, kept in a store.

Two views of the same files. `shrunk` is what training cuts its random crops from: its short side a little above the
model's, aspect kept. `fitted` is exactly what the model will see when it predicts: figures are measured on nothing
else.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.data.cache import ArrayStore, DiskStore, MemoryStore, Store, cache_folder, choose
from vitrail.data.preprocess import fit_image
from vitrail.data.samples import Item, Sample, TarMember
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing

T = TypeVar("T")
R = TypeVar("R")
# How much larger than the model's size training keeps its images: 249 for 224, so that a photograph of 500 pixels is
# decoded at half of its size, which takes a third of the time.
ROOM = 10 / 9
FORMAT = 1  # of what a disk cache holds; another one where decoding or shrinking changes
WORTH = 0.7  # what would not shrink below this is kept as it is: the time counts for more than the room


class Unreadable(VitrailError):
    """An image that can't be had; anything else that goes wrong, such as a full disk, is no fault of the image."""


@dataclass
class MapReader:
    """Where the map of a sample comes from, for tasks that have one per image: see `maps`."""

    read: Callable[[Sample, tuple[int, ...]], np.ndarray]  # for an image of this shape: [h, w]
    dtype: np.dtype
    store: Store | None = None

    def get(self, number: int) -> np.ndarray | None:
        found = self.store.get(number) if self.store else None  # as bytes, [h, w, bytes of a value]
        return None if found is None else np.ascontiguousarray(found).view(self.dtype)[..., 0]

    def put(self, number: int, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=self.dtype)
        if self.store:
            self.store.put(number, values[..., None].view(np.uint8))
        return values


class WithMaps(NamedTuple):
    """Images of a batch, and the map of each."""

    images: Any  # list of [C, h, w], or a Canvas
    maps: Any  # list of [h, w], or one tensor [B, largest height, largest width]


@dataclass
class ImageSet:
    """`images[i]` is the image of sample i, uint8 [C, h, w]; a view into the store where there is one."""

    samples: list[Sample]
    prepare: Callable[[Sample], np.ndarray]  # uint8 [h, w, C]
    store: Store | None = None
    bad: dict[int, str] = field(default_factory=dict)  # number → why it can't be read, as far as is known
    maps: MapReader | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Tensor:
        return self.pair(number)[0]

    def pair(self, number: int) -> tuple[Tensor, Tensor | None]:
        """The image, and its map [h, w] where the set has maps."""
        pixels, values = self.store.get(number) if self.store else None, self.maps.get(number) if self.maps else None
        sample = self.samples[number]
        try:
            prepared = self.prepare(sample) if pixels is None else pixels
            if self.maps and values is None:
                values = self.maps.put(number, self.maps.read(sample, prepared.shape))
        except VitrailError as error:
            self.bad[number] = str(error)
            raise Unreadable(str(error)) from None
        if pixels is None:
            pixels = self.store.put(number, prepared) if self.store else prepared
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        return image, None if values is None else torch.from_numpy(values)

    def batch(self, numbers: np.ndarray) -> tuple[np.ndarray, Any]:
        """Several, and their numbers: where one can't be read, those are of the next one that can, so that an image
        never passes for another. Which one that is depends on the files alone, not on the batch."""
        found = [self._readable(int(number)) for number in numbers]
        images = [image for _, (image, _) in found]
        kept = np.array([number for number, _ in found], dtype=np.int64)
        return kept, images if self.maps is None else WithMaps(images, [values for _, (_, values) in found])

    def _readable(self, number: int) -> tuple[int, tuple[Tensor, Tensor | None]]:
        for other in chain(range(number, len(self)), range(number)):
            if other not in self.bad:
                with suppress(Unreadable):
                    return other, self.pair(other)
        raise VitrailError(f"Not one of {len(self):,} images can be read, for instance: {self.bad[number]}")

    def read(self, numbers: Sequence[int], workers: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Fills the store, and finds the files that can't be read."""
        if isinstance(self.store, ArrayStore):
            return
        for done, _ in enumerate(threaded(workers, self._try, numbers), 1):
            if progress:
                progress(done, len(numbers))

    def _try(self, number: int) -> None:
        with suppress(Unreadable):
            self[number]


def shrunk(samples: list[Sample], pre: Preprocessing, cache: str = "auto") -> ImageSet:
    """For training: the short side about 10/9 of the model's, never enlarged; padded or stretched if `fit` says so."""
    size = (math.ceil(pre.size[0] * ROOM), math.ceil(pre.size[1] * ROOM))
    roomy = replace(pre, size=size, crop=1.0)

    def prepare(sample: Sample) -> np.ndarray:
        if pre.fit in ("pad", "stretch"):
            return as_pixels(fit_image(sample.decode(at_least=size), roomy))
        pixels = sample.pixels("L" if len(pre.mean) == 1 else "RGB", at_least=size)
        ratio = max(size[0] / pixels.shape[0], size[1] / pixels.shape[1])
        return shrunk_pixels(pixels, ratio) if ratio < WORTH else pixels

    array = None if pre.fit in ("pad", "stretch") else _one_array(samples, len(pre.mean))
    if array and max(size[0] / array.array.shape[1], size[1] / array.array.shape[2]) >= WORTH:
        return ImageSet(samples, prepare, array)
    return ImageSet(samples, prepare, store_of(samples, "shrunk", roomy, cache))


def fitted(samples: list[Sample], pre: Preprocessing, cache: str = "auto") -> ImageSet:
    """For figures: exactly as `predict` prepares them, before normalisation."""

    def prepare(sample: Sample) -> np.ndarray:
        return as_pixels(fit_image(sample.decode(), pre))

    array = _one_array(samples, len(pre.mean))
    if array and array.array.shape[1:3] == pre.size and pre.crop == 1:
        return ImageSet(samples, prepare, array)
    return ImageSet(samples, prepare, store_of(samples, "fitted", pre, cache))


def _one_array(samples: list[Sample], channels: int) -> ArrayStore | None:
    """The array that all the images lie in, if there is one, as in an .npz file or torchvision's CIFAR10: to take
    100,000 of them one by one would take seconds, and as much memory again."""
    first = samples[0].where if samples else None
    array = getattr(first.dataset, "data", None) if isinstance(first, Item) else None
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != channels:
        return None
    where = [sample.where for sample in samples]
    rows = [place.index for place in where if isinstance(place, Item) and place.dataset is first.dataset]  # type: ignore
    return ArrayStore(array, np.array(rows, dtype=np.int64)) if len(rows) == len(samples) else None


def as_pixels(image: Image.Image) -> np.ndarray:
    """uint8 [h, w, C]; a copy, for Pillow's own memory is read-only, of which torch warns."""
    return np.array(image).reshape(image.height, image.width, -1)


def shrunk_pixels(pixels: np.ndarray, ratio: float) -> np.ndarray:
    """As Pillow's bilinear resize does it, in half of the time: torch has a kernel for bytes."""
    size = (max(1, round(pixels.shape[0] * ratio)), max(1, round(pixels.shape[1] * ratio)))
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]  # 1 C h w, channels last in memory
    smaller = F.interpolate(image, size, mode="bilinear", antialias=True)
    return smaller[0].permute(1, 2, 0).contiguous().numpy()


def cache_mode(count: int, pre: Preprocessing, cache: str, copies: int = 1) -> str:
    """What "auto" means for so many images; `copies` is how many processes would each hold them in memory."""
    # Photographs are 4:3, and kept somewhat larger than the model sees them.
    return choose(cache, 2 * count * pre.size[0] * pre.size[1] * len(pre.mean), copies)


def store_of(samples: list[Sample], kind: str, pre: Preprocessing, cache: str) -> Store | None:
    mode = cache_mode(len(samples), pre, cache)
    if mode == "memory":
        return MemoryStore(len(samples))
    if mode == "off":
        return None
    colours = pre.mean if pre.fit == "pad" else len(pre.mean)
    how = f"{FORMAT} {kind} {pre.size} {pre.crop} {pre.interpolation} {pre.fit} {colours} {ROOM} {WORTH}"
    return DiskStore(cache_folder([how, *map(_identity, samples)]), len(samples))


def _identity(sample: Sample) -> str:
    """Another when the file becomes another. With its whole path, since a relative one means many files."""
    place = sample.where.path if isinstance(sample.where, TarMember) else sample.where
    whole = os.path.abspath(place) if isinstance(place, Path) else ""
    return f"{whole} {sample.identity()}"


def threaded(workers: int, function: Callable[[T], R], items: Iterable[T], ahead: int = 4) -> Generator[R, None, None]:
    """`map` in threads, in order, at most `ahead` items per worker before the reader. Pillow decodes outside of
    Python's lock, so threads do what processes would, without copying images between them."""
    if workers < 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-decode")
    try:
        coming = iter(items)
        waiting = deque(pool.submit(function, item) for item in islice(coming, workers * ahead))
        for item in coming:
            yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        let_go(pool)


def let_go(pool: ThreadPoolExecutor) -> None:
    """Nothing more is begun. Its threads are not waited for: what ends a generator may be the garbage collector, at any
    place, and where that is the start or the end of another thread, whose lock they need to end, it would wait for
    ever."""
    pool.shutdown(wait=False, cancel_futures=True)


def default_workers() -> int:
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
