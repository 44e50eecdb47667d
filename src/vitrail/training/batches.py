"""What the steps of an epoch learn from: augmented pixels and their targets, made ahead of them where that pays."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.images import Augmenter
from vitrail.data.augment.randaugment import to_device as send
from vitrail.data.samples import plural
from vitrail.data.subset import Subset
from vitrail.errors import VitrailError
from vitrail.tasks.classify import Classify
from vitrail.training.fast.streams import stream

Steps = Generator[tuple[Tensor, Tensor], None, None]
Numbers = tuple[list[np.ndarray], list[np.ndarray]]  # for each step those of its images, and how often they came before
AHEAD = 3  # groups of steps in the making, or made and waiting


class Batches:
    """`epoch(…)` yields the pixels and the targets of each step. What happens to an image is drawn by its key, whatever
    its company: so of small pictures, which live on the device whole, those of several steps are changed at once. A GPU
    takes hardly longer over them than over those of one."""

    def __init__(
        self, train: Subset, augmenter: Augmenter, task: Classify, device: torch.device,
        note: Callable[[str], None] = print,
    ):  # fmt: skip
        self.train, self.augmenter, self.task, self.device, self.note = train, augmenter, task, device, note
        self._most = inf  # steps whose images are changed at once: fewer where memory has run out
        self._pixels: Tensor | None = None  # of the last batch, to be written over
        self._known: Tensor | None = None  # the targets of all pictures, where these live on the device
        self._aside: Any = None  # the stream that augments them: one, for memory is kept for each stream by itself
        self._line: deque[tuple[Group, Future]] = deque()  # in order, perhaps into the next epoch
        self._thread: ThreadPoolExecutor | None = None

    def epoch(
        self, epoch: int, numbers: Numbers, sums: dict[str, float], following: Callable[[], Numbers] | None = None
    ) -> Steps:
        """The seconds that it has to wait for data are added to sums["wait"]. `following` gives the numbers of the next
        epoch, if there is one: its first pictures are made while this one's last steps and its validation run."""
        mine, again = numbers
        step: tuple[Tensor, Tensor] | None
        while (several := self._at_once(mine)) > 1:
            done = 0  # steps
            try:
                for step in self._several_at_once(epoch, (mine, again), several, sums, following):
                    done += 1
                    yield step
                return
            except torch.OutOfMemoryError:
                mine, again = mine[done:], again[done:]
            # Outside of the clause, for the error holds what its function had made, and a step is a view of its group.
            step = None
            self._make_room((min(several, len(mine)) + 1) // 2)
        with closing(self.train.loader.batches(mine)) as batches:
            for repeat in again:
                asked = time.monotonic()
                try:
                    shown, images = next(batches)
                    sums["wait"] += time.monotonic() - asked
                    pixels = self.augmenter(images, shown + repeat, epoch, self.device, out=self._pixels)
                except torch.OutOfMemoryError:
                    raise VitrailError(
                        f"Out of memory while changing the {plural(len(repeat), 'image')} of a step: use a smaller "
                        "--batch-size or --image-size."
                    ) from None
                if self.device.type == "cpu":  # where the last step is over, and fresh memory takes a fifth of the time
                    self._pixels = pixels
                yield pixels, self._targets(shown)

    def _at_once(self, mine: list[np.ndarray]) -> int:
        """How many steps' images are changed together."""
        resident = self.train.loader.resident
        if resident is None or not mine:
            return 1
        stored, made = resident.pixels[0].numel(), prod(self.augmenter.size) * len(self.augmenter.mean)
        return max(1, int(min(self._most, values_at_once(self.device) // (len(mine[0]) * max(stored, made)))))

    def _make_room(self, most: int) -> None:
        """What the thread has made goes, and is made again, of fewer steps at once."""
        self._most = most
        self.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.note(
            f"  Out of memory: the images of {plural(most, 'step')} are changed at once from here on; what is done "
            "to each stays the same."
        )

    def _several_at_once(
        self, epoch: int, numbers: Numbers, several: int, sums: dict[str, float],
        following: Callable[[], Numbers] | None,
    ) -> Steps:  # fmt: skip
        """By a thread, on a stream of its own, while the steps before are under way."""
        now, size = groups(epoch, numbers, several), len(numbers[0][0])
        if self.device.type == "cuda" and self._aside is None:
            self._aside = stream(torch.cuda.current_device(), "augment")
            self._aside.wait_stream(torch.cuda.current_stream(self.device))  # which brought the pictures there
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="vitrail-augment")
        if not all(made.same(group) for (made, _), group in zip(self._line, now, strict=False)):
            self._line.clear()
        begun = len(self._line)

        def coming() -> Iterator[Group]:
            yield from now[begun:]
            if following:
                yield from groups(epoch + 1, following(), several)

        rest = coming()
        for _ in now:
            while len(self._line) < AHEAD and (group := next(rest, None)):
                self._line.append((group, self._thread.submit(self._make, group)))
            asked = time.monotonic()
            pixels, targets, ready = self._line.popleft()[1].result()
            sums["wait"] += time.monotonic() - asked
            if ready is not None:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(ready)
                pixels.record_stream(here)
                targets.record_stream(here)
            yield from zip(pixels.split(size), targets.split(size), strict=True)

    def _make(self, group: "Group") -> tuple[Tensor, Tensor, Any]:
        with torch.cuda.stream(self._aside):
            _, images = next(self.train.loader.batches([group.numbers]))
            pixels = self.augmenter(images, group.numbers + group.repeats, group.epoch, self.device)
            return pixels, self._targets(group.numbers), self._aside.record_event() if self._aside else None

    def close(self) -> None:
        """Ends the thread, and lets go of what it has made."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = None
        self._line.clear()

    def _targets(self, numbers: np.ndarray) -> Tensor:
        if self.train.loader.resident is None:
            return self.task.smoothed(self.task.targets(self.train.labels(numbers), self.device))
        if self._known is None:
            everyone = self.train.labels(np.arange(len(self.train.samples)))
            self._known = self.task.smoothed(self.task.targets(everyone, self.device))
        return self._known[send(numbers, self.device)]


class Group(NamedTuple):
    """The images of several steps, to be changed at once."""

    epoch: int
    numbers: np.ndarray
    repeats: np.ndarray

    def same(self, other: "Group") -> bool:
        return self.epoch == other.epoch and np.array_equal(self.numbers, other.numbers)


def groups(epoch: int, numbers: Numbers, several: int) -> list[Group]:
    mine, again = numbers
    parts = range(0, len(mine), several)
    return [Group(epoch, *(np.concatenate(each[i : i + several]) for each in (mine, again))) for i in parts]


def values_at_once(device: torch.device) -> int:
    """How many numbers a GPU may augment at once: an eighth of a gigabyte, less where there is little memory."""
    return min(2**25, torch.cuda.get_device_properties(device).total_memory // 256)
