"""The tensors of a checkpoint in the shapes of a model: tables resized, channels adapted, heads kept or left.

Nothing is changed in silence: what was, and what of the model keeps its own initialisation, is noted.
"""

import math

from vitrail.errors import VitrailError
from vitrail.models import CNNSettings, MAESettings, ModelSettings, SwinSettings, ViTSettings
from vitrail.models.checks import setting_names
from vitrail.models.dense.settings import DetectorSettings, SegmenterSettings
from vitrail.models.grid import Grid, offsets_of, resize_bias_table
from vitrail.models.position import SinCosPosition
from vitrail.models.swin import stage_window
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.fit_position import check_waves, fit_position, grid_words
from vitrail.weights.fitted import Fitted
from vitrail.weights.rules import State

Dense = SegmenterSettings | DetectorSettings
SHAPING = ("num_classes", "head", "pyramid", "width", "norm", "pyramid_channels", "hidden", "anchor")  # of a dense head
KINDS: dict[type, str] = {
    SwinSettings: "a Swin", MAESettings: "a masked autoencoder", ViTSettings: "a ViT",
    CNNSettings: "a convolutional network", SegmenterSettings: "a segmenter", DetectorSettings: "a detector",
}  # fmt: skip


def fit(checkpoint: Checkpoint, target: ModelSettings, head: str) -> Fitted:
    """The checkpoint's tensors for a model of the settings `target`. `head` is as in `load_weights`."""
    source = checkpoint.settings
    fitted = Fitted(dict(checkpoint.state), str(checkpoint.path))
    if isinstance(source, MAESettings) and isinstance(target, MAESettings):
        return _fit_mae(fitted, source, target)
    if isinstance(target, Dense):
        if not isinstance(source, Dense) or type(source) is not type(target):
            raise _cannot_fill(fitted, source, target)
        return _fit_dense(fitted, source, target, head)
    if isinstance(source, MAESettings) and isinstance(target, ViTSettings):
        fitted.state = _inner(fitted.state, "encoder.")
        source = source.encoder
        fitted.notes.append("the encoder of a masked autoencoder was taken, its decoder left")
    elif isinstance(source, ViTSettings) and isinstance(target, ViTSettings):
        _note(fitted, ["pool"], source, target)
    if not (isinstance(target, CNNSettings) and isinstance(source, CNNSettings)):
        _fit_transformer(fitted, source, target, checkpoint.stated)
    _fit_head(fitted, source, target, head)
    return fitted


def _fit_transformer(fitted: Fitted, source: ModelSettings, target: ModelSettings, stated: set[str]) -> None:
    """All of a ViT or a Swin but its head."""
    if isinstance(target, SwinSettings) and isinstance(source, SwinSettings):
        _fit_bias_tables(fitted, source, target)
        if target.version == 2:  # which has no tables that a window would show in
            _note(fitted, sorted(stated & {"window", "pretrained_window"}), source, target)
        _fit_channels(fitted, target.channels)
    elif isinstance(target, ViTSettings) and isinstance(source, ViTSettings):
        _fit_vit(fitted, source, target, stated)
    else:
        raise _cannot_fill(fitted, source, target)


def _cannot_fill(fitted: Fitted, source: ModelSettings, target: ModelSettings) -> VitrailError:
    return VitrailError(f"{fitted.path} holds {KINDS[type(source)]}, which can't fill {KINDS[type(target)]}.")


def _note(fitted: Fitted, names: list[str], source: ModelSettings, target: ModelSettings) -> None:
    """Says which settings, that fit in every shape and compute something else, are the model's and not the file's."""
    for name in names:
        told, built = getattr(source, name), getattr(target, name)
        if told != built:
            fitted.notes.append(f"{name} is {built!r} in the model, and the file is taken for one with {told!r}")


