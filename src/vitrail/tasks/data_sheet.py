"""A few images of a data set with their masks or boxes on them, in one image: are the labels where the things are?"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.inspect.sheet import kind_of
from vitrail.data.samples import Sample, Source
from vitrail.data.sources.boxes.samples import Boxed, BoxSource
from vitrail.data.sources.masks import MaskedSample, MaskSource
from vitrail.data.split import drawn
from vitrail.errors import VitrailError
from vitrail.report.drawing import font, shortened
from vitrail.tasks.detect.drawing import draw
from vitrail.tasks.detect.metrics import there
from vitrail.tasks.segment.drawing import FAINT, INK, PAPER, coloured, legend, named, palette
from vitrail.whole import whole

WIDTH, HEIGHT = 400, 300  # of an image
GAP, LETTERS = 12, 15


def data_sheet(source: MaskSource | BoxSource, path: str | Path, count: int = 8, seed: int = 0) -> Path:
    """Two to a row: of masks the image beside it under its classes, with a legend; boxes with their names."""
    path = Path(path)
    kind = kind_of(path)
    tiles, present = [], np.zeros((1, 0), np.uint8)
    colours = palette(len(source.classes), source.colours if isinstance(source, MaskSource) else None)
    for sample in varied(source, seed):
        try:
            tile, seen = _tile(sample, source, colours)
        except VitrailError:
            continue
        tiles.append(_titled(tile, sample.name))
        present = np.concatenate([present, seen[None]], axis=1)
        if len(tiles) == count:
            break
    if not tiles:
        raise VitrailError(f"{source.name} holds no picture that can be read, so there is nothing to draw.")
    columns = min(2, len(tiles))
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    widths = [max(row[c].width for row in rows if c < len(row)) for c in range(columns)]
    heights = [max(tile.height for tile in row) for row in rows]
    below = None
    if isinstance(source, MaskSource):
        below = legend(named(present, source.classes), colours, sum(widths) + GAP * (columns - 1), LETTERS)
    size = (sum(widths) + GAP * (columns + 1), sum(heights) + GAP * (len(rows) + 1) + (below.height if below else 0))
    page = Image.new("RGB", size, PAPER)
    top = GAP
    for row, height in zip(rows, heights, strict=True):
        for column, tile in enumerate(row):
            page.paste(tile, (GAP + sum(widths[:column]) + GAP * column, top))
        top += height + GAP
    if below:
        page.paste(below, (GAP, top))
    with whole(path, ValueError) as part:
        page.save(part, kind)
    return path


def varied(source: Source, seed: int) -> list[Sample]:
    """All samples in the order of a draw, those first that show a class not seen before."""
    every = sorted((s for samples in source.splits.values() for s in samples), key=lambda s: drawn(seed, s.name))
    seen: set[int] = set()
    first: list[Sample] = []
    rest: list[Sample] = []
    for sample in every:
        (first if set(sample.labels) - seen else rest).append(sample)
        seen |= set(sample.labels)
    return first + rest


def _tile(sample: Sample, source: Source, colours: np.ndarray) -> tuple[Image.Image, np.ndarray]:
    """The drawing, and the classes on it."""
    image = sample.decode()
    if isinstance(sample, MaskedSample):
        scale = min(WIDTH / image.width, HEIGHT / image.height)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        mask = np.asarray(Image.fromarray(sample.mask_pixels()).resize(size, Image.Resampling.NEAREST))
        small = image.resize(size, Image.Resampling.BILINEAR)
        tile = Image.new("RGB", (2 * size[0] + 2, size[1]), PAPER)
        tile.paste(small, (0, 0))
        tile.paste(coloured(small, mask, colours), (size[0] + 2, 0))
        return tile, np.unique(mask)
    assert isinstance(sample, Boxed)
    objects = there(sample, (image.height, image.width))
    tile = draw(image, objects, source.classes, scores=False)
    tile.thumbnail((int(1.5 * WIDTH), 2 * HEIGHT))
    return tile, objects.classes.astype(np.uint8)


def _titled(tile: Image.Image, name: str) -> Image.Image:
    letters = font(LETTERS)
    page = Image.new("RGB", (tile.width, tile.height + LETTERS + 8), PAPER)
    ImageDraw.Draw(page).text((0, LETTERS / 2 + 2), shortened(name, letters, tile.width), FAINT, letters, anchor="lm")
    page.paste(tile, (0, LETTERS + 8))
    ImageDraw.Draw(page).rectangle((0, LETTERS + 8, tile.width - 1, page.height - 1), outline=INK)
    return page
