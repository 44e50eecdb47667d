"""LoRA to and from PEFT's folders: adapter_config.json and adapter_model.safetensors.

PEFT wraps the layers of a timm or a transformers model, so its file is in the names of one of these; transformers keeps
q, k and v apart. B·A of a stacked qkv is split by the rows of B, exactly; three become one of their summed rank.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models import SwinSettings
from vitrail.models.tuning import TARGETS, Lora, tune, tuning_of
from vitrail.weights import hf_config, timm
from vitrail.weights.files import from_hub, read_file, read_json
from vitrail.weights.header import settings_of, unwrapped
from vitrail.weights.rules import State, WeightLayout, group_names
from vitrail.weights.save import write_weights
from vitrail.whole import whole

PREFIX = "base_model.model."
# In memory transformers 5 has other names than on the disk, but for Swin v2.
IN_MEMORY = (
    (r"attention\.(?:attention|self)\.(query|key|value)", lambda m: f"attention.{m[1][0]}_proj"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(?<=\d\.)output\.dense", "mlp.fc2"),
    (r"^(vit|deit)\.encoder\.layer\.", r"\1.layers."),
)
BLOCK = re.compile(r"(?:^|\.)(?:layers\.(\d+)\.blocks\.(\d+)|(?:blocks|layers?)\.(\d+))\.(.+)")
# The last part of a name, in either ecosystem and its older releases: our layer, and which third of it.
LAYERS: tuple[tuple[str, str, int | None], ...] = (
    (r"qkv", "attention.qkv", None),
    (r"query|q_proj", "attention.qkv", 0),
    (r"key|k_proj", "attention.qkv", 1),
    (r"value|v_proj", "attention.qkv", 2),
    (r"proj|o_proj|out_proj|attention\.output\.dense", "attention.proj", None),
    (r"fc1|intermediate\.dense", "mlp.fc1", None),
    (r"fc2|output\.dense", "mlp.fc2", None),
)
HEADS = {
    "head": "head", "head.fc": "head", "classifier": "head", "cls_classifier": "head",
    "head_dist": "head_distillation", "distillation_classifier": "head_distillation",
}  # fmt: skip


# -- out -------------------------------------------------------------------------------------------------------------


def save_peft(model: nn.Module, folder: str | Path, dialect: str = "timm") -> Path:
    """Writes the LoRA of a model, and its head, as a folder that PEFT loads onto the same base in timm or transformers
    (`dialect` "timm" or "hf", whose names are those of transformers 5)."""
    folder, model = Path(folder).expanduser(), unwrapped(model)
    tuning, settings = tuning_of(model), settings_of(model)
    if tuning is None or tuning.kind != "lora":
        raise VitrailError(f"PEFT's format is for LoRA, and this model has {tuning or 'nothing that was added'}.")
    if dialect not in ("timm", "hf"):
        raise VitrailError(f"dialect={dialect!r} is not known to PEFT; use timm or hf.")
    if dialect == "timm" and "qkv" in tuning.targets and _reads_past(settings):
        raise VitrailError(
            "timm computes qkv of this model from the bare weight, past PEFT: use dialect hf, or merge it and save it."
        )
    layout = timm.layout_for(settings) if dialect == "timm" else hf_config.layout_for(settings)
    state: State = {}
    targets = []
    for name, module in model.named_modules():
        if isinstance(module, Lora):
            for theirs, b in _translated(f"{name}.weight", module.lora_b, layout, settings).items():
                state[f"{PREFIX}{theirs}.lora_A.weight"] = module.lora_a.detach().cpu()
                state[f"{PREFIX}{theirs}.lora_B.weight"] = b.detach().cpu()
                targets.append(theirs)
    heads = []
    for name, tensor in model.state_dict().items():
        if name.startswith("head"):
            (theirs, _), *_rest = _translated(name, tensor, layout, settings).items()
            state[f"{PREFIX}{theirs}.{name.rpartition('.')[2]}"] = tensor.cpu()
            heads.append(theirs)
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": tuning.rank,
        "lora_alpha": tuning.rank * tuning.scale,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "modules_to_save": [*dict.fromkeys(heads)] or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
    write_weights(folder / "adapter_model.safetensors", state, {"format": "pt"})
    with whole(folder / "adapter_config.json") as part:
        part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _reads_past(settings: Any) -> bool:
    return settings.qkv_bias == "qv" or (isinstance(settings, SwinSettings) and settings.version == 2)


def _translated(name: str, tensor: Tensor, layout: WeightLayout, settings: Any) -> State:
    """Their modules for one weight of ours, each with its rows."""
    theirs, left = layout.write({name: tensor})
    if left:
        raise VitrailError(f"The dialect {layout.dialect} has no place for {name}.")
    if layout.dialect == "hf":
        theirs = {hf_config.named_for(settings, key): value for key, value in theirs.items()}
        for pattern, replacement in IN_MEMORY if hf_config.kind_of(settings).model_type != "swinv2" else ():
            theirs = {re.sub(pattern, replacement, key): value for key, value in theirs.items()}  # type: ignore[arg-type]
    return {key.rpartition(".")[0]: value for key, value in theirs.items()}


# -- in --------------------------------------------------------------------------------------------------------------


def load_peft(model: nn.Module, source: str | Path) -> nn.Module:
    """Puts a LoRA that PEFT has saved, from a folder or `hf://org/name`, on the same base here, in place."""
    model = unwrapped(model)
    text = str(source)
    folder = from_hub(text.removeprefix("hf://")) if text.startswith("hf://") else Path(source).expanduser()
    config = read_json(folder / "adapter_config.json")
    if not config:
        raise VitrailError(f"{source} has no adapter_config.json; give the folder that PEFT's save_pretrained wrote.")
    for key, wanted in (("peft_type", ("LORA",)), ("use_dora", (False, None)), ("bias", ("none", None))):
        if config.get(key, wanted[-1]) not in wanted:
            raise VitrailError(f"{folder} has {key}={config[key]!r}; only plain LoRA can be read.")
    path = next(
        (folder / f for f in ("adapter_model.safetensors", "adapter_model.bin") if (folder / f).is_file()), None
    )
    if path is None:
        raise VitrailError(f"{folder} has no adapter_model.safetensors; copy it again.")
    thirds, head = _sorted(read_file(path).state, config, path)
    stacked = {name: _stacked(parts, path) for name, parts in thirds.items()}
    if not stacked:
        raise VitrailError(f"{path} holds no LoRA.")
    scales = {scale for *_, scale in stacked.values()}
    scale = scales.pop() if len(scales) == 1 else 1.0  # where they differ, each goes into its B
    rank = max(len(a) for a, *_ in stacked.values())
    targets = [
        t for t in TARGETS if any(("mlp" if ".mlp." in name else name.rpartition(".")[2]) == t for name in stacked)
    ]
    _check(stacked, head, model, path)
    tune(model, "lora", rank=rank, targets=tuple(targets), scale=scale)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, Lora):
                module.lora_a.zero_()
                module.lora_b.zero_()
                if name in stacked:
                    a, b, own = stacked[name]
                    module.lora_a[: len(a)] = a
                    module.lora_b[:, : len(a)] = b * (own / scale)
    model.load_state_dict(head, strict=False)
    return model


def _sorted(state: State, config: dict[str, Any], path: Path) -> tuple[dict[str, dict[int | None, Any]], State]:
    """(A, B, scale) by our layer and the third of it that they act on; and the tensors of the head."""
    layers: dict[str, dict[int | None, Any]] = {}
    head: State = {}
    strange = []
    for key, tensor in state.items():
        name = re.sub(r"\.(?:modules_to_save|original_module)(?:\.default)?\.", ".", key.removeprefix(PREFIX))
        match = re.fullmatch(r"(.+)\.lora_(A|B)(?:\.default)?\.weight", name)
        module, _, last = name.rpartition(".")
        if match and (place := _place(match[1])):
            parts = layers.setdefault(place[0], {}).setdefault(place[1], {"name": match[1]})
            parts[match[2]] = tensor.float()
        elif module in HEADS and not match:
            head[f"{HEADS[module]}.output.{last}"] = tensor
        else:
            strange.append(key)
    if strange:
        raise VitrailError(f"{path} holds {group_names(strange, most=3)}, which no layer here can take.")
    for parts_of_layer in layers.values():
        for parts in parts_of_layer.values():
            if not {"A", "B"} <= parts.keys():
                raise VitrailError(f"{path}: {parts['name']} has only half of its LoRA; copy it again.")
            rank = len(parts["A"])
            alpha = _pattern(config.get("alpha_pattern"), parts["name"], config.get("lora_alpha") or rank)
            parts["scale"] = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    return layers, head


def _pattern(patterns: Any, name: str, default: float) -> float:
    """PEFT lets single layers have another alpha, by a regular expression of their names' ends."""
    return next((v for k, v in (patterns or {}).items() if re.match(rf"(.*\.)?({k})$", name)), default)


