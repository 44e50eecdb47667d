"""Optimizers by name, and the parameter groups that they are given."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models.classifier import decays
from vitrail.training.muon import Muon

STACKED = ("qkv.weight", "qkv.lora_b")  # matrices of queries, keys and values, one above the other


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": torch.optim.AdamW, "muon": Muon}


def make_optimizer(
    model: nn.Module, kind: str, lr: float, weight_decay: float, layer_decay: float, betas: tuple[float, float]
) -> Any:
    groups = parameter_groups(model, lr, weight_decay, layer_decay, apart=kind == "muon")
    return OPTIMIZERS[kind](groups, lr=lr, betas=betas, fused=True)


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, layer_decay: float = 1.0, apart: bool = False
) -> list[dict[str, Any]]:
    """One group for each (rate, decayed or not), of what is trainable: a few large ones, where one kernel updates all.
    With `apart` hidden matrices are groups of their own, with the `parts` that Muon asks for.

    A parameter of block l of L (1 … L) learns at lr · layer_decay^(L − l); what comes before the blocks as a block 0
    would, what comes after them at lr. Matrices decay; vectors, tokens and position tables do not.
    """
    depths, last = depths_of(model)
    groups: dict[tuple[float, bool, bool], dict[str, Tensor]] = defaultdict(dict)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = layer_decay ** (last - depths[name]), decays(name, parameter), apart and hidden(name, parameter)
            groups[key][name] = parameter
    return [
        {
            "params": [*parameters.values()],
            "parts": [3 if name.endswith(STACKED) else 1 for name in parameters] if inside else None,
            "weight_decay": weight_decay if decayed else 0.0,
            "scale": scale,  # relative to lr, for the schedule
            "lr": lr * scale,
        }
        for (scale, decayed, inside), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def depths_of(model: nn.Module) -> tuple[dict[str, int], int]:
    """For each parameter 0 before the blocks, 1 … L in them, L after them, where the head learns as the last block
    does; and L. A Swin's merging counts with the block before it. What a segmenter or a detector has around its
    backbone is new, and learns as a head does."""
    places: dict[int, int] = {}
    whole, inside = model, getattr(getattr(model, "settings", None), "inside", "")
    model = model.get_submodule(inside.rstrip("."))
    blocks: Any = getattr(model, "blocks", ())  # a masked autoencoder has two stacks, and no decay between layers
    for depth, block in enumerate(blocks, 1):
        places |= {id(parameter): depth for parameter in block.parameters()}
    done = 0
    for stage, merge in zip(getattr(model, "stages", ()), getattr(model, "merges", ()), strict=False):
        done += len(stage)
        places |= {id(parameter): done for parameter in merge.parameters()}
    after = ("head", "norm.", "norm_pool", "pool_attention")
    depths = {name: len(blocks) for name, _ in whole.named_parameters()}
    for name, parameter in model.named_parameters():
        depths[inside + name] = places.get(id(parameter), len(blocks) if name.startswith(after) else 0)
    return depths, len(blocks)


def hidden(name: str, parameter: Tensor) -> bool:
    """A matrix in a block, or a convolution over several channels in a stem, that has layers before and after it."""
    inner = any(part in f".{name}" for part in (".blocks.", ".stages.", ".stem.convs.")) and ".bias." not in name
    matrix = parameter.ndim == 2 or (parameter.ndim == 4 and parameter.shape[1] > 1)
    return inner and matrix and decays(name, parameter)
