"""Augmentation ahead of the steps, for small images that live on the device whole: those of several steps are augmented
at once, by a thread and on a stream of its own. A GPU takes hardly longer over them than over those of one step."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loader import Subset
from vitrail.data.samples import plural
from vitrail.training.fast.streams import stream

Numbers = tuple[list[np.ndarray], list[np.ndarray]]
AHEAD = 3  # groups of steps in the making, or made and waiting


class Group(NamedTuple):
    """The images of several steps, to be augmented at once."""

    epoch: int
    numbers: np.ndarray
    repeats: np.ndarray

    def same(self, other: "Group") -> bool:
        return self.epoch == other.epoch and np.array_equal(self.numbers, other.numbers)


class LookAhead:
    def __init__(self, train: Subset, augment: Any, device: torch.device, note: Callable[[str], None]):
        self.train, self.augment, self.device, self.note = train, augment, device, note
        self._most = inf  # steps whose images are augmented at once: fewer where memory has run out
        self._aside: Any = None  # the stream that augments them: one, for memory is kept for each stream by itself
        self._line: deque[tuple[Group, Future]] = deque()  # in order, perhaps into the next epoch
        self._thread: ThreadPoolExecutor | None = None

    def steps(
        self, epoch: int, numbers: Numbers, sums: dict[str, float], following: Callable[[], Numbers] | None
    ) -> Generator[tuple[Tensor, Tensor], None, Numbers]:
        """Yields the steps that can be made this way; returns the numbers of those that are left."""
        mine, again = numbers
        step: tuple[Tensor, Tensor] | None
        while (several := self._at_once(mine)) > 1:
            done = 0  # steps
            try:
                for step in self._several(epoch, (mine, again), several, sums, following):
                    done += 1
                    yield step
                return [], []
            except torch.OutOfMemoryError:
                mine, again = mine[done:], again[done:]
            # Outside of the clause, for the error holds what its function had made, and a step is a view of its group.
            step = None
            self._make_room((min(several, len(mine)) + 1) // 2)
        return mine, again

    def _at_once(self, mine: list[np.ndarray]) -> int:
        """How many steps' images are augmented together."""
        resident, made = self.train.loader.resident, self.augment.output_values
        if resident is None or made is None or not mine:
            return 1
        stored = resident.pixels[0].numel()
        return max(1, int(min(self._most, values_at_once(self.device) // (len(mine[0]) * max(stored, made)))))

    def _make_room(self, most: int) -> None:
        """What the thread has made goes, and is made again, of fewer steps at once."""
        self._most = most
        self.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.note(
            f"  Out of memory: the images of {plural(most, 'step')} are augmented at once from here on; what is done "
            "to each stays the same."
        )

    def _several(
        self, epoch: int, numbers: Numbers, several: int, sums: dict[str, float],
        following: Callable[[], Numbers] | None,
    ) -> Generator[tuple[Tensor, Tensor], None, None]:  # fmt: skip
        now, size = groups(epoch, numbers, several), len(numbers[0][0])
        if self.device.type == "cuda" and self._aside is None:
            self._aside = stream(torch.cuda.current_device(), "augment")
            self._aside.wait_stream(torch.cuda.current_stream(self.device))  # which brought the images there
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
            inputs, targets, ready = self._line.popleft()[1].result()
            sums["wait"] += time.monotonic() - asked
            if ready is not None:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(ready)
                inputs.record_stream(here)
                targets.record_stream(here)
            yield from zip(inputs.split(size), targets.split(size), strict=True)

    def _make(self, group: Group) -> tuple[Tensor, Tensor, Any]:
        with torch.cuda.stream(self._aside):
            _, images = next(self.train.loader.batches([group.numbers]))
            keys = group.numbers + group.repeats
            inputs, targets = self.augment(images, group.numbers, keys, group.epoch, self.device)
            return inputs, targets, self._aside.record_event() if self._aside else None

    def close(self) -> None:
        """Ends the thread, and lets go of what it has made."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = None
        self._line.clear()


def groups(epoch: int, numbers: Numbers, several: int) -> list[Group]:
    mine, again = numbers
    parts = range(0, len(mine), several)
    return [Group(epoch, *(np.concatenate(each[i : i + several]) for each in (mine, again))) for i in parts]


def values_at_once(device: torch.device) -> int:
    """How many numbers a GPU may augment at once: an eighth of a gigabyte, less where there is little memory."""
    return min(2**25, torch.cuda.get_device_properties(device).total_memory // 256)
