"""What a segmenter says, to look at: a mask with a palette, an overlay with a legend, a summary, cases side by side."""

import colorsys
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.errors import VitrailError
from vitrail.report.drawing import font, shortened
from vitrail.whole import whole

Array = np.ndarray
Colour = tuple[int, int, int]
# Glass: neighbours differ in hue and in brightness, so that they part in grey print and for most colour-blind eyes.
GLASS: list[Colour] = [
    (230, 159, 0), (0, 92, 175), (0, 158, 115), (204, 62, 85), (240, 228, 66), (110, 64, 170), (86, 180, 233),
    (140, 70, 20), (213, 94, 160), (60, 120, 50), (255, 178, 138), (40, 50, 110), (160, 205, 80), (128, 20, 60),
    (0, 200, 200), (120, 120, 60),
]  # fmt: skip
UNKNOWN: Colour = (128, 128, 128)  # what is ignored
PAPER, INK, FAINT = (255, 255, 255), (29, 31, 38), (107, 114, 128)
GREY = np.array([0.299, 0.587, 0.114])
STRENGTH = 0.55  # of the colours over the image
NARROWEST, LISTED = 240, 24  # width of a legend, and how many classes it names
LARGEST = 2048  # side of an overlay: an image to look at; the mask keeps every pixel


def palette(classes: int, given: Sequence[Colour] | None = None) -> Array:
    """uint8 [256, 3]: a colour for every class, the given ones first, and grey for what is ignored."""
    colours = list(given or GLASS)[:classes]
    for number in range(len(colours), classes):  # the golden angle keeps neighbours apart, however many there are
        red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1, (0.35, 0.6, 0.75)[number % 3], 0.65)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    table = np.zeros((256, 3), np.uint8)
    table[: len(colours)] = np.array(colours, np.uint8).reshape(-1, 3)
    table[IGNORE] = UNKNOWN
    return table


def mask_image(labels: Array, colours: Array) -> Image.Image:
    """The class of every pixel as an indexed image: its values are the classes, its palette makes them seen."""
    labels = _checked(labels)
    image = Image.frombytes("P", (labels.shape[1], labels.shape[0]), labels.tobytes())
    image.putpalette(colours.astype(np.uint8).tobytes())
    return image


def shares(labels: Array, classes: Sequence[str]) -> list[dict[str, Any]]:
    """label, index, pixels and share of each class that is there, the largest first."""
    counts = np.bincount(_checked(labels).ravel(), minlength=256)
    total = max(1, int(counts[: len(classes)].sum()))
    order = sorted(range(len(classes)), key=lambda index: (-counts[index], index))
    return [
        {"label": classes[i], "index": i, "pixels": int(counts[i]), "share": round(int(counts[i]) / total, 6)}
        for i in order
        if counts[i]
    ]


def named(labels: Array, classes: Sequence[str]) -> list[dict[str, Any]]:
    """The same without their shares, and those that a legend names in the order of the classes: legends below one
    another are then alike."""
    found = [{**one, "share": None} for one in shares(labels, classes)]
    return sorted(found[:LISTED], key=lambda one: one["index"]) + found[LISTED:]


def summary(labels: Array, classes: Sequence[str], name: str = "") -> dict[str, Any]:
    """What a program reads."""
    return {"path": name, "width": labels.shape[1], "height": labels.shape[0], "classes": shares(labels, classes)}


def coloured(image: Image.Image, labels: Array, colours: Array, strength: float = STRENGTH) -> Image.Image:
    """The image in muted colours under those of its classes, and a dark line where two meet."""
    if (image.height, image.width) != labels.shape:
        raise VitrailError(
            f"The picture is {image.width}×{image.height} and its classes {labels.shape[1]}×{labels.shape[0]}: "
            "draw both in one size."
        )
    pixels = np.asarray(image.convert("RGB")).astype(np.float32)
    grey = (pixels @ GREY.astype(np.float32))[..., None]
    shown = (1 - strength) * (0.5 * pixels + 0.5 * grey) + strength * colours[labels]
    thick = max(1, round(min(labels.shape) / 300))
    shown[_lines(labels, thick)] = INK
    return Image.fromarray(shown.round().clip(0, 255).astype(np.uint8))


