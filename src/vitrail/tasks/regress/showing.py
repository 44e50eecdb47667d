"""What is shown of predicted numbers: in a terminal, in files, and in a report."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.report.charts import residual_chart, scatter_chart
from vitrail.report.content import ImageCard
from vitrail.report.numbers import number
from vitrail.report.page import PARTS, Section
from vitrail.report.page import name as named
from vitrail.tasks.classify.page import illustrate
from vitrail.tasks.regress.metrics import FIGURES

# A name, and what it says to someone who has not met it.
MEANINGS = {
    "r2": ("R²", "the part of the spread that is explained; 1 is perfect, 0 is always saying the mean"),
    "mae": ("Mean absolute error", "how far a prediction lies off on average, in the units of the data"),
    "rmse": ("RMSE", "the same with large errors counting more; in the units of the data"),
    "spearman": ("Spearman", "how well the order of the images agrees; 1 is perfect, 0 is chance"),
}
WORST = 24  # images of the largest errors
MOST_CHARTED = 12  # columns


@dataclass(frozen=True)
class Value:
    """A number that was predicted, in the units of the data."""

    label: str  # of the column
    index: int
    value: float


class ValueWriter:
    """The numbers of each image, a column for each in a table."""

    def __init__(self, predictor: Any, options: Mapping[str, Any]):
        self.predictor, self.options = predictor, options
        self.rows = csv.writer(options["csv"]) if options["csv"] else None
        self.found: list[dict[str, Any]] = []
        if self.rows:
            self.rows.writerow(["path", *predictor.labels])

    def each(self, paths: Sequence[Path], failed: Callable[[VitrailError], None]) -> Iterator[tuple[Path, Tensor]]:
        o = self.options
        outcomes = self.predictor.stream(paths, "values", o["batch_size"], o["flip"], o["crops"])
        for path, outcome in zip(paths, outcomes, strict=True):
            if outcome.values is None:
                failed(outcome.error)
            else:
                yield path, outcome.values

    def write(self, path: Path, answer: Tensor) -> None:
        values = [asdict(value) for value in values_in(self.predictor, answer)]
        print(path)
        for one in values:
            print(f"  {number(one['value']):>10}  {one['label']}")
        if self.rows:
            self.rows.writerow([path, *(f"{one['value']:.6g}" for one in values)])
        if self.options["json"]:
            self.found.append({"path": str(path), "predictions": values})

    def close(self) -> None:
        if self.options["json"]:
            json.dump(self.found, self.options["json"], indent=2, ensure_ascii=False)


def values_in(predictor: Any, answer: Tensor) -> list[Value]:
    return [Value(label, index, answer[index].item()) for index, label in enumerate(predictor.labels)]


def value_page(
    predicted: np.ndarray, true: np.ndarray, columns: Sequence[str], figures: Mapping[str, float],
    samples: Sequence[Sample],
) -> dict[str, Any]:  # fmt: skip
    """Parts of a `ReportContent`."""
    sections = [Section("predictions", "Predicted and true values", _charts(predicted, true, columns))]
    if len(columns) > 1:
        sections.append(Section("columns", "Per column", _table(true, columns, figures)))
    sections.append(Section("worst", "Largest errors", _worst(predicted, true, columns, samples)))
    head = {name: value for name, value in figures.items() if "/" not in name}
    return {"figures": head, "sections": sections, "meanings": MEANINGS}


def _charts(predicted: np.ndarray, true: np.ndarray, columns: Sequence[str]) -> Markup:
    words = (
        "On the left a dot for each image: on the dashed line the prediction is right. On the right how far it lies "
        "above or below: a slope there means that small values are overrated and large ones underrated."
    )
    charts = PARTS.note(words)
    for c, column in enumerate(columns[:MOST_CHARTED]):
        pair = scatter_chart(
            f"{column}: predicted over true", true[:, c], predicted[:, c], "true value", "predicted", diagonal=True
        ) + residual_chart(f"{column}: error over true", true[:, c], predicted[:, c])
        charts += Markup('<div class="charts two">{}</div>').format(pair)
    return charts


def _table(true: np.ndarray, columns: Sequence[str], figures: Mapping[str, float]) -> Markup:
    rows = []
    for c, column in enumerate(columns):
        ends = f"{number(true[:, c].min())} to {number(true[:, c].max())}"
        rows.append([named(column), *(number(figures.get(f"{figure}/{column}")) for figure in FIGURES), ends])
    heads = ["Column", *(MEANINGS[figure][0] for figure in FIGURES), "True values"]
    return PARTS.table("Every column", heads, rows, numeric=range(1, len(heads)))


def _worst(predicted: np.ndarray, true: np.ndarray, columns: Sequence[str], samples: Sequence[Sample]) -> Markup:
    spread = true.std(axis=0)
    errors = np.abs(predicted - true) / np.where(spread > 0, spread, 1)
    cards = []
    for place in np.argsort(-errors.mean(axis=1), kind="stable")[:WORST].tolist():
        card = ImageCard(_told(columns, true[place]), _told(columns, predicted[place]), index=place)
        illustrate(card, samples)
        cards.append(card)
    words = "The images that were predicted worst, beside what they should be. For some the number may be wrong."
    return PARTS.note(words) + PARTS.gallery(cards)


def _told(columns: Sequence[str], values: np.ndarray) -> str:
    return ", ".join(f"{column} {number(value)}" for column, value in zip(columns, values, strict=True))
