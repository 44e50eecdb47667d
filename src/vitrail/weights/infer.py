"""What the shapes of a checkpoint tell about the architecture, given the weights under our names."""

import math
import re
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, Settings, SwinSettings, ViTSettings
from vitrail.models.resnet import stem_stride
from vitrail.weights.rules import State

CLASSES: dict[str, type] = {"vit": ViTSettings, "mae": MAESettings, "swin": SwinSettings, "swinv2": SwinSettings}


def infer(state: State, family: str) -> dict[str, Any]:
    """The settings that shapes decide. Head counts of a ViT, norm epsilons and the like leave no trace in them."""
    try:
        if family == "mae":
            encoder = _vit({k.removeprefix("encoder."): v for k, v in state.items() if k.startswith("encoder.")})
            width = state["decoder_embed.weight"].shape[0]
            depth = _count(state, r"decoder_blocks\.(\d+)\.")
            return {**encoder, "decoder_width": width, "decoder_depth": depth, "position": "sincos"}
        return _vit(state) if family == "vit" else _swin(state, 2 if family == "swinv2" else 1)
    except KeyError as error:
        raise VitrailError(f"The checkpoint is incomplete: it has no {error}.") from None


def agrees(settings: Settings, inferred: dict[str, Any]) -> bool:
    """Could a model of these settings have the inferred shapes? Sizes of image, input and output may differ."""
    for key, value in inferred.items():
        if key in ("image_size", "num_classes", "channels", "head", "head_bias", "position_prefix", "pool", "norm_after_pool"):
            continue
        expected = getattr(settings, key, None)
        if key == "layer_scale":
            same = (expected is None) == (value is None)
        elif key == "mlp_ratio":
            same = math.isclose(expected or 0, value, rel_tol=1e-3)
        elif key == "activation":
            same = (expected == "swiglu") == (value == "swiglu")
        elif key == "window":
            same = max(expected) >= max(value) if expected else False
        else:
            same = expected == value
        if not same:
            return False
    # A pooling with weights of its own can't be mistaken; token and mean pooling can.
    return (getattr(settings, "pool", None) == "attention") == (inferred.get("pool") == "attention")


def _count(state: State, pattern: str) -> int:
    return 1 + max((int(m[1]) for name in state if (m := re.match(pattern, name))), default=-1)


def _vit(state: State) -> dict[str, Any]:
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
        "qkv_bias": "qv" if "blocks.0.attention.q_bias" in state else "blocks.0.attention.qkv.bias" in state,
        "head": "mlp" if "head.hidden.weight" in state and "head.output.weight" in state else "linear",
        "num_classes": state["head.output.weight"].shape[0] if "head.output.weight" in state else 0,
        "head_bias": "head.output.weight" not in state or "head.output.bias" in state,
    }
    if fc1.shape[0] == 2 * fc2.shape[1]:
        settings["activation"] = "swiglu"
    if "pool_attention.query" in state:
        settings["pool"] = "attention"
    elif settings["norm_after_pool"] or not settings["class_token"]:
        settings["pool"] = "mean"
    if "position.table" in state and state["position.table"].ndim == 3:
        settings["position"] = "learned"
        rows = state["position.table"].shape[1]
        prefix = settings["class_token"] + settings["distillation_token"]
        stride = 1 if stem is None else stem_stride(stem)
        for has_prefix in (True, False):
            side = math.isqrt(rows - prefix * has_prefix)
            if side * side == rows - prefix * has_prefix:
                settings |= {"position_prefix": has_prefix, "image_size": (side * p * stride, side * q * stride)}
                break
    return settings


def _swin(state: State, version: int) -> dict[str, Any]:
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
        "num_classes": state["head.output.weight"].shape[0] if "head.output.weight" in state else 0,
    }
    if version == 1:
        side = (math.isqrt(max(state[f"stages.{i}.0.bias.table"].shape[0] for i in range(stages))) + 1) // 2
        settings["window"] = (side, side)
    return settings
