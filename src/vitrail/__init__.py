"""Train, adapt, look inside, and ship Vision Transformers."""

from typing import TYPE_CHECKING

from vitrail.errors import VitrailError
from vitrail.lazy import keep_functions, lazy

if TYPE_CHECKING:
    from vitrail.evaluate import evaluate
    from vitrail.export import export
    from vitrail.models import capture, create_model, list_models
    from vitrail.predict import Predictor, load
    from vitrail.train.pretrain.run import pretrain
    from vitrail.train.run import Run, train
    from vitrail.weights import load_weights, save_weights
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.evaluate": ("evaluate",),
            "vitrail.export": ("export",),
            "vitrail.models": ("capture", "create_model", "list_models"),
            "vitrail.predict": ("Predictor", "load"),
            "vitrail.train.pretrain.run": ("pretrain",),
            "vitrail.train.run": ("Run", "train"),
            "vitrail.weights": ("load_weights", "save_weights"),
        },
    )
    keep_functions(__name__, ("evaluate", "export", "train"))

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
