"""What changes the weights: optimizers and schedules by name, parameter groups, the running average."""

import math
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


LAST = 0.01  # of the peak, where a falling schedule ends
COOLDOWN = 0.2  # of a warmup-stable-decay run


def cosine(progress: float) -> float:
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float) -> float:
    return LAST + (1 - LAST) * (1 - progress)


def constant(progress: float) -> float:
    return 1.0


def wsd(progress: float) -> float:
    """Warmup-stable-decay: constant, then linear over the last fifth."""
    return linear(max(0.0, (progress - (1 - COOLDOWN)) / COOLDOWN))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": cosine, "linear": linear, "constant": constant, "wsd": wsd,
}  # fmt: skip


def rate_factor(step: int, steps: int, warmup: int, schedule: str = "cosine") -> float:
    """Of the peak learning rate: linear from 0 over `warmup` steps, then as the schedule says."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return SCHEDULES[schedule](min(1.0, progress))


def set_rates(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr * group["scale"])
        else:
            group["lr"] = lr * group["scale"]


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """What batch norm keeps of the images that it has seen, by name; a transformer has none."""
    kept = model.state_dict(keep_vars=True)
    return {n: v for n, v in kept.items() if not isinstance(v, nn.Parameter) and v.is_floating_point()}


class RunningAverage:
    """EMA of a model's trainable weights, and of the statistics that go with them: a ← d·a + (1 − d)·w after every
    step, with d = min(decay, (1 + t) / (10 + t)), so that the first weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self._statistics = statistics(model)
        self.average = {n: p.detach().clone() for n, p in self._averaged(model).items()}

    def _averaged(self, model: nn.Module) -> dict[str, Tensor]:
        return {n: p for n, p in model.named_parameters() if p.requires_grad} | self._statistics

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_([*self.average.values()], [*self._averaged(model).values()], 1 - decay)

    def swap(self, model: nn.Module) -> None:
        """Exchanges the average and the model's weights; twice changes nothing."""
        with torch.no_grad():
            for name, value in self._averaged(model).items():
                kept = value.detach().clone()
                value.copy_(self.average[name])
                self.average[name].copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in self.average.items():
            value.copy_(state["average"][name])
