"""The few sentences that someone would say who had read the whole report."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from vitrail.report.content import DataProblems, ReportContent, taken_for
from vitrail.report.numbers import percent

FEWEST = 5  # images of a class that its figures are judged by, if there is such a class


def findings(content: ReportContent) -> Iterator[str]:
    columns = content.per_class
    if "iou" in columns:
        yield from _extremes(content, "iou", "IoU")
    elif "ap50" in columns:
        yield from _extremes(content, "average_precision", "average precision")
    if {"recall", "support", "f1"} <= columns.keys() and len(content.classes) > 2:
        yield from _weakest(content)
    if content.reliability is not None and not content.multi_label:
        yield from _confidence({key: np.asarray(column) for key, column in content.reliability.items()})
    yield from _data(content.problems)


def _weakest(content: ReportContent) -> Iterator[str]:
    support, recall, f1 = (content.per_class[key] for key in ("support", "recall", "f1"))
    measured = [c for c in range(len(content.classes)) if support[c] > 0]
    candidates = [c for c in measured if support[c] >= FEWEST] or measured
    worst = min(candidates, key=lambda c: (f1[c], recall[c]), default=None)
    if worst is None or f1[worst] >= 1:
        return
    found, count = round(recall[worst] * support[worst]), int(support[worst])
    taken = taken_for(content.confusion, worst)
    other = f", most often mistaken for {content.classes[taken[0]]}" if taken else ""
    if found == count:
        other = ", but other classes were mistaken for it"
    yield f"The weakest class is {content.classes[worst]}: {found} of {count} found{other}."


def _extremes(content: ReportContent, key: str, words: str) -> Iterator[str]:
    values = np.asarray(content.per_class[key], float)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) > 1:
        worst, best = known[values[known].argmin()], known[values[known].argmax()]
        yield (
            f"The weakest class is {content.classes[worst]}, with {words} {percent(values[worst])}; the strongest "
            f"{content.classes[best]}, with {percent(values[best])}."
        )


def _confidence(table: dict[str, np.ndarray]) -> Iterator[str]:
    count = table["count"]
    filled, total = count > 0, float(count.sum())
    if not total:
        return
    claimed, right = (float((table[key][filled] * count[filled]).sum() / total) for key in ("confidence", "accuracy"))
    gap, noise = claimed - right, 2 * math.sqrt(right * (1 - right) / total)
    if abs(gap) >= max(0.01, noise):
        verdict = f"The model is {'over' if gap > 0 else 'under'}-confident"
    elif noise > 0.1:
        verdict = "These images are too few to judge its confidence by"
    else:
        verdict = "Its confidence fits, as far as these images tell"
    yield f"{verdict}: on average it claims {percent(claimed)} and is right in {percent(right)}."


def _data(problems: DataProblems) -> Iterator[str]:
    for found, one, many, rest in (
        (problems.leaked, "image is", "images are",
         "in more than one split, so these figures are optimistic; the files are listed under the data."),
        (problems.conflicting, "image has", "images have",
         "more than one label, in copies that contradict each other; they are listed under the data."),
        (problems.unreadable, "file was", "files were", "left out because unreadable, listed under the data."),
    ):  # fmt: skip
        yield from _counted(found, one, many, rest)


def _counted(found: Sequence, one: str, many: str, rest: str) -> Iterator[str]:
    if found:
        yield f"{f'One {one}' if len(found) == 1 else f'{len(found):,} {many}'} {rest}"
