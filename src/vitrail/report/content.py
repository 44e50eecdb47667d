"""What the report of a trained model shows, as plain values; how it looks is in model_report.py."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.report.page import Section


@dataclass
class ImageCard:
    """An image that the model got wrong or nearly so; `index` is its row in the probabilities."""

    true: str  # its label, or its labels
    predicted: str
    probability: float | None = None  # of what was predicted, where there is one
    true_probability: float | None = None  # of the label, where there is one
    image: str = ""  # from `thumbnail`
    name: str = ""  # of the file
    index: int = -1


@dataclass
class DataProblems:
    """What was found in the data that a person may want to mend."""

    unreadable: Sequence[tuple[str, str]] = ()  # (file, reason)
    duplicates: Sequence[Sequence[str]] = ()  # groups of files with the same bytes or pixels, within one split
    leaked: Sequence[Sequence[str]] = ()  # such groups across splits: test images that were trained on
    notes: Sequence[str] = ()  # sentences, for instance of imbalance
    listed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # more of them, by kind: where
    conflicting: Sequence[Sequence[str]] = ()  # such groups of which one is labelled otherwise, each with its label


@dataclass
class ReportContent:
    """All that a report shows. Whatever is left empty leaves its section out."""

    title: str
    figures: Mapping[str, float]  # of `classification_figures` or `multi_label_figures`; the first is the headline
    split: str  # what they were measured on, to follow "Measured on": "740 images of test/"
    classes: Sequence[str]
    summary: str = ""  # one sentence: the model, where it started, what it was trained on
    per_class: Mapping[str, Sequence[float]] = field(default_factory=dict)  # column → a value per class
    confusion: np.ndarray | None = None  # [C, C], rows true
    reliability: Mapping[str, Sequence[float]] | None = None  # of `metrics.reliability`
    curves: Sequence[Mapping[str, Any]] = ()  # the rows of metrics.jsonl; data_wait is a fraction of the time
    best_epoch: float | None = None  # whose weights were kept, or gone towards
    kept: str = ""  # which weights, in words
    mistakes: Sequence[ImageCard] = ()
    hardest: Sequence[ImageCard] = ()
    gallery: Sequence[tuple[str, str]] = ()  # (caption, image as from `thumbnail`), one below the other
    gallery_title: str = "Reconstructed images"
    sections: Sequence[Section] = ()  # what a task has to show besides
    meanings: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of figures: a name, and what it says
    scores: Mapping[str, str] = field(default_factory=dict)  # of figures of an epoch: their names in the charts
    is_share: Callable[[str], bool] = lambda figure: figure != "loss"  # which figures are written as percentages
    unit: str = "Images"  # what the support of a class counts
    problems: DataProblems = field(default_factory=DataProblems)
    recipe: Sequence[tuple[str, Any, str]] = ()  # (option, value, why)
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    multi_label: bool = False


def taken_for(matrix: np.ndarray | None, row: int) -> tuple[int, int] | None:
    """The class that images of this one are most often mistaken for, and how many are."""
    if matrix is None:
        return None
    counts = np.array(matrix[row])
    counts[row] = 0
    other = int(counts.argmax())
    return (other, int(counts[other])) if counts[other] else None
