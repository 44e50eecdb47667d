"""A confusion matrix as a heat map, from two classes to a thousand."""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from PIL import Image

from vitrail.report.axes import Axes, Scale
from vitrail.report.drawing import data_uri, encoded
from vitrail.report.numbers import short_count
from vitrail.report.page import PARTS

LARGEST_NAMED, LARGEST_DRAWN = 60, 120  # classes with their names, and cells along a side without
LARGEST_COUNTED = 16  # classes whose cells have room for their counts
LONGEST = 28  # letters of a class name beside a heat map
BLUE = (74, 106, 205)  # of cells that are pixels: seen on light and on dark paper


def heat_map(matrix: np.ndarray, names: Sequence[str]) -> Markup:
    """A confusion matrix, rows true and columns predicted, shaded by the share of the row.

    Up to LARGEST_NAMED classes it has their names. More are an image of cells, neighbours summed where they would be
    too many to see, and of the mistakes alone: beside a long diagonal those would be too faint.
    """
    matrix = np.asarray(matrix)
    block = math.ceil(len(names) / LARGEST_DRAWN)
    cells, labels = _blocks(matrix, names, block)
    totals = cells.sum(1, keepdims=True)
    if block > 1:  # of a block on the diagonal, what it takes for one another
        cells = _blocks(without_diagonal(matrix), names, block)[0]
    share = np.divide(cells, totals, out=np.zeros(cells.shape), where=totals > 0)
    if len(labels) <= LARGEST_NAMED:
        axes, size = _named(cells, share, labels)
    else:
        axes, size = _pixels(share if block > 1 else without_diagonal(share))
    side = axes.x.length / len(labels)
    rows, columns = np.nonzero(cells)
    data = {
        "names": labels,
        "origin": [axes.x.start, axes.y.start],
        "side": side,
        "merged": block > 1,
        "totals": totals[:, 0].tolist(),
        "cells": [[int(r), int(c), int(cells[r, c])] for r, c in zip(rows, columns, strict=True)],
    }
    right = int(np.trace(matrix))
    description = f"{right} of {int(matrix.sum())} images lie on the diagonal, where label and prediction agree."
    return PARTS.heat_map(description, [round(s) for s in size], Markup("").join(axes.marks), f"{side:.2f}", data)


def without_diagonal(matrix: np.ndarray) -> np.ndarray:
    matrix = np.array(matrix)
    np.fill_diagonal(matrix, 0)
    return matrix


def _square(count: int, side: float, left: float, top: float) -> Axes:
    """Axes of `count` by `count` cells, the first at the top left."""
    edge = count * side
    axes = Axes(Scale(0, count, left, left + edge), Scale(0, count, top, top + edge))
    axes.draw("rect", "frame", x=left, y=top, width=edge, height=edge)
    return axes


def _named(cells: np.ndarray, share: np.ndarray, labels: Sequence[str]) -> tuple[Axes, tuple[float, float]]:
    n = len(labels)
    margin = 24 + 6.4 * min(max(len(label) for label in labels), LONGEST)  # for names at the left; leaning, above
    side = min(64.0, max(15.0, (1000 - 1.72 * margin) / n))
    left, top = margin, 0.72 * margin + 6
    axes = _square(n, side, left, top)
    for i in range(1, n):
        axes.level("hair", i)
        axes.upright("hair", i)
    for i, label in enumerate(labels):
        short = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
        axes.draw("text", "tick end", short, x=left - 7, y=axes.y(i + 0.5), dy=".32em")
        leaning = f"translate({axes.x(i + 0.5):.1f},{top - 7:.1f}) rotate(-45)"
        axes.draw("text", "tick", short, transform=leaning, dy=".32em")
    for row, column in zip(*np.nonzero(cells), strict=True):
        strength = _strength(share[row, column])
        place = {"x": axes.x(column) + 0.5, "y": axes.y(row) + 0.5}
        axes.draw("rect", "cell", **place, width=side - 1, height=side - 1, fill_opacity=f"{strength:.2f}")
        if n <= LARGEST_COUNTED:
            kind = "inside middle on" if strength > 0.55 else "inside middle"
            axes.text(kind, short_count(int(cells[row, column])), column + 0.5, row + 0.5, dy=4)
    return axes, (left + n * side + 0.72 * margin, top + n * side + 8)


def _pixels(share: np.ndarray) -> tuple[Axes, tuple[float, float]]:
    """The shares, relative to the largest, as an image of one pixel each."""
    n, side, margin = len(share), 6.0, 26.0
    axes = _square(n, side, margin, margin)
    pixels = np.zeros((n, n, 4), np.uint8)
    pixels[..., :3] = BLUE
    strength = _strength(share / (share.max() or 1))
    pixels[..., 3] = np.round(255 * np.where(share > 0, 0.15 + 0.85 * strength, 0))
    image = data_uri(encoded(Image.fromarray(pixels, "RGBA"), "PNG", optimize=True), "PNG")
    place = {"x": margin, "y": margin, "width": n * side, "height": n * side}
    axes.draw("image", "cells", **place, href=image, preserveAspectRatio="none")
    axes.draw("text", "tick", "predicted →", x=margin, y=margin - 9)
    axes.draw("text", "tick", "labelled →", transform=f"translate({margin - 9},{margin}) rotate(90)")
    return axes, (margin + n * side + 2, margin + n * side + 2)


def _strength(share: np.ndarray) -> np.ndarray:
    """Opacity of a share: rare confusions are what one looks for, so small shares are lifted."""
    return np.asarray(share) ** 0.6


def _blocks(matrix: np.ndarray, names: Sequence[str], block: int) -> tuple[np.ndarray, list[str]]:
    """The counts of `block` neighbouring classes summed."""
    if block == 1:
        return matrix, [str(name) for name in names]
    starts = range(0, len(names), block)
    cells = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    lasts = [min(start + block, len(names)) - 1 for start in starts]
    return cells, [f"{names[a]} … {names[b]}" for a, b in zip(starts, lasts, strict=True)]
