"""Figures of a segmenter, and what a report shows of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.data.image_set import default_workers, threaded
from vitrail.data.maps import resized_map
from vitrail.data.preprocess import normalized
from vitrail.data.sources.masks import MaskedSample
from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.inference.precision import autocast
from vitrail.report.drawing import thumbnail
from vitrail.tasks.base import Measured
from vitrail.tasks.context import Context
from vitrail.tasks.dense.cases import Answers, Problems, asked, shown_cases
from vitrail.tasks.dense.maps import rows_over
from vitrail.tasks.scoring import check_some
from vitrail.tasks.segment.drawing import case, palette
from vitrail.tasks.segment.objective import Segment, boundary_f1, miou

# A name, and what it says to someone who has not met it.
MEANINGS = {
    "miou": ("Mean IoU", "of the pixels that are of a class or predicted to be, how many are both; mean over classes"),
    "pixel_accuracy": ("Pixel accuracy", "the share of pixels whose class is right"),
    "boundary_f1": ("Boundary F1", "how much of the outlines lies where it should"),
}
BOUNDED = 512  # the longest side at which boundaries are compared: their cost grows faster than the image
SHOWN = 480  # the longest side of an image in a report


def rows_of(ctx: Context, model: nn.Module, boundaries: bool) -> Tensor:
    """[n, width] of the validation images in the size that the model sees; see `Segment.rows`."""
    objective = ctx.objective
    width = objective.width(boundaries)
    return rows_over(ctx, model, lambda logits, masks: objective.rows(logits, masks, boundaries), width)


def page_of(figures: dict[str, float], per_class: dict[str, Any], cases: list[tuple[str, str]]) -> dict[str, Any]:
    """Fields of the report; what a class has alone is in its table."""
    return {
        "figures": {name: value for name, value in figures.items() if "/" not in name},
        "per_class": per_class, "gallery": cases, "gallery_title": "Best, median and worst", "meanings": MEANINGS,
        "unit": "Pixels",
    }  # fmt: skip


def cases_in_training(ctx: Context, rows: Tensor) -> list[tuple[str, str]]:
    """(caption, image) of the best, the median and the worst validation images."""
    subset, objective = ctx.subsets["val"], ctx.objective
    colours = palette(len(objective.classes), getattr(ctx.source, "colours", None))
    made = []
    for word, place in shown_cases(objective.worst_first(rows)):
        number = int(subset.numbers[place])
        pixels, mask = subset.loader.images.pair(number)
        assert mask is not None
        with torch.no_grad(), autocast(ctx.device, ctx.dtype):
            logits = ctx.model.eval()(normalized(pixels, ctx.preprocessing, ctx.device)[None])
        found = logits[0].argmax(dim=0).to(torch.uint8).cpu().numpy()
        own = objective.score(rows[place : place + 1])["miou"]
        image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy().squeeze())
        drawn = case(image, mask.numpy(), found, objective.classes, colours)
        made.append((f"{word}: {subset.samples[number].name}, mean IoU {own:.1%}", thumbnail(drawn, 1000)))
    return made


def measure_masks(
    objective: Segment, samples: Sequence[MaskedSample], answers: Answers[np.ndarray], indices: Sequence[int],
    colours: np.ndarray, progress: Callable[[int, int], None] | None = None, draw: bool = False,
) -> tuple[Measured, list[MaskedSample], Problems]:  # fmt: skip
    """Each pixel of each image in its own size, by what `answers` says of it. `indices` are the model's numbers of the
    data's classes. Also which images could be read, and (name, reason) of the others."""
    table = np.full(256, IGNORE, np.uint8)
    table[: len(indices)] = indices
    rows, kept = [], []
    problems: Problems = []

    def read(sample: MaskedSample) -> tuple[Image.Image, np.ndarray]:
        return sample.decode(), table[sample.mask_pixels()]

    def measured(one: tuple[MaskedSample, np.ndarray, np.ndarray]) -> tuple[MaskedSample, Tensor]:
        sample, truth, answer = one
        small = _smaller(truth.shape, BOUNDED)
        counts = objective.label_rows(_batch(answer), _batch(truth))
        edges = boundary_f1(
            _batch(resized_map(answer, small)), _batch(resized_map(truth, small)), len(objective.classes)
        )
        return sample, torch.cat([counts, edges], dim=1)

    several = asked(samples, read, answers, problems, progress)
    for sample, row in threaded(min(4, default_workers()), measured, several, ahead=1):  # while the model has the next
        rows.append(row)
        kept.append(sample)
    check_some(kept, problems)
    joined = torch.cat(rows)
    cases = []
    for word, place in shown_cases(objective.worst_first(joined)) if draw else []:
        image, truth = read(kept[place])
        answer, size = next(answers([image])), _smaller(truth.shape, SHOWN)
        small_image = image.convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR)
        drawn = case(small_image, resized_map(truth, size), resized_map(answer, size), objective.classes, colours)
        own = miou(objective.counts(joined[place : place + 1])[0])
        cases.append((f"{word}: {kept[place].name}, mean IoU {own:.1%}", thumbnail(drawn, 1000)))
    figures = objective.figures(joined)
    return Measured(figures, page=page_of(figures, objective.per_class(joined), cases)), kept, problems


def _batch(mask: np.ndarray) -> Tensor:
    return torch.from_numpy(mask)[None]


def _smaller(size: tuple[int, ...], longest: int) -> tuple[int, int]:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
