"""From an image set to batches on the device: which images are used, threads that read ahead."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.crop import Canvas
from vitrail.data.augment.random_keys import ORDER, permutation, uniforms
from vitrail.data.cache import ArrayStore, DiskStore
from vitrail.data.image_set import ImageSet, WithMaps, threaded
from vitrail.data.samples import Sample
from vitrail.distributed import Processes
from vitrail.errors import VitrailError

Batch = tuple[np.ndarray, Any]  # numbers, and their images: a list, a Canvas, or either `WithMaps`
RESIDENT = 0.1  # of the GPU's free memory that the images may take


class Loader:
    """`batches(groups)` yields for each group of numbers the images, on a GPU as a `Canvas`, on a CPU as a list; and
    their numbers, which are others where some can't be read (`ImageSet.batch`)."""

    def __init__(self, images: ImageSet, device: torch.device, workers: int):
        self.images, self.device, self.workers = images, device, workers
        self.resident: Canvas | None = None
        self.resident_maps: Tensor | None = None

    def move_in(self, numbers: np.ndarray) -> bool:
        """Puts all the images onto the GPU, if they take a small part of it. They must all be readable."""
        if self.device.type != "cuda" or not len(numbers):
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        if isinstance(self.images.store, ArrayStore):
            return self._move_array(self.images.store, RESIDENT * free)
        shapes = np.array([self.images[n].shape for n in numbers])
        height, width = shapes[:, 1].max(), shapes[:, 2].max()
        per_pixel = shapes[0, 0] + (self.images.maps.dtype.itemsize if self.images.maps else 0)
        if len(self.images) * per_pixel * height * width > RESIDENT * free:
            return False
        pixels = torch.zeros(len(self.images), shapes[0, 0], height, width, dtype=torch.uint8, device=self.device)
        sizes = np.zeros((len(self.images), 2), dtype=np.int64)
        for part in np.array_split(numbers, max(1, len(numbers) // 256)):
            place = torch.from_numpy(part).to(self.device)
            pairs = [self.images.pair(n) for n in part]
            canvas = _canvas([image for image, _ in pairs], height, width)
            pixels[place] = canvas.pixels.to(self.device)
            sizes[part] = canvas.sizes
            if self.images.maps:
                maps = _stacked([values for _, values in pairs], height, width)  # type: ignore[misc]
                if self.resident_maps is None:
                    self.resident_maps = maps.new_zeros(len(self.images), height, width, device=self.device)
                self.resident_maps[place] = maps.to(self.device)
        self.resident = Canvas(pixels, sizes)
        return True

    def _move_array(self, store: ArrayStore, room: float) -> bool:
        count, (height, width, channels) = len(store.rows), store.array.shape[1:]
        if count * height * width * channels > room:
            return False
        pixels = torch.empty(count, channels, height, width, dtype=torch.uint8, device=self.device)
        for part in np.array_split(np.arange(count), max(1, count // 8192)):  # so that no second copy is made whole
            pixels[part[0] : part[-1] + 1] = torch.from_numpy(store.several(part)).to(self.device).permute(0, 3, 1, 2)
        self.resident = Canvas(pixels, np.tile(np.array([height, width], dtype=np.int64), (count, 1)))
        return True

    def batches(self, groups: Sequence[np.ndarray]) -> Generator[Batch, None, None]:
        if self.resident is not None:
            for numbers in groups:
                index = torch.from_numpy(numbers).to(self.device, non_blocking=True)
                canvas = Canvas(self.resident.pixels[index], self.resident.sizes[numbers])
                maps = self.resident_maps
                yield numbers, canvas if maps is None else WithMaps(canvas, maps[index])
        elif self.device.type == "cuda":
            for numbers, images in threaded(self.workers, self._stage, groups, ahead=2):
                yield numbers, self._sent(images)
        else:
            yield from threaded(self.workers, self.images.batch, groups, ahead=2)

    def _stage(self, numbers: np.ndarray) -> Batch:
        numbers, images = self.images.batch(numbers)
        if isinstance(images, WithMaps):
            return numbers, WithMaps(_canvas(images.images, pin=True), _stacked(images.maps, pin=True))
        return numbers, _canvas(images, pin=True)

    def _sent(self, images: Any) -> Any:
        if isinstance(images, WithMaps):
            return WithMaps(self._sent(images.images), images.maps.to(self.device, non_blocking=True))
        return Canvas(images.pixels.to(self.device, non_blocking=True), images.sizes)


def _canvas(images: list[Tensor], height: int = 0, width: int = 0, pin: bool = False) -> Canvas:
    """Images of any size in the top left corners of one tensor."""
    sizes = np.array([image.shape[1:] for image in images], dtype=np.int64)
    height, width = max(height, int(sizes[:, 0].max())), max(width, int(sizes[:, 1].max()))
    # Channels last, as decoders have them: rows are copied whole.
    pixels = torch.empty(len(images), height, width, images[0].shape[0], dtype=torch.uint8, pin_memory=pin)
    for place, image in zip(pixels, images, strict=True):
        place[: image.shape[1], : image.shape[2]] = image.permute(1, 2, 0)
    return Canvas(pixels.permute(0, 3, 1, 2), sizes)


def _stacked(maps: list[Tensor], height: int = 0, width: int = 0, pin: bool = False) -> Tensor:
    """Maps of any size in the top left corners of one tensor, [B, height, width]."""
    height = max(height, *(values.shape[0] for values in maps))
    width = max(width, *(values.shape[1] for values in maps))
    joined = torch.zeros(len(maps), height, width, dtype=maps[0].dtype, pin_memory=pin)
    for place, values in zip(joined, maps, strict=True):
        place[: values.shape[0], : values.shape[1]] = values
    return joined


def occurrences(order: np.ndarray) -> np.ndarray:
    """How often each entry has come before in the order: 0 everywhere in a shuffle."""
    sorting = np.argsort(order, kind="stable")
    ordered = order[sorting]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    before = np.empty(len(order), dtype=np.int64)
    before[sorting] = counts
    return before


def epoch_order(numbers: np.ndarray, seed: int, epoch: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The order in which an epoch takes the images: a shuffle, or with weights as many draws with replacement."""
    if weights is None:
        return numbers[permutation(seed, epoch, len(numbers))]
    edges = np.cumsum(weights / weights.sum())
    drawn = uniforms(seed, epoch, np.arange(len(numbers)), 1, ORDER)[:, 0]
    return numbers[np.minimum(np.searchsorted(edges, drawn, side="right"), len(numbers) - 1)]


@dataclass
class Subset:
    """One split as a model sees it: where its images come from, and which of them are used."""

    loader: Loader
    numbers: np.ndarray  # of those not known to be unreadable
    weights: np.ndarray | None = None  # of each of `numbers`, for balanced sampling

    @property
    def samples(self) -> list[Sample]:
        """All of them; `numbers` are places in this list."""
        return self.loader.images.samples

    def labels(self, numbers: np.ndarray | None = None) -> list[tuple[int, ...]]:
        return [self.samples[number].labels for number in (self.numbers if numbers is None else numbers)]

    @property
    def bad(self) -> dict[str, str]:
        """Name → reason, of what this process has found."""
        images = self.loader.images
        return {self.samples[number].name: why for number, why in images.bad.items()}


def read_subset(
    pictures: ImageSet,
    group: Processes,
    workers: int,
    progress: Callable[[int, int], None] | None = None,
    left_out: Sequence[str] | None = None,
) -> Subset:
    """Fills the store, if there is one, and so finds what can't be read; without one, that shows as it goes.

    Without `left_out`, what was found is left out. With it, exactly these names are: in a run that is resumed, the same
    images must have the same places in the order.
    """
    if isinstance(pictures.store, DiskStore):  # the processes share it, so they share the work
        pictures.read(range(len(pictures))[group.rank :: group.count], workers, progress)
        for bad in group.of_all(pictures.bad):
            pictures.bad |= bad
    elif pictures.store is not None:
        pictures.read(range(len(pictures)), workers, progress)
    names = {pictures.samples[n].name for n in pictures.bad} if left_out is None else set(left_out)
    used = [n for n, sample in enumerate(pictures.samples) if sample.name not in names]
    if not used:
        raise VitrailError(
            f"Not one of {len(pictures):,} pictures can be read, for instance: {next(iter(pictures.bad.values()), '')}"
        )
    images = Subset(Loader(pictures, group.device, workers), np.array(used, dtype=np.int64))
    if pictures.store is not None and not pictures.bad.keys() & set(used):
        images.loader.move_in(images.numbers)
    return images


def random_places(count: int, most: int) -> np.ndarray:
    """The places of at most so many of `count` images, drawn at random, always the same. Not every tenth: where classes
    come in turn, those may all be of one."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def all_bad(group: Processes, views: Sequence[Subset]) -> dict[str, str]:
    """Name → reason of every image that any process could not read, in the order of their names."""
    found: dict[str, str] = {}
    for bad in group.of_all({name: why for images in views for name, why in images.bad.items()}):
        found |= bad
    return dict(sorted(found.items()))
