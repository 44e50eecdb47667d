"""What the shapes of a checkpoint tell about the architecture, given the weights under our names."""

import math
import re
from collections.abc import Iterable
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import ModelSettings, SwinSettings
from vitrail.models.grid import Grid
from vitrail.models.position import recognise_position
from vitrail.models.position_kind import Stored
from vitrail.models.resnet import stem_stride
from vitrail.models.swin import stage_window
from vitrail.weights.rules import State


def infer(
    state: State, family: str, buffers: State, stated: Iterable[Grid] = (), supposed: Iterable[Grid] = ()
) -> dict[str, Any]:
    """The settings that shapes decide. Head counts of a ViT, norm epsilons and the like leave no trace in them.

    A table tells how many positions it has but not their grid. Image sizes that are `stated` are tried first, then a
    square and those that are only `supposed`. `buffers` is the file under its own names.
    """
    sizes = [*stated], [*supposed]
    try:
        if family == "mae":
            encoder = _vit(
                {k.removeprefix("encoder."): v for k, v in state.items() if k.startswith("encoder.")}, *sizes
            )
            width = state["decoder_embed.weight"].shape[0]
            depth = _count(state, r"decoder_blocks\.(\d+)\.")
            return {**encoder, "decoder_width": width, "decoder_depth": depth, "position": "sincos"}
        if family == "vit":
            return _vit(state, *sizes)
        return _swin(state, 2, _window_v2(buffers), *sizes) if family == "swinv2" else _swin(state, 1, {}, *sizes)
    except KeyError as error:
        raise VitrailError(f"the checkpoint is incomplete: it has no {error.args[0]}") from None
    except (ValueError, IndexError, ZeroDivisionError):
        raise VitrailError("the shapes of its tensors are not those of a Vision Transformer") from None


# What shapes, or a config, decide about the architecture itself. Sizes of image, input and output may differ.
ARCHITECTURE = (  # noqa: SIM905 (as a list it takes a screen)
    "width depth depths heads patch_size stem mlp_ratio position pool version class_token distillation_token registers"
    " norm_before qk_norm layer_scale local qkv_bias patch_bias decoder_width decoder_depth"
).split()


def differences(settings: ModelSettings, known: dict[str, Any]) -> list[str]:
    """What is known of a file and could not be so in a model of these settings, as `width 192 (not 768)`."""
    different = []
    gated = known.get("activation") == "swiglu"  # of activations, only a gate leaves a trace
    if (getattr(settings, "activation", None) == "swiglu") != gated:
        different.append(f"{'a' if gated else 'no'} gated MLP")
    for key in ARCHITECTURE:
        if key not in known or not hasattr(settings, key):
            continue
        value, expected = known[key], getattr(settings, key)
        if key == "layer_scale":
            same = (expected is None) == (value is None)
        elif key == "mlp_ratio":
            same = math.isclose(expected, value, rel_tol=1e-3)
        elif key == "pool":  # token and mean pooling can be exchanged, attention has weights of its own
            same = (expected == "attention") == (value == "attention")
        else:
            same = expected == value
        if not same:
            different.append(f"{key} {value} (not {expected})")
    return different


def _count(state: State, pattern: str) -> int:
    return 1 + max((int(m[1]) for name in state if (m := re.match(pattern, name))), default=-1)


