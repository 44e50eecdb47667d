"""Small models whose attention is known in closed form."""

import torch

import vitrail
from tests.parity.peers import shake
from vitrail.models import SwinTransformer, VisionTransformer

SIZE = {"image_size": 32, "patch_size": 16, "depth": 3, "width": 16, "heads": 2, "num_classes": 4}


def lively(**changes) -> VisionTransformer:
    """Random weights, attention that is neither flat nor sharp: the 2×2 patches of 16 pixels."""
    torch.manual_seed(0)
    model = shake(VisionTransformer(**{**SIZE, **changes}))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight *= 20
    return model


def uniform(**changes) -> VisionTransformer:
    """q = k = 0: every token attends to all alike."""
    model = lively(**changes)
    with torch.no_grad():
        for block in model.blocks:
            rows = block.attention.qkv.weight.shape[0] // 3
            block.attention.qkv.weight[: 2 * rows] = 0
            block.attention.qkv.bias[: 2 * rows] = 0
    return model


def identity(**changes) -> VisionTransformer:
    """Every token attends to itself alone: each is a direction of its own, and scores are sharpened without end."""
    model = VisionTransformer(**{**SIZE, "heads": 1, **changes}).eval()
    with torch.no_grad():
        model.patch.weight.zero_()
        model.position.table.copy_(torch.eye(model.position.table.shape[1], 16) * 10)
        if model.class_token is not None:
            model.class_token.zero_()
        for block in model.blocks:
            block.attention.qkv.weight.zero_()
            block.attention.qkv.weight[:16] = 30 * torch.eye(16)
            block.attention.qkv.weight[16:32] = 30 * torch.eye(16)
            block.attention.qkv.weight[32:] = torch.eye(16)
            # Not zero, or no gradient would reach attention; and little beside the 10 of each token's own direction.
            block.attention.proj.weight.copy_(0.1 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
            block.mlp.fc2.weight.zero_()
    return model


def swin(**changes) -> SwinTransformer:
    torch.manual_seed(0)
    settings = {"width": 12, "depths": (2, 2), "heads": (2, 3), "window": 4, "image_size": 64, "num_classes": 4}
    return shake(vitrail.create_model("swin_t", **{**settings, **changes}))


def uniform_swin(**changes) -> SwinTransformer:
    model = swin(**changes)
    with torch.no_grad():
        for block in model.blocks:
            rows = block.attention.qkv.weight.shape[0] // 3
            block.attention.qkv.weight[: 2 * rows] = 0
            block.attention.qkv.bias[: 2 * rows] = 0
            block.bias.table.zero_()
    return model
