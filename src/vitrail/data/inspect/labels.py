"""What a source says of its masks or boxes: how much of each class there is, and what is wrong with them."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from vitrail.data.samples import Source
from vitrail.data.sources.boxes.samples import Boxed, BoxSource
from vitrail.data.sources.masks import MaskSource
from vitrail.data.sources.values import ValueSource

# The titles under which an inspection lists what a source of boxes has found.
BOX_TROUBLES = {
    "clipped": "boxes that reach outside of their picture, and are clipped",
    "empty": "boxes that are empty or outside of their picture, and left out",
    "unreadable box": "entries that are no box, and left out",
    "unknown class": "boxes of a class that is not declared, and left out",
    "repeated": "boxes that are there twice, and count once",
    "no picture": "annotations without a picture, left out",
    "unreadable annotation": "annotations that can't be read, with their pictures left out",
    "no annotation": "pictures without an annotation, left out",
    "not in a list": "pictures in none of the split lists, left out",
    "no box left": "pictures whose boxes are all wrong, left out",
    "no box": "pictures without a box, kept as negative examples",
}
HARMLESS = {"no box"}


@dataclass
class Labelled:
    unit: str  # pixels | boxes
    amounts: dict[str, list[int]]  # split → of each class
    facts: dict[str, str] = field(default_factory=dict)  # a word, and a sentence about the boxes
    problems: dict[str, list[str]] = field(default_factory=dict)  # a title, and where

    @property
    def flawed(self) -> bool:
        """Is something lost that a person may want to mend?"""
        return any(title not in {BOX_TROUBLES[kind] for kind in HARMLESS} for title in self.problems)

    def as_dict(self) -> dict[str, Any]:
        return {"labels": asdict(self)}


@dataclass
class Numbers(Labelled):
    """`ranges`: split → column → least, median, greatest."""

    ranges: dict[str, dict[str, tuple[float, float, float]]] = field(default_factory=dict)


def labelled_values(source: ValueSource) -> Numbers:
    ranges = {}
    for split in source.splits:
        ends = np.quantile(source.table(split), (0, 0.5, 1), axis=0).T.tolist()
        ranges[split] = {
            name: (low, middle, high) for name, (low, middle, high) in zip(source.classes, ends, strict=True)
        }
    return Numbers("numbers", {}, ranges=ranges)


def labelled(source: Source) -> Labelled | None:
    """Of masks, boxes or numbers; nothing of images with classes alone."""
    if isinstance(source, ValueSource):
        return labelled_values(source)
    if isinstance(source, MaskSource):
        amounts = {split: source.pixels[split].tolist() for split in source.splits}
        problems = {"pairs left out": [*source.left_out.values()]} if source.left_out else {}
        return Labelled("pixels", amounts, problems=problems)
    if not isinstance(source, BoxSource):
        return None
    amounts, sides, each, ignored = {}, [], [], 0
    for split, samples in source.splits.items():
        total = np.zeros(len(source.classes), np.int64)
        for sample in samples:
            assert isinstance(sample, Boxed)
            total += np.bincount(sample.classes, minlength=len(total))
            wide, high = (sample.boxes[:, 2:] - sample.boxes[:, :2]).T
            sides += np.sqrt(wide * high).tolist()
            each.append(len(sample.boxes))
            ignored += int(sample.ignored.sum())
        amounts[split] = total.tolist()
    facts = {
        "objects": f"{min(each):,} to {max(each):,} on a picture, median {statistics.median(each):g}",
        "box sides": f"{min(sides):.1%} to {max(sides):.1%} of the picture's, median {statistics.median(sides):.1%}",
        "outlines": "every box has one" if source.outlined else "",
        "ignored": f"{ignored:,} crowds or difficult ones, neither learnt from nor counted" if ignored else "",
    }
    problems = {BOX_TROUBLES[kind]: where for kind, where in source.problems.items() if where}
    return Labelled("boxes", amounts, {name: text for name, text in facts.items() if text}, problems)
