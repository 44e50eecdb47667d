"""Figures of a classifier on labelled images, and what a report shows of them: its mistakes, the hardest images."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.report.content import ImageCard
from vitrail.report.drawing import thumbnail
from vitrail.tasks.classify import metrics
from vitrail.tasks.classify.objective import Classify


def figures_of(objective: Classify, logits: Tensor, targets: Tensor) -> tuple[dict[str, float], dict[str, Any]]:
    """All figures with intervals; for several labels per image also the thresholds, chosen on these very images."""
    chances, truth = objective.probabilities(logits).numpy().astype(np.float64), targets.numpy()
    if not objective.multi_label:
        return metrics.classification_figures(chances, truth.argmax(axis=1), objective.classes), {}
    thresholds = metrics.best_thresholds(chances, truth > 0.5)
    figures = metrics.multi_label_figures(chances, truth > 0.5, objective.classes, thresholds)
    return figures, {"thresholds": [float(t) for t in thresholds]}


def classification_page(
    objective: Classify, logits: Tensor, targets: Tensor, samples: Sequence[Sample], thresholds: list[float] | None
) -> dict[str, Any]:
    """The parts of a report that come from the model's answers about these images."""
    chances, truth = objective.probabilities(logits).numpy().astype(np.float64), targets.numpy()
    if objective.multi_label:
        labels: Any = truth > 0.5
        table = metrics.multi_label_per_class(chances, labels, np.array(thresholds) if thresholds else 0.5)
        parts: dict[str, Any] = {"per_class": table, "multi_label": True}
    else:
        labels, said = truth.argmax(axis=1), chances.argmax(axis=1)
        count = len(objective.classes)
        parts = {
            "per_class": metrics.per_class(said, labels, count),
            "confusion": metrics.confusion(said, labels, count),
            "reliability": metrics.reliability(chances, labels),
        }
    mistakes = confident_mistakes(chances, labels, objective.classes)
    hardest = hardest_images(chances, labels, objective.classes, excluding=[card.index for card in mistakes])
    for card in [*mistakes, *hardest]:
        illustrate(card, samples)
    return {**parts, "mistakes": mistakes, "hardest": hardest}


def illustrate(card: ImageCard, samples: Sequence[Sample]) -> None:
    """Gives it the name and the thumbnail of the sample at its index."""
    sample = samples[card.index]
    card.name = sample.name
    try:
        card.image = thumbnail(sample.decode(at_least=(160, 160)))
    except VitrailError:
        return


def confident_mistakes(
    probabilities: np.ndarray, labels: np.ndarray, classes: Sequence[str], count: int = 24
) -> list[ImageCard]:
    """The wrong predictions of the highest probability; `image` and `name` are for the caller to fill in.

    `labels` are int [n], or bool targets [n, C] of several labels per image: then a mistake is a class that was
    predicted (from one half on) and is not there.
    """
    targets = _targets(labels, probabilities.shape)
    wrongly = np.where(targets, -1.0, probabilities)
    predicted, chance = wrongly.argmax(1), wrongly.max(1)
    mistaken = chance >= 0.5 if labels.ndim == 2 else probabilities.argmax(1) != labels
    order = [int(i) for i in np.argsort(-chance, kind="stable") if mistaken[i]]
    return [_card(i, int(predicted[i]), probabilities, labels, classes) for i in order[:count]]


def hardest_images(
    probabilities: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    count: int = 12,
    excluding: Collection[int] = (),
) -> list[ImageCard]:
    """The lowest probabilities of a true class, without the rows in `excluding` (those shown as mistakes already).

    With one label per image `predicted` is what was predicted instead; with several, the label that was missed.
    """
    targets = _targets(labels, probabilities.shape)
    of_label = np.where(targets, probabilities, np.inf)
    hardest, chance, hidden = of_label.argmin(1), of_label.min(1), set(excluding)
    shown = hardest if labels.ndim == 2 else probabilities.argmax(1)
    order = [int(i) for i in np.argsort(chance, kind="stable") if i not in hidden and np.isfinite(chance[i])]
    return [_card(i, int(shown[i]), probabilities, labels, classes) for i in order[:count]]


def _targets(labels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return labels > 0 if labels.ndim == 2 else np.arange(shape[1]) == labels[:, None]


def _card(index: int, shown: int, probabilities: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> ImageCard:
    several = labels.ndim == 2
    present = np.flatnonzero(labels[index]).tolist() if several else [int(labels[index])]
    return ImageCard(
        true=", ".join(classes[c] for c in present) or "none",
        predicted=classes[shown],
        probability=float(probabilities[index, shown]),
        true_probability=None if several else float(probabilities[index, present[0]]),
        index=index,
    )
