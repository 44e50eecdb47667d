"""Maps as pixels: overlays on the image that the model saw, and mosaics. Arrays in, uint8 arrays out.

One cell of a map is one patch, and is drawn as one: smoothed maps look finer than what the model knows. Colours run
from 0 to the largest value of that map, so two maps can be compared in place, not in strength.
"""

from collections.abc import Sequence

import matplotlib
import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.report.drawing import encoded as file_content

Array = np.ndarray
PAPER, LEAD = (255, 255, 255), (29, 31, 38)  # between tiles: in print, and on a page that may be light or dark
EVEN = 0.8  # of a map's largest value: whatever is above is of much the same colour
GREY = np.array([0.299, 0.587, 0.114])  # how bright the eye finds red, green and blue


def pixels(picture: Array | Tensor) -> Array:
    """An image as float [H, W, 3] in 0 … 1, from uint8 [H, W, C] or from a tensor [C, H, W] in 0 … 1."""
    if isinstance(picture, Tensor):
        found = picture.permute(1, 2, 0).clamp(0, 1).double().numpy()
    else:
        found = picture.reshape(*picture.shape[:2], -1) / 255.0
    return found.repeat(3, axis=2) if found.shape[2] == 1 else found


def as_bytes(picture: Array) -> Array:
    return (picture.clip(0, 1) * 255).round().astype(np.uint8)


def scaled(values: Array | Tensor) -> Array:
    """To 0 … 1 by its largest value; nothing below 0 is drawn."""
    found = np.asarray(values, dtype=float).clip(min=0)
    largest = found.max(initial=0)
    return found / largest if largest > 0 else found


def nearly_even(values: Tensor) -> bool:
    """Is the map bright all over, and so says next to nothing?"""
    return bool(values.min() >= EVEN * values.max())


def over_pixels(cells: Array, cell: tuple[int, int], size: tuple[int, int]) -> Array:
    """Each cell over the pixels of its patch, [h, w, …] -> [H, W, …]; what hangs over the edge is cut."""
    return cells.repeat(cell[0], axis=0).repeat(cell[1], axis=1)[: size[0], : size[1]]


def overlay(picture: Array | Tensor, values: Array | Tensor, cell: tuple[int, int], strength: float = 0.8) -> Array:
    """The image in grey, and over it the map from dark to bright: uint8 [H, W, 3]."""
    light = pixels(picture)
    heat = over_pixels(scaled(values), cell, light.shape[:2])
    colour = matplotlib.colormaps["inferno"](heat)[..., :3]
    share = (0.15 + (strength - 0.15) * heat)[..., None]
    grey = (light @ GREY)[..., None] * 0.8
    return as_bytes(grey * (1 - share) + colour * share)


def coloured(values: Array | Tensor, low: float, high: float, name: str = "viridis") -> Array:
    """A map by a colour scale with fixed ends: uint8 [h, w, 3]."""
    found = (np.asarray(values, dtype=float) - low) / max(high - low, 1e-12)
    return as_bytes(matplotlib.colormaps[name](found.clip(0, 1))[..., :3])


def shrunk(picture: Array, longest: int) -> Array:
    """No side longer than `longest`."""
    share = longest / max(picture.shape[:2])
    if share >= 1:
        return picture
    size = (max(1, round(picture.shape[1] * share)), max(1, round(picture.shape[0] * share)))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


def enlarged(picture: Array, zoom: int) -> Array:
    """Every pixel over zoom×zoom, with smooth passages: small photographs are hard to make out in squares."""
    size = (picture.shape[1] * zoom, picture.shape[0] * zoom)
    return picture if zoom == 1 else np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC))


def mosaic(rows: Sequence[Sequence[Array]], gap: int = 2, between: Sequence[int] = PAPER) -> Array:
    """Tiles of one size in rows, with gaps of one colour between: uint8 [H, W, 3]."""
    height, width = rows[0][0].shape[:2]
    across = max(len(row) for row in rows)
    out = np.full((len(rows) * (height + gap) - gap, across * (width + gap) - gap, 3), between, np.uint8)
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            out[i * (height + gap) :, j * (width + gap) :][:height, :width] = tile
    return out


def head_mosaic(
    picture: Array,
    layers: Sequence[Tensor],
    cells: Sequence[tuple[int, int]],
    side: int = 112,
    between: Sequence[int] = PAPER,
) -> Array:
    """Attention [H, h, w] of every layer over the image: a column per layer, a row per head, their mean at the end.
    Where layers differ in heads, as in Swin, rows would mean nothing: then their mean alone."""
    columns = []
    for maps, cell in zip(layers, cells, strict=True):
        rows = [maps.mean(dim=0)] if len(head_names(layers)) == 1 else [*maps, maps.mean(dim=0)]
        columns.append([shrunk(overlay(picture, one, cell, strength=0.9), side) for one in rows])
    return mosaic([*zip(*columns, strict=True)], 4, between)


def head_names(layers: Sequence[Tensor]) -> list[str]:
    """Of the rows of `head_mosaic`, counted from 1, as all images and pages count."""
    counts = {len(maps) for maps in layers}
    return ["mean"] if counts == {1} or len(counts) > 1 else [*(f"head {i + 1}" for i in range(counts.pop())), "mean"]


def position_mosaic(similarity: Tensor, gap: int = 2, side: int = 900, between: Sequence[int] = PAPER) -> Array:
    """For every patch, in its place, how similar its position is to all others: [h, w, h, w] -> uint8."""
    h, w = similarity.shape[:2]
    # From the smallest similarity, for many tables never come near −1, to 1.
    low = float(similarity.min())
    zoom = max(1, side // (max(h, w) ** 2 + gap * max(h, w)))
    tiles = [[coloured(similarity[r, c], low, 1.0) for c in range(w)] for r in range(h)]
    tiles = [[tile.repeat(zoom, axis=0).repeat(zoom, axis=1) for tile in row] for row in tiles]
    return mosaic(tiles, gap, between)


def filter_mosaic(
    filters: Tensor, across: int = 7, zoom: int = 5, gap: int = 6, between: Sequence[int] = PAPER
) -> Array:
    """Filters [k, C, p, q] as small images, zero in mid-grey, each by its own largest weight."""
    half = filters.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-12)
    shown = (0.5 + 0.5 * filters / half).numpy().transpose(0, 2, 3, 1)  # k p q C
    shown = shown.repeat(3, axis=3) if shown.shape[3] == 1 else shown
    tiles = [as_bytes(one.repeat(zoom, axis=0).repeat(zoom, axis=1)) for one in shown]
    return mosaic([tiles[i : i + across] for i in range(0, len(tiles), across)], gap, between)


def encoded(picture: Array, kind: str = "PNG") -> bytes:
    """As a file: PNG for graphics, JPEG for what is mostly a photograph."""
    options = {"quality": 88, "subsampling": 0} if kind == "JPEG" else {}
    return file_content(Image.fromarray(picture), kind, **options)
