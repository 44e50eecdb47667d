"""Drawings of a report as inline SVG: no library, no script needed to see them, colours from the page's style sheet.

A chart carries its read-out as JSON, which report.js shows at the pointer and for the arrow keys; the numbers are
written here once, so that what is read and what is drawn can't differ.
"""

import base64
import html
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from vitrail.tasks.bootstrap import wilson

LARGEST_NAMED, LARGEST_DRAWN = 60, 120  # classes of a heat map with names, and cells along a side of one without
LONGEST = 28  # letters of a class name beside a heat map
THIN = "\u202f"  # narrow space that does not break: before %


@dataclass(frozen=True)
class Series:
    """One line: None and NaN leave a gap. `plain` is drawn dashed and grey, beside the one in the accent colour."""

    name: str
    values: Sequence[float | None]
    plain: bool = False


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if not _known(value) else f"{100 * value:.{digits}f}{THIN}%"


def number(value: float | None) -> str:
    """Four digits, as many as anyone reads; small ones as they are typed: 2e-4."""
    if not _known(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value == 0 or abs(value) >= 0.001:
        return f"{value:.4g}"
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def line_chart(
    title: str,
    x: Sequence[float],
    series: Sequence[Series],
    write: Callable[[float | None], str] = number,
    x_name: str = "epoch",
    mark: int | None = None,
    size: tuple[int, int] = (460, 236),
) -> str:
    """Lines over x. `mark` is the position in x that the read-out shows at rest, drawn as a fine vertical line."""
    width, height = size
    left, right, top, bottom = 52, 12, 10, 30
    known = [value for line in series for value in line.values if _known(value)]
    if not known or not x:
        return ""
    # Less than a tenth of a percent is not written, so that an axis for it would have one label.
    ticks = nice_ticks(min(known), max(*known, 0.005) if write is percent else max(known))
    if write is percent and max(known) <= 1:
        ticks = [tick for tick in ticks if tick <= 1]
    low, high = ticks[0], ticks[-1]
    first, last = min(x), max(x)

    def across(value: float) -> float:
        return left + (width - left - right) * ((value - first) / (last - first) if last > first else 0.5)

    def down(value: float) -> float:
        return height - bottom - (height - top - bottom) * (value - low) / (high - low)

    parts, before = [], ""
    for tick in ticks:
        y = f"{down(tick):.1f}"
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        label = write(tick).replace(f".0{THIN}", THIN)
        if label != before:  # of values that differ by less than is written, one
            parts.append(f'<text class="tick end" x="{left - 8}" y="{y}" dy=".32em">{escape(label)}</text>')
        before = label
    for tick in _whole_ticks(first, last, (width - left - right) // 50):
        parts.append(f'<text class="tick middle" x="{across(tick):.1f}" y="{height - 10}">{tick}</text>')
    parts.append(f'<text class="tick end" x="{left - 8}" y="{height - 10}">{escape(x_name)}</text>')
    if mark is not None:
        kept = f"{across(x[mark]):.1f}"
        parts.append(f'<line class="mark" x1="{kept}" x2="{kept}" y1="{top}" y2="{height - bottom}"/>')
    for line in sorted(series, key=lambda line: not line.plain):
        parts.append(f'<path class="{"line plain" if line.plain else "line"}" d="{_path(x, line, across, down)}"/>')
        measured = [(at, value) for at, value in zip(x, line.values, strict=True) if _known(value)]
        if len(measured) == 1:  # a line of one point can't be seen
            at, value = measured[0]
            parts.append(f'<circle class="point" cx="{across(at):.1f}" cy="{down(value):.1f}" r="3"/>')
    points = {
        "x": [round(across(value), 1) for value in x],
        "labels": [f"{x_name} {value:g}" for value in x],
        "rest": len(x) - 1 if mark is None else mark,
        "series": [
            {
                "name": line.name,
                "plain": line.plain,
                "y": [round(down(value), 1) if _known(value) else None for value in line.values],
                "text": [write(value) for value in line.values],
            }
            for line in series
        ],
    }
    span = f"{x_name} {first:g} to {last:g}" if last > first else f"{x_name} {first:g}"
    ends = "; ".join(f"{line.name} {_ends(line.values, write)}" for line in series)
    return framed(title, f"{title} over {span}: {ends}.", size, "".join(parts), points, (top, height - bottom))


def reliability_chart(table: dict[str, Any], size: tuple[int, int] = (460, 470)) -> str:
    """Accuracy over confidence per bin, with its 95 % interval, against the diagonal of a calibrated model; below, how
    many images each bin has."""
    width, height = size
    left, right, top, bottom, strip = 52, 12, 10, 30, 74
    plot = height - top - bottom - strip - 22  # the height of the upper part
    confidence, accuracy, count = (list(table[key]) for key in ("confidence", "accuracy", "count"))
    bins, most = len(count), max([*count, 1])
    step = (width - left - right) / bins

    def across(value: float) -> float:
        return left + (width - left - right) * value

    def down(value: float) -> float:
        return top + plot * (1 - value)

    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y, label = f"{down(tick):.1f}", f"{100 * tick:g}{THIN}%"
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick end" x="{left - 8}" y="{y}" dy=".32em">{label}</text>')
        anchor = "start" if tick == 0 else "end" if tick == 1 else "middle"
        parts.append(f'<text class="tick {anchor}" x="{across(tick):.1f}" y="{height - 10}">{label}</text>')
    floor = height - bottom
    for b in range(bins):
        x, bar = left + b * step + 1, step - 2
        if not count[b]:
            continue
        reached, tall, middle = down(accuracy[b]), strip * count[b] / most, x + bar / 2
        low, high = wilson(min(max(float(accuracy[b]), 0.0), 1.0), int(count[b]))
        parts.append(
            f'<rect class="bar" x="{x:.1f}" width="{bar:.1f}" y="{reached:.1f}" height="{top + plot - reached:.1f}"/>'
            f'<line class="cap" x1="{x:.1f}" x2="{x + bar:.1f}" y1="{reached:.1f}" y2="{reached:.1f}"/>'
            f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{down(high):.1f}" y2="{down(low):.1f}"/>'
            f'<rect class="count" x="{x:.1f}" width="{bar:.1f}" y="{floor - tall:.1f}" height="{tall:.1f}"/>'
            f'<text class="small middle" x="{middle:.1f}" y="{floor - tall - 4:.1f}">{_short(count[b])}</text>'
        )
    parts.append(f'<line class="diagonal" x1="{across(0)}" y1="{down(0)}" x2="{across(1)}" y2="{down(1)}"/>')
    parts.append(f'<line class="axis" x1="{left}" x2="{width - right}" y1="{floor}" y2="{floor}"/>')
    filled = [b for b in range(bins) if count[b]]
    points = {
        "x": [round(left + (b + 0.5) * step, 1) for b in filled],
        "labels": [f"{100 * b / bins:.0f} – {percent((b + 1) / bins, 0)} sure:" for b in filled],
        "rest": len(filled) - 1,
        "series": [
            {"name": "claimed", "plain": True, "y": None, "text": [percent(confidence[b]) for b in filled]},
            {"name": "right", "y": None, "text": [percent(accuracy[b]) for b in filled]},
            {"name": "of", "bare": True, "y": None, "text": [number(int(count[b])) for b in filled]},
        ],
    }
    worst = max(filled, key=lambda b: abs(confidence[b] - accuracy[b]) * count[b])
    description = (
        f"How often the model is right for each level of confidence, in {bins} bins. The bin that adds most to the "
        f"error claims {percent(confidence[worst])} and is right in {percent(accuracy[worst])} of {count[worst]}."
    )
    return framed("Accuracy by confidence", description, size, "".join(parts), points, (top, floor), stacked=True)


def heat_map(matrix: np.ndarray, names: Sequence[str]) -> str:
    """A confusion matrix, rows true and columns predicted, shaded by the share of the row.

    Up to LARGEST_NAMED classes it has their names. More are a picture of cells, neighbours summed where they would
    be too many to see, and of the mistakes alone: beside a long diagonal those would be too faint.
    """
    block = math.ceil(len(names) / LARGEST_DRAWN)
    cells, labels = _blocks(np.asarray(matrix), names, block)
    totals = cells.sum(1, keepdims=True)
    if block > 1:  # of a block on the diagonal, what it takes for one another
        cells = _blocks(without_diagonal(matrix), names, block)[0]
    share = np.divide(cells, totals, out=np.zeros(cells.shape), where=totals > 0)
    n = len(labels)
    if n <= LARGEST_NAMED:
        longest = min(max(len(label) for label in labels), LONGEST)
        margin = 24 + 6.4 * longest
        side = min(64.0, max(15.0, (1000 - 1.72 * margin) / n))
        left, top = margin, 0.72 * margin + 6
        width, height = left + n * side + 0.72 * margin, top + n * side + 8
        body = _named_cells(cells, share, labels, (left, top), side)
    else:
        side, left, top = 6.0, 26.0, 26.0
        picture = _shaded(share if block > 1 else without_diagonal(share))
        width, height = left + n * side + 2, top + n * side + 2
        body = (
            f'<image href="{picture}" x="{left}" y="{top}" width="{n * side}" height="{n * side}" '
            'preserveAspectRatio="none"/>'
        )
        body += f'<rect class="frame" x="{left}" y="{top}" width="{n * side}" height="{n * side}"/>'
        body += f'<text class="tick" x="{left}" y="{top - 9}">predicted →</text>'
        body += f'<text class="tick" transform="translate({left - 9},{top}) rotate(90)">labelled →</text>'
    body += f'<rect class="cursor" width="{side:.2f}" height="{side:.2f}" hidden=""/>'
    rows, columns = np.nonzero(cells)
    data = {
        "names": labels,
        "origin": [left, top],
        "side": side,
        "merged": block > 1,
        "totals": totals[:, 0].tolist(),
        "cells": [[int(r), int(c), int(cells[r, c])] for r, c in zip(rows, columns, strict=True)],
    }
    right = int(np.trace(matrix))
    description = f"{right} of {int(matrix.sum())} images lie on the diagonal, where label and prediction agree."
    return (
        f'<div class="heat" data-heat tabindex="0" role="group" aria-label="Confusion matrix. {escape(description)} '
        'The arrow keys move through its cells.">'
        f'<div class="scroll"><svg viewBox="0 0 {width:.0f} {height:.0f}" style="width:{width:.0f}px" '
        f'aria-hidden="true">{body}</svg></div>'
        '<p class="readout" aria-live="polite"></p>'
        f"{_script(data)}</div>"
    )


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`; from zero where that costs little of the height."""
    if low > 0 and low < 0.4 * high:
        low = 0.0
    if high - low <= 1e-12 * abs(high) or high - low < 1e-100:  # all alike, perhaps all nothing
        low, high = low - abs(low) / 2, high + (abs(high) / 2 if abs(high) > 1e-100 else 1.0)
    rough = (high - low) / about
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, max(12, 3 - exponent)) for i in range(start, stop + 1)]


def _whole_ticks(first: float, last: float, most: int) -> list[int]:
    """Whole numbers between the two, the first and, where there is room, the last among them."""
    first_, last_ = math.ceil(first), math.floor(last)
    if last_ <= first_:
        return [first_]
    steps = (10**power * factor for power in range(9) for factor in (1, 2, 5))
    step = next(step for step in steps if last_ - first_ <= step * most)
    ticks = [first_] + [i for i in range(first_ - first_ % step, last_ + 1, step) if i > first_]
    if len(ticks) > 1 and ticks[1] - first_ < 0.6 * step:
        del ticks[1]
    return ticks


def _path(x: Sequence[float], line: Series, across: Callable, down: Callable) -> str:
    parts, pen = [], "M"
    for at, value in zip(x, line.values, strict=True):
        if _known(value):
            parts.append(f"{pen}{across(at):.1f} {down(value):.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)


def framed(
    title: str,
    description: str,
    size: tuple[int, int],
    body: str,
    points: dict[str, Any],
    extent: tuple[int, int],
    stacked: bool = False,
) -> str:
    """A chart with its title, its legend, which is also the read-out (beneath if `stacked`), and a description."""
    rest = points["rest"]
    keys = "".join(
        f'<span class="key">{_sample(line)}{escape(line["name"])} <b>{escape(line["text"][rest])}</b></span>'
        for line in points["series"]
    )
    top, floor = extent
    dots = "".join('<circle class="dot" r="3.5"/>' for _ in points["series"])
    return (
        f'<figure class="chart{" stacked" if stacked else ""}" data-chart tabindex="0" role="group" '
        f'aria-label="{escape(description)} The left and right arrow keys move through it.">'
        f'<figcaption><span class="chart-title">{escape(title)}</span><span class="readout" aria-live="polite">'
        f'<span class="at">{escape(points["labels"][rest])}</span>{keys}</span></figcaption>'
        f'<svg viewBox="0 0 {size[0]} {size[1]}" aria-hidden="true">{body}'
        f'<g class="hover" hidden=""><line class="cross" y1="{top}" y2="{floor}"/>{dots}</g></svg>'
        f"{_script(points)}</figure>"
    )


def _sample(line: dict[str, Any]) -> str:
    if line.get("bare") or not line["name"]:
        return ""
    kind = "line plain" if line.get("plain") else "line"
    return f'<svg class="sample" viewBox="0 0 20 8" aria-hidden="true"><path class="{kind}" d="M1 4H19"/></svg>'


def _script(data: dict[str, Any]) -> str:
    """JSON in the page; `<` is written so that no name can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _named_cells(
    cells: np.ndarray, share: np.ndarray, labels: Sequence[str], origin: tuple[float, float], side: float
) -> str:
    left, top = origin
    n = len(labels)
    edge = n * side
    parts = [f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{edge:.1f}" height="{edge:.1f}"/>']
    across = "".join(f"M{left:.1f} {top + i * side:.1f}h{edge:.1f}" for i in range(1, n))
    down = "".join(f"M{left + i * side:.1f} {top:.1f}v{edge:.1f}" for i in range(1, n))
    parts.append(f'<path class="hair" d="{across}{down}"/>')
    for i, label in enumerate(labels):
        short = escape(label if len(label) <= LONGEST else label[: LONGEST - 1] + "…")
        middle = (i + 0.5) * side
        parts.append(f'<text class="tick end" x="{left - 7:.1f}" y="{top + middle:.1f}" dy=".32em">{short}</text>')
        at = f"translate({left + middle:.1f},{top - 7:.1f}) rotate(-45)"
        parts.append(f'<text class="tick" transform="{at}" dy=".32em">{short}</text>')
    for r, c in zip(*np.nonzero(cells), strict=True):
        x, y = left + c * side, top + r * side
        strength = _strength(share[r, c])
        parts.append(
            f'<rect class="cell" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.1f}" '
            f'height="{side - 1:.1f}" fill-opacity="{strength:.2f}"/>'
        )
        if n <= 16:
            kind = "inside middle on" if strength > 0.55 else "inside middle"
            parts.append(
                f'<text class="{kind}" x="{x + side / 2:.1f}" y="{y + side / 2:.1f}" dy=".34em">'
                f"{_short(int(cells[r, c]))}</text>"
            )
    return "".join(parts)


def _strength(share: Any) -> Any:
    """Opacity of a share: rare confusions are what one looks for, so small shares are lifted."""
    return np.asarray(share) ** 0.6


def _shaded(share: np.ndarray) -> str:
    """The shares, relative to the largest, as a picture of one pixel each, in a blue for light and dark paper."""
    from PIL import Image

    pixels = np.zeros((*share.shape, 4), np.uint8)
    pixels[..., :3] = (74, 106, 205)
    strength = _strength(share / (share.max() or 1))
    pixels[..., 3] = np.round(255 * np.where(share > 0, 0.15 + 0.85 * strength, 0))
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _blocks(matrix: np.ndarray, names: Sequence[str], block: int) -> tuple[np.ndarray, list[str]]:
    """The counts of `block` neighbouring classes summed."""
    if block == 1:
        return matrix, [str(name) for name in names]
    starts = range(0, len(names), block)
    cells = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    lasts = [min(start + block, len(names)) - 1 for start in starts]
    return cells, [f"{names[a]} … {names[b]}" for a, b in zip(starts, lasts, strict=True)]


def without_diagonal(matrix: np.ndarray) -> np.ndarray:
    matrix = np.array(matrix)
    np.fill_diagonal(matrix, 0)
    return matrix


def _short(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"


def _ends(values: Sequence[float | None], write: Callable[[float | None], str]) -> str:
    known = [value for value in values if _known(value)]
    return f"from {write(known[0])} to {write(known[-1])}" if known else "not measured"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
