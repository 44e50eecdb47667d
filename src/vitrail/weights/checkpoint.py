"""A checkpoint, understood: weights under our names, the settings of its model, its preprocessing and labels."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import Entry, ModelSettings, Preprocessing, ViTSettings, resolve
from vitrail.models.checks import pair, setting_names, tuples
from vitrail.models.grid import Grid
from vitrail.models.position import KINDS
from vitrail.models.registry import change
from vitrail.weights import google, hf, hf_config, timm, torchvision
from vitrail.weights.files import RawFile
from vitrail.weights.header import ADAPTER, DENSE, HEADER, read_header, reading
from vitrail.weights.identify import identify
from vitrail.weights.infer import infer
from vitrail.weights.rules import State, WeightLayout, group_names

# A state dict of ours that was saved without a header.
OURS = [
    WeightLayout("vitrail", "mae", ("encoder.patch.weight", "decoder_embed.weight"), None, {}),
    WeightLayout("vitrail", "vit", ("patch.weight", "blocks.{i}.attention.qkv.weight"), None, {}),
    WeightLayout("vitrail", "swin", ("patch.weight", "stages.{i}.{j}.bias.table"), None, {}),
    WeightLayout("vitrail", "swinv2", ("patch.weight", "stages.{i}.{j}.bias.fc2.weight"), None, {}),
]
LAYOUTS: list[WeightLayout] = [*timm.LAYOUTS, *hf.LAYOUTS, *torchvision.LAYOUTS.values(), *google.LAYOUTS, *OURS]
# A block with something more in it computes something else; without a head of some other task the rest is still right.
INSIDE = re.compile(r"(blocks|layers?|features)\.\d+\.|encoder_?(block|layer)_\d+")


@dataclass
class Checkpoint:
    path: Path
    dialect: str
    state: State  # under our names
    settings: ModelSettings
    stated: set[str]  # the settings that the file itself tells; the others are the catalog's or a default
    preprocessing: Preprocessing
    labels: list[str] | None
    name: str | None  # of the catalog entry, where one is known
    unknown: list[str]  # names in the file that mean nothing to us
    doubt: str | None = None  # a sentence, where something had to be assumed
    about: dict[str, Any] = field(default_factory=dict)  # what a run said of itself: task, recipe, metrics, …


def understand(
    raw: RawFile, architecture: str | None = None, facts: dict[str, Any] | None = None, supposed: Iterable[Grid] = ()
) -> Checkpoint:
    """A file's checkpoint, without a warning. `supposed` are image sizes, for a table that is not square."""
    if ADAPTER in raw.metadata:
        raise VitrailError(f"{raw.path} is an adapter without its base; a whole model is needed here.")
    if HEADER in raw.metadata:
        checkpoint = _from_header(raw, facts or {})
        name, asked = checkpoint.name or "", resolve(architecture)[0].name if architecture else ""
        if asked and asked not in (name, encoder := name.removeprefix("mae_"), f"vit_{encoder}"):
            checkpoint.doubt = f"{raw.path} is, by its header, {checkpoint.name}; {asked} was not followed."
        return checkpoint
    return _from_names(raw, architecture, facts or {}, supposed)


def backbone_of(checkpoint: Checkpoint) -> Checkpoint:
    """The ViT or Swin inside a segmenter or a detector, without classes; of any other checkpoint the same."""
    settings = checkpoint.settings
    if not isinstance(settings, DENSE):
        return checkpoint
    prefix = settings.inside
    state = {name.removeprefix(prefix): each for name, each in checkpoint.state.items() if name.startswith(prefix)}
    pre = replace(checkpoint.preprocessing, size=settings.backbone.image_size)
    stated = set(setting_names(type(settings.backbone)))
    return replace(
        checkpoint, state=state, settings=settings.backbone, stated=stated, preprocessing=pre, labels=None, about={}
    )


def _from_header(raw: RawFile, facts: dict[str, Any]) -> Checkpoint:
    header = read_header(raw.path, raw.metadata[HEADER])
    return Checkpoint(
        raw.path,
        "vitrail",
        raw.state,
        change(header.settings, **facts),
        stated=set(setting_names(type(header.settings))),
        preprocessing=header.preprocessing,
        labels=header.labels,
        name=header.name,
        unknown=[],
        about=header.about,
    )


