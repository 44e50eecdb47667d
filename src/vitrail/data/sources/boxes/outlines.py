"""The shape of an object inside its box: polygons, or COCO's run lengths, to and from masks.

Run lengths go down the columns, zeros first: [[0, 1], [1, 1]] is 1, 3. COCO's files hold them as a list or, mostly, as
a string in which each number is written five bits at a time, as its difference to the last but one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from vitrail.errors import VitrailError

Outline = Sequence[np.ndarray] | Mapping[str, Any]  # polygons [k, 2] in fractions of the image, or run lengths

FINER = 4  # how many times finer than its pixels a polygon is drawn
_BITS, _MORE, _SIGN, _FIRST = 5, 0x20, 0x10, 48


def rasterise(outline: Outline, size: tuple[int, int]) -> np.ndarray:
    """bool [h, w] of the whole image, in this size."""
    height, width = size
    if isinstance(outline, Mapping):
        mask = from_runs(outline)
        if mask.shape != size:
            mask = np.array(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
        return mask
    # Drawn finer and averaged, inside the polygons' frame alone: Pillow counts every pixel that an edge touches.
    points = [np.asarray(polygon, np.float64) * (width, height) for polygon in outline]
    every = np.concatenate(points)
    left, top = np.clip(np.floor(every.min(axis=0)), 0, (width, height)).astype(int).tolist()
    right, bottom = np.clip(np.ceil(every.max(axis=0)), 0, (width, height)).astype(int).tolist()
    mask = np.zeros(size, bool)
    if right <= left or bottom <= top:
        return mask
    canvas = Image.new("L", (FINER * (right - left), FINER * (bottom - top)))
    pen = ImageDraw.Draw(canvas)
    for polygon in points:
        # Pillow means pixels, whose middles lie half a pixel in; those of the edge count half.
        pen.polygon([(FINER * (x - left) - 0.5, FINER * (y - top) - 0.5) for x, y in polygon], fill=255, outline=128)
    mask[top:bottom, left:right] = np.asarray(canvas.reduce(FINER)) >= 128
    return mask


def to_runs(mask: np.ndarray) -> dict[str, Any]:
    """COCO's form of a mask, ready for JSON."""
    flat = np.asarray(mask, bool).flatten(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    ends = np.concatenate([[0], changes, [len(flat)]])
    counts = np.diff(ends)
    if len(flat) and flat[0]:
        counts = np.concatenate([[0], counts])
    height, width = mask.shape
    return {"size": [height, width], "counts": _written(counts.tolist())}


def from_runs(runs: Mapping[str, Any]) -> np.ndarray:
    """bool [h, w]."""
    size, counts = _counted(runs)
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(size, order="F")


def sound(runs: Mapping[str, Any], size: tuple[int, int]) -> bool:
    """Do these run lengths make a mask of this height and width?"""
    try:
        return _counted(runs)[0] == size
    except VitrailError:
        return False


def _counted(runs: Mapping[str, Any]) -> tuple[tuple[int, int], list[int]]:
    try:
        height, width = (int(side) for side in runs["size"])
        counts = runs["counts"]
        counts = _read(counts) if isinstance(counts, str | bytes) else [int(count) for count in counts]
        if min(counts, default=0) < 0 or sum(counts) != height * width:
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise VitrailError("A mask's run lengths do not add up to its size.") from None
    return (height, width), counts


def _written(counts: list[int]) -> str:
    letters = []
    for place, count in enumerate(counts):
        rest = count - counts[place - 2] if place > 2 else count
        more = True
        while more:
            bits, rest = rest & 0x1F, rest >> _BITS
            more = rest != (-1 if bits & _SIGN else 0)
            letters.append(chr((bits | (_MORE if more else 0)) + _FIRST))
    return "".join(letters)


def _read(text: str | bytes) -> list[int]:
    codes = text if isinstance(text, bytes) else text.encode("ascii", "replace")
    counts: list[int] = []
    place = 0
    while place < len(codes):
        value, shift, more = 0, 0, True
        while more:
            code = codes[place] - _FIRST
            value |= (code & 0x1F) << shift
            shift, place, more = shift + _BITS, place + 1, bool(code & _MORE)
        if code & _SIGN:
            value |= -1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts
