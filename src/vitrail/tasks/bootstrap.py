"""How far a figure could have fallen otherwise: intervals from drawing the test images again, with replacement."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

Array = np.ndarray


def bootstrap(
    function: Callable[[Array], float],
    n: int,
    seed: int = 0,
    rounds: int = 1000,
    level: float = 0.95,
    centre: float | None = None,
) -> tuple[float, float]:
    """The percentile interval of a figure, a fraction, over n images.

    `function` takes the indices [n] of the images drawn, some several times, and gives the figure on them. What is
    known per image is best prepared outside of it: `lambda drawn: correct[drawn].mean()`. NaNs are left out.

    Some figures are biased on a resample: chance alone parts confidence from accuracy, and a class of five images
    repeats some of them and misses others. With `centre`, the figure as measured, the percentiles are moved by that
    bias; otherwise they may leave out the very value that was measured.
    """
    values = resampled(function, n, seed, rounds)
    if centre is not None and len(values):
        values = np.clip(values - (values.mean() - centre), 0, 1)
    return percentiles(values, level)


def resampled(function: Callable[[Array], float], n: int, seed: int = 0, rounds: int = 1000) -> Array:
    """The figure on each of `rounds` resamples; the same seed draws the same images, whatever the figure."""
    generator = np.random.default_rng(seed)
    values = np.array([function(generator.integers(0, n, n)) for _ in range(rounds if n else 0)], dtype=float)
    return values[np.isfinite(values)]


def percentiles(values: Array, level: float = 0.95) -> tuple[float, float]:
    """What the middle `level` of the values lies between."""
    if not len(values):
        return math.nan, math.nan
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """The score interval of a share of n images; it keeps its width where all were right, or none."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)
