"""The options of segmentation."""

from dataclasses import dataclass
from typing import Literal

from vitrail.data.augment.options import AugmentOptions
from vitrail.data.kinds import MASKS
from vitrail.options import option
from vitrail.tasks.dense.options import DenseOptions

EXPECTS = MASKS


@dataclass(frozen=True)
class SegmentOptions(DenseOptions):
    head: Literal["linear", "fcn", "upernet"] | None = None
    """What stands on the backbone."""
    label_smoothing: float | None = option(None, 0, 1)
    """Certainty taken from the true class and spread over all."""
    balance: Literal["auto", "none", "weights"] = "auto"
    """weights: the loss of a pixel counts more where its class is rare."""


OPTIONS = (SegmentOptions, AugmentOptions)
