"""Does the file that was written compute what the model computes? Both are asked about the same pictures."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.export.onnx import one_size
from vitrail.models import MaskedAutoencoder, ModelSettings, Preprocessing
from vitrail.models.checks import setting_names
from vitrail.models.position import KINDS
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.header import settings_of
from vitrail.weights.load import RULES

LIMIT = 1e-3  # beyond rounding in fp32, whose differences are near 1e-6
TRAINING = {"dropout", "attention_dropout", "drop_path", "layer_scale"}  # of no consequence afterwards
OWN_WAY = {"position_rule", "padding"}  # of no consequence at the model's own size, and nothing that others can set
Shape = tuple[int, int, int]  # images, height, width


def shapes_to_try(model: nn.Module, size: tuple[int, int]) -> list[Shape]:
    """Two batch sizes and, for a model that takes any size, a taller image and a narrow one that must be padded."""
    height, width = size
    own = [(2, height, width), (1, height, width)]
    if one_size(model):
        return own
    settings: Any = settings_of(model)
    down, across = settings.stride
    return [*own, (1, height + 2 * down, width), (1, height, max(width // 2, across) + across // 2 + 1)]


@torch.no_grad()
def difference(model: nn.Module, other: nn.Module, shapes: list[Shape], pre: Preprocessing) -> float:
    """The largest absolute difference of the logits, or of the features where there are no classes."""
    largest = 0.0
    for seed, (count, height, width) in enumerate(shapes):
        x = pictures(count, (height, width), pre, seed)
        largest = max(largest, (answers(model, x) - answers(other, x)).abs().max().item())
    return largest


def answers(model: Any, x: Tensor) -> Tensor:
    if isinstance(model, MaskedAutoencoder):
        return model.encoder(x)
    return model(x)


def check(path: Path, found: float) -> None:
    if not found <= LIMIT:  # NaN fails here too
        raise VitrailError(
            f"{path.name} was not kept: its answers differ from the model's by up to {found:.2g}, and {LIMIT:g} is the"
            " limit; please report this, with the model's name."
        )


def pictures(count: int, size: tuple[int, int], pre: Preprocessing, seed: int) -> Tensor:
    """Soft blots with some grain, normalised: nearer to photographs than plain noise, which has no contrast left after
    the patches are averaged."""
    generator = torch.Generator().manual_seed(seed)
    channels = len(pre.mean)
    blots = F.interpolate(torch.rand(count, channels, 6, 6, generator=generator), size=size, mode="bicubic")
    grain = 0.1 * torch.randn(count, channels, *size, generator=generator)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (pre.mean, pre.std))
    return ((blots + grain).clamp(0, 1) - mean) / std


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
