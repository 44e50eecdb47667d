"""The options of regression, and what its data may be."""

from dataclasses import dataclass
from typing import Literal

from vitrail.data.augment.options import AugmentOptions
from vitrail.data.kinds import VALUES
from vitrail.options import Options
from vitrail.tasks.classify.options import TuningOptions

EXPECTS = VALUES


@dataclass(frozen=True)
class RegressOptions(Options):
    columns: str | None = None
    """Which columns of the table are learned, with commas between; by default all but path and split."""
    loss: Literal["smooth_l1", "mse"] = "smooth_l1"
    """smooth_l1 lets outliers count less; mse is the squared error. Both of values in deviations from their mean."""

    def column_names(self) -> list[str] | None:
        names = [name.strip() for name in (self.columns or "").split(",")]
        return [name for name in names if name] or None


OPTIONS = (TuningOptions, AugmentOptions, RegressOptions)
