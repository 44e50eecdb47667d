"""What another ecosystem has no place for. It is refused by the names of the settings: weights that load there without
a complaint and compute something else would be worse than no file."""

from collections.abc import Callable
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import CNNSettings, MAESettings, ModelSettings, SwinSettings, ViTSettings
from vitrail.models.dense.settings import DetectorSettings, SegmenterSettings
from vitrail.models.grid import Grid
from vitrail.models.layers import ceil_div
from vitrail.models.position import KINDS

Needs = dict[str, Any]  # setting: the value that it must have, or a test of it


def transformer(settings: ModelSettings) -> ViTSettings | SwinSettings | MAESettings:
    """The settings, if they are of a transformer alone: no other dialect has our way of keeping a convolutional
    network, or what stands on a backbone."""
    if isinstance(settings, SegmenterSettings | DetectorSettings):
        raise VitrailError(
            f"No other library has a place for this {settings.head} on its backbone: keep it as a bundle (dialect"
            " vitrail), or export it to ONNX."
        )
    if isinstance(settings, CNNSettings):
        raise VitrailError(
            f"tv:{settings.arch} is kept as a bundle (dialect vitrail) or exported to ONNX, nothing else."
        )
    return settings


def one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


def ungated(activation: str) -> bool:
    return activation != "swiglu"


def square(size: Grid) -> bool:
    return size[0] == size[1]


def table(kind: str) -> bool:
    """A fixed table is written out as if it had been learned."""
    return KINDS[kind].tabular


# The ViT of the paper, which every ecosystem has a class for.
PLAIN: Needs = {
    "stem": None,
    "local": False,
    "patch_bias": True,
    "position": table,
    "class_token": True,
    "distillation_token": False,
    "registers": 0,
    "pool": "token",
    "norm_first": True,
    "norm_before": False,
    "norm_after_pool": False,
    "qkv_bias": True,
    "qk_norm": False,
    "layer_scale": None,
    "activation": ungated,
    "head": "linear",
    "head_bias": True,
}


def misfits(settings: ModelSettings, needs: Needs) -> list[str]:
    """The settings that differ from what is needed, as `name=value`."""
    wrong = []
    for name, need in needs.items():
        value = getattr(settings, name)
        if not (need(value) if callable(need) else value == need):
            wrong.append(f"{name}={value!r}")
    return wrong


OURS = "our own file can (dialect vitrail, as model.safetensors of a run), and so can ONNX"


def refuse_misfits(settings: ModelSettings, needs: Needs, who: str) -> None:
    if wrong := misfits(settings, needs):
        raise VitrailError(f"{who} can't do {', '.join(wrong)}; {OURS}.")


def swin_needs(settings: SwinSettings, padding: str) -> Needs:
    """Rules of padding tell apart only where, at `image_size`, a map is no multiple of the window."""
    needs: Needs = {"mask_padding": False, "activation": ungated}
    if any(size % window for grid in stage_grids(settings) for size, window in zip(grid, settings.window, strict=True)):
        needs["padding"] = padding
    return needs


def shrinks(settings: SwinSettings) -> bool:
    """Is a map, at `image_size`, smaller than the window?"""
    return any(
        size < window for grid in stage_grids(settings) for size, window in zip(grid, settings.window, strict=True)
    )


def stage_grids(settings: SwinSettings) -> list[Grid]:
    return [ceil_div(settings.grid, (2**i, 2**i)) for i in range(len(settings.depths))]
