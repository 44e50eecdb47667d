"""A checkpoint, understood: weights under our names, the settings of its model, its preprocessing and labels.

What a file does not say itself is decided, in this order, by: its header or config, the model that the caller names, the
name of the file or its folder, and last a stated default with one warning.
"""

import json
import re
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import Entry, Preprocessing, Settings, catalog, resolve
from vitrail.models.catalog import change
from vitrail.weights import google, hf, hf_config, timm, torchvision
from vitrail.weights.files import RawFile, read_source
from vitrail.weights.infer import CLASSES, agrees, infer
from vitrail.weights.rules import Layout, State

LAYOUTS: list[Layout] = [*timm.LAYOUTS, *hf.LAYOUTS, *torchvision.LAYOUTS, *google.LAYOUTS]
HEADER = "vitrail"  # the key of our JSON in a safetensors header


@dataclass
class Checkpoint:
    path: Path
    dialect: str
    state: State  # under our names
    settings: Settings
    stated: set[str]  # the settings that the file itself tells; the others are the catalog's or a default
    preprocessing: Preprocessing
    labels: list[str] | None
    name: str | None  # of the catalog entry, where one is known
    unknown: list[str]  # names in the file that mean nothing to us


def read_checkpoint(source: str | Path, model: str | None = None, **changes: Any) -> Checkpoint:
    """Reads a checkpoint of any dialect. `model` names its architecture where the file can't tell; `changes` overrule."""
    raw = read_source(source)
    if HEADER in raw.metadata:
        checkpoint = _from_header(raw)
    else:
        checkpoint = _recognise(raw, model)
    checkpoint.settings = change(checkpoint.settings, **changes)
    return checkpoint


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    family = next(name for name, kind in CLASSES.items() if type(settings) is kind)
    return {"family": family, **asdict(settings)}


def settings_from_dict(values: dict[str, Any]) -> Settings:
    values = dict(values)
    kind = CLASSES[values.pop("family")]
    if unknown := sorted(set(values) - set(kind.__dataclass_fields__)):
        raise VitrailError(f"The checkpoint's settings have {', '.join(unknown)}, unknown to this version; upgrade vitrail.")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _from_header(raw: RawFile) -> Checkpoint:
    header = json.loads(raw.metadata[HEADER])
    pre = Preprocessing(**{k: tuple(v) if isinstance(v, list) else v for k, v in header["preprocessing"].items()})
    settings = settings_from_dict(header["settings"])
    stated = set(settings.__dataclass_fields__)
    return Checkpoint(raw.path, "vitrail", raw.state, settings, stated, pre, header.get("labels"), header.get("name"), [])


def _recognise(raw: RawFile, model: str | None) -> Checkpoint:
    layout = next((layout for layout in LAYOUTS if layout.fits(raw.state)), None)
    if layout is None:
        some = ", ".join(list(raw.state)[:3])
        raise VitrailError(
            f"{raw.path} holds {len(raw.state)} tensors ({some}, …) that are no Vision Transformer known here;"
            " expected one of ours or of timm, transformers, torchvision, or Google's .npz."
        )
    state, unknown = layout.read(raw.state)
    if layout.dialect == "hf":
        state = _token_without_head(state)
    inferred = infer(state, layout.family)
    facts: dict[str, Any] = dict(layout.facts)
    if layout.dialect == "hf" and raw.config:
        facts |= hf_config.settings_from(raw.config)
    told = model or raw.config.get("architecture")
    entry, implied = _choose(raw.path, layout, inferred, facts, told)
    known = {**implied, **inferred, **facts}
    base = entry.settings if entry else CLASSES[layout.family]()
    settings = change(base, **{key: value for key, value in known.items() if key in base.__dataclass_fields__})
    pre = replace(entry.preprocessing if entry else Preprocessing(), size=settings.image_size)
    pre = _stated_preprocessing(raw, pre)
    name = entry.name if entry else None
    stated = {*inferred, *facts}
    return Checkpoint(raw.path, layout.dialect, state, settings, stated, pre, _labels(raw, settings), name, unknown)


def _token_without_head(state: State) -> State:
    """transformers' DeiTForImageClassification keeps the distillation token but has no head for it: a register."""
    if "distillation_token" not in state or "head_distillation.output.weight" in state or "head.output.weight" not in state:
        return state
    table = state["position.table"]
    register = state["distillation_token"] + table[:, 1:2]
    rest = {k: v for k, v in state.items() if k != "distillation_token"}
    return rest | {"registers": register, "position.table": table[:, [0, *range(2, table.shape[1])]]}


