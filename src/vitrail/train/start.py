"""The model that a run starts from: which architecture, which weights, and a head for the classes at hand."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, Preprocessing, build, create_model, resolve
from vitrail.models.catalog import change
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.checkpoint import Checkpoint


@dataclass
class Start:
    model: nn.Module
    preprocessing: Preprocessing
    name: str  # of the architecture
    pretrained: bool
    why: str  # the first line of the plan


def start_model(
    model: str | None,
    weights: str,
    classes: list[str],
    image_size: int | None,
    fit: str | None,
    largest: int,
    gpu: bool,
) -> Start:
    """`largest` is the larger side of a typical picture: small pictures get a model with small patches."""
    checkpoint, why = _weights(model, weights, largest, gpu)
    changes: dict[str, Any] = {"num_classes": len(classes)}
    if image_size is not None:
        changes["image_size"] = image_size
    if checkpoint is None:
        name = resolve(model or _suited(largest, gpu))[0].name
        net = create_model(model or name, **changes)
        pre: Preprocessing = net.preprocessing  # type: ignore[assignment]
    else:
        if isinstance(checkpoint.settings, MAESettings):
            raise VitrailError(f"{weights} is a masked autoencoder: fine-tuning from one is not supported yet.")
        # A head for the same labels is worth keeping; any other is solved for anew.
        same = checkpoint.labels == classes
        size = image_size or checkpoint.preprocessing.size
        net = model_from(checkpoint, "auto" if same else "new", **{**changes, "image_size": size})
        name, pre = checkpoint.name or "custom", replace(checkpoint.preprocessing, size=net.settings.image_size)  # type: ignore
    if fit is not None:
        pre = replace(pre, fit=fit)
    elif pre.fit == "native":
        pre = replace(pre, fit="crop")
    net.preprocessing = pre  # type: ignore[assignment]
    return Start(net, pre, name, checkpoint is not None, why)


def set_drop_path(model: nn.Module, rate: float) -> nn.Module:
    """The same model with another rate of drop path; the weights are kept."""
    settings: Any = model.settings
    if settings.drop_path == rate:
        return model
    other = build(change(settings, drop_path=rate))
    other.load_state_dict(model.state_dict())
    other.preprocessing = model.preprocessing  # type: ignore[assignment]
    return other


def _suited(largest: int, gpu: bool) -> str:
    if largest <= 20:
        return "vit_nano4"
    if largest <= 40:
        return "vit_mini4"
    if largest <= 80:
        return "vit_mini8"
    return "vit_s16" if gpu else "deit_ti16"


def _weights(model: str | None, weights: str, largest: int, gpu: bool) -> tuple[Checkpoint | None, str]:
    name = model or _suited(largest, gpu)
    if weights == "none":
        return None, f"{name} from scratch: --weights none."
    if weights != "auto":
        checkpoint = read_checkpoint(weights, model)
        return checkpoint, f"Starts from {checkpoint.name or 'the model'} in {weights}."
    entry, implied = resolve(name)
    changed = {key for key, value in implied.items() if key != "image_size" and getattr(entry.settings, key) != value}
    if entry.hub is None or changed:
        return None, f"{name} from scratch: no public weights are recorded for it."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = read_checkpoint(f"hf://{entry.hub}", entry.name)
        return checkpoint, f"Starts from {name} with its public weights, hf://{entry.hub}."
    except VitrailError as error:
        reason = str(error).split("\n")[0].rstrip(".")
        return None, f"{name} from scratch: its public weights could not be had ({reason})."
