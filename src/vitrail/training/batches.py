"""What the steps of an epoch learn from: augmented images and their targets, made ahead of them where that pays."""

import time
from collections.abc import Callable, Generator
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.mixing import draw, mix
from vitrail.data.loader import Subset, epoch_order, occurrences
from vitrail.data.samples import plural
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.tasks.base import Augment, Batch
from vitrail.training.fast.look_ahead import LookAhead

Steps = Generator[Batch, None, None]
Numbers = tuple[list[np.ndarray], list[np.ndarray]]  # for each step those of its images, and how often they came before


class Mixing:
    """MixUp and CutMix of a step, drawn by (seed, epoch, step)."""

    def __init__(self, mixup: float, cutmix: float, seed: int, until: int):
        self.mixup, self.cutmix, self.seed, self.until = mixup, cutmix, seed, until

    def __call__(self, inputs: Tensor, targets: Tensor, epoch: int, step: int) -> Batch:
        if not (self.mixup or self.cutmix) or epoch >= self.until:
            return inputs, targets
        return mix(inputs, targets, self.mixup, self.cutmix, draw(self.seed, epoch, step))


class Batches:
    """`epoch(…)` yields what the model is given and what it is to answer, step by step. What happens to an image is
    drawn by its key, whatever its company."""

    def __init__(
        self, train: Subset, augment: Augment, batch_size: int, seed: int, processes: Processes,
        mixing: Mixing | None = None, note: Callable[[str], None] = print,
    ):  # fmt: skip
        self.train, self.augment, self.seed, self.processes, self.mixing = train, augment, seed, processes, mixing
        self.batch_size = min(batch_size, len(train.numbers))
        if self.batch_size < processes.count:
            raise VitrailError(
                f"Each of {processes.count} processes needs an image in every batch of {self.batch_size}: use a larger "
                "--batch-size, or fewer processes.",
                code="batch_too_small", processes=processes.count, batch_size=self.batch_size,
            )  # fmt: skip
        self.steps = len(train.numbers) // self.batch_size  # per epoch; the incomplete last batch is left out
        # Several steps are made at once where the images live on the device whole.
        resident = train.loader.resident is not None
        self._ahead = LookAhead(train, augment, processes.device, note) if resident else None
        self._memory: Tensor | None = None  # of the last batch, to be written over

    def epoch(self, epoch: int, first: int, last: bool, sums: dict[str, float]) -> Steps:
        """From this step on. The seconds spent waiting for data are added to sums["wait"]. Unless this is the last
        epoch, the first images of the next one may be made while this one's last steps and its validation run."""
        following = None if last else lambda: self._numbers(epoch + 1)
        numbers = self._numbers(epoch, first)
        for step, (inputs, targets) in enumerate(self._steps(epoch, numbers, sums, following), first):
            if self.mixing is not None:
                inputs, targets = self.mixing(inputs, targets, epoch, step)
            yield inputs, targets

    def _numbers(self, epoch: int, first: int = 0) -> Numbers:
        """Of this process's images in each step of an epoch, from the first on."""
        order = epoch_order(self.train.numbers, self.seed, epoch, self.train.weights)
        size, steps = self.batch_size, range(first, self.steps)
        # An image that is drawn again in an epoch, to balance the classes, is augmented differently each time.
        repeats = occurrences(order) * len(self.train.samples)
        share = self.processes.share
        mine, again = ([share(each[s * size : (s + 1) * size]) for s in steps] for each in (order, repeats))
        return mine, again

    def _steps(
        self, epoch: int, numbers: Numbers, sums: dict[str, float], following: Callable[[], Numbers] | None
    ) -> Steps:
        if self._ahead is not None:
            numbers = yield from self._ahead.steps(epoch, numbers, sums, following)
        mine, again = numbers  # what is not made several steps at once
        device = self.processes.device
        with closing(self.train.loader.batches(mine)) as batches:
            for repeat in again:
                asked = time.monotonic()
                try:
                    shown, images = next(batches)
                    sums["wait"] += time.monotonic() - asked
                    inputs, targets = self.augment(images, shown, shown + repeat, epoch, device, out=self._memory)
                except torch.OutOfMemoryError:
                    raise VitrailError(
                        f"Out of memory while augmenting the {plural(len(repeat), 'image')} of a step: use a smaller "
                        "--batch-size or --image-size.",
                        code="out_of_memory", images=len(repeat),
                    ) from None  # fmt: skip
                # On a CPU the last step is over, and fresh memory takes a fifth of the time.
                if device.type == "cpu" and self.augment.output_values is not None:
                    self._memory = inputs
                yield inputs, targets

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Dropout and drop path draw from torch's generators. Keyed to the step, they need not be saved, and a run that is
    resumed anywhere draws what it would have drawn."""
    torch.manual_seed(int(np.random.SeedSequence((seed, epoch, step, rank)).generate_state(1, np.uint64)[0] >> 1))
