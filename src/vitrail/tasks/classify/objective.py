"""Classification: one class per image, or any number of them (multi-label)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.tasks.classify.metrics import mean_average_precision, top_k

SHORT = {"top1": "accuracy", "map": "mAP"}  # of the figures that choose


@dataclass(frozen=True)
class Classify:
    """How labels become targets, what is minimised, and by which figure one model is better than another."""

    classes: list[str]
    multi_label: bool = False
    smoothing: float = 0.0
    class_weights: Tensor | None = None  # [C]

    @property
    def figure(self) -> str:
        return "map" if self.multi_label else "top1"

    def targets(self, labels: Sequence[tuple[int, ...]], device: torch.device | None = None) -> Tensor:
        """[n, C] of 0 and 1, made on the device: to send the few ones is less than to send all the zeros."""
        places = [(row, index) for row, several in enumerate(labels) for index in several]
        rows, columns = torch.tensor(places, dtype=torch.int64).view(-1, 2).T.to(device, non_blocking=True)
        targets = torch.zeros(len(labels), len(self.classes), device=device)
        return targets.index_put_((rows, columns), torch.ones((), device=device))

    def smoothed(self, targets: Tensor) -> Tensor:
        """Label smoothing: a little of the certainty goes to all classes alike."""
        if not self.smoothing:
            return targets
        even = 0.5 if self.multi_label else 1 / len(self.classes)
        return targets * (1 - self.smoothing) + even * self.smoothing

    def module(self, model: nn.Module) -> nn.Module:
        """The module whose forward the loss is made of."""
        return model

    def outputs(self, net: nn.Module, pixels: Tensor) -> Tensor:
        """What the loss is made of: here the logits [B, C]."""
        return net(pixels)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """One number per image, [B]: cross-entropy with soft targets, or binary cross-entropy summed over classes.

        Class weights are of mean 1 over the training images, so that the loss keeps its scale.
        """
        logits = logits.float()
        weights = 1.0 if self.class_weights is None else self.class_weights.to(logits)
        if self.multi_label:
            each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
            return (each * (weights * targets + 1 - targets)).sum(dim=1)
        return -(targets * weights * logits.log_softmax(dim=1)).sum(dim=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.float().sigmoid() if self.multi_label else logits.float().softmax(dim=1)

    def score(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        """The figures of an epoch: loss, and top-1 accuracy or mean average precision."""
        loss = self.loss(logits, targets).mean().item()
        chances, truth = self.probabilities(logits).cpu().numpy(), targets.cpu().numpy()
        if self.multi_label:
            return {"loss": loss, "map": float(mean_average_precision(chances, truth > 0.5))}
        return {"loss": loss, "top1": float(top_k(chances, truth.argmax(axis=1), 1))}


def class_counts(labels: Sequence[tuple[int, ...]], classes: int) -> np.ndarray:
    """[C]: how many images have each label."""
    return np.bincount(np.array([index for several in labels for index in several], np.int64), minlength=classes)


def balancing_weights(labels: Sequence[tuple[int, ...]], classes: int, multi_label: bool = False) -> np.ndarray:
    """[C]: n / (C · n_c), so that each class counts alike; for multi-label, negatives over positives, at most 100."""
    counts = class_counts(labels, classes)
    if multi_label:
        return np.minimum((len(labels) - counts) / np.maximum(counts, 1), 100)
    return len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))


def sampling_weights(labels: Sequence[tuple[int, ...]], classes: int) -> np.ndarray:
    """[n]: one over the size of the image's class, so that each class is drawn equally often. With several labels the
    rarest counts; images without any are a class of their own."""
    counts = np.append(class_counts(labels, classes), sum(not several for several in labels))
    return np.array([1 / counts[[*several] or [-1]].min() for several in labels])
