"""Learning from a teacher as well as from labels ("Training data-efficient image transformers", Touvron et al. 2021).

A student with a distillation token has two heads: one learns the labels, the other the teacher's answers, and their
mean predicts. A student without one learns both with the same logits.

    hard   (1 − α)·CE(class head, y) + α·CE(distillation head, argmax of the teacher)        DeiT: α = ½
    soft   (1 − α)·CE(class head, y) + α·T²·KL(teacher/T ‖ distillation head/T)              DeiT: α = 0.1, T = 3

y is what augmentation made of the labels: smoothed, and mixed by MixUp and CutMix. The teacher sees the very same mixed
pixels and answers for itself; its answers are never smoothed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.tasks.classify.objective import Classify


@dataclass(frozen=True)
class Distil(Classify):
    teacher: Callable[[Tensor], Tensor] | None = None  # the student's pixels [B, C, H, W] to logits [B, classes]
    hard: bool = True
    alpha: float = 0.5  # the teacher's share of the loss
    temperature: float = 1.0  # soft: how far the teacher's less likely classes count

    def module(self, model: nn.Module) -> nn.Module:
        two = getattr(model, "head_distillation", None) is not None
        return BothHeads(model) if two else model

    def outputs(self, net: nn.Module, pixels: Tensor) -> Any:
        """The logits that learn the labels, those that learn from the teacher (the same, in a model of one head), and
        the teacher's: [B, C] each."""
        assert self.teacher is not None
        with torch.no_grad():
            told = self.teacher(pixels)
        heads: Any = net(pixels)
        return (heads, heads, told) if isinstance(heads, Tensor) else (*heads, told)

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """One number per image, [B]. Of an image that is validated there are the logits alone, and the labels count."""
        if isinstance(outputs, Tensor):
            return super().loss(outputs, targets)
        logits, distilled, told = outputs
        learnt = self.from_teacher(distilled.float(), told.float())
        return (1 - self.alpha) * super().loss(logits, targets) + self.alpha * learnt

    def from_teacher(self, logits: Tensor, told: Tensor) -> Tensor:
        """[B]: how far the student is from the teacher. Class weights are the labels' affair."""
        if self.hard and self.multi_label:
            return F.binary_cross_entropy_with_logits(logits, (told > 0).float(), reduction="none").sum(dim=1)
        if self.hard:
            return F.cross_entropy(logits, told.argmax(dim=1), reduction="none")
        s, t = logits / self.temperature, told / self.temperature
        if self.multi_label:  # each class is a distribution of its own: present or not
            divergence = _two_way(t, s) + _two_way(-t, -s)
        else:
            log_s, log_t = s.log_softmax(dim=1), t.log_softmax(dim=1)
            divergence = log_t.exp() * (log_t - log_s)
        return self.temperature**2 * divergence.sum(dim=1)


def _two_way(t: Tensor, s: Tensor) -> Tensor:
    """One of the two terms of KL between coins that fall on this side with probability σ(t) and σ(s)."""
    return t.sigmoid() * (F.logsigmoid(t) - F.logsigmoid(s))


class BothHeads(nn.Module):
    """What is trained of a model with a distillation token: its forward gives both heads instead of their mean, also
    when it is compiled or distributed. The weights stay the model's, under the model's names."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.forward_heads(x)
