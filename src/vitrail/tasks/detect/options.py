"""The options of detection."""

from dataclasses import dataclass
from typing import Literal

from vitrail.data.augment.options import AugmentOptions
from vitrail.data.kinds import BOXES
from vitrail.tasks.dense.options import DenseOptions

EXPECTS = BOXES


@dataclass(frozen=True)
class DetectOptions(DenseOptions):
    head: Literal["faster_rcnn", "mask_rcnn", "retinanet"] | None = None
    """What stands on the backbone; mask_rcnn also learns outlines, retinanet has one stage."""


OPTIONS = (DetectOptions, AugmentOptions)
