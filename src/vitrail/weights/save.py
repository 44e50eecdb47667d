"""A model's weights to disk, in our own bundle or in the dialect of another ecosystem."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from vitrail.errors import VitrailError, nearest
from vitrail.models import MaskedAutoencoder, Preprocessing
from vitrail.models.position_kind import Position
from vitrail.models.tuning import tuning_of
from vitrail.weights import hf_config, timm, torchvision
from vitrail.weights.header import HEADER, header_of, settings_of, unwrapped
from vitrail.weights.rules import State, WeightLayout, group_names
from vitrail.whole import whole

DIALECTS = ("vitrail", "timm", "hf", "torchvision")
PICKLED = (".pth", ".pt", ".bin")


def save_weights(
    model: nn.Module,
    path: str | Path,
    dialect: str = "vitrail",
    labels: list[str] | None = None,
    preprocessing: Preprocessing | None = None,
    name: str | None = None,
    about: dict[str, Any] | None = None,
    half: bool = False,
) -> Path:
    """Writes a model: one bundle of ours, a state dict for timm or torchvision, or a folder for transformers.

    The vitrail dialect keeps settings, labels and preprocessing in the header of the file, and `about`: what a run has
    to say of itself (task, recipe, metrics), in values that JSON can hold. timm and torchvision are written as
    safetensors, or with torch.save if the path ends in .pth; such a file has no place for the norm epsilon or the rules
    of resizing, so build their model with the same. What a dialect can't express is refused. `half` writes the weights
    as fp16, in half of the bytes; whoever reads them computes in fp32 again.
    """
    path, model = Path(path).expanduser(), unwrapped(model)
    settings = settings_of(model)
    if dialect not in DIALECTS:
        hint = nearest(dialect, DIALECTS)
        raise VitrailError(f"dialect={dialect!r} is not known; choose one of {', '.join(DIALECTS)}.{hint}")
    if labels is not None and len(labels) != settings.num_classes:
        raise VitrailError(f"{len(labels)} labels were given for a model of {settings.num_classes} classes.")
    if path.suffix in PICKLED and dialect == "vitrail":
        raise VitrailError(f"A bundle keeps its settings in a safetensors header; name it {path.stem}.safetensors.")
    if path.suffix in (*PICKLED, ".safetensors") and dialect == "hf":
        raise VitrailError(f"The dialect hf is a folder with config.json and weights; {path.name} looks like a file.")

    # What the weights that were loaded, or the catalog, say of it; else what is usual.
    pre = preprocessing or getattr(model, "preprocessing", None) or Preprocessing().suited(settings)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    if half:
        state = _half(state)
    if dialect == "vitrail":
        return write_weights(path, state, {HEADER: header_of(settings, pre, labels, name, about)})
    if dialect == "hf":
        return _write_folder(path, model, state, labels, pre)
    if dialect == "timm":
        theirs = _translate(state, model, timm.layout_for(settings))
    else:
        theirs = _translate(state, model, torchvision.layout_for(settings)) | torchvision.buffers_of(model)
    return write_weights(path, theirs, {"format": "pt"})


def _half(state: State) -> State:
    halved = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    large = [name for name, tensor in halved.items() if not tensor.isfinite().all() and state[name].isfinite().all()]
    if large:
        raise VitrailError(f"{group_names(large)} is beyond what fp16 holds (65,504): save in full precision.")
    return halved


def _translate(state: State, model: nn.Module, layout: WeightLayout) -> State:
    theirs, left = layout.write(state | _tables(model, layout.dialect))
    if left:
        tuning = tuning_of(model)
        merged = "write it into the weights with vitrail.models.merge(model), or keep it: "
        raise VitrailError(
            f"The dialect {layout.dialect} has no place for {group_names(left)}; "
            f"{merged if tuning and tuning.kind == 'lora' else ''}our own file has (dialect vitrail, as "
            "model.safetensors of a run), and ONNX."
        )
    return theirs


def _tables(model: nn.Module, dialect: str) -> State:
    """Others keep fixed positions as a table too, and differ in which tokens in front have a row in it. A row of zeros
    changes nothing: transformers and torchvision want one for each token but registers, timm for all, or for none."""
    tables: State = {}
    settings: Any = settings_of(model)
    for name, module in model.named_modules():
        table = module.as_table() if isinstance(module, Position) else None
        if table is None:
            continue
        rows, patches = table
        tokens = settings.class_token + settings.distillation_token
        if dialect == "timm":
            tokens += settings.registers
            if not (settings.position_prefix or settings.distillation_token or isinstance(model, MaskedAutoencoder)):
                tokens = 0
        zeros = patches.new_zeros(tokens - len(rows), patches.shape[1])
        tables[f"{name}.table"] = torch.cat([rows, zeros, patches])[None].detach().cpu()
    return tables


def _write_folder(path: Path, model: nn.Module, state: State, labels: list[str] | None, pre: Preprocessing) -> Path:
    settings = settings_of(model)
    theirs = _translate(state, model, hf_config.layout_for(settings))
    theirs = {hf_config.named_for(settings, name): tensor for name, tensor in theirs.items()}
    config = hf_config.config_from(settings, labels)
    if config["model_type"].startswith("dino"):  # transformers expects it, and uses it only in pre-training
        width = config["hidden_size"]
        shape = (1, 1, width) if config["model_type"] == "dinov3_vit" else (1, width)
        theirs["embeddings.mask_token"] = torch.zeros(shape)
    write_weights(path / "model.safetensors", theirs, {"format": "pt"})
    processor = hf_config.preprocessor_config(pre)
    if processor is None:
        warnings.warn(f"No image processor of transformers does {pre}; prepare the images yourself.", stacklevel=3)
    for name, content in (("config", config), ("preprocessor_config", processor)):
        if content is None:
            continue
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        _write(path / f"{name}.json", partial(Path.write_text, data=text, encoding="utf-8"))
    return path


def write_weights(path: Path, state: State, metadata: dict[str, str]) -> Path:
    # Parts of one stacked matrix share its memory, which neither format should see.
    state = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    if path.suffix in PICKLED:
        return _write(path, lambda part: torch.save(state, part))
    return _write(path, lambda part: save_file(state, part, metadata))


def _write(path: Path, write: Callable[[Path], object]) -> Path:
    with whole(path, SafetensorError, RuntimeError) as part:
        write(part)
    return path
