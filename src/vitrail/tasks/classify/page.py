"""Figures of a classifier on labelled images, and what a report shows of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.report.content import ImageCard
from vitrail.report.drawing import thumbnail
from vitrail.tasks.classify import metrics
from vitrail.tasks.classify.mistakes import confident_mistakes, hardest_images
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
