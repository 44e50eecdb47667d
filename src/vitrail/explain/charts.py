"""The charts of explain pages: attention by block, and the curves of deletion and insertion."""

from collections.abc import Callable, Mapping

import numpy as np
from markupsafe import Markup
from torch import Tensor

from vitrail.explain.figures import name_of
from vitrail.report.axes import Axes, Line, Readout, nice_ticks, whole_ticks
from vitrail.report.charts import SIZE, Series, line_chart
from vitrail.report.numbers import THIN, number, percent

CURVES = (400, 300)


def hue_of(method: str) -> str:
    """The name of a method's colour in the style sheet."""
    return method.replace("_", "-")


def heads_chart(
    title: str,
    table: Tensor | np.ndarray,
    write: Callable[[float | None], str] = number,
    limit: float | None = None,
    limit_words: str = "",
    note: str = "",
) -> Markup:
    """A value [L, H] for every head of every block: a dot per head, a line through their means. `limit` is the value
    of attending to everything alike."""
    values = np.asarray(table, dtype=float)
    rows = [row[np.isfinite(row)] for row in values]
    means = [float(row.mean()) if len(row) else None for row in rows]
    ticks = nice_ticks(0, max([*values[np.isfinite(values)], limit or 0]))
    axes = Axes.within(SIZE, (0.6, len(rows) + 0.4), (0, ticks[-1]))
    blocks = range(1, len(rows) + 1)  # people count from 1
    axes.ticks_y(ticks, number)
    axes.ticks_x(whole_ticks(1, len(rows), 8), str)
    axes.name_x("block")
    if limit is not None:
        axes.level("limit", limit)
        axes.text("tick", limit_words, axes.x.low, limit, dx=2, dy=-5)
    axes.path("line", blocks, means)
    for block, row in zip(blocks, rows, strict=True):
        axes.dots("points", [block] * len(row), row)
    spans = [f"{write(row.min())} to {write(row.max())}" if len(row) else "–" for row in rows]
    lines = [Line("mean", [write(mean) for mean in means], means), Line("heads", spans, kind="")]
    description = f"{title} by block: {write(means[0])} in block 1, {write(means[-1])} in block {len(rows)}."
    readout = Readout(blocks, [f"block {block}" for block in blocks], lines, len(rows) - 1)
    return axes.chart(title, f"{description} A dot per head.", SIZE, readout, note=note)


def curve_charts(deletion: Mapping[str, Tensor], insertion: Mapping[str, Tensor]) -> list[Markup]:
    """Mean deletion and insertion curves [steps + 1], a line per method, on axes of one height."""
    highest = max(float(line.max()) for line in [*deletion.values(), *insertion.values()])
    return [
        _curves("Deletion: lower is better", "hidden", deletion, highest),
        _curves("Insertion: higher is better", "shown", insertion, highest),
    ]


def _curves(title: str, action: str, lines: Mapping[str, Tensor], highest: float) -> Markup:
    x = np.linspace(0, 100, len(next(iter(lines.values())))).tolist()
    series = [Series(name_of(name), line.tolist(), name == "random", hue_of(name)) for name, line in lines.items()]
    labels = [f"{value:.0f}{THIN}% of patches {action}:" for value in x]
    return line_chart(
        title, x, series, percent, f"% {action}", len(x) // 2, CURVES, covering=(0, highest), labels=labels
    )