def overlay(image: Image.Image, labels: Array, classes: Sequence[str], colours: Array) -> Image.Image:
    """`coloured`, with a legend below: the classes that are there and their share of the pixels."""
    labels = _checked(labels)
    longest = max(image.size)
    if longest > LARGEST:
        size = (max(1, image.width * LARGEST // longest), max(1, image.height * LARGEST // longest))
        labels = np.asarray(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST))
        image = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    elif longest < 320:  # enlarged by whole pixels, so that the legend has room
        times = -(-320 // longest)
        labels = labels.repeat(times, axis=0).repeat(times, axis=1)
        image = image.convert("RGB").resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    return _stacked(coloured(image, labels, colours), legend(shares(labels, classes), colours, image.width))


def legend(found: Sequence[dict[str, Any]], colours: Array, width: int, size: int | None = None) -> Image.Image:
    """Swatches with names and shares, from left to right and in as many lines as they take; `size` of the letters."""
    width = max(width, NARROWEST)
    size = size or max(12, min(24, width // 40))
    letters, gap = font(size), size // 2
    entries = []
    for one in found[:LISTED]:
        share = "" if one["share"] is None else f"  {_percent(one['share'])}"
        label = shortened(str(one["label"]), letters, width - 2 * size - 2 * gap - letters.getlength(share))
        entries.append((label + share, tuple(int(value) for value in colours[one["index"]])))
    if len(found) > LISTED:
        entries.append((f"and {len(found) - LISTED} more", PAPER))
    places, x, y = [], gap, gap
    for text, _ in entries:
        wide = size + gap + round(letters.getlength(text)) + 2 * gap
        if x > gap and x + wide > width:
            x, y = gap, y + size + gap
        places.append((x, y))
        x += wide
    page = Image.new("RGB", (width, y + size + gap if entries else 1), PAPER)
    pen = ImageDraw.Draw(page)
    for (text, colour), (x, y) in zip(entries, places, strict=True):
        if colour != PAPER:
            pen.rectangle((x, y + 1, x + size, y + size), colour, INK)
        pen.text((x + size + gap, y + size / 2 + 1), text, INK, letters, anchor="lm")
    return page


def case(
    image: Image.Image, truth: Array, said: Array, classes: Sequence[str], colours: Array, title: str = ""
) -> Image.Image:
    """Image, truth and what was said, side by side: for the best, the median and the worst of a report."""
    times = max(1, -(-240 // max(image.size)))
    size = (image.width * times, image.height * times)
    picture = image.convert("RGB").resize(size, Image.Resampling.NEAREST if times > 1 else Image.Resampling.BILINEAR)
    maps = [_checked(each).repeat(times, axis=0).repeat(times, axis=1) for each in (truth, said)]
    tiles = [picture, *(coloured(picture, each, colours) for each in maps)]
    gap, high = 6, max(12, min(24, size[0] // 22))
    letters, line = font(high), high + gap
    width, top = 3 * size[0] + 2 * gap, line * (2 if title else 1)
    page = Image.new("RGB", (width, top + size[1]), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((0, line / 2), shortened(title, letters, width), INK, letters, anchor="lm")
    for number, (tile, name) in enumerate(zip(tiles, ("picture", "truth", "said"), strict=True)):
        x = number * (size[0] + gap)
        pen.text((x, top - line / 2), name, FAINT, letters, anchor="lm")
        page.paste(tile, (x, top))
    both = np.concatenate([truth.ravel(), said.ravel()])[None]
    return _stacked(page, legend(named(both, classes), colours, width, high))


def save_segmentation(
    folder: Path,
    stem: str,
    image: Image.Image,
    labels: Array,
    classes: Sequence[str],
    colours: Array,
    name: str = "",
) -> list[Path]:
    """STEM_mask.png, STEM_overlay.png and STEM.json; gives their paths."""
    paths = [folder / f"{stem}_mask.png", folder / f"{stem}_overlay.png", folder / f"{stem}.json"]
    with whole(paths[0], ValueError) as part:
        mask_image(labels, colours).save(part, "PNG", optimize=True)
    with whole(paths[1], ValueError) as part:
        overlay(image, labels, classes, colours).save(part, "PNG")
    text = json.dumps(summary(labels, classes, name or stem), indent=1, ensure_ascii=False)
    with whole(paths[2]) as part:
        part.write_text(text, encoding="utf-8")
    return paths


def _checked(labels: Array) -> Array:
    if labels.ndim != 2 or labels.dtype != np.uint8:
        raise VitrailError(f"Classes are drawn from uint8 [H, W], got {labels.dtype} {list(labels.shape)}.")
    return np.ascontiguousarray(labels)


def _lines(labels: Array, thick: int) -> Array:
    """bool [H, W]: where the class changes to the right or below, `thick` pixels wide."""
    lines = np.zeros(labels.shape, bool)
    for step in range(1, thick + 1):
        lines[:, :-step] |= labels[:, :-step] != labels[:, step:]
        lines[:-step] |= labels[:-step] != labels[step:]
    return lines


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _stacked(above: Image.Image, below: Image.Image) -> Image.Image:
    page = Image.new("RGB", (max(above.width, below.width), above.height + below.height), PAPER)
    page.paste(above, (0, 0))
    page.paste(below, (0, above.height))
    return page
