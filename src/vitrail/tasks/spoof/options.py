"""The options of face anti-spoofing."""

from dataclasses import dataclass
from typing import Literal

from vitrail.data.augment.options import AugmentOptions, MixOptions
from vitrail.data.kinds import FACE_MARGIN, FACES
from vitrail.options import Options, option
from vitrail.tasks.classify.options import LabelOptions, TuningOptions

EXPECTS = FACES


@dataclass(frozen=True)
class SpoofOptions(Options):
    protocol: Literal["disjoint", "official"] = "disjoint"
    """When a subject is in two splits: refuse, or (official) go on and record it."""
    fold: str | None = None
    """1/3 tests on the first of three parts of all subjects, and so on."""
    leave_out: str | None = None
    """The domain to test on; the model is trained on the others."""
    boxes: str | None = option(None, source=True)
    """A table of face boxes, path,left,top,width,height."""
    margin: float = option(FACE_MARGIN, 0, 3)
    """What a face box gets on every side, as a part of its longer side."""


OPTIONS = (TuningOptions, AugmentOptions, MixOptions, LabelOptions, SpoofOptions)
