"""What a person can say of augmentation."""

from dataclasses import dataclass
from typing import Literal

from vitrail.options import Options, option


@dataclass(frozen=True)
class AugmentOptions(Options):
    augment: Literal["auto", "none", "light", "medium", "strong"] = "auto"
    """How much training images are changed at random."""
    flip: float | None = option(None, 0, 1)
    """Probability of a mirror image; set 0 where left and right matter, as with digits."""
    drop_path: float | None = option(None, 0, 1)
    """Drop path of the last block; earlier blocks have less, linearly."""


@dataclass(frozen=True)
class MixOptions(Options):
    mixup: float | None = option(None, 0)
    """MixUp's alpha; 0 switches it off."""
    cutmix: float | None = option(None, 0)
    """CutMix's alpha; 0 switches it off."""
    calm: int = option(0, 0)
    """Epochs at the end in which images are cropped and mirrored, but not changed otherwise, and not mixed."""
