"""The options of pre-training by a masked autoencoder."""

from dataclasses import dataclass

from vitrail.data.kinds import IMAGES
from vitrail.options import Options, option

EXPECTS = IMAGES


@dataclass(frozen=True)
class ReconstructOptions(Options):
    mask_ratio: float | None = option(None, 0.05, 0.95)
    """Share of the patches that are hidden; by default as the weights had it, else 0.75."""
    norm_pix: bool | None = None
    """Predict each patch relative to its mean and deviation: better features; by default as in the weights, else on."""
    crop: float | None = option(None, 0.01, 1)
    """Least share of an image that a random crop keeps."""
    flip: float | None = option(None, 0, 1)
    """Probability of a mirror image; set 0 where left and right matter."""


OPTIONS = (ReconstructOptions,)
