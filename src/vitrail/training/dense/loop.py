"""The loop where a picture's answer lies in the picture: masks and boxes are moved along with the pixels."""

import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

from vitrail.training.batches import Numbers
from vitrail.training.trainer import Trainer

LOOKS = 20  # times that a run is validated, at most: small data takes many short epochs, and measuring is slow


class DenseTrainer(Trainer):
    """`augmenter(images, numbers, keys, epoch, device)` gives what the model is given and what it is to say."""

    augmenter: Any

    @property
    def due(self) -> bool:
        epoch, epochs = self.epoch + 1, self.settings.epochs
        return epoch % -(-epochs // LOOKS) == 0 or epoch == epochs

    def _validate(self) -> dict[str, float]:
        return super()._validate() if self.due else {}

    def _is_best(self, row: dict[str, Any]) -> bool:
        return super()._is_best(row) if self.due else not self.best

    def _batches(self, numbers: Numbers) -> Generator[tuple[Any, Any], None, None]:
        mine, again = numbers
        with closing(self.train.loader.batches(mine)) as batches:
            for repeat in again:
                asked = time.monotonic()
                shown, images = next(batches)
                self.sums["wait"] += time.monotonic() - asked
                yield self.augmenter(images, shown, shown + repeat, self.epoch, self.device)
