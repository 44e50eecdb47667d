"""`report.html`: one file that shows what a classifier learned, how sure that is, and where it fails.

It holds its pictures, style and script, and asks for nothing from outside: it can be mailed, printed, and opened
years later. What is in it is a `ReportContent` of plain values; how it looks is in report_page.py.
"""

import base64
import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.tasks.charts import percent
from vitrail.whole import whole


@dataclass
class Picture:
    """An image that the model got wrong or nearly so; `index` is its row in the probabilities."""

    true: str  # its label, or its labels
    predicted: str
    probability: float  # of what was predicted
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
    mistakes: Sequence[Picture] = ()
    hardest: Sequence[Picture] = ()
    gallery: Sequence[tuple[str, str]] = ()  # (caption, picture as from `thumbnail`), one below the other
    gallery_title: str = "What it paints"
    sections: Sequence[tuple[str, str, str]] = ()  # (key, title, HTML): what a task has to show besides
    meanings: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of figures: a name, and what it says
    unit: str = "Images"  # what the support of a class counts
    problems: DataProblems = field(default_factory=DataProblems)
    recipe: Sequence[tuple[str, Any, str]] = ()  # (option, value, why)
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    multi_label: bool = False


def write_report(path: str | Path, content: ReportContent) -> Path:
    """Writes the page, whole or not at all."""
    from vitrail.tasks.report_page import page

    # A file name that is not UTF-8 reaches us with surrogates, which no encoding takes.
    with whole(Path(path)) as part:
        part.write_bytes(page(content).encode("utf-8", errors="replace"))
    return Path(path)


def thumbnail(image: Image.Image, side: int = 160) -> str:
    """The image, at most `side` pixels wide and high, as a data URI: JPEG, or PNG where so small that JPEG would blur.

    Transparency is laid on white.
    """
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    kind, options = ("PNG", {}) if max(image.size) <= 64 else ("JPEG", {"quality": 80})
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)  # type: ignore[arg-type]
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def confident_mistakes(
    probabilities: np.ndarray, labels: np.ndarray, classes: Sequence[str], count: int = 24
) -> list[Picture]:
    """What the model was surest of and wrong about; `image` and `name` are for the caller to fill in.

    `labels` are int [n], or bool targets [n, C] of several labels per image: then a mistake is a class that was said
    (from one half on) and is not there.
    """
    targets = _targets(labels, probabilities.shape)
    wrongly = np.where(targets, -1.0, probabilities)
    said, chance = wrongly.argmax(1), wrongly.max(1)
    mistaken = chance >= 0.5 if labels.ndim == 2 else probabilities.argmax(1) != labels
    order = [int(i) for i in np.argsort(-chance, kind="stable") if mistaken[i]]
    return [_picture(i, int(said[i]), probabilities, labels, classes) for i in order[:count]]


def hardest_images(
    probabilities: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    count: int = 12,
    excluding: Collection[int] = (),
) -> list[Picture]:
    """The lowest probabilities of a true class, without the rows in `excluding` (those shown as mistakes already).

    With one label per image `predicted` is what was said instead; with several, the label that was missed.
    """
    targets = _targets(labels, probabilities.shape)
    of_label = np.where(targets, probabilities, np.inf)
    hardest, chance, hidden = of_label.argmin(1), of_label.min(1), set(excluding)
    shown = hardest if labels.ndim == 2 else probabilities.argmax(1)
    order = [int(i) for i in np.argsort(chance, kind="stable") if i not in hidden and np.isfinite(chance[i])]
    return [_picture(i, int(shown[i]), probabilities, labels, classes) for i in order[:count]]


def findings(content: ReportContent) -> Iterator[str]:
    """The few sentences that someone would say who had read the whole report; for the terminal too."""
    columns = content.per_class
    if "iou" in columns:
        yield from _weakest(content, "iou", "IoU")
    elif "ap50" in columns:
        yield from _weakest(content, "average_precision", "average precision")
    if {"recall", "support", "f1"} <= columns.keys() and len(content.classes) > 2:
        support = columns["support"]
        there = [c for c in range(len(content.classes)) if support[c] > 0]
        worst = min(
            [c for c in there if support[c] >= 5] or there,
            key=lambda c: (columns["f1"][c], columns["recall"][c]),
            default=None,
        )
        if worst is not None and columns["f1"][worst] < 1:
            found, there_are = round(columns["recall"][worst] * support[worst]), int(support[worst])
            taken = taken_for(content.confusion, worst)
            other = f", most often taken for {content.classes[taken[0]]}" if taken else ""
            if found == there_are:
                other = ", but others were taken for it"
            yield f"The weakest class is {content.classes[worst]}: {found} of {there_are} found{other}."
    table = content.reliability
    if table is not None and np.sum(table["count"]) and not content.multi_label:
        count, known = np.asarray(table["count"]), np.asarray(table["count"]) > 0
        claimed, right = (
            float((np.asarray(table[key])[known] * count[known]).sum() / count.sum())
            for key in ("confidence", "accuracy")
        )
        gap, noise = claimed - right, 2 * math.sqrt(right * (1 - right) / float(count.sum()))
        if abs(gap) >= max(0.01, noise):
            verdict = f"It is {'over' if gap > 0 else 'under'}-confident"
        elif noise > 0.1:
            verdict = "These images are too few to judge its confidence by"
        else:
            verdict = "Its confidence fits, as far as these images tell"
        yield f"{verdict}: on average it claims {percent(claimed)} and is right in {percent(right)}."
    if leaked := len(content.problems.leaked):
        images = "One image is" if leaked == 1 else f"{leaked:,} images are"
        yield f"{images} in more than one split, so these figures flatter; the files are listed under the data."
    if conflicting := len(content.problems.conflicting):
        images = "One image has" if conflicting == 1 else f"{conflicting:,} images have"
        yield f"{images} more than one label, in copies that contradict each other; they are listed under the data."
    if unreadable := len(content.problems.unreadable):
        files = "One file was" if unreadable == 1 else f"{unreadable:,} files were"
        yield f"{files} left out because unreadable, listed under the data."


def _weakest(content: ReportContent, key: str, words: str) -> Iterator[str]:
    values = np.asarray(content.per_class[key], float)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) > 1:
        worst, best = known[values[known].argmin()], known[values[known].argmax()]
        yield (
            f"The weakest class is {content.classes[worst]}, with {words} {percent(values[worst])}; the strongest "
            f"{content.classes[best]}, with {percent(values[best])}."
        )


def taken_for(matrix: np.ndarray | None, row: int) -> tuple[int, int] | None:
    """The class that images of this one are most often taken for, and how many are."""
    if matrix is None:
        return None
    counts = np.array(matrix[row])
    counts[row] = 0
    other = int(counts.argmax())
    return (other, int(counts[other])) if counts[other] else None


def _targets(labels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return labels > 0 if labels.ndim == 2 else np.arange(shape[1]) == labels[:, None]


def _picture(index: int, shown: int, probabilities: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> Picture:
    several = labels.ndim == 2
    there = np.flatnonzero(labels[index]).tolist() if several else [int(labels[index])]
    return Picture(
        true=", ".join(classes[c] for c in there) or "none",
        predicted=classes[shown],
        probability=float(probabilities[index, shown]),
        true_probability=None if several else float(probabilities[index, there[0]]),
        index=index,
    )
