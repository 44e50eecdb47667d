"""What training sees of a data set that a person may want to mend."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vitrail.data.duplicates import duplicates, is_across, is_conflicting, same_files
from vitrail.data.samples import Sample
from vitrail.report.content import DataProblems


def readable(samples: dict[str, list[Sample]], unreadable: dict[str, str]) -> dict[str, list[Sample]]:
    return {split: [s for s in members if s.name not in unreadable] for split, members in samples.items()}


def class_problems(
    samples: dict[str, list[Sample]], classes: Sequence[str], unreadable: dict[str, str], notes: list[str]
) -> DataProblems:
    """Of images with classes: classes of very different sizes, and copies, some with another label."""
    samples, notes = readable(samples, unreadable), list(notes)
    labels = [label for sample in samples["train"] for label in sample.labels]
    counts = np.bincount(np.array(labels, np.int64), minlength=len(classes))
    most, least = int(counts.max(initial=0)), int(counts.min(initial=len(samples["train"])))
    if least and most >= 3 * least:
        smallest = classes[int(counts.argmin())]
        notes.append(
            f"The largest class has {most:,} training images, the smallest ({smallest}) {least:,}: "
            "see --balance weights or sampling."
        )

    return labelled_problems(
        samples, unreadable, notes, lambda sample: ", ".join(classes[label] for label in sample.labels)
    )


def labelled_problems(
    samples: dict[str, list[Sample]], unreadable: dict[str, str], notes: list[str], words: Callable[[Sample], str]
) -> DataProblems:
    """Of images with a target each, which `words` tells: copies, some with another target."""

    def labelled(sample: Sample) -> str:
        return f"{sample.name} ({words(sample) or 'no label'})"

    alike = same_files(readable(samples, unreadable))
    within, across = duplicates([group for group in alike if is_across(group) or not is_conflicting(group)])
    conflicting = [[labelled(sample) for _, sample in group] for group in alike if is_conflicting(group)]
    return DataProblems([*unreadable.items()], within, across, list(notes), conflicting=conflicting)


def copies(
    samples: dict[str, list[Sample]], unreadable: dict[str, str], notes: list[str], listed: dict[str, Any] | None = None
) -> DataProblems:
    """Of any images: copies of the same file. `listed` is what else was found, by kind."""
    within, across = duplicates(same_files(readable(samples, unreadable)))
    return DataProblems([*unreadable.items()], within, across, list(notes), listed or {})
