"""The end of a dense run, and of its evaluation: figures, the table of classes, the best, the median and the worst."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from vitrail.data.boxes.samples import Boxed
from vitrail.data.masks import IGNORE, MaskedSample
from vitrail.data.masks.joint import resized_mask
from vitrail.data.pictures import default_workers, threaded
from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.report.drawing import thumbnail
from vitrail.tasks.detect_metrics import Objects, Score, picture_f1, there
from vitrail.tasks.detect_pictures import beside
from vitrail.tasks.segment import Segment, boundary_f1, miou
from vitrail.tasks.segment_pictures import case

S = TypeVar("S", bound=Sample)
T = TypeVar("T")
A = TypeVar("A")
Problems = list[tuple[str, str]]
Progress = Callable[[int, int], None]
Answers = Callable[[Iterable[Image.Image]], Iterator[A]]  # of a model, one to a picture
# A name, and what it says to someone who has not met it.
OF_MASKS = {
    "miou": ("Mean IoU", "of the pixels that are of a class or said to be, how many are both; a mean of the classes"),
    "pixel_accuracy": ("Pixel accuracy", "the share of pixels whose class is right"),
    "boundary_f1": ("Boundary F1", "how much of the outlines lies where it should"),
}
OF_BOXES = {
    "map": ("Mean average precision", "COCO's: over overlaps from 0.50 to 0.95, a mean of the classes"),
    "map50": ("mAP at IoU 0.50", "an object counts as found where its box overlaps by half"),
    "map75": ("mAP at IoU 0.75", "where its box overlaps by three quarters"),
    "mask_map": ("Mean average precision of the outlines", "as the first, of masks in place of boxes"),
    "mask_map50": ("Mask mAP at IoU 0.50", "as the second, of masks"),
    "mask_map75": ("Mask mAP at IoU 0.75", "as the third, of masks"),
}
BOUNDED = 512  # the longest side at which boundaries are compared: what is near grows with a picture, its cost faster
SHOWN = 480  # the longest side of a picture in a report


@dataclass
class Measured:
    """What came of labelled pictures."""

    figures: dict[str, float]  # with intervals
    per_class: dict[str, Any]
    cases: list[tuple[str, str]]  # (caption, picture)
    meanings: dict[str, tuple[str, str]]  # of the figures
    unit: str  # what the support of a class counts


def dense_content(found: Measured) -> dict[str, Any]:
    """The parts of a report that come from the model's answers; what a class has alone is in its table."""
    return {
        "figures": {name: value for name, value in found.figures.items() if "/" not in name},
        "per_class": found.per_class,
        "gallery": found.cases,
        "gallery_title": "Best, median and worst",
        "meanings": found.meanings,
        "unit": found.unit,
    }


def spread(figures: dict[str, float], name: str) -> dict[str, float]:
    """The standard error of a figure from its interval; nothing where it has none."""
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    return {} if low is None or high is None else {f"{name}_error": (high - low) / 3.92}