def _from_names(raw: RawFile, architecture: str | None, facts: dict[str, Any], supposed: Iterable[Grid]) -> Checkpoint:
    layout = next((layout for layout in LAYOUTS if layout.fits(raw.state)), None)
    if layout is None:
        some = ", ".join(list(raw.state)[:3])
        raise VitrailError(
            f"{raw.path} holds {len(raw.state)} tensors ({some}, …) that are no Vision Transformer known here;"
            " expected one of ours or of timm, transformers, torchvision, or Google's .npz."
        )
    state, unknown = layout.read(raw.state)
    if strange := [name for name in unknown if INSIDE.search(name)]:
        raise VitrailError(f"{raw.path}: its blocks hold {group_names(strange, most=3)}, which no model here has.")
    with reading(raw.path, "config.json"):
        told = {**layout.facts, **_config_facts(raw, layout.dialect), **facts}
        sizes = _stated_sizes(raw, told)
        preprocessing = {**layout.preprocessing, **_stated_preprocessing(raw)}
        labels = raw.config.get("label_names") or hf_config.labels_from(raw.config)
    try:
        known = infer(state, layout.family, raw.state, sizes, supposed)
    except VitrailError as error:
        raise VitrailError(f"{raw.path}: {error}.") from None
    if "image_size" in facts and known.get("image_size", sizes[0]) != sizes[0]:
        size = known["image_size"]
        raise VitrailError(f"{raw.path}: its table of positions is one for images of {size}, not of {sizes[0]}.")
    size_of_table = {key: value for key, value in known.items() if key == "image_size"}  # it knows best
    known = {**known, **told, **size_of_table}
    configured = raw.config.get("architecture")
    identity = identify(raw.path, layout.family, known, raw.names, configured, architecture, preprocessing)
    settings = identity.settings
    doubts = [identity.doubt, None if sizes else _doubt_of_table(raw.path, state, settings, identity.entry)]
    return Checkpoint(
        raw.path,
        layout.dialect,
        state,
        settings,
        stated=set(known),
        preprocessing=identity.preprocessing,
        labels=labels if labels and len(labels) == settings.num_classes else None,
        name=identity.entry.name if identity.entry else None,
        unknown=unknown,
        doubt=" ".join(filter(None, doubts)) or None,
    )


def _doubt_of_table(path: Path, state: State, settings: ModelSettings, entry: Entry | None) -> str | None:
    """n² rows are n×n patches without a row for the class token, or a wide image and one: its n-1 × n+1 patches are one
    less. Where nothing states the size, the former is right for models that are known to have no such row."""
    rows = state["position.table"].shape[1] if "position.table" in state else 0
    if not isinstance(settings, ViTSettings) or not settings.class_token:
        return None
    if not KINDS[settings.position].may_have_prefix_rows:
        return None
    if math.isqrt(rows) ** 2 != rows or (entry and not getattr(entry.settings, "position_prefix", True)):
        return None
    grid = "×".join(map(str, settings.grid))
    row = "and one for" if settings.position_prefix else "and none for"
    return (
        f"{path}: its {rows} positions are taken as {grid} patches {row} the class token; say"
        " image_size=(height, width) if its images were of another shape."
    )


def _config_facts(raw: RawFile, dialect: str) -> dict[str, Any]:
    if dialect == "hf" and "model_type" in raw.config:
        return hf_config.settings_from(raw.config)
    return timm.settings_from(raw.config) if dialect == "timm" else {}


def _stated_sizes(raw: RawFile, told: dict[str, Any]) -> list[Grid]:
    sizes = [pair(told["image_size"], "image_size")] if "image_size" in told else []
    if shape := (raw.config.get("pretrained_cfg") or {}).get("input_size"):  # timm: channels, height, width
        sizes.append((shape[1], shape[2]))
    return sizes


def _stated_preprocessing(raw: RawFile) -> dict[str, Any]:
    """The fields of `Preprocessing` that transformers' or timm's JSON beside the file tells."""
    if raw.preprocessor:
        return hf_config.preprocessing_from(raw.preprocessor)
    config = raw.config.get("pretrained_cfg") or {}
    fields = {"mean": "mean", "std": "std", "crop": "crop_pct", "interpolation": "interpolation"}
    stated = tuples({ours: config[theirs] for ours, theirs in fields.items() if config.get(theirs)})
    if stated.get("interpolation") not in hf_config.RESAMPLING.values():
        stated.pop("interpolation", None)  # "random", in some
    return stated
