"""Weights into a model: resized where grids differ, adapted where channels do, refused where nothing fits."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, Settings, SwinSettings, ViTSettings, build
from vitrail.models.layers import MLP
from vitrail.models.position import Grid, Position, SinCosPosition, resize_grid
from vitrail.models.swin import SwinBlock, resize_bias_table, stage_window
from vitrail.weights.checkpoint import Checkpoint, group_names, read_checkpoint
from vitrail.weights.rules import State

RULES = {"norm_eps", "activation", "position_rule", "padding"}  # arithmetic that belongs to the weights
HEADS = ("head.", "head_distillation.")


@dataclass
class LoadReport:
    """What happened to the weights: how many tensors were taken, and, in sentences, what was changed on the way."""

    dialect: str
    used: int
    notes: list[str] = field(default_factory=list)


def load_weights(model: nn.Module, source: str | Path, head: str = "auto") -> LoadReport:
    """Fills a model from a checkpoint of any dialect: a file, a folder, or `hf://org/name`.

    `head`: "auto" keeps the head of the file if it has as many classes and else leaves the model's own, freshly
    initialised; "keep" insists on the file's; "new" leaves the model's in any case.
    """
    if head not in ("auto", "keep", "new"):
        raise VitrailError(f'head={head!r} is not known; choose "auto", "keep" or "new".')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model that is given decides what the file alone leaves open
        checkpoint = read_checkpoint(source)
    settings: Settings = model.settings  # type: ignore[assignment]
    state, notes = fit(checkpoint, settings, head)
    fresh = _fresh(settings, state)
    put(model, state, checkpoint, fresh, assign=False)
    adopt(model, {name: getattr(checkpoint.settings, name) for name in checkpoint.stated & RULES})
    if checkpoint.unknown:
        notes.append(f"left out, unknown to this model: {group_names(checkpoint.unknown)}")
    return LoadReport(checkpoint.dialect, len(state), notes)


def model_from(checkpoint: Checkpoint) -> nn.Module:
    """The model of a checkpoint, built without a first initialisation that would be overwritten at once."""
    with torch.device("meta"):
        model = build(checkpoint.settings)
    state, _ = fit(checkpoint, checkpoint.settings, "keep")
    put(model, state, checkpoint, fresh=set(), assign=True)
    for module in model.modules():
        if hasattr(module, "reset_buffers"):
            module.reset_buffers("cpu")
    return model.eval()


def put(model: nn.Module, state: State, checkpoint: Checkpoint, fresh: set[str], assign: bool) -> None:
    """`load_state_dict`, with a mismatch told in a few lines."""
    own = model.state_dict()
    missing = [k for k in own if k not in state and not any(k.startswith(f) for f in fresh)]
    unexpected = [k for k in state if k not in own]
    wrong = [k for k in state if k in own and own[k].shape != state[k].shape]
    if missing or unexpected or wrong:
        lines = [f"{checkpoint.path} ({checkpoint.dialect}, {_describe(checkpoint.settings)}) does not fit this model:"]
        if missing:
            lines.append(f"  missing in the file: {group_names(missing)}")
        if unexpected:
            lines.append(f"  not in the model: {group_names(unexpected)}")
        if wrong:
            k = wrong[0]
            lines.append(f"  other shapes: {group_names(wrong)}; {k} is {list(state[k].shape)}, expected {list(own[k].shape)}")
        raise VitrailError("\n".join(lines))
    model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False, assign=assign)


def _describe(s: Settings) -> str:
    depth = s.depths if isinstance(s, SwinSettings) else s.depth
    return f"width {s.width}, depth {depth}, patch {s.patch_size[0]}, {s.num_classes} classes"


def fit(checkpoint: Checkpoint, target: Settings, head: str) -> tuple[State, list[str]]:
    """The checkpoint's tensors in the shapes of `target`, and notes on what was changed."""
    source, state, notes = checkpoint.settings, dict(checkpoint.state), []
    if isinstance(source, MAESettings) and not isinstance(target, MAESettings):
        state = {k.removeprefix("encoder."): v for k, v in state.items() if k.startswith("encoder.")}
        source = source.encoder
        notes.append("the encoder of a masked autoencoder was taken, its decoder left")
    if isinstance(source, SwinSettings) != isinstance(target, SwinSettings):
        raise VitrailError(f"{checkpoint.path} holds a {type(source).__name__[:-8]} model, not a {type(target).__name__[:-8]}.")
    if isinstance(target, SwinSettings) and isinstance(source, SwinSettings):
        _fit_bias_tables(state, source, target, notes)
    elif isinstance(target, MAESettings) and isinstance(source, MAESettings):
        _drop_waves(state, "encoder.position.table", source.width, source, checkpoint.path)
        _drop_waves(state, "decoder_position.table", source.decoder_width, source, checkpoint.path)
    elif isinstance(target, ViTSettings) and isinstance(source, ViTSettings):
        _fit_position(state, source, target, notes, checkpoint.path)
        _fit_norm(state, target, notes)
        if source.distillation_token and not target.distillation_token:
            state = {k: v for k, v in state.items() if "distillation" not in k}
            notes.append("the distillation token and its head were left out")
    _fit_channels(state, target.channels, notes)
    return _fit_head(state, source, target, head, notes), notes


