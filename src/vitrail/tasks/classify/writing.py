"""What `vitrail predict` prints and writes of a classifier's answers."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError

COLUMNS = ("path", "label", "index", "probability")


class ClassWriter:
    """The likeliest classes of each image; a row per image, several labels with a bar between, as in a table to train
    from."""

    def __init__(self, predictor: Any, options: Mapping[str, Any]):
        self.predictor, self.options, self.top = predictor, options, options["top"]
        self.rows = csv.writer(options["csv"]) if options["csv"] else None
        self.found: list[dict[str, Any]] = []
        if self.rows:
            self.rows.writerow(COLUMNS)

    def each(self, paths: Sequence[Path], failed: Callable[[VitrailError], None]) -> Iterator[tuple[Path, Tensor]]:
        o = self.options
        outcomes = self.predictor.stream(paths, batch_size=o["batch_size"], flip=o["flip"], crops=o["crops"])
        for path, outcome in zip(paths, outcomes, strict=True):
            if outcome.values is None:
                failed(outcome.error)
            else:
                yield path, outcome.values

    def write(self, path: Path, answer: Tensor) -> None:
        shown = self.predictor.ranked(answer, self.top)
        print(path)
        for p in shown:
            print(f"  {p.probability:6.1%}  {'█' * round(20 * p.probability):<20}  {p.label}")
        if not shown:
            print("  no class reaches its threshold")
        if self.rows:
            best = self.predictor.ranked(answer, None if self.predictor.multi_label else 1)
            self.rows.writerow([path, *as_cells(best)])
        if self.options["json"]:
            self.found.append({"path": str(path), "predictions": [asdict(p) for p in shown]})

    def close(self) -> None:
        if self.options["json"]:
            json.dump(self.found, self.options["json"], indent=2, ensure_ascii=False)


def as_cells(predictions: Sequence[Any]) -> list[str]:
    """label, index, probability."""
    return [
        "|".join(p.label for p in predictions),
        "|".join(str(p.index) for p in predictions),
        "|".join(f"{p.probability:.6f}" for p in predictions),
    ]
