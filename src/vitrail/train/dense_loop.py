"""The loop where a picture's answer lies in the picture: masks and boxes are moved along with the pixels."""

import time
from collections.abc import Generator
from contextlib import closing
from typing import Any, ClassVar

import numpy as np

from vitrail.train.loop import Trainer


class DenseTrainer(Trainer):
    """`augmenter(images, numbers, keys, epoch, device)` gives what the model is given and what it is to say."""

    augmenter: Any
    records: ClassVar[bool] = False

    def _batches(self, mine: list[np.ndarray], again: list[np.ndarray]) -> Generator[tuple[Any, Any], None, None]:
        with closing(self.train.loader.batches(mine)) as batches:
            for repeat in again:
                asked = time.monotonic()
                numbers, images = next(batches)
                self.sums["wait"] += time.monotonic() - asked
                yield self.augmenter(images, numbers, numbers + repeat, self.epoch, self.device)