def _fit_head(state: State, source: Settings, target: Settings, head: str, notes: list[str]) -> State:
    has_hidden = isinstance(target, ViTSettings) and target.head == "mlp"
    if not has_hidden:
        state = {k: v for k, v in state.items() if not k.startswith("head.hidden.")}
    if head == "keep" or not any(k.startswith(HEADS) for k in state):
        return state
    if head == "auto" and source.num_classes == target.num_classes:
        return state
    if target.num_classes:
        why = "as asked" if head == "new" else f"the file's has {source.num_classes} classes, the model {target.num_classes}"
        notes.append(f"the head is new ({why})")
    return {k: v for k, v in state.items() if not k.startswith(HEADS)}


def _fresh(target: Settings, state: State) -> set[str]:
    """Parts of the model that may keep their initialisation: a head that was not taken, a distillation token."""
    fresh = set() if any(k.startswith("head.output") for k in state) else {"head."}
    if isinstance(target, ViTSettings) and target.distillation_token and "distillation_token" not in state:
        fresh |= {"distillation_token", "head_distillation."}
    if not any(k.startswith("head_distillation") for k in state):
        fresh |= {"head_distillation."}
    if isinstance(target, ViTSettings) and not any(".position." in f".{k}" for k in state):
        fresh |= {"position."}
    return fresh


