"""Train, adapt, look inside, and ship Vision Transformers."""

from vitrail.errors import VitrailError
from vitrail.evaluate import evaluate
from vitrail.export import export
from vitrail.models import capture, create_model, list_models
from vitrail.predict import Predictor, load
from vitrail.train import Run, pretrain, train
from vitrail.weights import load_weights, save_weights

__version__ = "0.1.0"
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
