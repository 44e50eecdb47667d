"""Train, adapt, look inside, and ship Vision Transformers."""

from typing import TYPE_CHECKING

from vitrail.errors import VitrailError
from vitrail.lazy import lazy
from vitrail.version import __version__

if TYPE_CHECKING:
    from vitrail.data import transforms
    from vitrail.exporters import export
    from vitrail.models import capture, list_models, plain_attention
    from vitrail.predict.evaluation import evaluate
    from vitrail.predict.loading import load
    from vitrail.predict.predictor import Predictor
    from vitrail.training.run import Run, pretrain, train
    from vitrail.weights import create_model, load_weights, save_weights
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.data": ("transforms",),
            "vitrail.exporters": ("export",),
            "vitrail.models": ("capture", "list_models", "plain_attention"),
            "vitrail.predict.evaluation": ("evaluate",),
            "vitrail.predict.loading": ("load",),
            "vitrail.predict.predictor": ("Predictor",),
            "vitrail.training.run": ("Run", "pretrain", "train"),
            "vitrail.weights": ("create_model", "load_weights", "save_weights"),
        },
    )

__all__ = [
    "Predictor",
    "Run",
    "VitrailError",
    "__version__",
    "capture",
    "create_model",
    "evaluate",
    "export",
    "list_models",
    "load",
    "load_weights",
    "plain_attention",
    "pretrain",
    "save_weights",
    "train",
    "transforms",
]
