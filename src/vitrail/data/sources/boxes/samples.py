"""What every source of boxes comes down to: images with boxes and classes, and a list of what was wrong with them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.samples import SPLIT_WORDS, Sample, Source, in_order, plural, some
from vitrail.data.sources.boxes.outlines import Outline
from vitrail.errors import VitrailError

SPILL = 0.002  # of a side: how far a box may reach outside by rounding alone; clipped without a word

# What may be wrong: a word for it, and the sentence that counts it.
TROUBLES = {
    "clipped": "reached outside of the picture and {was} clipped",
    "empty": "{was} empty or outside of the picture, and left out",
    "unreadable box": "{was} no box, and left out",
    "unknown class": "{was} of a class that is not declared, and left out",
    "repeated": "{was} there twice, and {counts} once",
}
FILES = {
    "no picture": "{annotation} without a picture, left out",
    "unreadable annotation": "{annotation} that can't be read, with its picture left out",
    "no annotation": "{picture} without an annotation, left out",
    "not in a list": "{picture} in none of the split lists, left out",
    "no box left": "{picture} whose boxes are all wrong, left out",
    "no box": "{picture} without a box, kept as a negative example",
}


@dataclass(frozen=True, slots=True)
class Boxed(Sample):
    """An image and what is on it; `labels` are the classes that occur. Boxes are x0, y0, x1, y1 in fractions of the
    image's width and height, so that they fit a copy of any size."""

    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.float32), compare=False)  # float32 [n, 4]
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)  # [n]
    # Crowds and "difficult" ones: neither learned from nor counted against anybody.
    ignored: np.ndarray = field(default_factory=lambda: np.zeros(0, bool), compare=False)
    outlines: tuple[Outline | None, ...] = field(default=(), compare=False)
    size: tuple[int, int] | None = None  # height, width, as far as the annotation tells
    number: int = 0  # COCO's id of the image

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuses an image of another (height, width) than the one that its boxes are for."""
        if self.size not in (None, size):
            height, width = self.size  # type: ignore[misc]
            turned = " Was it turned after it was annotated?" if self.size == size[::-1] else ""
            raise VitrailError(
                f"{self.name} is {size[1]}×{size[0]} pixels, and its boxes are for {width}×{height}.{turned}"
            )

    def boxes_on(self, size: tuple[int, int]) -> np.ndarray:
        """In the pixels of a copy of (height, width)."""
        return self.boxes * np.array([size[1], size[0]] * 2, np.float32)


class Row(NamedTuple):
    """One object, as an annotation states it."""

    label: str
    box: tuple[float, float, float, float]  # fractions
    ignored: bool = False
    outline: Outline | None = None


@dataclass(repr=False)
class BoxSource(Source):
    problems: dict[str, list[str]] = field(default_factory=dict)  # of TROUBLES and FILES: what, and where
    category_ids: list[int] = field(default_factory=list)  # COCO's, for what is written in its form

    @property
    def outlined(self) -> bool:
        """Has every box an outline, as a Mask R-CNN needs?"""
        return not self.bare

    @property
    def bare(self) -> list[str]:
        """The images with a box that has no outline."""
        samples = [sample for split in self.splits.values() for sample in split if isinstance(sample, Boxed)]
        return [sample.name for sample in samples if any(outline is None for outline in sample.outlines)]


@dataclass
class Entry:
    """An image before its classes are numbered."""

    name: str
    path: Path
    rows: Sequence[Row]
    size: tuple[int, int] | None = None
    number: int | None = None
    stated: int = 0  # objects, readable or not, where these are more than the rows


class Gathering:
    """Collects images by split, tidies their boxes, and keeps a list of what was wrong."""

    def __init__(self, name: str):
        self.name = name
        self.problems: dict[str, list[str]] = defaultdict(list)
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        self.notes: list[str] = []

    def add(self, split: str, entry: Entry) -> None:
        self.entries[split].append(entry)

    def wrong(self, what: str, where: str) -> None:
        self.problems[what].append(where)

    def source(self, classes: Sequence[str] | None = None, category_ids: Sequence[int] | None = None) -> BoxSource:
        """`classes` as declared; without, those that occur, sorted."""
        if classes is None:
            rows = (row for entries in self.entries.values() for entry in entries for row in entry.rows)
            classes = sorted({row.label for row in rows})
        index = {label: position for position, label in enumerate(classes)}
        splits: dict[str, list[Sample]] = {}
        number = 0
        for split, entries in self.entries.items():
            splits[split] = []
            for entry in entries:
                number += 1
                if (sample := self._sample(entry, index, number)) is not None:
                    splits[split].append(sample)
        source = BoxSource(
            self.name, [*classes], in_order(splits), multi_label=True, notes=[*self.notes, *self._sentences()],
            problems=dict(self.problems), category_ids=[*(category_ids or range(1, len(classes) + 1))],
        )  # fmt: skip
        if not len(source):
            raise VitrailError(f"{self.name} holds no picture with its boxes. {' '.join(source.notes)}".strip())
        if not any(map(sum, (source.counts(split) for split in source.splits))):
            raise VitrailError(f"{self.name} holds no box at all. {' '.join(source.notes)}".strip())
        counts = np.sum([source.counts(split) for split in source.splits], axis=0)
        if unused := [label for label, count in zip(classes, counts, strict=True) if not count]:
            source.notes.append(f"{plural(len(unused), 'class', 'classes')} without a single box ({some(unused)}).")
        return source

    def _sample(self, entry: Entry, index: dict[str, int], number: int) -> Boxed | None:
        kept: dict[tuple[Any, ...], Row] = {}
        for row in entry.rows:
            where = f"{entry.name}: {row.label} {_written(row.box, entry.size)}"
            x0, y0, x1, y1 = row.box
            if not np.isfinite(row.box).all():
                self.wrong("unreadable box", where)
                continue
            inside = (max(0.0, x0), max(0.0, y0), min(1.0, x1), min(1.0, y1))
            if inside[2] <= inside[0] or inside[3] <= inside[1]:
                self.wrong("empty", where)
                continue
            if row.label not in index:
                self.wrong("unknown class", where)
                continue
            if min(x0, y0, 1 - x1, 1 - y1) < -SPILL:
                self.wrong("clipped", where)
            key = (row.label, *(round(side, 6) for side in inside))
            if key in kept:
                self.wrong("repeated", where)
            kept.setdefault(key, row._replace(box=inside))
        if not kept and (entry.rows or entry.stated):  # something is on it: as a negative example it would be a lie
            self.wrong("no box left", entry.name)
            return None
        if not kept:
            self.wrong("no box", entry.name)
        rows = [*kept.values()]
        return Boxed(
            entry.name, entry.path, tuple(sorted({index[row.label] for row in rows if not row.ignored})),
            np.array([row.box for row in rows], np.float32).reshape(-1, 4),
            np.array([index[row.label] for row in rows], np.int64), np.array([row.ignored for row in rows], bool),
            tuple(row.outline for row in rows), entry.size, number if entry.number is None else entry.number,
        )  # fmt: skip

    def _sentences(self) -> Iterable[str]:
        for what, words in TROUBLES.items():
            if found := self.problems.get(what):
                one = len(found) == 1
                words = words.format(was="was" if one else "were", counts="counts" if one else "count")
                yield f"{plural(len(found), 'box', 'boxes')} {words} ({some(found, 3)})."
        for what, words in FILES.items():
            if found := self.problems.get(what):
                words = words.format(annotation=plural(len(found), "annotation"), picture=plural(len(found), "picture"))
                yield f"{words} ({some(found, 3)})."


def split_word(name: str) -> str | None:
    """The split that a file is named after: "instances_train2017", "heads-test"."""
    parts = name.replace("-", "_").replace(".", "_").split("_")
    return next((word for word in map(folder_split, parts) if word), None)


def folder_split(name: str) -> str | None:
    """The split that a folder is: "valid", "train2017"; not "test_of_mine", which is the name of a data set."""
    return SPLIT_WORDS.get(name.lower().rstrip("0123456789"))


def _written(box: Sequence[float], size: tuple[int, int] | None) -> str:
    scale = (size[1], size[0]) * 2 if size else (1, 1, 1, 1)
    return "[" + ", ".join(f"{value * side:.4g}" for value, side in zip(box, scale, strict=True)) + "]"
