"""Which images of a classifier are worth a look: its most confident mistakes, and the images it found hardest."""

from collections.abc import Collection, Sequence

import numpy as np

from vitrail.report.content import ImageCard


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