def _inner(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _fit_part(fitted: Fitted, prefixes: tuple[str, str], source: ModelSettings, target: ModelSettings) -> None:
    """The transformer inside of a larger model; its names begin with the one prefix in the file, the other here."""
    theirs, ours = prefixes
    part = Fitted(_inner(fitted.state, theirs), fitted.path, fitted.notes)
    _fit_transformer(part, source, target, set(setting_names(type(source))))
    fitted.drop(theirs)
    fitted.state |= {f"{ours}{name}": tensor for name, tensor in part.state.items()}
    fitted.fresh = tuple(f"{ours}{prefix}" for prefix in part.fresh)


def _fit_mae(fitted: Fitted, source: MAESettings, target: MAESettings) -> Fitted:
    _fit_part(fitted, ("encoder.", "encoder."), source.encoder, target.encoder)
    if (table := fitted.state.pop("decoder_position.table", None)) is not None:
        check_waves(table[0], SinCosPosition, source.decoder_width, source.encoder.grid, fitted.path)
    return fitted


def _fit_dense(fitted: Fitted, source: Dense, target: Dense, head: str) -> Fitted:
    """The backbone as it would be alone. What stands on it, with its pyramid, is kept or new as a whole."""
    why = "as asked" if head == "new" else ""
    if head == "auto":
        differs = [name for name in SHAPING if getattr(source, name, None) != getattr(target, name, None)]
        why = ", ".join(f"the file's {name} is {getattr(source, name)}" for name in differs)
    if why:
        fitted.state = {name: tensor for name, tensor in fitted.state.items() if name.startswith(source.inside)}
        fitted.inside = target.inside
        fitted.notes.append(f"the head and its pyramid are new ({why})")
    _fit_part(fitted, (source.inside, target.inside), source.backbone, target.backbone)
    return fitted


def _fit_vit(fitted: Fitted, source: ViTSettings, target: ViTSettings, stated: set[str]) -> None:
    fit_position(fitted, source, target, stated)
    _fit_channels(fitted, target.channels)
    _fit_norm(fitted, target)
    if source.distillation_token and not target.distillation_token:
        fitted.drop("distillation_token", "head_distillation.")
        fitted.notes.append("the distillation token and its head were left out")
    elif target.distillation_token and not source.distillation_token:
        fitted.fresh += ("distillation_token", "head_distillation.")
        fitted.notes.append("the distillation token and its head are new: the file has none")


def _fit_head(fitted: Fitted, source: ModelSettings, target: ModelSettings, head: str) -> None:
    """A head serves as a whole or not at all: an output layer without its hidden layer would give other classes."""
    hidden = isinstance(source, ViTSettings) and source.head == "mlp"
    wants_hidden = isinstance(target, ViTSettings) and target.head == "mlp"
    if not hidden:
        fitted.drop("head.hidden.")  # transformers' pooler, which no classifier of its uses
    has_head = "head.output.weight" in fitted.state
    if head == "keep":
        if target.num_classes and not has_head:
            raise VitrailError(f'{fitted.path} has no head to keep; use head="new" or head="auto" for a fresh one.')
        return
    if head == "auto" and has_head and source.num_classes == target.num_classes and hidden == wants_hidden:
        return
    if hidden and wants_hidden and not target.num_classes:
        fitted.drop("head.output.", "head_distillation.")
        return
    fitted.drop("head.", "head_distillation.")
    fitted.fresh += ("head.", "head_distillation.")
    if target.num_classes:
        why = f"the file's has {source.num_classes} classes, the model {target.num_classes}"
        if head == "new":
            why = "as asked"
        elif not has_head:
            why = "the file has none"
        elif hidden != wants_hidden:
            why = f"the file's has {'a' if hidden else 'no'} hidden layer"
        fitted.notes.append(f"the head is new ({why})")


def _fit_channels(fitted: Fitted, channels: int) -> None:
    """Three colours to one: their sum, so that a grey image gives what its copy in three channels gave. To N:
    repeated, and scaled by 3/N so that the sum keeps its size. A hybrid brings its filters to one size on every call,
    so there both hold only roughly."""
    name = "stem.conv.weight" if "stem.conv.weight" in fitted.state else "patch.weight"
    weight = fitted.state.get(name)
    if weight is None or weight.shape[1] == channels:
        return
    have = weight.shape[1]
    if channels == 1:
        fitted.state[name] = weight.sum(dim=1, keepdim=True)
    else:
        fitted.state[name] = weight.repeat(1, -(-channels // have), 1, 1)[:, :channels] * (have / channels)
    fitted.notes.append(f"the patch embedding was adapted from {have} to {channels} channels")


def _fit_norm(fitted: Fitted, target: ViTSettings) -> None:
    """Where the last norm acts, before or after pooling, is the model's choice; its weights serve either way."""
    have, want = ("norm", "norm_pool") if target.norm_after_pool else ("norm_pool", "norm")
    if f"{want}.weight" not in fitted.state and f"{have}.weight" in fitted.state:
        for p in ("weight", "bias"):
            fitted.state[f"{want}.{p}"] = fitted.state.pop(f"{have}.{p}")
        fitted.notes.append(f"the last norm moved to {'after' if target.norm_after_pool else 'before'} the pooling")


def _fit_bias_tables(fitted: Fitted, source: SwinSettings, target: SwinSettings) -> None:
    def rows(window: Grid) -> int:
        return math.prod(offsets_of(window))

    resized: dict[str, None] = {}  # in order, each once
    for name in [name for name in fitted.state if name.endswith(".bias.table")]:
        stage = int(name.split(".")[1])
        table, new, old = fitted.state[name], stage_window(target, stage)[0], stage_window(source, stage)[0]
        if len(table) != rows(old):  # a rectangular window can't be read off its table: it may be the model's
            if len(table) != rows(new):
                raise VitrailError(
                    f"{fitted.path}: {name} has {len(table)} rows, and a window of {grid_words(old)} has {rows(old)};"
                    " say window=(height, width), or the image_size that it was made for."
                )
            continue
        if old != new:
            fitted.state[name] = resize_bias_table(table, old, new, source.position_rule)
            resized[f"{grid_words(old)} to {grid_words(new)}"] = None
    if resized:
        fitted.notes.append(f"tables of relative positions resized from window {', '.join(resized)}")
