"""The pictures of a run: read once as far as they are kept, those that can't be read found and left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.cache import DiskStore
from vitrail.data.image_set import ImageSet
from vitrail.data.loader import Loader
from vitrail.data.samples import Sample
from vitrail.distributed import Processes
from vitrail.errors import VitrailError


@dataclass
class Subset:
    """One split as a model sees it: where its pictures come from, and which of them are used."""

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
    pictures must have the same places in the order.
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


def drawn(count: int, most: int) -> np.ndarray:
    """The places of at most so many of `count` images, drawn at random, always the same. Not every tenth: where classes
    come in turn, those may all be of one."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def all_bad(group: Processes, views: Sequence[Subset]) -> dict[str, str]:
    """Name → reason of every picture that any process could not read, in the order of their names."""
    found: dict[str, str] = {}
    for bad in group.of_all({name: why for images in views for name, why in images.bad.items()}):
        found |= bad
    return dict(sorted(found.items()))
