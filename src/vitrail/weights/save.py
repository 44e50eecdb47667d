"""A model's weights to disk, in our own bundle or in the dialect of another ecosystem."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from vitrail.errors import VitrailError, nearest
from vitrail.models import MAESettings, Preprocessing, Settings, SwinSettings, ViTSettings
from vitrail.models.position import SinCosPosition
from vitrail.models.swin import ContinuousBias, SwinBlock
from vitrail.weights import hf, hf_config, timm, torchvision
from vitrail.weights.checkpoint import HEADER, group_names, settings_to_dict
from vitrail.weights.rules import Layout, State

DIALECTS = ("vitrail", "timm", "hf", "torchvision")


def save_weights(
    model: nn.Module,
    path: str | Path,
    dialect: str = "vitrail",
    labels: list[str] | None = None,
    preprocessing: Preprocessing | None = None,
    name: str | None = None,
) -> Path:
    """Writes a model: one bundle of ours, a state dict for timm or torchvision, or a folder for transformers.

    The vitrail dialect keeps settings, labels and preprocessing in the header of the file. timm and torchvision are
    written as safetensors, or with torch.save if the path ends in .pth.
    """
    path, settings = Path(path), model.settings  # type: ignore[assignment]
    state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    if dialect == "vitrail":
        pre = preprocessing or Preprocessing(size=settings.image_size)
        header = {"settings": settings_to_dict(settings), "preprocessing": pre.__dict__, "labels": labels, "name": name}
        return _write(path, state, {HEADER: json.dumps(header, ensure_ascii=False)})
    if dialect not in DIALECTS:
        raise VitrailError(f"dialect={dialect!r} is not known; choose one of {', '.join(DIALECTS)}.{nearest(dialect, DIALECTS)}")
    state = _with_tables(state, model, dialect)
    if dialect == "hf":
        return _write_folder(path, state, settings, labels, preprocessing)
    layout = _timm_layout(settings) if dialect == "timm" else _torchvision_layout(settings)
    theirs = _translate(state, layout, dialect)
    if dialect == "torchvision" and isinstance(settings, SwinSettings):
        theirs |= _torchvision_buffers(model)
    return _write(path, theirs, {"format": "pt"})


def _translate(state: State, layout: Layout, dialect: str) -> State:
    theirs, left = layout.write(state)
    if left:
        raise VitrailError(f"The dialect {dialect} has no place for {group_names(left)}; save it with dialect vitrail.")
    return theirs


def _write(path: Path, state: State, metadata: dict[str, str]) -> Path:
    """Writes beside the target and then renames, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    state = {k: v.contiguous().clone() for k, v in state.items()}
    try:
        if path.suffix in (".pth", ".pt", ".bin"):
            torch.save(state, part)
        else:
            save_file(state, part, metadata)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise VitrailError(f"{path} could not be written: {error.strerror or error}.") from None
    return path


def _write_folder(
    path: Path, state: State, settings: Settings, labels: list[str] | None, pre: Preprocessing | None
) -> Path:
    if path.suffix in (".safetensors", ".pth", ".bin"):
        raise VitrailError(f"The dialect hf is a folder with config.json and weights; {path.name} looks like a file.")
    kind = hf_config.kind_of(settings)
    gated = isinstance(settings, ViTSettings) and settings.activation == "swiglu"
    layout = hf.BY_TYPE[kind.layout.replace("_vit", "") + "_gated" if gated else kind.layout]
    theirs = _translate(state, layout, "hf")
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.")
    theirs = {key if key.startswith(heads) else kind.prefix + key: value for key, value in theirs.items()}
    if kind.model_type.startswith("dino"):  # transformers expects it, and uses it only in pre-training
        shape = (1, 1, settings.width) if kind.model_type == "dinov3_vit" else (1, settings.width)
        theirs["embeddings.mask_token"] = torch.zeros(shape)
    path.mkdir(parents=True, exist_ok=True)
    _write(path / "model.safetensors", theirs, {"format": "pt"})
    config = hf_config.config_from(settings, labels)
    (path / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    pre = pre or Preprocessing(size=settings.image_size)
    processor = json.dumps(hf_config.preprocessor_config(pre), indent=2)
    (path / "preprocessor_config.json").write_text(processor + "\n", encoding="utf-8")
    return path


def _with_tables(state: State, model: nn.Module, dialect: str) -> State:
    """Others store fixed positions too, with a row of zeros for the class token; and some want that row in any case."""
    settings: Any = model.settings
    state = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, SinCosPosition) and dialect != "vitrail":
            table = module.table.flatten(0, 1)
            rows = table.new_zeros(settings.prefix_tokens, table.shape[1])
            state[f"{name}.table"] = torch.cat([rows, table])[None].cpu()
    if dialect in ("hf", "torchvision") and getattr(settings, "class_token", False) and not settings.position_prefix:
        table = state["position.table"]
        state["position.table"] = torch.cat([table.new_zeros(1, 1, table.shape[2]), table], dim=1)
    return state


def _timm_layout(settings: Settings) -> Layout:
    """The layout of timm's class for these settings."""
    if isinstance(settings, SwinSettings):
        family, rules = ("swin" if settings.version == 1 else "swinv2"), timm.TIMM_SWIN
    elif isinstance(settings, MAESettings):
        family, rules = "mae", tuple(timm.MAE)
    elif settings.position == "rotary":
        family, rules = "vit", tuple(timm.DINOV3_GATED if settings.activation == "swiglu" else timm.DINOV3)
    else:
        stem = [] if settings.stem is None else timm.STEM if settings.stem else timm.ROOT
        family, rules = "vit", (*stem, *timm.VIT)
    return next(layout for layout in timm.LAYOUTS if layout.family == family and layout.rules == rules)


def _torchvision_layout(settings: Settings) -> Layout:
    if isinstance(settings, MAESettings):
        raise VitrailError("torchvision has no masked autoencoder; save it with dialect vitrail, timm or hf.")
    family = f"swin{'' if settings.version == 1 else 'v2'}" if isinstance(settings, SwinSettings) else "vit"
    return next(layout for layout in torchvision.LAYOUTS if layout.family == family)


def _torchvision_buffers(model: nn.Module) -> State:
    """torchvision keeps the index and, in v2, the log-spaced offsets in its state dict."""
    buffers: State = {}
    for name, module in model.named_modules():
        if isinstance(module, SwinBlock):
            _, stage, block = name.split(".")
            prefix = f"features.{2 * int(stage) + 1}.{block}.attn."
            buffers[prefix + "relative_position_index"] = module.bias.index.flatten().cpu()
            if isinstance(module.bias, ContinuousBias):
                shape = (1, 2 * module.window[0] - 1, 2 * module.window[1] - 1, 2)
                buffers[prefix + "relative_coords_table"] = module.bias.offsets.reshape(shape).cpu()
    return buffers


