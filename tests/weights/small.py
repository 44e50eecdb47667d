"""One small model of every family, with lively weights; shared by the tests of this folder."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from tests.parity.peers import shake

VIT: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "image_size": 32, "patch_size": 8}
SWIN: dict[str, Any] = {"width": 16, "depths": (2, 2), "heads": (2, 4), "window": 4, "image_size": 32}

# A name of the catalog for each family, and the changes that make it small.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_b16", {**VIT, "num_classes": 5}),
    "vit_mlp_head": ("vit_b16", {**VIT, "num_classes": 5, "head": "mlp"}),
    "deit_distilled": ("deit_ti16_distilled", {**VIT, "num_classes": 5}),
    "deit3": ("deit3_s16", {**VIT, "num_classes": 5}),
    "mean_pool": ("vit_b16", {**VIT, "num_classes": 5, "pool": "mean", "norm_after_pool": True}),
    "root_hybrid": ("r_vit_ti16", {**VIT, "num_classes": 5, "image_size": 64}),
    "hybrid": ("r50_vit_b16", {**VIT, "num_classes": 5, "image_size": 64, "stem": (1, 1), "patch_size": 1}),
    "dinov2": ("dinov2_s14", VIT),
    "dinov2_gated": ("dinov2_g14", {**VIT, "mlp_ratio": 2.75}),
    "dinov2_registers": ("dinov2_s14_reg4", VIT),
    "dinov2_registers_gated": ("dinov2_g14_reg4", {**VIT, "mlp_ratio": 2.75}),
    "dinov3": ("dinov3_s16", VIT),
    "dinov3_gated": ("dinov3_s16_plus", VIT),
    "clip": ("clip_b16", VIT),
    "siglip": ("siglip_b16", VIT),
    "cpvt": ("cpvt_ti16", {**VIT, "num_classes": 5}),
    "factorised": ("vit_b16", {**VIT, "num_classes": 5, "position": "factorised"}),
    "relative": ("vit_b16", {**VIT, "num_classes": 5, "position": "relative"}),
    "sincos": ("vit_b16", {**VIT, "num_classes": 5, "position": "sincos"}),
    "mae": ("mae_b16", {**VIT, "decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}),
    "swin": ("swin_t", {**SWIN, "num_classes": 5}),
    "swinv2": ("swinv2_t", {**SWIN, "num_classes": 5}),
}


def small(family: str, **changes: Any) -> nn.Module:
    name, shape = FAMILIES[family]
    torch.manual_seed(0)
    return shake(vitrail.create_model(name, **{**shape, **changes}))


def saved(model: nn.Module, tmp_path: Path, dialect: str = "vitrail") -> Path:
    suffix = "" if dialect == "hf" else ".safetensors"
    return vitrail.save_weights(model, tmp_path / f"model{suffix}", dialect=dialect)


def fresh(family: str, **changes: Any) -> nn.Module:
    """A model of the same kind with other weights."""
    torch.manual_seed(1)
    name, shape = FAMILIES[family]
    return vitrail.create_model(name, **{**shape, **changes}).eval()


def assert_equal_states(one: nn.Module, other: nn.Module) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def output(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(x)


def pth(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path
