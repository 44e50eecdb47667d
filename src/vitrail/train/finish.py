"""The end of a run: figures with their intervals, what was found in the data, and the report."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.data.samples import Sample, TarMember
from vitrail.errors import VitrailError
from vitrail.report.content import DataProblems, ImageCard
from vitrail.report.drawing import thumbnail
from vitrail.tasks import metrics
from vitrail.tasks.classify import Classify, class_counts
from vitrail.tasks.mistakes import confident_mistakes, hardest_images

__all__ = ["classification_content", "data_problems", "figures_of", "illustrate"]

Group = list[tuple[str, Sample]]  # the same picture several times, each with its split
READ = 2**32  # bytes that looking for duplicates may read; beyond, it is `vitrail data inspect`'s affair


def data_problems(
    samples: dict[str, list[Sample]], classes: list[str], unreadable: dict[str, str], notes: list[str]
) -> DataProblems:
    """What is wrong with the data, as far as training sees it."""
    notes = list(notes)
    samples = {split: [s for s in members if s.name not in unreadable] for split, members in samples.items()}
    counts = class_counts([sample.labels for sample in samples["train"]], len(classes))
    most, least = int(counts.max(initial=0)), int(counts.min(initial=len(samples["train"])))
    if least and most >= 3 * least:
        notes.append(
            f"The largest class has {most:,} training images, the smallest ({classes[counts.argmin()]}) {least:,}: "
            "see --balance weights or sampling."
        )
    alike = same_files(samples)
    within, across = duplicates([group for group in alike if _across(group) or not _conflicting(group)])
    conflicting = [[_labelled(sample, classes) for _, sample in group] for group in alike if _conflicting(group)]
    return DataProblems(list(unreadable.items()), within, across, notes, conflicting=conflicting)


def duplicates(alike: list[Group]) -> tuple[list[list[str]], list[list[str]]]:
    """The names within a split, and across splits."""
    within: list[list[str]] = []
    across: list[list[str]] = []
    for group in alike:
        (across if _across(group) else within).append([sample.name for _, sample in group])
    return within, across


def _across(group: Group) -> bool:
    return len({split for split, _ in group}) > 1


def _conflicting(group: Group) -> bool:
    return len({sample.labels for _, sample in group}) > 1


def _labelled(sample: Sample, classes: list[str]) -> str:
    return f"{sample.name} ({', '.join(classes[label] for label in sample.labels) or 'no label'})"


def same_files(samples: dict[str, list[Sample]]) -> list[Group]:
    """Files with the very same bytes. Only those of the same size are read."""
    sizes: dict[int, Group] = defaultdict(list)
    for split, members in samples.items():
        for sample in members:
            if size := _size(sample):
                sizes[size].append((split, sample))
    alike = {size: group for size, group in sizes.items() if len(group) > 1}
    if sum(size * len(group) for size, group in alike.items()) > READ:
        return []
    return [group for candidates in alike.values() for group in _same_bytes(candidates)]


def _size(sample: Sample) -> int:
    """In bytes; 0 where there are none to speak of."""
    if isinstance(sample.where, TarMember):
        return sample.where.size
    try:
        return sample.where.stat().st_size if isinstance(sample.where, Path) else 0
    except OSError:
        return 0


def _same_bytes(candidates: Group) -> Iterator[Group]:
    groups: dict[bytes, Group] = defaultdict(list)
    for split, sample in candidates:
        try:
            opened = sample.open()
            content = opened.read_bytes() if isinstance(opened, Path) else opened
        except (VitrailError, OSError):
            continue
        groups[hashlib.blake2b(content, digest_size=16).digest()].append((split, sample))  # type: ignore[arg-type]
    return (group for group in groups.values() if len(group) > 1)


def figures_of(task: Classify, logits: Tensor, targets: Tensor) -> tuple[dict[str, float], dict[str, Any]]:
    """All figures with intervals; for several labels per image also the thresholds, chosen on these very images."""
    chances, truth = task.probabilities(logits).numpy().astype(np.float64), targets.numpy()
    if not task.multi_label:
        return metrics.classification_figures(chances, truth.argmax(axis=1), task.classes), {}
    thresholds = metrics.best_thresholds(chances, truth > 0.5)
    figures = metrics.multi_label_figures(chances, truth > 0.5, task.classes, thresholds)
    return figures, {"thresholds": [float(t) for t in thresholds]}


def classification_content(
    task: Classify, logits: Tensor, targets: Tensor, samples: list[Sample], thresholds: list[float] | None
) -> dict[str, Any]:
    """The parts of a report that come from the model's answers about these images."""
    chances, truth = task.probabilities(logits).numpy().astype(np.float64), targets.numpy()
    if task.multi_label:
        labels: Any = truth > 0.5
        table = metrics.multi_label_per_class(chances, labels, np.array(thresholds) if thresholds else 0.5)
        parts: dict[str, Any] = {"per_class": table, "multi_label": True}
    else:
        labels, said = truth.argmax(axis=1), chances.argmax(axis=1)
        count = len(task.classes)
        parts = {
            "per_class": metrics.per_class(said, labels, count),
            "confusion": metrics.confusion(said, labels, count),
            "reliability": metrics.reliability(chances, labels),
        }
    mistakes = confident_mistakes(chances, labels, task.classes)
    hardest = hardest_images(chances, labels, task.classes, excluding=[picture.index for picture in mistakes])
    for picture in [*mistakes, *hardest]:
        illustrate(picture, samples)
    return {**parts, "mistakes": mistakes, "hardest": hardest}


def illustrate(picture: ImageCard, samples: list[Sample]) -> None:
    """Gives it the name and the thumbnail of the sample at its index."""
    sample = samples[picture.index]
    picture.name = sample.name
    try:
        picture.image = thumbnail(sample.decode(at_least=(160, 160)))
    except VitrailError:
        return
