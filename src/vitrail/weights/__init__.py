"""Checkpoints in and out: one file per dialect, one resize of position tables."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.load import LoadReport, load_weights, model_from
    from vitrail.weights.pretrained import create_model
    from vitrail.weights.reading import read_checkpoint
    from vitrail.weights.save import DIALECTS, save_weights
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.weights.checkpoint": ("Checkpoint",),
            "vitrail.weights.load": ("LoadReport", "load_weights", "model_from"),
            "vitrail.weights.pretrained": ("create_model",),
            "vitrail.weights.reading": ("read_checkpoint",),
            "vitrail.weights.save": ("DIALECTS", "save_weights"),
        },
    )

__all__ = [
    "DIALECTS",
    "Checkpoint",
    "LoadReport",
    "create_model",
    "load_weights",
    "model_from",
    "read_checkpoint",
    "save_weights",
]