def _fit_channels(state: State, channels: int, notes: list[str]) -> None:
    """Three colours to one: their sum, so that a grey picture gives what its copy in three channels gave. To N: repeated,
    and scaled by 3/N so that the sum keeps its size."""
    for key in ("stem.conv.weight", "patch.weight", "encoder.patch.weight"):
        if key not in state or (key == "patch.weight" and "stem.conv.weight" in state):
            continue
        weight = state[key]
        have = weight.shape[1]
        if have == channels:
            continue
        if channels == 1:
            state[key] = weight.sum(dim=1, keepdim=True)
        else:
            repeats = -(-channels // have)
            state[key] = weight.repeat(1, repeats, 1, 1)[:, :channels] * (have / channels)
        notes.append(f"the patch embedding was adapted from {have} to {channels} channels")


def _fit_norm(state: State, target: ViTSettings, notes: list[str]) -> None:
    """Where the last norm acts, before or after pooling, is the model's choice; its weights serve either way."""
    have, want = ("norm", "norm_pool") if target.norm_after_pool else ("norm_pool", "norm")
    if f"{want}.weight" not in state and f"{have}.weight" in state:
        for p in ("weight", "bias"):
            state[f"{want}.{p}"] = state.pop(f"{have}.{p}")
        notes.append(f"the last norm moved to {'after' if target.norm_after_pool else 'before'} the pooling")


def _fit_position(state: State, source: ViTSettings, target: ViTSettings, notes: list[str], path: Path) -> None:
    if "sincos" in source.position and target.position == "learned":
        source = _waves_as_table(state, source)
    if "sincos" in target.position:
        _drop_waves(state, "position.table", target.width, source, path)
        return
    if source.position != target.position:
        names = [k for k in state if k.startswith("position.")]
        for name in names:
            del state[name]
        if names:
            notes.append(f"positions are {target.position} and new: those of the file ({source.position}) don't apply")
        return
    resize = _resizer(source.grid, target.grid, source.position_rule)
    if target.position == "learned":
        _fit_table(state, source, target, resize)
    elif target.position == "factorised" and source.grid != target.grid:
        state["position.rows"] = resize_grid(state["position.rows"][:, None], (target.grid[0], 1), source.position_rule)[:, 0]
        state["position.columns"] = resize_grid(state["position.columns"][None], (1, target.grid[1]), source.position_rule)[0]
    elif target.position == "relative" and source.grid != target.grid:
        table = state["position.table"]
        count = (2 * source.grid[0] - 1) * (2 * source.grid[1] - 1)
        offsets = resize_bias_table(table[:count], source.grid, target.grid, source.position_rule)
        state["position.table"] = torch.cat([offsets, table[count:]])
    if source.grid != target.grid and target.position in ("learned", "factorised", "relative"):
        notes.append(f"positions resized from {_grid(source.grid)} to {_grid(target.grid)} by the rule {source.position_rule!r}")


def _grid(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def _resizer(old: Grid, new: Grid, rule: str) -> Callable[[Tensor], Tensor]:
    """[h0·w0, D] -> [h·w, D]."""
    return lambda rows: rows if old == new else resize_grid(rows.float().unflatten(0, old), new, rule).flatten(0, 1)


def _fit_table(state: State, source: ViTSettings, target: ViTSettings, resize: Callable[[Tensor], Tensor]) -> None:
    """The table's patches are resized; its rows for tokens in front are kept, or folded into the tokens themselves."""
    table = state["position.table"][0]
    count = source.grid[0] * source.grid[1]
    rows, patches = table[: len(table) - count], resize(table[len(table) - count :])
    tokens = [name for name in ("class_token", "distillation_token") if name in state]
    kept = [i for i, name in enumerate(tokens) if getattr(target, name)]
    if target.position_prefix and target.class_token:
        rows = rows[kept] if len(rows) else table.new_zeros(len(kept), table.shape[1])
        missing = target.class_token + target.distillation_token - len(rows)
        rows = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
    else:
        for name, row in zip(tokens, rows, strict=False):
            state[name] = state[name] + row
        rows = rows[:0]
    state["position.table"] = torch.cat([rows, patches])[None]


def _waves_as_table(state: State, source: ViTSettings) -> ViTSettings:
    if "position.table" not in state:
        waves = SinCosPosition(source.width, source.grid, source.position_rule, source.position == "sincos")
        state["position.table"] = waves.table.flatten(0, 1)[None]
    prefixed = state["position.table"].shape[1] > source.grid[0] * source.grid[1]
    return replace(source, position="learned", position_prefix=prefixed)


def _drop_waves(state: State, key: str, width: int, source: ViTSettings, path: Path) -> None:
    """Files of fixed positions store their table. It is not needed if it is what the formula gives."""
    if key not in state:
        return
    table = state.pop(key)[0]
    waves = SinCosPosition(width, source.grid, source.position_rule, source.position != "sincos1d").table.flatten(0, 1)
    if not torch.allclose(table[len(table) - len(waves) :].float(), waves, atol=1e-4):
        raise VitrailError(f'{path}: its positions are not the sine-cosine table; build the model with position="learned".')


def _fit_bias_tables(state: State, source: SwinSettings, target: SwinSettings, notes: list[str]) -> None:
    resized = False
    for key in [k for k in state if k.endswith(".bias.table")]:
        stage = int(key.split(".")[1])
        new, old = stage_window(target, stage)[0], stage_window(source, stage)[0]
        length = state[key].shape[0]
        if length != (2 * old[0] - 1) * (2 * old[1] - 1):
            raise VitrailError(f"{key} has {length} rows, which is no table of a {old[0]}×{old[1]} window.")
        if old != new:
            state[key] = resize_bias_table(state[key], old, new, source.position_rule)
            resized = True
    if resized:
        notes.append(f"tables of relative positions resized from window {_grid(source.window)} to {_grid(target.window)}")


def adopt(model: nn.Module, rules: dict[str, Any]) -> None:
    """Takes over the arithmetic that the weights came with: norm epsilon, kind of GELU, rules of resizing and padding."""
    if "swiglu" in (rules.get("activation"), model.settings.activation):  # type: ignore[union-attr]
        rules.pop("activation", None)
    for module in model.modules():
        if isinstance(settings := getattr(module, "settings", None), ViTSettings | SwinSettings):
            module.settings = replace(settings, **rules)
        if isinstance(module, nn.LayerNorm) and "norm_eps" in rules:
            module.eps = rules["norm_eps"]
        elif isinstance(module, Position) and "position_rule" in rules:
            module.rule = rules["position_rule"]
        elif isinstance(module, MLP) and "activation" in rules:
            module.activation = rules["activation"]
        elif isinstance(module, SwinBlock) and "padding" in rules:
            module.padding = rules["padding"]
