"""Train, adapt, look inside, and ship Vision Transformers."""

from typing import TYPE_CHECKING

from vitrail.errors import VitrailError
from vitrail.lazy import lazily

if TYPE_CHECKING:
    from vitrail.exporters import export
    from vitrail.models import capture, create_model, list_models
    from vitrail.predict import Predictor, load
    from vitrail.predict.evaluation import evaluate
    from vitrail.training.run import Run, pretrain, train
    from vitrail.weights import load_weights, save_weights

__version__ = "0.2.1"
__all__ = [
    "Predictor",
    "Run",
    "VitrailError",
    "capture",
    "create_model",
    "evaluate",
    "export",
    "list_models",
    "load",
    "load_weights",
    "pretrain",
    "save_weights",
    "train",
]

lazily(
    __name__,
    {
        "vitrail.predict.evaluation": ("evaluate",),
        "vitrail.exporters": ("export",),
        "vitrail.models": ("capture", "create_model", "list_models"),
        "vitrail.predict": ("Predictor", "load"),
        "vitrail.training.run": ("Run", "pretrain", "train"),
        "vitrail.weights": ("load_weights", "save_weights"),
    },
)
