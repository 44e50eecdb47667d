"""What the steps of an epoch learn from: augmented pixels and their targets, made ahead of them where that pays."""

import time
from collections.abc import Generator
from contextlib import closing
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import Augmenter
from vitrail.data.pictures import threaded
from vitrail.data.randaugment import to_device as send
from vitrail.tasks.classify import Classify
from vitrail.train.images import Images

Steps = Generator[tuple[Tensor, Tensor], None, None]


class Batches:
    """`epoch(…)` yields the pixels and the targets of each step. What happens to an image is drawn by its key, whatever
    its company: so of small pictures, which live on the device whole, those of several steps are changed at once. A GPU
    takes hardly longer over them than over those of one."""

    def __init__(self, train: Images, augmenter: Augmenter, task: Classify, device: torch.device):
        self.train, self.augmenter, self.task, self.device = train, augmenter, task, device
        self._pixels: Tensor | None = None  # of the last batch, to be written over
        self._known: Tensor | None = None  # the targets of all pictures, where these live on the device
        self._aside: Any = None  # the stream that augments them: one, for memory is kept for each stream by itself

    def epoch(self, epoch: int, mine: list[np.ndarray], again: list[np.ndarray], sums: dict[str, float]) -> Steps:
        """`mine` are the numbers of each step's images, and `again` what tells one that is drawn twice from itself.
        The seconds that it has to wait for data are added to sums["wait"]."""
        loader, several = self.train.loader, 1
        if loader.resident is not None and mine:
            stored, made = loader.resident.pixels[0].numel(), prod(self.augmenter.size) * len(self.augmenter.mean)
            several = max(1, values_at_once(self.device) // (len(mine[0]) * max(stored, made)))
        if several > 1:
            yield from self._several_at_once(epoch, mine, again, sums, several)
            return
        with closing(loader.batches(mine)) as batches:
            for repeat in again:
                asked = time.monotonic()
                numbers, images = next(batches)
                sums["wait"] += time.monotonic() - asked
                pixels = self.augmenter(images, numbers + repeat, epoch, self.device, out=self._pixels)
                if self.device.type == "cpu":  # where the last step is over, and fresh memory takes a fifth of the time
                    self._pixels = pixels
                yield pixels, self._targets(numbers)

    def _several_at_once(
        self, epoch: int, mine: list[np.ndarray], again: list[np.ndarray], sums: dict[str, float], several: int
    ) -> Steps:
        """By a thread, on a stream of its own, while the steps before are under way."""
        loader = self.train.loader
        if self.device.type == "cuda":
            self._aside = self._aside or torch.cuda.Stream(self.device)
            self._aside.wait_stream(torch.cuda.current_stream(self.device))  # which brought the pictures there
        aside = self._aside

        def make(first: int) -> tuple[Tensor, Tensor, Any]:
            numbers, repeats = (np.concatenate(each[first : first + several]) for each in (mine, again))
            with torch.cuda.stream(aside):
                _, images = next(loader.batches([numbers]))
                pixels = self.augmenter(images, numbers + repeats, epoch, self.device)
                return pixels, self._targets(numbers), aside.record_event() if aside else None

        with closing(threaded(1, make, range(0, len(mine), several), ahead=2)) as made:
            for _ in range(0, len(mine), several):
                asked = time.monotonic()
                pixels, targets, ready = next(made)
                sums["wait"] += time.monotonic() - asked
                if ready is not None:
                    here = torch.cuda.current_stream(self.device)
                    here.wait_event(ready)
                    pixels.record_stream(here)
                    targets.record_stream(here)
                yield from zip(pixels.split(len(mine[0])), targets.split(len(mine[0])), strict=True)

    def _targets(self, numbers: np.ndarray) -> Tensor:
        if self.train.loader.resident is None:
            return self.task.smoothed(self.task.targets(self.train.labels(numbers), self.device))
        if self._known is None:
            everyone = self.train.labels(np.arange(len(self.train.samples)))
            self._known = self.task.smoothed(self.task.targets(everyone, self.device))
        return self._known[send(numbers, self.device)]


def values_at_once(device: torch.device) -> int:
    """How many numbers a GPU may augment at once: an eighth of a gigabyte, less where there is little memory."""
    return min(2**25, torch.cuda.get_device_properties(device).total_memory // 256)
