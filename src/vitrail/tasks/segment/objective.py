"""Segmentation: a class for every pixel. What is minimised, and figures that add up image by image.

Everything about one image is a row of numbers: its loss, the confusion of its pixels and, on request, how well its
boundaries were met. Rows can be gathered from batches and processes in any order, so no logits are ever kept, and
intervals come from drawing rows again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.tasks.bootstrap import Array, bootstrap

TOLERANCE = 0.0075  # of the diagonal that a boundary may be off, as in Csurka et al. 2013: 3 pixels at 256×256


@dataclass(frozen=True)
class Segment:
    """What is minimised, and by which figure one model is better than another."""

    classes: list[str]
    dice: float = 1.0  # the share of the Dice loss beside cross-entropy
    smoothing: float = 0.0  # of the labels, in the cross-entropy
    class_weights: Tensor | None = None  # [C]

    figure = "miou"

    def module(self, model: nn.Module) -> nn.Module:
        """The module whose forward the loss is made of."""
        return model

    def outputs(self, net: nn.Module, pixels: Tensor) -> Tensor:
        """What the loss is made of: logits [B, C, H, W]."""
        return net(pixels)

    def loss(self, logits: Tensor, masks: Tensor) -> Tensor:
        """One number per image, [B]: the mean cross-entropy of its pixels, plus one minus the mean Dice of the classes
        that it holds. Ignored pixels count in neither; an image of them alone gives 0."""
        logits, known = logits.float(), masks != IGNORE
        truth = masks.long() * known  # ignored ones stand as class 0, and are masked below
        logarithms = logits.log_softmax(dim=1)
        own = logarithms.gather(1, truth[:, None])[:, 0]  # B H W
        each = -own
        if self.smoothing:
            each = each * (1 - self.smoothing) - self.smoothing * logarithms.mean(dim=1)
        if self.class_weights is not None:
            each = each * self.class_weights.to(logits)[truth]
        pixels = known.flatten(1).sum(dim=1).clamp(min=1)
        loss = (each * known).flatten(1).sum(dim=1) / pixels
        if not self.dice:
            return loss
        return loss + self.dice * self._dice(logarithms, own, truth, known)

    def _dice(self, logarithms: Tensor, own: Tensor, truth: Tensor, known: Tensor) -> Tensor:
        """1 − 2·Σpy / (Σp + Σy) of each class, averaged over those in the image; without ever making y of one-hots."""
        count = logarithms.shape[1]
        said = (logarithms.exp() * known[:, None]).flatten(2).sum(dim=2)  # B C
        flat = truth.flatten(1)
        there = torch.zeros_like(said).scatter_add(1, flat, known.flatten(1).to(said.dtype))
        both = torch.zeros_like(said).scatter_add(1, flat, (own.exp() * known).flatten(1))
        dice = 2 * both / (said + there).clamp(min=1e-6)
        present = there > 0
        return ((1 - dice) * present).sum(dim=1) / present.sum(dim=1).clamp(min=1, max=count)

    # -- rows --------------------------------------------------------------------------------------------------------

    def width(self, boundaries: bool = False) -> int:
        """Of a row."""
        count = len(self.classes)
        return 1 + count * count + boundaries * count

    def rows(self, logits: Tensor, masks: Tensor, boundaries: bool = False) -> Tensor:
        """float64 [B, width]: loss, confusion [C, C] with the true class first, and boundary F1 [C] if asked for."""
        return self.label_rows(logits.argmax(dim=1), masks, boundaries, self.loss(logits, masks))

    def label_rows(self, said: Tensor, masks: Tensor, boundaries: bool = False, loss: Tensor | None = None) -> Tensor:
        """The same from the classes that were said, [B, H, W]; without logits there is no loss, and 0 stands for it."""
        loss = torch.zeros(len(masks), device=masks.device) if loss is None else loss
        parts = [loss[:, None], confusion(said, masks, len(self.classes)).flatten(1)]
        if boundaries:
            parts.append(boundary_f1(said, masks, len(self.classes)))
        return torch.cat([part.double() for part in parts], dim=1)

    def score(self, rows: Tensor | Array) -> dict[str, float]:
        """The figures of an epoch."""
        counts = self.counts(rows)
        total = counts.sum(axis=0)
        return {"loss": float(np.asarray(rows)[:, 0].mean()), "miou": miou(total), "pixel_accuracy": accuracy(total)}

    def figures(self, rows: Tensor | Array, seed: int = 0, rounds: int = 1000) -> dict[str, float]:
        """All figures, with 95 % intervals for the first two: miou, pixel_accuracy, boundary_f1 (where the rows have
        it), iou/<class>, n. What can't be known, such as the IoU of a class that never occurs, is left out."""
        counts, count = self.counts(rows), len(self.classes)
        total = counts.sum(axis=0)
        found: dict[str, float] = {}
        small = margins(counts)
        for name, figure in (("miou", _miou), ("pixel_accuracy", _accuracy)):
            value = figure(margins(total))
            low, high = bootstrap(partial(_resampled, figure, small), len(counts), seed, rounds, centre=value)
            found |= {name: value, f"{name}_low": low, f"{name}_high": high}
        rest = np.asarray(rows)[:, 1 + count * count :]
        if rest.shape[1]:
            found["boundary_f1"] = _nanmean([_nanmean(column) for column in rest.T])
        found |= {f"iou/{label}": float(value) for label, value in zip(self.classes, iou(total), strict=True)}
        found = {name: value for name, value in found.items() if not math.isnan(value)}
        return {**found, "n": len(counts)}

    def counts(self, rows: Tensor | Array) -> Array:
        """int64 [n, C, C] of the rows."""
        count = len(self.classes)
        return np.rint(np.asarray(rows)[:, 1 : 1 + count * count]).astype(np.int64).reshape(-1, count, count)

    def per_class(self, rows: Tensor | Array) -> dict[str, Array]:
        """iou, precision, recall and support (pixels), each [C]: a report's table."""
        both, said, there = margins(self.counts(rows).sum(axis=0))
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "iou": both / (said + there - both), "precision": both / said, "recall": both / there, "support": there,
            }  # fmt: skip

    def worst_first(self, rows: Tensor | Array) -> list[int]:
        """The images by their own mIoU: the last is the best case, the middle one the median."""
        each = [miou(one) for one in self.counts(rows)]
        return [int(i) for i in np.argsort(each, kind="stable")]


