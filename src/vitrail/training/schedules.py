"""How the learning rate rises and falls. A schedule is a function of the progress after the warm-up, from 0 to 1, to
the part of the peak; `SCHEDULES` names them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

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
