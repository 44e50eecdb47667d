"""Which epoch is kept. With a falling learning rate and averaged weights later is better, and the highest of many noisy
figures is mostly the luckiest: so the last, unless an earlier one validated better by more than a standard error."""

from collections.abc import Sequence
from math import inf, isnan
from typing import Any

Row = dict[str, Any]  # of an epoch


def is_kept(row: Row, before: Sequence[Row], name: str, validated: int) -> bool:
    """By the figure of that name, over so many images. The linear probe of epoch 0 has to be matched in full."""
    if name not in row or not before:
        return True
    first = max((_figure(one, name) for one in before if one["epoch"] == 0), default=-inf)
    tuned = _best(before, name)
    return _figure(row, name) >= max(first, _figure(tuned, name) - _standard_error(tuned, name, validated))


def early_best(row: Row, before: Sequence[Row], name: str) -> float | None:
    """What an earlier epoch validated at, if better."""
    best = _figure(_best(before, name), name)
    return best if best > _figure(row, name) else None


def _best(rows: Sequence[Row], name: str) -> Row:
    return max((row for row in rows if row["epoch"]), key=lambda row: _figure(row, name), default={})


def _figure(row: Row, name: str) -> float:
    """The least of all where it can't be known, as the mean average precision of images without any label."""
    value = row.get(name, -inf)
    return -inf if isnan(value) else value


def _standard_error(row: Row, name: str, validated: int) -> float:
    """As the row says; else that of a share of images, of which two more are taken to be right and two wrong (Agresti
    and Coull 1998): else 100 % of few would have none. A classifier's mean average precision is no share, and varies
    about as much. A figure beyond 0 and 1 that comes without its error is taken as exact."""
    share = (_figure(row, name) * validated + 2) / (validated + 4)
    share = min(max(share, 0.0), 1.0)
    return row.get(f"{name}_error", (share * (1 - share) / (validated + 4)) ** 0.5)
