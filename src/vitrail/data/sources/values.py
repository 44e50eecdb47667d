"""Tables of numbers: `path,value[,value2…][,split]`, one or several numbers per image, such as age or weight.

Every column besides path and split is learned, under its own name; `columns` chooses among them. Paths and splits are
those of `tables`.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.existence import check_exists
from vitrail.data.kinds import VALUES
from vitrail.data.samples import Sample, Source, in_order, plural, some
from vitrail.data.sources.folders import readable
from vitrail.data.sources.tables import SUFFIXES, Locator, check_columns, check_splits, read_rows, split_of
from vitrail.data.split import written
from vitrail.errors import VitrailError, nearest
from vitrail.whole import whole

EXAMPLE = "path,value[,value2…][,split]"


@dataclass(frozen=True, slots=True)
class ValuedSample(Sample):
    """An image with its numbers, in the order of the columns; it has no classes."""

    values: tuple[float, ...]

    @property
    def target(self) -> tuple[float, ...]:
        return self.values


@dataclass(repr=False)
class ValueSource(Source):
    """`classes` are the names of the columns."""

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split} {len(samples):,}" for split, samples in self.splits.items())
        return f"ValueSource({self.name}, {some(self.classes)}, {sizes})"

    def words_of(self, sample: Sample) -> list[str]:
        pairs = zip(self.classes, values_of([sample])[0], strict=True)
        return [f"{column} {value:g}" for column, value in pairs]

    def table(self, split: str) -> np.ndarray:
        """float64 [n, columns]."""
        return values_of(self.splits[split])


def values_of(samples: Sequence[Sample]) -> np.ndarray:
    """float64 [n, columns]."""
    return np.array([sample.values for sample in samples if isinstance(sample, ValuedSample)], dtype=np.float64)


def open_values(data: str | Path, columns: Sequence[str] | None = None) -> ValueSource:
    """The samples of a table; `columns` are those to read, in this order; by default all but path and split."""
    check_exists(data, VALUES, by_name=False)
    name, path = str(data), Path(data).expanduser()
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        raise VitrailError(f"{name} is not a table: expected {VALUES}.", code="no_table")
    chosen: list[str] = []

    def choose(header: list[str]) -> list[str]:
        check_columns(header, name, ("path",), EXAMPLE)
        chosen.extend(_value_columns(header, name, columns))
        return ["path", *chosen, *(["split"] if "split" in header else [])]

    rows = read_rows(path, name, choose, "path,value")
    found: dict[tuple[str, tuple[float, ...], str | None], int] = {}  # each different row, and its line
    for line, row in rows:
        if not row["path"]:
            raise VitrailError(f"Line {line} of {name} has no path.", code="no_path", line=line)
        values = tuple(_number(row[column], line, column, name) for column in chosen)
        found.setdefault((row["path"], values, split_of(row.get("split"), line, name)), line)
    check_splits(((line, split) for (_, _, split), line in found.items()), name)
    locate = Locator(path.parent)
    splits: dict[str, list[Sample]] = {}
    for file, values, split in found:
        splits.setdefault(split or "all", []).append(ValuedSample(readable(file), locate(file), (), values))
    notes = locate.notes(len(found), path, name)
    if len(found) < len(rows):
        notes.append(f"{plural(len(rows) - len(found), 'row')} of {path.name} said the same again, and count once.")
    if twice := len(found) - len({(file, split) for file, _, split in found}):
        notes.append(f"{plural(twice, 'row')} of {path.name} give other numbers to an image that had some already.")
    return ValueSource(name, chosen, in_order(splits), notes=notes)


def check_varied(source: ValueSource) -> None:
    """Refuses a column that is the same for all images to learn from."""
    for split in ("train", "all"):
        if split not in source.splits:
            continue
        table = source.table(split)
        for column, values in zip(source.classes, table.T, strict=True):
            if (values == values[0]).all():
                raise VitrailError(
                    f"The column {column} of {source.name} is {values[0]:g} for every image to learn from: there is "
                    "nothing to learn, so leave it out with --columns.",
                    code="constant_column", column=column,
                )  # fmt: skip


def write_values(path: Path, samples: dict[str, list[Sample]], columns: Sequence[str]) -> Path:
    """A table that `open_values` reads back as the same images, numbers and splits."""
    with whole(path) as part, open(part, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *columns, "split"])
        for split, several in samples.items():
            for sample in several:
                writer.writerow([written(sample, path.parent), *map(repr, sample.target), split])
    return path


def _value_columns(header: list[str], name: str, asked: Sequence[str] | None) -> list[str]:
    there = [column for column in header if column not in ("path", "split") and column]
    for column in asked or ():
        if column not in there:
            raise VitrailError(
                f'{name} has no column "{column}" (it has {some(header, 8)}).{nearest(column, there)}',
                code="no_column", column=column,
            )  # fmt: skip
    chosen = [*dict.fromkeys(asked)] if asked else there
    if not chosen:
        raise VitrailError(
            f"{name} has no column of numbers beside its paths: name the columns {EXAMPLE}.", code="no_column"
        )
    if repeated := [column for column in chosen if header.count(column) > 1]:
        raise VitrailError(
            f'{name} has the column "{repeated[0]}" more than once: rename one of them.', code="column_twice"
        )
    return chosen


def _number(cell: Any, line: int, column: str, name: str) -> float:
    where: dict[str, Any] = {"line": line, "column": column}
    text = cell.strip() if isinstance(cell, str) else cell
    if text is None or text == "":
        raise VitrailError(
            f"Line {line} of {name} has no number in the column {column}: fill it in, or take the line out.",
            code="no_value", **where,
        )  # fmt: skip
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise VitrailError(
            f'Line {line} of {name} has "{text}" in the column {column}, which is no number: mend it, or choose the '
            "columns to learn with --columns.",
            code="not_a_number", **where,
        ) from None  # fmt: skip
    if not math.isfinite(value):
        raise VitrailError(
            f"Line {line} of {name} has {value} in the column {column}: fill it in, or take the line out.",
            code="no_value", **where,
        )  # fmt: skip
    return value
