"""Weights into a model: a checkpoint of any dialect is read, fitted, and checked before anything changes."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import CNNSettings, MAESettings, ModelSettings, SwinSettings, SwinTransformer, ViTSettings, build
from vitrail.models.layers import MLP
from vitrail.models.meta import ParametersOnMeta
from vitrail.models.position_kind import Position
from vitrail.models.registry import change
from vitrail.weights.checkpoint import Checkpoint, backbone_of, understand
from vitrail.weights.files import read_source
from vitrail.weights.fit import fit
from vitrail.weights.fitted import Fitted
from vitrail.weights.header import DENSE, settings_of, unwrapped
from vitrail.weights.rules import State, group_names

RULES = {"norm_eps", "activation", "position_rule", "padding"}  # arithmetic that belongs to the weights
ARITHMETIC = {"heads", "decoder_heads", "rotary_base", "norm_first"}  # leaves no trace in shapes
HEADS = ("auto", "keep", "new")
Shapes = dict[str, torch.Size]


@dataclass
class LoadReport:
    """What happened to the weights: how many tensors were taken, and, in sentences, what was changed on the way."""

    dialect: str
    used: int
    notes: list[str] = field(default_factory=list)


def load_weights(model: nn.Module, source: str | Path, head: str = "auto") -> LoadReport:
    """Fills a model from a checkpoint of any dialect: a file, a folder, or `hf://org/name`.

    `head`: "auto" keeps the head of the file if it has as many classes and else leaves the model's own, freshly
    initialised; "keep" insists on the file's; "new" leaves the model's in any case. The model takes over the arithmetic
    that goes with the weights: norm epsilon, kind of GELU, rules of resizing and padding.
    """
    model = unwrapped(model)
    settings = settings_of(model)
    checkpoint = understand(read_source(source), supposed=[settings.image_size])
    notes = []
    if isinstance(checkpoint.settings, DENSE) and not isinstance(settings, DENSE):
        checkpoint = backbone_of(checkpoint)
        notes = ["the backbone of a dense model was taken, its head left"]
    rules = _rules(checkpoint, settings)
    target = replace(settings, **rules)
    fitted = fit(checkpoint, target, _checked(head))
    _check_arithmetic(checkpoint, target, fitted)
    check(fitted, checkpoint, target, _shapes(model) | _bias_tables(target))
    adopt(model, rules)
    model.load_state_dict(_full_precision(fitted.state), strict=False)
    model.preprocessing = checkpoint.preprocessing.suited(target)  # type: ignore[assignment]
    if checkpoint.unknown:
        fitted.notes.append(f"left out, unknown here: {group_names(checkpoint.unknown)}")
    return LoadReport(checkpoint.dialect, len(fitted.state), notes + fitted.notes)


def model_from(checkpoint: Checkpoint, head: str = "auto", **changes: Any) -> nn.Module:
    """The model of a checkpoint, with changes to its settings if wanted (`num_classes=0`, `image_size=384`).

    It is built without a first initialisation, which would be overwritten at once; unless the changes ask for something
    that the file has no weights for.
    """
    target = change(checkpoint.settings, **changes)
    fitted = fit(checkpoint, target, _checked(head))
    model = without_memory(target)
    check(fitted, checkpoint, target, _shapes(model))
    if any(name not in fitted.state for name in model.state_dict()):
        with torch.device("cpu"):
            model = build(target)
    model.load_state_dict(_full_precision(fitted.state), strict=False, assign=True)
    pre = checkpoint.preprocessing
    changed = changes.keys() & {"image_size", "channels"}
    model.preprocessing = pre.suited(target) if changed else pre  # type: ignore[assignment]
    return model.eval()


def _checked(head: str) -> str:
    if head not in HEADS:
        raise VitrailError(f"head={head!r} is not known; choose one of {', '.join(HEADS)}.")
    return head


def without_memory(settings: ModelSettings) -> nn.Module:
    if isinstance(settings, (CNNSettings, *DENSE)):  # whose initialisation computes with its weights
        return build(settings)
    with torch.device("cpu"), ParametersOnMeta():
        return build(settings)


def _shapes(model: nn.Module) -> Shapes:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _bias_tables(settings: ModelSettings) -> Shapes:
    """Those of a Swin under the rule of its new weights: timm's fits windows to the image."""
    if not isinstance(settings, SwinSettings):
        return {}
    return {name: shape for name, shape in _shapes(without_memory(settings)).items() if name.endswith(".bias.table")}


