"""What training sees of a data set that a person may want to mend: copies, other labels for one image, rare classes."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.samples import Sample, TarMember
from vitrail.errors import VitrailError
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
    """Of images with a target each, which `words` writes: copies, some of them with another target."""

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


Group = list[tuple[str, Sample]]  # the same image several times, each with its split
READ = 2**32  # bytes that looking for duplicates may read; `vitrail data inspect` reads more


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


def duplicates(alike: list[Group]) -> tuple[list[list[str]], list[list[str]]]:
    """The names within a split, and across splits."""
    within: list[list[str]] = []
    across: list[list[str]] = []
    for group in alike:
        (across if is_across(group) else within).append([sample.name for _, sample in group])
    return within, across


def is_across(group: Group) -> bool:
    return len({split for split, _ in group}) > 1


def is_conflicting(group: Group) -> bool:
    return len({sample.target for _, sample in group}) > 1


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
