"""COCO's mean average precision, by pycocotools, with intervals; and how well a detector did on a single image.

Figures are fractions: `map` averages over IoU 0.50, 0.55, … 0.95, `map50` and `map75` are at one; `ap/<class>` as map.
"""

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.sources.boxes.outlines import rasterise, to_runs
from vitrail.data.sources.boxes.samples import Boxed
from vitrail.errors import VitrailError, extra
from vitrail.tasks.bootstrap import percentiles, resampled

ROUNDS = 200  # of the bootstrap; a round takes milliseconds per class
MOST = 100  # detections of an image that count, as in COCO


@dataclass(frozen=True, eq=False)
class Objects:
    """What is on an image, or what was found there: in its own pixels."""

    boxes: np.ndarray  # [n, 4], x0, y0, x1, y1
    classes: np.ndarray  # [n]
    scores: np.ndarray  # [n], 1 for what is there
    ignored: np.ndarray  # [n]: neither to be found nor wrong to find
    masks: Sequence[dict[str, Any]] | None = None  # run lengths

    def __len__(self) -> int:
        return len(self.boxes)

    def above(self, score: float) -> "Objects":
        kept = np.flatnonzero(self.scores >= score)
        masks = None if self.masks is None else [self.masks[int(i)] for i in kept]
        return Objects(self.boxes[kept], self.classes[kept], self.scores[kept], self.ignored[kept], masks)


def there(sample: Boxed, size: tuple[int, int], masks: bool = False) -> Objects:
    """What is on an image of (height, width)."""
    n = len(sample.boxes)
    runs = None
    if masks:
        runs = [to_runs(rasterise(o, size) if o is not None else np.zeros(size, bool)) for o in sample.outlines]
    return Objects(sample.boxes_on(size).astype(np.float64), sample.classes, np.ones(n), sample.ignored, runs)


