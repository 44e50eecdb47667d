"""What a detector found, for people and for programs: boxes drawn on the image, and COCO's JSON."""

import colorsys
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.sources.boxes.outlines import from_runs
from vitrail.report.drawing import font
from vitrail.tasks.detect.metrics import Objects
from vitrail.whole import whole

# Told apart by most eyes, also in print; further classes get hues between.
COLOURS = ["#e4572e", "#17a2b8", "#f3a712", "#6a4c93", "#76b041", "#d81b60", "#1e66d0", "#8d5524", "#00a878", "#b8b8ff"]
LEAST, LARGEST = 480, 2400  # the short side of a drawing at least, its long side at most, in pixels
PAPER, INK = "#ffffff", "#1d1f26"
TINT = 0.4  # how much of a mask is its colour

Box = tuple[float, float, float, float]


def draw(image: Image.Image, found: Objects, classes: Sequence[str], scores: bool = True) -> Image.Image:
    """The image with its boxes, each with its class and score where there is room for it, and beneath it how many of
    each class. Small images are enlarged, so that the words fit; large ones shrunk."""
    scale = _scale(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    canvas = image.convert("RGB").resize(size, Image.Resampling.LANCZOS if scale < 3 else Image.Resampling.NEAREST)
    pen = _Pen(min(size))
    order = np.argsort(found.scores, kind="stable")  # the surest on top
    if found.masks is not None:
        canvas = _tinted(canvas, found, order)
    drawing = ImageDraw.Draw(canvas)
    for i in order:
        x0, y0, x1, y1 = (float(side) * scale for side in found.boxes[i])
        box = (x0, y0, max(x1 - 1, x0 + 1), max(y1 - 1, y0 + 1))
        drawing.rectangle([box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1], outline=INK, width=pen.line + 2)
        drawing.rectangle(box, outline=colour(int(found.classes[i])), width=pen.line)
    taken: list[Box] = []
    for i in order[::-1]:
        words = _short(classes[found.classes[i]]) + (f" {found.scores[i]:.0%}" if scores else "")
        tag = _Tag.of(words, pen)
        place = _free_place(tuple(float(side) * scale for side in found.boxes[i]), tag, size, taken)  # type: ignore[arg-type]
        if place is not None:
            taken.append(place)
            _write(drawing, place, tag, colour(int(found.classes[i])), pen)
    return _with_legend(canvas, found, classes, pen)


def beside(image: Image.Image, truth: Objects, found: Objects, classes: Sequence[str]) -> Image.Image:
    """What is there, at the left, and what was found."""
    panels = [draw(image, truth, classes, scores=False), draw(image, found, classes)]
    heads = ["labelled", "found"]
    pen = _Pen(min(panels[0].width, panels[0].height))
    gap, top = pen.size, 2 * pen.size
    height = max(panel.height for panel in panels)
    page = Image.new("RGB", (sum(panel.width for panel in panels) + gap, height + top), PAPER)
    drawing, left = ImageDraw.Draw(page), 0
    for panel, head in zip(panels, heads, strict=True):
        drawing.text((left, top / 2), head, fill=INK, font=pen.font, anchor="lm")
        page.paste(panel, (left, top))
        left += panel.width + gap
    return page


def colour(number: int) -> str:
    """Of a class; the same one everywhere."""
    if number < len(COLOURS):
        return COLOURS[number]
    hue = (number * 0.618034) % 1
    red, green, blue = colorsys.hls_to_rgb(hue, (0.42, 0.58)[number % 2], 0.7)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


class _Pen:
    """Sizes that suit an image."""

    def __init__(self, short_side: int):
        self.size = max(13, round(short_side / 34))
        self.line = max(2, round(self.size / 7))
        self.pad = max(2, self.size // 5)
        self.font = font(self.size)


class _Tag(NamedTuple):
    words: str
    width: float
    height: float

    @classmethod
    def of(cls, words: str, pen: _Pen) -> "_Tag":
        return cls(words, pen.font.getlength(words) + 2 * pen.pad, pen.size + 2 * pen.pad)


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _scale(size: tuple[int, int]) -> float:
    scale = max(1.0, LEAST / min(size))
    return min(scale, LARGEST / max(size))


def _tinted(canvas: Image.Image, found: Objects, order: np.ndarray) -> Image.Image:
    pixels = np.asarray(canvas, np.float32).copy()
    for i in order:
        mask = Image.fromarray(from_runs(found.masks[i])).resize(canvas.size, Image.Resampling.NEAREST)  # type: ignore[index]
        tint = np.array([int(colour(int(found.classes[i]))[k : k + 2], 16) for k in (1, 3, 5)], np.float32)
        inside = np.asarray(mask)
        pixels[inside] += TINT * (tint - pixels[inside])
    return Image.fromarray(pixels.round().astype(np.uint8))


def _free_place(box: Box, tag: _Tag, size: tuple[int, int], taken: Sequence[Box]) -> Box | None:
    """Above the box, in its upper corners, beneath it: the first that is inside the image and hides no other tag."""
    x0, y0, x1, y1 = box
    for left, top in (
        (x0, y0 - tag.height), (x0, y0), (x1 - tag.width, y0), (x0, y1), (x0, y1 - tag.height),
        (x1 - tag.width, y1 - tag.height),
    ):  # fmt: skip
        left = min(max(0.0, left), size[0] - tag.width)
        place = (left, top, left + tag.width, top + tag.height)
        inside = left >= 0 and top >= 0 and place[3] <= size[1]
        if inside and not any(_touch(place, other) for other in taken):
            return place
    return None


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _write(drawing: ImageDraw.ImageDraw, place: Box, tag: _Tag, fill: str, pen: _Pen) -> None:
    drawing.rectangle([round(side) for side in place], fill=fill)
    drawing.text(
        (place[0] + pen.pad, (place[1] + place[3]) / 2), tag.words, fill=_readable_on(fill), font=pen.font, anchor="lm"
    )


def _readable_on(fill: str) -> str:
    red, green, blue = (int(fill[k : k + 2], 16) for k in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else PAPER


def _with_legend(canvas: Image.Image, found: Objects, classes: Sequence[str], pen: _Pen) -> Image.Image:
    counts = sorted(Counter(found.classes.tolist()).items(), key=lambda item: -item[1])
    entries = [(number, f"{count} {_short(classes[number])}") for number, count in counts] or [(-1, "nothing found")]
    line, gap = round(1.9 * pen.size), 1.2 * pen.size
    places: list[tuple[float, int, int, str]] = []
    left, row = pen.pad * 2.0, 0
    for number, words in entries:
        width = pen.size * 1.4 + pen.font.getlength(words)
        if left > pen.pad * 2 and left + width > canvas.width:
            left, row = pen.pad * 2.0, row + 1
        places.append((left, row, number, words))
        left += width + gap
    page = Image.new("RGB", (canvas.width, canvas.height + (row + 1) * line), PAPER)
    page.paste(canvas)
    drawing = ImageDraw.Draw(page)
    for left, row, number, words in places:
        middle = canvas.height + (row + 0.5) * line
        if number >= 0:
            square = [left, middle - pen.size / 2, left + pen.size, middle + pen.size / 2]
            drawing.rectangle(square, fill=colour(number), outline=INK)
        drawing.text(
            (left + pen.size * (1.4 if number >= 0 else 0), middle), words, fill=INK, font=pen.font, anchor="lm"
        )
    return page


# -- for programs ------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What was found on one image, by its name."""

    name: str
    size: tuple[int, int]  # height, width
    found: Objects
    number: int | None = None  # COCO's id of the image


def coco_results(answers: Iterable[Answer], classes: Sequence[str], ids: Sequence[int] | None = None) -> dict[str, Any]:
    """COCO's form: `annotations` alone is what its server and `COCO.loadRes` take, the whole is a data set again that
    `open_boxes` reads. `ids` are the category ids of the source; else 1, 2, …"""
    ids = [*range(1, len(classes) + 1)] if ids is None else ids
    images: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for place, answer in enumerate(answers, 1):
        number = place if answer.number is None else answer.number
        images.append({"id": number, "file_name": answer.name, "height": answer.size[0], "width": answer.size[1]})
        for i, (x0, y0, x1, y1) in enumerate(answer.found.boxes.tolist()):
            row = {
                "id": len(rows) + 1, "image_id": number, "category_id": int(ids[answer.found.classes[i]]),
                "bbox": [round(side, 2) for side in (x0, y0, x1 - x0, y1 - y0)],
                "area": round((x1 - x0) * (y1 - y0), 2), "iscrowd": 0,
                "score": round(float(answer.found.scores[i]), 5),
            }  # fmt: skip
            if answer.found.masks is not None:
                row["segmentation"] = dict(answer.found.masks[i])
            rows.append(row)
    categories = [{"id": int(number), "name": label} for number, label in zip(ids, classes, strict=True)]
    return {"images": images, "annotations": rows, "categories": categories}


def write_coco(
    path: str | Path, answers: Iterable[Answer], classes: Sequence[str], ids: Sequence[int] | None = None
) -> Path:
    """Whole or not at all."""
    with whole(Path(path)) as part:
        part.write_text(json.dumps(coco_results(answers, classes, ids), ensure_ascii=False), encoding="utf-8")
    return Path(path)
