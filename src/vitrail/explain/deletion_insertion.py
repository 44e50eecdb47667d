"""Which explanation to believe: take away what it calls important, and see whether the model minds.

Deletion hides patches from the most salient to the least; a good explanation makes the probability fall early.
Insertion starts from a blank image and brings them back in the same order; a good one makes it rise early. Hidden
means the mean colour, zero after normalisation. No explanation is judged by its looks.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.looking import Target, at_rest, cell_size, class_logits, seeing, spread, targets
from vitrail.explain.methods import METHODS, NEED_ALL_PAIRS, Method, methods_for
from vitrail.models import SwinTransformer

FEWEST = 20  # images for an interval
STEPS = 14  # with 14×14 patches, one row's worth at a time


@dataclass(frozen=True)
class Curves:
    """The probability of the target while patches go, or come, in steps of equal size; both [B, steps + 1]."""

    deletion: Tensor  # from the whole image to the blank one
    insertion: Tensor  # from the blank image to the whole one

    @property
    def deletion_auc(self) -> Tensor:
        """The mean height of the curve, [B]: lower is better."""
        return area(self.deletion)

    @property
    def insertion_auc(self) -> Tensor:
        """The mean height of the curve, [B]: higher is better."""
        return area(self.insertion)


def area(curve: Tensor) -> Tensor:
    """Under a curve over 0 … 1, by trapezia: [B, K] -> [B]."""
    return (curve[:, :-1] + curve[:, 1:]).mean(dim=1) / 2


@torch.no_grad()
def faithfulness(
    model: nn.Module,
    x: Tensor,
    saliency: Tensor,
    target: Target = None,
    steps: int = STEPS,
    multi_label: bool = False,
    batch_size: int = 64,
) -> Curves:
    """Deletion and insertion curves of `saliency` [B, h, w] on the images x [B, C, H, W] it was made for.

    `target` is the class whose probability is followed, the predicted one by default. `batch_size` masked images are
    in memory at a time.
    """
    inner = seeing(model)
    if saliency.ndim != 3 or len(saliency) != len(x):
        raise VitrailError(f"Expected a map [h, w] for each of {len(x)} pictures, got shape {list(saliency.shape)}.")
    if steps < 1:
        raise VitrailError(f"steps must be at least 1, got {steps}.")
    size, grid = (x.shape[2], x.shape[3]), (saliency.shape[1], saliency.shape[2])
    cell = cell_size(inner, grid, size)
    order = saliency.to(x.device).flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)  # B n: 0 is the most salient cell
    n = rank.shape[1]
    counts = torch.tensor([round(k * n / steps) for k in range(steps + 1)], device=x.device)
    gone = rank[:, None] < counts[:, None]  # B K n
    # Where one curve starts the other ends, so these two are computed once.
    keep = torch.cat([~gone, gone[:, 1:-1]], dim=1)

    with at_rest(inner):
        chosen = targets(class_logits(inner, x), target)
        flat = keep.flatten(0, 1)  # B·(2K - 2) n
        picture = torch.arange(len(x), device=x.device).repeat_interleave(keep.shape[1])
        found = []
        for rows in torch.arange(len(flat), device=x.device).split(batch_size):
            mask = spread(flat[rows].unflatten(1, grid), cell, size)[:, None]
            logits = class_logits(inner, x[picture[rows]] * mask)
            shares = logits.sigmoid() if multi_label else logits.softmax(dim=-1)
            found.append(shares.gather(1, chosen[picture[rows], None])[:, 0])
    shares = torch.cat(found).view(len(x), -1).cpu()
    deletion = shares[:, : steps + 1]
    insertion = torch.cat([deletion[:, -1:], shares[:, steps + 1 :], deletion[:, :1]], dim=1)
    return Curves(deletion, insertion)


@dataclass(frozen=True)
class Row:
    """One method over a set of images. Differences are paired, image by image, with 95 % bootstrap intervals."""

    method: str
    deletion: float
    insertion: float
    # Against another method: (difference, low, high) of the deletion area, then of the insertion area.
    against: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]]


@dataclass(frozen=True)
class Comparison:
    rows: list[Row]
    n: int
    steps: int
    deletion: dict[str, Tensor]  # mean curve of each method, [steps + 1]
    insertion: dict[str, Tensor]

    @property
    def how_sure(self) -> str:
        return "with 95 % intervals" if self.n >= FEWEST else f"from too few for intervals, which need {FEWEST}"

    def __str__(self) -> str:
        width = max(len(row.method) for row in self.rows)
        lines = [f"{'':{width}}  deletion ↓  insertion ↑   (areas, {self.n} pictures, {self.steps} steps)"]
        for row in self.rows:
            lines.append(f"{row.method:{width}}  {row.deletion:10.3f}  {row.insertion:11.3f}")
        for other in dict.fromkeys(name for row in self.rows for name in row.against):
            lines += ["", f"minus {other}, picture by picture, {self.how_sure}"]
            for row in self.rows:
                if other in row.against:
                    down, up = (
                        f"{d:+.3f} ({low:+.3f} to {high:+.3f})" if self.n >= FEWEST else f"{d:+10.3f}"
                        for d, low, high in row.against[other]
                    )
                    lines.append(f"{row.method:{width}}  {down}   {up}")
        return "\n".join(lines)

    def as_dict(self) -> dict:
        """For JSON: flat figures of every method, and its mean curves."""
        methods = {}
        for row in self.rows:
            figures: dict[str, object] = {"deletion_auc": row.deletion, "insertion_auc": row.insertion}
            for other, both in row.against.items():
                for name, (difference, low, high) in zip(("deletion", "insertion"), both, strict=True):
                    key = f"{name}_minus_{other}"
                    figures[key] = difference
                    if self.n >= FEWEST:
                        figures |= {f"{key}_low": low, f"{key}_high": high}
            figures["deletion_curve"] = [round(v, 5) for v in self.deletion[row.method].tolist()]
            figures["insertion_curve"] = [round(v, 5) for v in self.insertion[row.method].tolist()]
            methods[row.method] = figures
        return {"n": self.n, "steps": self.steps, "methods": methods}


def compare(
    model: nn.Module,
    batches: Iterable[Tensor | tuple[Tensor, Target]],
    methods: Sequence[str] | Mapping[str, Method] | None = None,
    steps: int = STEPS,
    multi_label: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> Comparison:
    """The methods (all that the model allows, by default) side by side on batches of images, x or (x, target).

    One batch is in memory at a time. Random order and raw last-layer attention are what a method has to beat.
    `advance` is called after each image.
    """
    chosen = usable(model, methods)
    curves: dict[str, list[Curves]] = {name: [] for name in chosen}
    for batch in batches:
        x, target = batch if isinstance(batch, tuple) else (batch, None)
        with torch.no_grad(), at_rest(model):
            target = targets(class_logits(seeing(model), x), target)
        for name, method in chosen.items():
            curves[name].append(faithfulness(model, x, method(model, x, target), target, steps, multi_label))
        for _ in range(len(x)):
            advance()
    if not any(curves.values()):
        raise VitrailError("No pictures were given to compare the methods on.")
    deletion = {name: torch.cat([c.deletion for c in found]) for name, found in curves.items()}
    insertion = {name: torch.cat([c.insertion for c in found]) for name, found in curves.items()}
    areas = {name: tuple(area(one[name].double()).numpy() for one in (deletion, insertion)) for name in chosen}
    rows = []
    for name, (down, up) in areas.items():
        others: list[str] = [other for other in ("random", "attention") if other in areas and other != name]
        against = {other: (paired(down, areas[other][0]), paired(up, areas[other][1])) for other in others}
        rows.append(Row(name, float(down.mean()), float(up.mean()), against))
    n = len(next(iter(deletion.values())))
    mean_of = [{name: found.mean(dim=0) for name, found in one.items()} for one in (deletion, insertion)]
    return Comparison(rows, n, steps, *mean_of)


def usable(model: nn.Module, methods: Sequence[str] | Mapping[str, Method] | None) -> dict[str, Method]:
    """The methods by name: those that were asked for, or all that this kind of model allows."""
    if isinstance(methods, Mapping):
        return dict(methods)
    allowed = methods_for(model)
    if methods is None:
        return allowed
    for name in methods:
        if name not in METHODS:
            raise VitrailError(f"{name!r} is not a method: use {', '.join(METHODS)}.")
        if name not in allowed:
            why = "classes, and this model has none"
            if name in NEED_ALL_PAIRS and isinstance(seeing(model), SwinTransformer):
                why = "attention between all patches, and Swin has it in windows only"
            raise VitrailError(f"{name} needs {why}: use {', '.join(allowed)}.")
    return {name: METHODS[name] for name in methods}


def paired(values: np.ndarray, others: np.ndarray, rounds: int = 2000) -> tuple[float, float, float]:
    """The mean difference, and the 95 % percentile interval of it over images drawn again with replacement; NaN below
    `FEWEST` images, of which the same few would be drawn again and again."""
    difference = (values - others).astype(np.float64)
    if len(difference) < FEWEST:
        return float(difference.mean()), math.nan, math.nan
    drawn = np.random.default_rng(0).integers(0, len(difference), (rounds, len(difference)))
    low, high = np.quantile(difference[drawn].mean(axis=1), [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)
