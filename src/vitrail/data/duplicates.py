"""Images that are in a data set more than once: files with the very same bytes."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.samples import Sample, TarMember
from vitrail.errors import VitrailError

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