def _vit(state: State, stated: list[Grid], supposed: list[Grid]) -> dict[str, Any]:
    width, channels, p, q = state["patch.weight"].shape
    stem = None
    if "stem.conv.weight" in state:
        channels = state["stem.conv.weight"].shape[1]
        stages = _count(state, r"stem\.stages\.(\d+)\.")
        stem = tuple(_count(state, rf"stem\.stages\.{i}\.(\d+)\.") for i in range(stages))
    fc1, fc2 = state["blocks.0.mlp.fc1.weight"], state["blocks.0.mlp.fc2.weight"]
    settings: dict[str, Any] = {
        "width": width,
        "channels": channels,
        "patch_size": (p, q),
        "stem": stem,
        "depth": _count(state, r"blocks\.(\d+)\."),
        "mlp_ratio": fc2.shape[1] / width,
        "patch_bias": "patch.bias" in state,
        "class_token": "class_token" in state,
        "distillation_token": "distillation_token" in state,
        "registers": state["registers"].shape[1] if "registers" in state else 0,
        "norm_before": "norm_before.weight" in state,
        "norm_after_pool": "norm_pool.weight" in state,
        "qk_norm": "blocks.0.attention.q_norm.weight" in state,
        "layer_scale": 1e-5 if "blocks.0.scale1.gamma" in state else None,
        "local": "blocks.0.local.weight" in state,
        "qkv_bias": "qv" if "blocks.0.attention.q_bias" in state else "blocks.0.attention.qkv.bias" in state,
        **_head(state),
    }
    settings["head"] = "mlp" if "head.hidden.weight" in state and settings["num_classes"] else "linear"
    settings["head_bias"] = "head.output.bias" in state or not settings["num_classes"]
    if fc1.shape[0] == 2 * fc2.shape[1]:
        settings["activation"] = "swiglu"
    if "pool_attention.query" in state:
        settings["pool"] = "attention"
    else:
        settings["pool"] = "mean" if settings["norm_after_pool"] or not settings["class_token"] else "token"
    stride = 1 if stem is None else stem_stride(stem)
    positions = {k.removeprefix("position."): v for k, v in state.items() if k.startswith("position.")}
    tokens = settings["class_token"] + settings["distillation_token"]
    stored = Stored(positions, (p * stride, q * stride), tokens, settings["registers"], stated, supposed)
    return settings | recognise_position(stored)


def _head(state: State) -> dict[str, Any]:
    return {"num_classes": state["head.output.weight"].shape[0] if "head.output.weight" in state else 0}


def _swin(
    state: State, version: int, window: dict[str, Any], stated: list[Grid], supposed: list[Grid]
) -> dict[str, Any]:
    width, channels, p, q = state["patch.weight"].shape
    stages = _count(state, r"stages\.(\d+)\.")
    head_of = "attention.logit_scale" if version == 2 else "bias.table"
    heads = [state[f"stages.{i}.0.{head_of}"].shape[0 if version == 2 else 1] for i in range(stages)]
    settings: dict[str, Any] = {
        "version": version,
        "width": width,
        "channels": channels,
        "patch_size": (p, q),
        "depths": tuple(_count(state, rf"stages\.{i}\.(\d+)\.") for i in range(stages)),
        "heads": tuple(heads),
        "mlp_ratio": state["stages.0.0.mlp.fc1.weight"].shape[0] / width,
        "qkv_bias": any(f"stages.0.0.attention.{name}" in state for name in ("qkv.bias", "q_bias")),
        **_head(state),
    }
    if version == 1:
        rows = [len(state[f"stages.{i}.0.bias.table"]) for i in range(stages)]
    elif window:
        rows = window.pop("rows")
    else:
        return settings | ({"image_size": stated[0]} if stated else {})
    sides = [(math.isqrt(count) + 1) // 2 for count in rows]  # of square windows
    settings |= {"window": (max(sides), max(sides)), **window}
    # Where an image is too small for the window, timm's rule and the official files have smaller ones in late stages.
    usual = (224, 224) if version == 1 else (256, 256)
    smallest = (sides[-1] * p * 2 ** (stages - 1), sides[-1] * q * 2 ** (stages - 1))
    for size in [*stated, *supposed, usual, smallest]:
        shape = SwinSettings(**{**settings, "padding": "timm", "image_size": size})
        windows = [stage_window(shape, i)[0] for i in range(stages)]
        if [(2 * h - 1) * (2 * w - 1) for h, w in windows] == rows:
            return settings | {"image_size": size}
    return settings | ({"image_size": stated[0]} if stated else {})


def _window_v2(buffers: State) -> dict[str, Any]:
    """Swin v2 learns nothing that has the shape of its window. The official files and torchvision's hold the offsets
    inside it as a buffer: sign(x)·log2(8|x| + 1)/3, x being the offset over the largest one of pre-training."""
    tables = [table for name, table in sorted(buffers.items()) if name.endswith(".0.attn.relative_coords_table")]
    if not tables:
        return {}
    sides = [table.shape[1] // 2 + 1 for table in tables]
    furthest = [(2 ** (3 * table[0, -1, 0, 0].item()) - 1) / 8 for table in tables]
    trained = tuple(round((side - 1) / x) + 1 if x else side for side, x in zip(sides, furthest, strict=True))
    return {
        "window": (sides[0], tables[0].shape[2] // 2 + 1),
        "pretrained_window": () if trained == tuple(sides) else trained,
        "rows": [table.shape[1] * table.shape[2] for table in tables],
    }
