"""What training leaves in weights, and initialisation does not: by it a part that was never trained, or has not moved,
is told from one that was.

Measured on healthy models: the norm gains of DeiT-Ti are 0.26 to 0.71 away from 1, those of a small ViT after 30 epochs
of digits 0.02 to 0.03.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import MaskedAutoencoder

INITIAL = 0.02  # deviation of what is drawn at random at the start, but for patches beside sines and cosines
GAIN = 0.05  # mean distance of the norm gains from 1 that only long training leads to; a sixth of DeiT-Ti's
STILL = 1e-7  # relative change of a block that has not moved; a single step of AdamW at 1e-6 moves one by 1e-5


def all_blocks(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, MaskedAutoencoder):
        return [*model.encoder.blocks, *model.decoder_blocks]
    stack: Any = model.blocks
    return [*stack]


def _norms(module: nn.Module) -> list[nn.LayerNorm]:
    return [m for m in module.modules() if isinstance(m, nn.LayerNorm)]


def as_initialised(block: nn.Module) -> bool:
    """One step of training moves the gains and biases of every norm: no trained block has them all at 1 (Swin v2: 0)
    and 0 to the bit."""
    norms = _norms(block)
    level = all(norm.weight.unique().numel() == 1 and norm.weight[0].item() in (0.0, 1.0) for norm in norms)
    return level and all(is_zero(norm.bias) for norm in norms)


def gain_distance(block: nn.Module) -> float:
    return torch.cat([(norm.weight.detach().abs() - 1).abs().float() for norm in _norms(block)]).mean().item()


def as_drawn(weight: Tensor, initial: float = INITIAL) -> bool:
    """Statistically what initialisation draws: normal, of that deviation, within four standard errors of so many
    numbers. A trained matrix misses both (DeiT-Ti's patch embedding: deviation 0.033, kurtosis 6.6)."""
    values = weight.detach().float().flatten()
    deviation, count = values.std().item(), values.numel()
    kurtosis = ((values / max(deviation, 1e-12)) ** 4).mean().item()
    return (
        abs(deviation / initial - 1) < 0.02 + 4 / (2 * count) ** 0.5
        and abs(kurtosis - 3) < 0.1 + 4 * (24 / count) ** 0.5
    )


def is_zero(tensor: Tensor | None) -> bool:
    return tensor is not None and not tensor.detach().any().item()


def change_of(before: nn.Module, after: nn.Module) -> float:
    """How far a block has moved, relative to its size."""
    known = dict(before.named_parameters())  # by name: a run may have added parts, such as adapters
    pairs = [(known[name], p) for name, p in after.named_parameters() if name in known and known[name].shape == p.shape]
    apart = sum((a.detach().cpu() - b.detach().cpu()).float().square().sum().item() for a, b in pairs)
    size = sum(a.detach().float().square().sum().item() for a, _ in pairs)
    return (apart / max(size, 1e-12)) ** 0.5
