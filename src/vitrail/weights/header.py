"""What a file of ours says beside its weights: JSON, in the header of a safetensors file or in ONNX metadata."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from vitrail.errors import VitrailError
from vitrail.models.building import FAMILIES, ModelSettings
from vitrail.models.checks import known_fields, setting_values, tuples
from vitrail.models.dense.settings import DetectorSettings, SegmenterSettings
from vitrail.models.preprocessing import Preprocessing

HEADER = "vitrail"  # the key of our JSON in a safetensors header
ADAPTER = "vitrail_adapter"  # the same in a file that holds an adapter alone
DENSE = (SegmenterSettings, DetectorSettings)  # a backbone and what stands on it


@dataclass
class Header:
    """All that a file of ours says beside its weights."""

    settings: ModelSettings
    preprocessing: Preprocessing
    labels: list[str] | None
    name: str | None
    about: dict[str, Any]


def read_header(path: Path, text: str) -> Header:
    with reading(path, "header"):
        header = json.loads(text)
        settings = settings_from_dict(header["settings"])
        pre = Preprocessing(**tuples(header["preprocessing"]))
        return Header(settings, pre, header.get("labels"), header.get("name"), dict(header.get("about") or {}))


def header_of(
    settings: ModelSettings,
    preprocessing: Preprocessing,
    labels: list[str] | None,
    name: str | None,
    about: dict[str, Any] | None = None,
) -> str:
    """All that a file of ours says beside its weights, as JSON."""
    header: dict[str, Any] = {"settings": settings_to_dict(settings), "preprocessing": asdict(preprocessing)}
    header |= {"labels": labels, "name": name} | ({"about": about} if about else {})
    try:
        return json.dumps(header, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise VitrailError(f"`about` must hold what JSON can: numbers, text, lists and dicts ({error}).") from None


def settings_to_dict(settings: ModelSettings) -> dict[str, Any]:
    family = next(name for name, kind in FAMILIES.items() if type(settings) is kind)
    values = setting_values(settings)
    return {"family": family} | {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """A backbone or a tuning is settings, too."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def settings_from_dict(values: dict[str, Any]) -> ModelSettings:
    values = dict(values)
    kind = FAMILIES[values.pop("family")]
    return kind(**known_fields(kind, values, "The checkpoint's"))


def settings_of(model: nn.Module) -> ModelSettings:
    if not isinstance(getattr(model, "settings", None), tuple(set(FAMILIES.values()))):
        raise VitrailError(f"{type(model).__name__} is not a model of vitrail: it has no settings.")
    return cast(ModelSettings, model.settings)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` or `DistributedDataParallel`."""
    for name in ("_orig_mod", "module"):
        if isinstance(inner := getattr(model, name, None), nn.Module):
            return unwrapped(inner)
    return model


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Another program's JSON may hold anything."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise VitrailError(f"{path}: its {what} was not understood ({type(error).__name__}: {error}).") from error
