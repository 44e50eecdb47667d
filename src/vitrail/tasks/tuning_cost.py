"""What a kind of tuning costs beside full fine-tuning: measured on one image, before anything is trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.inference.precision import autocast
from vitrail.models.attention import Attention
from vitrail.models.layers import PatchEmbed
from vitrail.models.tuning import Lora, PromptedAttention, freeze

STATE = 4 * 4  # bytes for each weight that learns: its gradient, Adam's two moments, the running average


@dataclass(frozen=True)
class Cost:
    """Of one way of training, in bytes and multiply-adds of a forward and a backward."""

    learning: int  # weights that change
    memory: int  # weights, what each of them drags along, and what a batch keeps for the backward
    work: int  # for one image


def cost_of(model: nn.Module, kind: str, batch: int, dtype: torch.dtype) -> Cost:
    """Of training with this kind of tuning; leaves the model frozen in this way."""
    device = next(model.parameters()).device
    settings: Any = model.settings
    freeze(model, kind)
    weights = [*model.parameters()]
    learning = sum(p.numel() for p in weights if p.requires_grad)
    x = torch.zeros(1, settings.channels, *settings.image_size, device=device)
    was_training = model.training
    model.train()
    try:
        known = {p.untyped_storage().data_ptr() for p in weights}
        with autocast(device, dtype), _counted(model) as counts, _saved(known) as kept:
            model(x)
    finally:
        model.train(was_training)
    fixed = sum(p.numel() for p in weights) * 4 + learning * STATE
    return Cost(learning, fixed + sum(kept.values()) * batch, sum(counts))


@contextmanager
def _counted(model: nn.Module) -> Iterator[list[int]]:
    """The multiply-adds of linear layers and attention in a forward, and in the backward that would follow: one more
    product where the input has a gradient, one more where the weight learns. By hooks, because torch's own counter
    takes seconds to start."""
    counts: list[int] = []

    def hear(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0]
        flows = x.requires_grad
        if isinstance(module, Attention):
            n = x.shape[1] + (len(module.prompts) if isinstance(module, PromptedAttention) else 0)
            flows = flows or any(p.requires_grad for p in module.parameters())
            # Forward QKᵀ and A·V; backward QKᵀ once more, and a gradient for each of Q, K, A and V.
            counts.append(x.shape[0] * n * n * x.shape[2] * (7 if flows else 2))
            return
        rows = output.shape[:-1].numel()
        weight: Any = module.weight
        counts.append(rows * weight.numel() * (1 + flows + weight.requires_grad))
        if isinstance(module, Lora):
            a, b = module.lora_a, module.lora_b
            counts.append(rows * a.numel() * (1 + flows + a.requires_grad))
            counts.append(rows * b.numel() * (1 + (flows or a.requires_grad) + b.requires_grad))

    kinds = (nn.Linear, PatchEmbed, Attention)
    hooks = [m.register_forward_hook(hear) for m in model.modules() if isinstance(m, kinds)]  # type: ignore[arg-type]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _saved(known: set[int]) -> Iterator[dict[int, int]]:
    """The bytes of what waits for the backward, by where it lies; weights lie there anyway. Kept is the memory, not the
    tensors: a layer that is given back its own output would hold the graph for good, and a graph that lives on another
    stream is in the way of a recorded step."""
    kept: dict[int, int] = {}
    held = []

    def pack(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(storage)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        yield kept


def budget_rows(
    model: nn.Module, kind: str, what: str, batch: int, dtype: torch.dtype, cached: bool
) -> list[tuple[str, str, str]]:
    """Rows of the plan: what learns, and what that saves. The model is left frozen for `kind`."""
    full = cost_of(model, "full", batch, dtype)
    own = cost_of(model, kind, batch, dtype)
    total = sum(p.numel() for p in model.parameters())
    rows = [
        ("tune", kind, what),
        (
            "learns",
            f"{own.learning:,}",
            f"of {total:,} weights, {own.learning / total:.2%}; the others stay, bit for bit",
        ),
    ]
    if cached:
        return [*rows, ("speed", "features", "augment none: the model runs once over the images, then the head alone")]
    return [
        *rows,
        ("memory", f"about {size(own.memory)}", f"--tune full: {size(full.memory)}; at {batch} images a step"),
        ("speed", f"about {full.work / max(own.work, 1):.1f}×", "of --tune full, by the multiply-adds of a step"),
    ]


def size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
