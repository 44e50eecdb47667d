"""The figures of predicted numbers, as plain functions of what was predicted and what was true.

Everywhere: `predicted` and `true` are float [n, C], n images and C columns, in units. Figures of single columns are
[C]; where one can't be known, as R² of a column that is the same for all images, it is NaN, and `regression_figures`
leaves the key out.
"""

from collections.abc import Callable, Sequence

import numpy as np

from vitrail.tasks.bootstrap import Array, percentiles, resampled


def mae(predicted: Array, true: Array) -> Array:
    """The mean absolute error."""
    return np.abs(predicted - true).mean(axis=0)


def rmse(predicted: Array, true: Array) -> Array:
    """The root of the mean squared error, to which large errors add most."""
    return np.sqrt(np.square(predicted - true).mean(axis=0))


def r2(predicted: Array, true: Array) -> Array:
    """1 − squared error / squared distance of the truth from its mean: 1 is perfect, 0 is saying the mean of these very
    images, and below 0 is worse than that."""
    spread = np.square(true - true.mean(axis=0)).sum(axis=0)
    error = np.square(predicted - true).sum(axis=0)
    return 1 - np.divide(error, spread, out=np.full(len(spread), np.nan), where=spread > 0)


def pearson(one: Array, other: Array) -> Array:
    """The correlation of columns."""
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    size = np.sqrt(np.square(one).sum(axis=0) * np.square(other).sum(axis=0))
    return np.divide((one * other).sum(axis=0), size, out=np.full(len(size), np.nan), where=size > 0)


def spearman(predicted: Array, true: Array) -> Array:
    """The correlation of ranks: does the order agree, whatever the distances?"""
    return pearson(ranks(predicted), ranks(true))


def ranks(values: Array) -> Array:
    """In each column, from 1 on; equal values share the mean of their ranks."""
    found = np.empty(values.shape)
    for column in range(values.shape[1]):
        _, place, count = np.unique(values[:, column], return_inverse=True, return_counts=True)
        last = np.cumsum(count)
        found[:, column] = (last - (count - 1) / 2)[place]
    return found


FIGURES: dict[str, Callable[[Array, Array], Array]] = {"r2": r2, "mae": mae, "rmse": rmse, "spearman": spearman}


def regression_figures(predicted: Array, true: Array, columns: Sequence[str], seed: int = 0) -> dict[str, float]:
    """r2, mae, rmse and spearman as means over the columns, each with `_low` and `_high` of a 95 % interval; of each
    column as mae/<name>; and n."""
    figures: dict[str, float] = {}
    single: dict[str, float] = {}
    for name, function in FIGURES.items():
        each = function(predicted, true)
        known = np.isfinite(each)
        if not known.any():
            continue
        figures[name] = float(each[known].mean())
        low, high = percentiles(figure_resampled(name, predicted[:, known], true[:, known], seed))
        if np.isfinite(low):
            figures |= {f"{name}_low": low, f"{name}_high": high}
        single |= {f"{name}/{columns[c]}": float(each[c]) for c in np.flatnonzero(known).tolist()}
    return figures | single | {"n": len(true)}


def figure_resampled(name: str, predicted: Array, true: Array, seed: int = 0, rounds: int = 1000) -> Array:
    """The mean over the columns on resamples of the images. For Spearman the ranks are those among all images: to rank
    each resample anew would take most of the time, and changes the interval little."""
    function = FIGURES[name]
    if name == "spearman":
        predicted, true, function = ranks(predicted), ranks(true), pearson
    return resampled(lambda drawn: _mean(function(predicted[drawn], true[drawn])), len(true), seed, rounds)


def _mean(each: Array) -> float:
    return float(each.mean())  # NaN where a column can't be known: such a resample says nothing