def shown_cases(worst_first: Sequence[int]) -> list[tuple[str, int]]:
    """Which pictures a report shows: two of the best, of the middle and of the worst; of few, one each."""
    n = len(worst_first)
    if n < 6:
        places = {"best": [n - 1], "median": [n // 2], "worst": [0]}
    else:
        places = {"best": [n - 1, n - 2], "median": [n // 2, n // 2 - 1], "worst": [0, 1]}
    chosen: dict[int, str] = {}
    for word, several in places.items():
        for place in several:
            if 0 <= place < n:
                chosen.setdefault(place, word)
    return [(word, int(worst_first[place])) for place, word in chosen.items()]


# -- pictures as they are, for `evaluate` ------------------------------------------------------------------------------


def measure_masks(
    task: Segment, samples: Sequence[MaskedSample], said: Answers[np.ndarray], indices: Sequence[int],
    colours: np.ndarray, progress: Progress | None = None, draw: bool = False,
) -> tuple[Measured, list[MaskedSample], Problems]:  # fmt: skip
    """Each pixel of each picture in its own size, by what `said` says of it. `indices` are the model's numbers of the
    data's classes. Also which pictures could be read, and (name, reason) of the others."""
    table = np.full(256, IGNORE, np.uint8)
    table[: len(indices)] = indices
    rows, kept = [], []
    problems: Problems = []

    def read(sample: MaskedSample) -> tuple[Image.Image, np.ndarray]:
        return sample.decode(), table[sample.mask_pixels()]

    def measured(asked: tuple[MaskedSample, np.ndarray, np.ndarray]) -> tuple[MaskedSample, torch.Tensor]:
        sample, truth, answer = asked
        small = _smaller(truth.shape, BOUNDED)
        counts = task.label_rows(_one(answer), _one(truth))
        edges = boundary_f1(_one(resized_mask(answer, small)), _one(resized_mask(truth, small)), len(task.classes))
        return sample, torch.cat([counts, edges], dim=1)

    asked = _asked(samples, read, said, problems, progress)
    for sample, row in threaded(min(4, default_workers()), measured, asked, ahead=1):  # while the model has the next
        rows.append(row)
        kept.append(sample)
    _some(kept, problems)
    joined = torch.cat(rows)
    cases = []
    for word, place in shown_cases(task.worst_first(joined)) if draw else []:
        image, truth = read(kept[place])
        answer, size = next(said([image])), _smaller(truth.shape, SHOWN)
        picture = image.convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR)
        drawn = case(picture, resized_mask(truth, size), resized_mask(answer, size), task.classes, colours)
        own = miou(task.counts(joined[place : place + 1])[0])
        cases.append((f"{word}: {kept[place].name}, mean IoU {own:.1%}", thumbnail(drawn, 1000)))
    figures = task.figures(joined)
    return Measured(figures, task.per_class(joined), cases, OF_MASKS, "Pixels"), kept, problems


def _one(mask: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(mask)[None]


def _smaller(size: tuple[int, ...], longest: int) -> tuple[int, int]:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def measure_boxes(
    classes: Sequence[str], samples: Sequence[Boxed], said: Answers[Objects], indices: Sequence[int],
    masks: bool, threshold: float, progress: Progress | None = None, draw: bool = False,
) -> tuple[Measured, list[Boxed], Problems]:  # fmt: skip
    """The same of boxes, by all that `said` finds on a picture; what scores above the threshold is drawn."""
    score, kept = Score(classes, masks), []
    problems: Problems = []

    def read(sample: Boxed) -> tuple[Image.Image, Objects]:
        image = sample.decode()
        size = (image.height, image.width)
        sample.check_size(size)
        return image, there(sample, size, masks)

    samples = [replace(sample, classes=np.asarray(indices)[sample.classes]) for sample in samples]
    for sample, truth, found in _asked(samples, read, said, problems, progress):
        score.add(truth, found)
        kept.append(sample)
    _some(kept, problems)
    return measured_boxes(score, kept, threshold, draw), kept, problems


def measured_boxes(score: Score, samples: Sequence[Sample], threshold: float, draw: bool, seed: int = 0) -> Measured:
    """All figures of a score; `samples` are its pictures, in order."""
    each = [picture_f1(truth, found, threshold) for truth, found in zip(score.truth, score.found, strict=True)]
    order = [int(place) for place in np.argsort(each, kind="stable")]
    cases = []
    for word, place in shown_cases(order) if draw else []:
        sample, found = samples[place], score.found[place].above(threshold)
        drawn = beside(sample.decode(), score.truth[place], found, score.classes)
        cases.append((f"{word}: {sample.name}, F1 {each[place]:.1%}", thumbnail(drawn, 1400)))
    return Measured(score.figures(seed=seed), score.per_class(), cases, OF_BOXES, "Objects")


def _asked(
    samples: Sequence[S], read: Callable[[S], tuple[Image.Image, T]], said: Answers[A], problems: Problems,
    progress: Progress | None,
) -> Iterator[tuple[S, T, A]]:  # fmt: skip
    """(sample, what is true of it, what was said), in order. Threads read pictures and truths ahead; what can't be read
    goes to the problems."""

    def attempt(sample: S) -> tuple[Image.Image, T] | VitrailError:
        try:
            return read(sample)
        except VitrailError as error:
            return error

    def readable() -> Iterator[tuple[S, Image.Image, T]]:
        for sample, found in zip(samples, threaded(default_workers(), attempt, samples), strict=True):
            if isinstance(found, VitrailError):
                problems.append((sample.name, str(found)))
            else:
                yield sample, *found

    shown, kept = tee(readable())  # the model takes several before it answers the first
    answers = said(image for _, image, _ in shown)
    for done, (answer, (sample, _, truth)) in enumerate(zip(answers, kept, strict=True), 1):
        yield sample, truth, answer
        if progress:
            progress(done + len(problems), len(samples))


def _some(kept: Sequence[Sample], problems: Problems) -> None:
    if not kept:
        raise VitrailError(f"None of the {len(problems)} images can be read, for instance: {problems[0][1]}")