@dataclass
class Score:
    """Collects image by image, and scores at the end."""

    classes: Sequence[str]
    masks: bool = False
    truth: list[Objects] = field(default_factory=list)
    found: list[Objects] = field(default_factory=list)
    _known: "dict[str, list[_Table]]" = field(default_factory=dict, repr=False)  # pycocotools takes its time

    def add(self, truth: Objects, found: Objects) -> None:
        self.truth.append(truth)
        self.found.append(found)
        self._known.clear()

    def figures(self, rounds: int = ROUNDS, seed: int = 0) -> dict[str, float]:
        """map, map50, map75 and ap/<class>, the first two with intervals unless `rounds` is 0; with masks the same of
        them as mask_map and so on; and n. A class that is nowhere has no figure."""
        figures = self._of("bbox", "", rounds, seed)
        if self.masks:
            figures |= self._of("segm", "mask_", rounds, seed)
        return {**figures, "n": len(self.truth)}

    def _of(self, kind: str, prefix: str, rounds: int, seed: int) -> dict[str, float]:
        tables = self._tables(kind)
        once = np.ones(len(self.truth))
        each = np.array([table.precision(once) for table in tables]).reshape(-1, len(THRESHOLDS))
        with_any = [table.positives.sum() > 0 for table in tables]
        if not any(with_any):
            return {}
        wanted = {"map": slice(None), "map50": slice(0, 1), "map75": slice(5, 6)}
        figures: dict[str, float] = {}
        for key, part in wanted.items():
            figures[prefix + key] = float(each[with_any][:, part].mean())
        if rounds:
            present = [table for table, known in zip(tables, with_any, strict=True) if known]
            weights = [np.bincount(drawn, minlength=len(once)) for drawn in _draws(len(once), seed, rounds)]
            # A draw that happens to have no object at all says nothing.
            values = np.array([
                np.nanmean([table.precision(times) for table in present], axis=0)
                for times in weights if any((table.positives * times).any() for table in present)
            ])  # fmt: skip
            for key in ("map", "map50") if len(values) else ():
                of_rounds = values[:, wanted[key]].mean(axis=1)
                of_rounds = np.clip(of_rounds - (of_rounds.mean() - figures[prefix + key]), 0, 1)  # see `bootstrap`
                low, high = percentiles(of_rounds)
                figures |= {f"{prefix}{key}_low": low, f"{prefix}{key}_high": high}
        for label, row, known in zip(self.classes, each, with_any, strict=True):
            if known:
                figures[f"{prefix}ap/{label}"] = float(row.mean())
        return figures

    def per_class(self) -> dict[str, np.ndarray]:
        """Columns for a report: average_precision, ap50 and support, each [C]; NaN where a class is nowhere."""
        tables, once = self._tables("bbox"), np.ones(len(self.truth))
        each = np.array([table.precision(once) for table in tables]).reshape(-1, len(THRESHOLDS))
        support = np.array([table.positives.sum() for table in tables])
        return {"average_precision": each.mean(axis=1), "ap50": each[:, 0], "support": support}

    def best_threshold(self) -> float:
        """The score from which on to say that something is there: of all, the one with the best F1 at IoU 0.5."""
        tables = self._tables("bbox")
        scores = np.concatenate([table.scores for table in tables])
        counted = np.concatenate([table.counted[0] for table in tables])
        order = np.argsort(-scores[counted], kind="stable")
        right = np.concatenate([table.right[0] for table in tables])[counted][order].cumsum()
        positives = sum(table.positives.sum() for table in tables)
        if not len(order) or not positives:
            return 0.5
        ranked = scores[counted][order]
        f1 = 2 * right / (np.arange(1, len(order) + 1) + positives)
        best = int(f1.argmax())
        below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
        return float((ranked[best] + below) / 2)

    def _tables(self, kind: str) -> "list[_Table]":
        """pycocotools decides which detection is which object; the rest is sums."""
        if kind not in self._known:
            self._known[kind] = self._matched(kind)
        return self._known[kind]

    def _matched(self, kind: str) -> "list[_Table]":
        tool = _evaluated(self.truth, self.found, len(self.classes), kind)
        pictures = len(self.truth)
        tables = []
        for number in range(len(self.classes)):
            # evalImgs runs over classes, then four ranges of area, of which the first is all, then images.
            start = number * len(tool.params.areaRng) * pictures
            tables.append(_Table.of(tool.evalImgs[start : start + pictures]))
        return tables


THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)


@dataclass
class _Table:
    """The detections of a class over all images, best first."""

    scores: np.ndarray  # [D]
    right: np.ndarray  # bool [T, D]: at each IoU, an object found
    counted: np.ndarray  # bool [T, D]: not one that is to be ignored
    picture: np.ndarray  # [D]
    positives: np.ndarray  # [images]: objects to be found

    @classmethod
    def of(cls, pictures: Sequence[dict[str, Any] | None]) -> "_Table":
        scores, right, counted, place = [np.empty(0)], [np.empty((10, 0), bool)], [np.empty((10, 0), bool)], []
        positives = np.zeros(len(pictures))
        for number, each in enumerate(pictures):
            if each is None:
                continue
            positives[number] = np.count_nonzero(np.asarray(each["gtIgnore"]) == 0)
            scores.append(np.asarray(each["dtScores"], float))
            ignored = np.asarray(each["dtIgnore"]).astype(bool).reshape(10, -1)
            counted.append(~ignored)
            right.append((np.asarray(each["dtMatches"]).reshape(10, -1) > 0) & ~ignored)
            place += [number] * len(each["dtScores"])
        order = np.argsort(-np.concatenate(scores), kind="mergesort")
        return cls(
            np.concatenate(scores)[order], np.concatenate(right, axis=1)[:, order],
            np.concatenate(counted, axis=1)[:, order], np.array(place, np.int64)[order], positives,
        )  # fmt: skip

    def precision(self, weights: np.ndarray) -> np.ndarray:
        """[T]: averaged over 101 recalls, each image counted so many times; NaN without an object."""
        positives = float(self.positives @ weights)
        if not positives:
            return np.full(len(THRESHOLDS), math.nan)
        weight = weights[self.picture]
        right = np.cumsum(self.right * weight, axis=1)
        said = np.cumsum(self.counted * weight, axis=1)
        with np.errstate(invalid="ignore"):
            precision = np.nan_to_num(right / said)
        precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        precision = np.concatenate([precision, np.zeros((len(THRESHOLDS), 1))], axis=1)
        places = [np.searchsorted(row, RECALLS, side="left") for row in right / positives]
        return np.array([row[place].mean() for row, place in zip(precision, places, strict=True)])


