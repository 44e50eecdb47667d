"""Figures of a detector, and what a report shows of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.samples import Sample
from vitrail.data.sources.boxes.samples import Boxed
from vitrail.report.drawing import thumbnail
from vitrail.tasks.base import Measured
from vitrail.tasks.dense.cases import Answers, Problems, asked, shown_cases
from vitrail.tasks.detect.drawing import beside
from vitrail.tasks.detect.metrics import Objects, Score, image_f1, there
from vitrail.tasks.scoring import check_some

# A name, and what it says to someone who has not met it.
MEANINGS = {
    "map": ("Mean average precision", "COCO's: over overlaps from 0.50 to 0.95, mean over classes"),
    "map50": ("mAP at IoU 0.50", "an object counts as found where its box overlaps by half"),
    "map75": ("mAP at IoU 0.75", "where its box overlaps by three quarters"),
    "mask_map": ("Mean average precision of the outlines", "as the first, of masks in place of boxes"),
    "mask_map50": ("Mask mAP at IoU 0.50", "as the second, of masks"),
    "mask_map75": ("Mask mAP at IoU 0.75", "as the third, of masks"),
}


def measure_boxes(
    classes: Sequence[str], samples: Sequence[Boxed], answers: Answers[Objects], indices: Sequence[int], masks: bool,
    threshold: float, progress: Callable[[int, int], None] | None = None, draw: bool = False,
) -> tuple[Measured, list[Boxed], Problems]:  # fmt: skip
    """Images in their own size, by everything that `answers` finds on them; what scores above the threshold is drawn.
    `indices` are the model's numbers of the data's classes. Also which images could be read, and (name, reason) of the
    others."""
    score, kept = Score(classes, masks), []
    problems: Problems = []

    def read(sample: Boxed) -> tuple[Image.Image, Objects]:
        image = sample.decode()
        size = (image.height, image.width)
        sample.check_size(size)
        return image, there(sample, size, masks)

    samples = [replace(sample, classes=np.asarray(indices)[sample.classes]) for sample in samples]
    for sample, truth, found in asked(samples, read, answers, problems, progress):
        score.add(truth, found)
        kept.append(sample)
    check_some(kept, problems)
    return measured_boxes(score, kept, threshold, draw), kept, problems


def measured_boxes(score: Score, samples: Sequence[Sample], threshold: float, draw: bool, seed: int = 0) -> Measured:
    """All figures of a score; `samples` are its images, in order."""
    each = [image_f1(truth, found, threshold) for truth, found in zip(score.truth, score.found, strict=True)]
    order = [int(place) for place in np.argsort(each, kind="stable")]
    cases = []
    for word, place in shown_cases(order) if draw else []:
        sample, found = samples[place], score.found[place].above(threshold)
        drawn = beside(sample.decode(), score.truth[place], found, score.classes)
        cases.append((f"{word}: {sample.name}, F1 {each[place]:.1%}", thumbnail(drawn, 1400)))
    figures = score.figures(seed=seed)
    page: dict[str, Any] = {
        "figures": {name: value for name, value in figures.items() if "/" not in name},  # the table has the classes
        "per_class": score.per_class(), "gallery": cases, "gallery_title": "Best, median and worst",
        "meanings": MEANINGS, "unit": "Objects",
    }  # fmt: skip
    return Measured(figures, page=page)