def balancing_weights(pixels: Sequence[int] | Array) -> Array:
    """[C]: the root of one over a class's share of the pixels, of mean 1 over all pixels. The root, for with the share
    itself a class of a few pixels would outshout all others."""
    share = np.asarray(pixels, np.float64) / max(1, np.sum(pixels))
    weights = 1 / np.sqrt(np.maximum(share, 1e-4))
    return weights / (weights * share).sum()


# Figures, from counts of pixels: int [..., C, C], the true class first.


def confusion(said: Tensor, masks: Tensor, classes: int) -> Tensor:
    """int64 [B, C, C]: pixels of the row's class that were taken for the column's; ignored ones are not counted."""
    known = masks != IGNORE
    image = torch.arange(len(masks), device=masks.device).view(-1, 1, 1)
    places = ((image * classes + masks.long()) * classes + said.long())[known]
    return torch.bincount(places, minlength=len(masks) * classes * classes).view(-1, classes, classes)


def margins(counts: Array) -> Array:
    """[..., 3, C]: pixels that are right, that were said, that are there."""
    return np.stack([np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(axis=-2), counts.sum(axis=-1)], axis=-2)


def iou(counts: Array) -> Array:
    """[C]: pixels that were said and are there, of those that were said or are there; NaN where there are none."""
    return _iou(margins(counts))


def miou(counts: Array) -> float:
    """The mean over the classes that are there or were said."""
    return _miou(margins(counts))


def accuracy(counts: Array) -> float:
    return _accuracy(margins(counts))


def _iou(margin: Array) -> Array:
    both, said, there = margin
    with np.errstate(invalid="ignore"):
        return both / (said + there - both)


def _miou(margin: Array) -> float:
    return _nanmean(_iou(margin))


def _accuracy(margin: Array) -> float:
    both, _, there = margin
    return float(both.sum() / there.sum()) if there.sum() else math.nan


def _resampled(figure: Callable[[Array], float], each: Array, drawn: Array) -> float:
    return figure(each[drawn].sum(axis=0))


def _nanmean(values: Sequence[float] | Array) -> float:
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else math.nan


# Boundaries.


def boundary_f1(said: Tensor, masks: Tensor, classes: int, tolerance: float = TOLERANCE) -> Tensor:
    """float64 [B, C]: the harmonic mean of the share of a class's predicted boundary that lies near a true one of it
    and the share of its true boundary that lies near a predicted one; NaN where the image has neither.

    A pixel is on the boundary of its class if one of its eight neighbours is of another; the image's edge and ignored
    pixels are no neighbours. Near is a disc of `tolerance` times the image's diagonal, at least one pixel.
    """
    known = masks != IGNORE
    truth = masks.masked_fill(~known, IGNORE)
    said = said.to(masks.dtype).masked_fill(~known, IGNORE)
    height, width = masks.shape[-2:]
    radius = max(1, round(tolerance * math.hypot(height, width)))
    ours, theirs = _boundary(said), _boundary(truth)
    precision, of_ours = _near(ours, theirs, radius, classes)
    recall, of_theirs = _near(theirs, ours, radius, classes)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return f1.masked_fill((of_ours == 0) & (of_theirs == 0), math.nan)


def _boundary(labels: Tensor) -> Tensor:
    """The labels where they meet others, IGNORE elsewhere."""
    padded = torch.nn.functional.pad(labels, (1, 1, 1, 1), value=IGNORE)
    height, width = labels.shape[-2:]
    meets = torch.zeros_like(labels, dtype=torch.bool)
    for y in range(3):
        for x in range(3):
            other = padded[..., y : y + height, x : x + width]
            meets |= (other != labels) & (other != IGNORE)
    return labels.masked_fill(~meets, IGNORE)


def _near(these: Tensor, those: Tensor, radius: int, classes: int) -> tuple[Tensor, Tensor]:
    """For each image and class, [B, C]: the share of these pixels with one of those of the same class within the
    radius, and how many these are. By shifting one over the other: its cost does not depend on the classes."""
    height, width = these.shape[-2:]
    padded = torch.nn.functional.pad(those, (radius,) * 4, value=IGNORE)
    near = torch.zeros_like(these, dtype=torch.bool)
    for y in range(-radius, radius + 1):
        for x in range(-radius, radius + 1):
            if x * x + y * y <= radius * radius:
                near |= these == padded[..., radius + y : radius + y + height, radius + x : radius + x + width]
    there = these != IGNORE
    image = torch.arange(len(these), device=these.device).view(-1, 1, 1)
    places = image * classes + these.long()
    total = torch.bincount(places[there], minlength=len(these) * classes).view(-1, classes)
    found = torch.bincount(places[there & near], minlength=len(these) * classes).view(-1, classes)
    return found.double() / total.clamp(min=1), total