def _draws(n: int, seed: int, rounds: int) -> list[np.ndarray]:
    """The same images as `bootstrap` draws."""
    drawn: list[np.ndarray] = []

    def keep(index: np.ndarray) -> float:
        drawn.append(index)
        return 0.0

    resampled(keep, n, seed, rounds)
    return drawn


def _evaluated(truth: Sequence[Objects], found: Sequence[Objects], classes: int, kind: str) -> Any:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise VitrailError(f"mAP is measured by pycocotools, which is not installed: {extra('detect')}.") from None
    frame = {
        "info": {},
        "images": [{"id": number, "height": 0, "width": 0} for number in range(1, len(truth) + 1)],  # masks say theirs
        "categories": [{"id": number + 1} for number in range(classes)],
    }
    sides = []
    with contextlib.redirect_stdout(io.StringIO()):  # it tells its life
        for several in (truth, found):
            coco = COCO()
            coco.dataset = {**frame, "annotations": _annotations(several, kind)}
            coco.createIndex()
            sides.append(coco)
        tool = COCOeval(*sides, kind)
        tool.params.maxDets = [1, 10, MOST]
        tool.evaluate()
    return tool


def _annotations(pictures: Sequence[Objects], kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, objects in enumerate(pictures, 1):
        for i, (x0, y0, x1, y1) in enumerate(objects.boxes.tolist()):
            row = {
                "id": len(rows) + 1, "image_id": number, "category_id": int(objects.classes[i]) + 1,
                "bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0),
                "iscrowd": int(objects.ignored[i]), "score": float(objects.scores[i]),
            }  # fmt: skip
            if kind == "segm":
                if objects.masks is None:
                    raise VitrailError("Masks are to be scored, and a picture has none.")
                row["segmentation"] = dict(objects.masks[i])
            rows.append(row)
    return rows


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[n, m]: the IoU of each pair of boxes."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = (high - low).clip(min=0).prod(axis=2)
    areas = [(each[:, 2:] - each[:, :2]).prod(axis=1) for each in (one, other)]
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(shared / (areas[0][:, None] + areas[1][None, :] - shared))


def matched(truth: Objects, found: Objects, overlap: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] of the truth that was found, and bool [m] of what was found that is there: the best score first, each
    object once, of the same class. What is to be ignored counts as there."""
    there_, right = np.zeros(len(truth), bool), np.zeros(len(found), bool)
    table = overlaps(truth.boxes, found.boxes) * (truth.classes[:, None] == found.classes[None, :])
    for i in np.argsort(-found.scores, kind="stable"):
        free = np.where(there_ & ~truth.ignored, 0, table[:, i])
        if len(free) and free.max() >= overlap:
            there_[free.argmax()] = right[i] = True
    return there_, right


def image_f1(truth: Objects, found: Objects, score: float = 0.5) -> float:
    """How well an image was read: F1 of what scores above `score`, at IoU 0.5; 1 where nothing is and nothing was
    said. What a report ranks its images by."""
    found = found.above(score)
    known, right = matched(truth, found)
    wanted = ~truth.ignored
    # A detection that lies on something to be ignored is neither right nor wrong.
    extra_right = int(right.sum() - known[wanted].sum())
    total = int(wanted.sum()) + len(found) - extra_right
    return 2 * int(known[wanted].sum()) / total if total else 1.0
