"""Checkpoints in and out: one file per dialect, one resize of position tables."""

from vitrail.weights.checkpoint import Checkpoint, read_checkpoint
from vitrail.weights.load import LoadReport, load_weights, model_from
from vitrail.weights.save import DIALECTS, save_weights

__all__ = ["DIALECTS", "Checkpoint", "LoadReport", "load_weights", "model_from", "read_checkpoint", "save_weights"]
