"""The charts that several pages draw: lines, calibration, and points against each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.report.axes import Axes, Line, Readout, Scale, Values, factor_ticks, nice_ticks, whole_ticks
from vitrail.report.numbers import THIN, known, number, percent, short_count

SIZE = (460, 236)
MOST_POINTS = 2000  # of a scatter chart: more can't be told apart, and make a large page

Write = Callable[[float | None], str]


@dataclass(frozen=True)
class Series:
    """One line: None and NaN leave a gap. `plain` is drawn dashed and grey, beside the one in the accent colour; `hue`
    is another colour of the style sheet."""

    name: str
    values: Values
    plain: bool = False
    hue: str = ""

    @property
    def kind(self) -> str:
        return "line plain" if self.plain else "line"


def line_chart(
    title: str,
    x: Sequence[float],
    series: Sequence[Series],
    write: Write = number,
    x_name: str = "epoch",
    mark: int | None = None,
    size: tuple[int, int] = SIZE,
    factors: bool = False,
    covering: Sequence[float] = (),
    labels: Sequence[str] = (),
    note: str = "",
) -> Markup:
    """Lines over x. `mark` is the position in x that the read-out shows at rest, drawn as a fine vertical line; with
    `factors` equal heights are equal factors, and what isn't above 0 is a gap. `covering` are values that the axis has
    room for besides, and `labels` what the read-out calls each x."""
    if factors:
        series = [Series(s.name, [_above_0(v) for v in s.values], s.plain, s.hue) for s in series]
    values = [value for line in series for value in line.values if known(value)]
    if not values or not x:
        return Markup()
    ends, ticks = _factors(values) if factors else _evenly([*values, *covering], write)
    axes = Axes.within(size, (min(x), max(x)), ends, warp_y=log10 if factors else float)
    axes.ticks_y(ticks, write)
    axes.ticks_x(whole_ticks(min(x), max(x), int(axes.x.length) // 50), str)
    axes.name_x(x_name)
    if mark is not None:
        axes.upright("mark", x[mark])
    for line in sorted(series, key=lambda line: not line.plain):
        axes.path(line.kind, x, line.values, line.hue)
        measured = [(at, value) for at, value in zip(x, line.values, strict=True) if known(value)]
        if len(measured) == 1:  # a line of one point can't be seen
            axes.point(*measured[0], hue=line.hue)
    lines = [Line(s.name, [write(value) for value in s.values], s.values, s.kind, s.hue) for s in series]
    labels = labels or [f"{x_name} {value:g}" for value in x]
    readout = Readout(x, labels, lines, len(x) - 1 if mark is None else mark)
    span = f"{x_name} {min(x):g} to {max(x):g}" if len(x) > 1 else f"{x_name} {x[0]:g}"
    said = "; ".join(f"{line.name} {_ends(line.values, write)}".strip() for line in series)
    return axes.chart(title, f"{title} over {span}: {said}.", size, readout, note=note)


def reliability_chart(table: Mapping[str, Any], size: tuple[int, int] = (460, 470)) -> Markup:
    """Accuracy over confidence per bin, with its 95 % interval, against the diagonal of a calibrated model; below, how
    many images each bin has."""
    confidence, accuracy, count = table["confidence"], table["accuracy"], [int(n) for n in table["count"]]
    bins, strip = len(count), 74
    axes = Axes.within(size, (0, 1), (0, 1), bottom=30 + strip + 22)
    below = Axes(axes.x, Scale(0, max([*count, 1]), size[1] - 30, size[1] - 30 - strip))
    axes.ticks_y((0, 0.25, 0.5, 0.75, 1), percent)
    for tick, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end")):
        below.text(f"tick {anchor}", f"{100 * tick:g}{THIN}%", tick, 0, dy=20)
    filled = [b for b in range(bins) if count[b]]
    for b in filled:
        ends, middle = (b / bins, (b + 1) / bins), (b + 0.5) / bins
        axes.bar("bar", ends, accuracy[b], gap=2)
        axes.line("cap", (ends[0] + 0.04 / bins, ends[1] - 0.04 / bins), (accuracy[b], accuracy[b]))
        axes.line("whisker", (middle, middle), (table["low"][b], table["high"][b]))
        below.bar("count", ends, count[b], gap=2)
        below.text("small middle", short_count(count[b]), middle, count[b], dy=-4)
    axes.line("diagonal", (0, 1), (0, 1))
    below.level("axis", 0)
    lines = [
        Line("claimed", [percent(confidence[b]) for b in filled], kind="line plain"),
        Line("right", [percent(accuracy[b]) for b in filled]),
        Line("of", [number(count[b]) for b in filled], kind=""),
    ]
    labels = [f"{100 * b / bins:.0f} – {percent((b + 1) / bins, 0)} confidence:" for b in filled]
    readout = Readout([(b + 0.5) / bins for b in filled], labels, lines, len(filled) - 1)
    worst = max(filled, key=lambda b: abs(confidence[b] - accuracy[b]) * count[b])
    description = (
        f"Accuracy for each level of confidence, in {bins} bins. The bin that adds most to the calibration error "
        f"claims {percent(confidence[worst])} and is right in {percent(accuracy[worst])} of {count[worst]}."
    )
    return axes.chart("Accuracy by confidence", description, size, readout, below, stacked=True)


def scatter_chart(
    title: str,
    x: Sequence[float] | np.ndarray,
    y: Sequence[float] | np.ndarray,
    x_name: str,
    y_name: str,
    write: Write = number,
    level: float | None = None,
    diagonal: bool = False,
    size: tuple[int, int] = (460, 300),
) -> Markup:
    """A dot for every pair, read one by one. `level` is a height that they are compared with, and `diagonal` where
    both are the same."""
    pairs = np.stack([np.asarray(x, float), np.asarray(y, float)], axis=1)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if not len(pairs):
        return Markup()
    every = len(pairs)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]  # by x: the arrow keys move from left to right
    pairs = pairs[np.linspace(0, every - 1, min(every, MOST_POINTS)).round().astype(int)]
    across, up = pairs.T
    ticks_x = nice_ticks(float(across.min()), float(across.max()))
    ticks_y = nice_ticks(*_span(up if level is None else [*up, level]))
    if diagonal:
        ticks_x = ticks_y = nice_ticks(*_span(pairs.ravel()))
    axes = Axes.within(size, (ticks_x[0], ticks_x[-1]), (ticks_y[0], ticks_y[-1]), bottom=46)
    axes.ticks_y(ticks_y, write)
    axes.ticks_x(ticks_x, write)
    axes.draw("text", "tick middle", x_name, x=(axes.x.start + axes.x.end) / 2, y=size[1] - 6)
    if diagonal:
        axes.line("diagonal", (axes.x.low, axes.x.high), (axes.y.low, axes.y.high))
    if level is not None:
        axes.level("diagonal", level)
    axes.dots("points", across, up)
    labels = [f"{x_name} {write(value)}" for value in across]
    readout = Readout(across, labels, [Line(y_name, [write(v) for v in up], up, kind="")], scattered=True)
    drawn = "" if len(pairs) == every else f" {len(pairs):,} of {every:,} are drawn."
    description = (
        f"{title}: {every:,} points; {x_name} from {write(across.min())} to {write(across.max())}, {y_name} from "
        f"{write(up.min())} to {write(up.max())}.{drawn}"
    )
    return axes.chart(title, description, size, readout)


def residual_chart(
    title: str, true: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray, write: Write = number
) -> Markup:
    """How far predictions lie above or below the truth, over the truth; a level line is what a good model shows."""
    residual = np.asarray(predicted, float) - np.asarray(true, float)
    return scatter_chart(title, true, residual, "true value", "predicted − true", write, level=0.0)


def _evenly(values: list[float], write: Write) -> tuple[tuple[float, float], list[float]]:
    """The ends of an axis for these values and its ticks; of shares, none beyond all."""
    # Less than a tenth of a percent is not written, so that an axis for it would have one label.
    ticks = nice_ticks(min(values), max(*values, 0.005) if write is percent else max(values))
    if write is percent and max(values) <= 1:
        ticks = [tick for tick in ticks if tick <= 1]
    return (ticks[0], ticks[-1]), ticks


def _factors(values: list[float]) -> tuple[tuple[float, float], list[float]]:
    """The same on a scale of factors, never less than a factor of 16 high: a level line is to look level."""
    low, high = min(values), max(values)
    middle = (low * high) ** 0.5
    ends = min(low / 1.3, middle / 4), max(high * 1.3, middle * 4)
    return ends, factor_ticks(*ends)


def _span(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    return float(np.min(values)), float(np.max(values))


def _above_0(value: float | None) -> float | None:
    return value if known(value) and value > 0 else None


def _ends(values: Values, write: Write) -> str:
    measured = [value for value in values if known(value)]
    return f"from {write(measured[0])} to {write(measured[-1])}" if measured else "not measured"