def _full_precision(state: State) -> State:
    """Copies, so that two models of one checkpoint do not share their memory. Batch norm's count stays a count."""
    return {
        name: tensor.to(tensor.dtype if name.endswith("num_batches_tracked") else torch.float32, copy=True).contiguous()
        for name, tensor in state.items()
    }


def _rules(checkpoint: Checkpoint, settings: ModelSettings) -> dict[str, Any]:
    """The rules that the file states and such a model has."""
    names = {name for name in checkpoint.stated & RULES if hasattr(settings, name)}
    if "swiglu" in (
        getattr(s, "activation", None) for s in (checkpoint.settings, settings)
    ):  # a matter of shapes, not of arithmetic
        names.discard("activation")
    return {name: getattr(checkpoint.settings, name) for name in names}


def _check_arithmetic(checkpoint: Checkpoint, target: ModelSettings, fitted: Fitted) -> None:
    """Refuses what fits in every shape and would compute something else: 3 heads in a model of 12."""
    source, names = checkpoint.settings, checkpoint.stated & ARITHMETIC
    if isinstance(source, DENSE) and isinstance(target, DENSE):  # which is not taken apart to take rules over
        source, target, names = source.backbone, target.backbone, ARITHMETIC | RULES
    if "head.hidden.weight" in fitted.state:
        names |= checkpoint.stated & {"head_activation"}
    for name in sorted(names):
        told, built = getattr(source, name, None), getattr(target, name, None)
        if None not in (told, built) and told != built:
            raise VitrailError(f"{checkpoint.path} was trained with {name}={told}, this model has {name}={built}.")


def check(fitted: Fitted, checkpoint: Checkpoint, target: ModelSettings, shapes: Shapes) -> None:
    """Refuses weights that don't fit, in a few lines."""
    state = fitted.state
    missing = [name for name in shapes if name not in state and not fitted.is_fresh(name)]
    unexpected = [name for name in state if name not in shapes]
    wrong: dict[str, list[str]] = {}  # by what is wrong, the names
    for name, tensor in state.items():
        if name in shapes and tensor.shape != shapes[name]:
            wrong.setdefault(f"{list(tensor.shape)}, expected {list(shapes[name])}", []).append(name)
    if not (missing or unexpected or wrong):
        return
    file = f"{checkpoint.path} ({checkpoint.dialect}, {_describe(checkpoint.settings)})"
    lines = [f"{file} does not fit this model ({_describe(target)}):"]
    if missing:
        lines.append(f"  missing in the file: {group_names(missing)}")
    if unexpected:
        lines.append(f"  not in the model: {group_names(unexpected)}")
    lines += [f"  {group_names(sorted(names), most=2)}: {shapes}" for shapes, names in list(wrong.items())[:4]]
    if len(wrong) > 4:
        lines.append(f"  and {len(wrong) - 4} more kinds of other shapes")
    raise VitrailError("\n".join(lines))


def _describe(settings: ModelSettings) -> str:
    if isinstance(settings, DENSE):
        return f"{settings.head} on {_describe(settings.backbone)}; {settings.num_classes} classes"
    if isinstance(settings, CNNSettings):
        return f"tv:{settings.arch}, {settings.stem} stem, {settings.num_classes} classes"
    depth = settings.depths if isinstance(settings, SwinSettings) else settings.depth
    return f"width {settings.width}, depth {depth}, patch {settings.patch_size[0]}, {settings.num_classes} classes"


def adopt(model: nn.Module, rules: dict[str, Any]) -> None:
    """Takes over the arithmetic that the weights came with."""
    for module in model.modules():
        if isinstance(settings := getattr(module, "settings", None), ViTSettings | SwinSettings | MAESettings):
            module.settings = replace(settings, **rules)  # type: ignore[assignment]
        if isinstance(module, nn.LayerNorm):
            module.eps = rules.get("norm_eps", module.eps)
        elif isinstance(module, Position):
            module.rule = rules.get("position_rule", module.rule)
        elif isinstance(module, MLP):
            module.activation = rules.get("activation", module.activation)
    if isinstance(model, SwinTransformer) and "padding" in rules:
        _adopt_windows(model)


def _adopt_windows(model: SwinTransformer) -> None:
    """Windows and shifts as the rule of padding in the model's settings has them."""
    with ParametersOnMeta():
        template = SwinTransformer(model.settings)
    for block, new in zip(model.blocks, template.blocks, strict=True):
        block.padding, block.window, block.shift = new.padding, new.window, new.shift
        if block.bias.window != new.bias.window:
            device = next(block.parameters()).device
            block.bias = new.bias.to_empty(device=device)
            block.bias.reset_buffers(device)
