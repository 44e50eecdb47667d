"""Train, adapt, look inside, and ship Vision Transformers."""

from typing import TYPE_CHECKING

from vitrail.errors import VitrailError
from vitrail.lazy import keep_functions, lazy

if TYPE_CHECKING:
    from vitrail.data import transforms
    from vitrail.evaluate import evaluate
    from vitrail.export import export
    from vitrail.models import capture, list_models, plain_attention
    from vitrail.predict import Predictor, load
    from vitrail.train.pretrain.run import pretrain
    from vitrail.train.run import Run, train
    from vitrail.weights import create_model, load_weights, save_weights
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.evaluate": ("evaluate",),
            "vitrail.export": ("export",),
            "vitrail.data": ("transforms",),
            "vitrail.models": ("capture", "list_models", "plain_attention"),
            "vitrail.predict": ("Predictor", "load"),
            "vitrail.train.pretrain.run": ("pretrain",),
            "vitrail.train.run": ("Run", "train"),
            "vitrail.weights": ("create_model", "load_weights", "save_weights"),
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
    "plain_attention",
    "pretrain",
    "save_weights",
    "train",
    "transforms",
]