def _choose(
    path: Path, layout: Layout, inferred: dict[str, Any], facts: dict[str, Any], told: str | None
) -> tuple[Entry | None, dict[str, Any]]:
    """The catalog entry that the file is a checkpoint of, and the settings that its name implies."""
    if told:
        entry, implied = resolve(told)
        settings = change(entry.settings, **implied)
        if type(settings) is not CLASSES[layout.family] or not agrees(settings, {**inferred, **_visible(facts)}):
            found = ", ".join(f"{k} {inferred[k]}" for k in ("width", "depth", "depths", "patch_size") if k in inferred)
            raise VitrailError(f"{path} is not a checkpoint of {told}: it holds a {layout.family} model with {found}.")
        return entry, implied
    family = [e for e in catalog().values() if type(e.settings) is CLASSES[layout.family]]
    fits = [e for e in family if agrees(e.settings, {**inferred, **_visible(facts)})]
    if not fits:
        settings = _default_heads(inferred, facts, layout)
        if settings:
            _warn(f"{path} fits no model of the catalog; assuming {settings['heads']} heads and ImageNet's mean and deviation.")
        return None, settings
    words = _words(path.stem, path.parent.name)
    shared = {e.name: len(words & _words(e.name, *e.aliases)) for e in fits}
    best = [e for e in fits if shared[e.name] == max(shared.values())]
    alike = {(e.preprocessing, replace(e.settings, **_comparable(inferred))) for e in best}
    if len(alike) > 1 and "heads" not in facts:
        names = ", ".join(e.name for e in best)
        pre = best[0].preprocessing
        _warn(
            f"{path} may be any of {names}; taken as {best[0].name}, mean {pre.mean} and deviation {pre.std}"
            " (name the model to decide otherwise)."
        )
    return best[0], {}


def _visible(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts that also tell candidates apart."""
    return {key: facts[key] for key in ("position", "heads") if key in facts}


def _comparable(inferred: dict[str, Any]) -> dict[str, Any]:
    return {k: inferred[k] for k in ("num_classes", "image_size", "layer_scale") if k in inferred}


def _default_heads(inferred: dict[str, Any], facts: dict[str, Any], layout: Layout) -> dict[str, Any]:
    if layout.family.startswith("swin") or "heads" in facts:
        return {}
    width = inferred["width"]
    return {"heads": next(h for h in (width // 64, width // 32, 1) if h and width % h == 0)}


def _words(*names: str) -> set[str]:
    return {word for name in names for word in re.split(r"[^a-z0-9]+", name.lower()) if word}


def _stated_preprocessing(raw: RawFile, assumed: Preprocessing) -> Preprocessing:
    """What lies beside the file overrules the catalog: timm's config, or transformers' preprocessor."""
    if raw.preprocessor:
        return hf_config.preprocessing_from(raw.preprocessor, assumed.size)
    stated = raw.config.get("pretrained_cfg", {})
    if not stated:
        return assumed
    return replace(
        assumed,
        mean=tuple(stated.get("mean", assumed.mean)),
        std=tuple(stated.get("std", assumed.std)),
        crop=stated.get("crop_pct", assumed.crop),
        interpolation=stated.get("interpolation", assumed.interpolation),
    )


def _labels(raw: RawFile, settings: Settings) -> list[str] | None:
    names = raw.config.get("label_names") or hf_config.labels_from(raw.config)
    if names and len(names) == settings.num_classes and not names[0].startswith("LABEL_"):
        return list(names)
    return None


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def group_names(names: Iterable[str], most: int = 6) -> str:
    """Names with their numbers folded: `blocks.{0-11}.norm1.weight`, a few of them."""
    groups: dict[str, list[int]] = {}
    for name in names:
        numbers = re.findall(r"\.(\d+)\.", f".{name}.")
        groups.setdefault(re.sub(r"\.\d+\.", ".*.", name), []).extend(map(int, numbers[:1]))
    shown = [
        key.replace(".*.", f".{min(numbers)}–{max(numbers)}." if min(numbers) < max(numbers) else f".{numbers[0]}.", 1)
        if numbers
        else key
        for key, numbers in groups.items()
    ]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more kinds" if len(shown) > most else "")
