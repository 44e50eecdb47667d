"""A model, its preprocessing and its labels in one object, and what can be asked of it."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazily

if TYPE_CHECKING:
    from vitrail.predict.loading import load
    from vitrail.predict.predictor import Outcome, Prediction, Predictor

__all__ = ["Outcome", "Prediction", "Predictor", "load"]

lazily(
    __name__,
    {
        "vitrail.predict.loading": ("load",),
        "vitrail.predict.predictor": ("Outcome", "Prediction", "Predictor"),
    },
)
