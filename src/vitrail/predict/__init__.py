"""A model, its preprocessing and its labels in one object, and what can be asked of it."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy

if TYPE_CHECKING:
    from vitrail.inference.image_model import Outcome
    from vitrail.predict.loading import load
    from vitrail.predict.predictor import Prediction, Predictor
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.inference.image_model": ("Outcome",),
            "vitrail.predict.loading": ("load",),
            "vitrail.predict.predictor": ("Prediction", "Predictor"),
        },
    )

__all__ = ["Outcome", "Prediction", "Predictor", "load"]
