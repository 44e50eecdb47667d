"""A file in another library's dialect, read back by our own reader, and what such a file can't say."""

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import ModelSettings
from vitrail.models.checks import setting_names
from vitrail.models.position import KINDS
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.load import RULES

TRAINING = {"dropout", "attention_dropout", "drop_path", "layer_scale"}  # of no consequence afterwards
OWN_WAY = {"position_rule", "padding"}  # of no consequence at the model's own size, and nothing that others can set


def read_back(path: Path, settings: ModelSettings, name: str | None) -> tuple[nn.Module, list[str]]:
    """The model that our own reader makes of a file in another dialect, and a note on what the file can't say."""
    shape = {key for key in setting_names(type(settings)) if key not in TRAINING | RULES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            checkpoint = read_checkpoint(path, name)
        except VitrailError:  # of no model in the catalog
            checkpoint = read_checkpoint(path, None, **_values(settings, shape))
        told = checkpoint.settings
        unsaid = [key for key in sorted(shape | RULES) if getattr(told, key, None) != getattr(settings, key, None)]
        if unsaid:
            checkpoint = read_checkpoint(path, None, **_values(settings, shape | set(unsaid)))
        model = model_from(checkpoint)
    return model, _notes(settings, unsaid)


def _notes(settings: ModelSettings, unsaid: list[str]) -> list[str]:
    notes = []
    rules = [f"{key}={getattr(settings, key)}" for key in unsaid if key in RULES - OWN_WAY]
    if rules:
        notes.append(
            f"The format can't say {', '.join(rules)}: build the model that takes these weights with the same."
        )
    resized = KINDS[getattr(settings, "position", "none")].resized
    if "padding" in unsaid or ("position_rule" in unsaid and resized):
        how = "resizes the positions" if resized else "pads"
        notes.append(f"For images of other sizes that library {how} in its own way, and its answers will differ.")
    return notes


def _values(settings: ModelSettings, names: set[str]) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in names if hasattr(settings, name)}