def _place(name: str) -> tuple[str, int | None] | None:
    """Our layer for their module, and which third of it: `blocks.3.attention.qkv`, 0."""
    block = BLOCK.search(name)
    if block is None:
        return None
    ours = f"stages.{block[1]}.{block[2]}" if block[1] else f"blocks.{block[3]}"
    for pattern, layer, third in LAYERS:
        if re.search(rf"(?:^|\.)(?:{pattern})$", block[4]):
            return f"{ours}.{layer}", third
    return None


def _stacked(parts: dict[int | None, Any], path: Path) -> tuple[Tensor, Tensor, float]:
    """One A [r, in], B [out, r] and scale for a layer; of q, k and v the sum of their ranks."""
    if None in parts:
        return parts[None]["A"], parts[None]["B"], parts[None]["scale"]
    each = [(third, p["A"], p["B"], p["scale"]) for third, p in sorted(parts.items())]  # type: ignore[type-var]
    width = len(each[0][2])
    if any(len(b) != width for _, _, b, _ in each):
        raise VitrailError(f"{path}: q, k and v have outputs of different sizes, which no model here has.")
    scale = each[0][3]
    rows = torch.zeros(3 * width, sum(len(a) for _, a, _, _ in each))
    start = 0
    for third, a, b, own in each:
        rows[third * width : (third + 1) * width, start : start + len(a)] = b * (own / scale)  # type: ignore[operator]
        start += len(a)
    return torch.cat([a for _, a, _, _ in each]), rows, scale


def _check(stacked: dict[str, tuple[Tensor, Tensor, float]], head: State, model: nn.Module, path: Path) -> None:
    """Refuses, before anything is changed, what was made for another model."""
    modules = dict(model.named_modules())
    for name, (a, b, _) in stacked.items():
        layer = modules.get(name)
        if not isinstance(layer, nn.Linear):
            raise VitrailError(f"{path} has a LoRA for {name}, which this model does not have: it is for another one.")
        if (len(b), a.shape[1]) != (layer.out_features, layer.in_features):
            raise VitrailError(
                f"{path}: the LoRA of {name} is {len(b)}×{a.shape[1]}, the layer {layer.out_features}×"
                f"{layer.in_features}: it is for another model."
            )
    own = model.state_dict()
    for name, tensor in head.items():
        if name not in own or own[name].shape != tensor.shape:
            raise VitrailError(
                f"{path} brings a head of {len(tensor)} classes; build the model with num_classes={len(tensor)}."
            )
