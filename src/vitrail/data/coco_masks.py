"""COCO's masks: panoptic (a PNG of segment numbers beside the JSON) and stuff or instances (outlines inside it).

The JSON is found to be of one kind or the other. Its categories are the classes, in the order of their ids.
"""

import json
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.mask_pairs import IGNORE, Found, opened
from vitrail.data.samples import SPLIT_WORDS
from vitrail.errors import VitrailError

# Categories that mean "all the rest". Where there is one, a pixel without any is a gap, to be ignored.
REST = {"other", "background", "unlabeled", "unlabelled", "void"}


@dataclass(frozen=True, slots=True)
class PanopticMask:
    """Each pixel has the number of its segment, red + 256·green + 65536·blue; 0, or one that is not listed, is void."""

    path: Path
    segments: tuple[tuple[int, int], ...]  # number, class

    def values(self) -> np.ndarray:
        channels = np.asarray(opened(self.path).convert("RGB")).astype(np.int64)
        numbers = channels @ np.array([1, 256, 65536])
        found = np.full(numbers.shape, IGNORE, np.uint8)
        # Distinct numbers are few, pixels are many.
        distinct, places = np.unique(numbers, return_inverse=True)
        classes = dict(self.segments)
        table = np.array([classes.get(int(number), IGNORE) for number in distinct], np.uint8)
        found[...] = table[places.reshape(numbers.shape)]
        return found

    def identity(self) -> str:
        status = self.path.stat()
        return f"{self.path.absolute()} {status.st_size} {status.st_mtime_ns} {hash(self.segments)}"


@dataclass(frozen=True, slots=True, eq=False)
class PaintedMask:
    """Outlines painted over each other, the largest first, so that what is small stays seen."""

    name: str
    size: tuple[int, int]  # height, width
    shapes: list[tuple[int, float, Any]]  # class, area, COCO's segmentation
    rest: int  # the class of what no outline covers, or IGNORE

    def values(self) -> np.ndarray:
        found = np.full(self.size, self.rest, np.uint8)
        for label, _, segmentation in sorted(self.shapes, key=lambda shape: -shape[1]):
            try:
                found[filled(segmentation, self.size)] = label
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise VitrailError(f"{self.name} has an outline that can't be read ({error}).") from None
        return found

    def identity(self) -> str:
        return f"{self.name} {self.size} {zlib.crc32(repr(self.shapes).encode())} {self.rest}"


def filled(segmentation: Any, size: tuple[int, int]) -> np.ndarray:
    """bool [h, w] from polygons [[x, y, x, y, …], …] or a run-length code."""
    if isinstance(segmentation, dict):
        return run_lengths(segmentation, size)
    canvas = Image.new("1", (size[1], size[0]))
    pen = ImageDraw.Draw(canvas)
    for polygon in segmentation:
        if len(polygon) >= 6:
            pen.polygon([float(value) for value in polygon], fill=1)
    return np.asarray(canvas)


def run_lengths(code: dict[str, Any], size: tuple[int, int]) -> np.ndarray:
    """COCO's code: lengths of runs of 0 and 1 in turn, column by column; as numbers, or packed into a string."""
    counts = code["counts"]
    lengths = unpacked(counts) if isinstance(counts, str | bytes) else [int(count) for count in counts]
    height, width = code.get("size", size)
    if (height, width) != tuple(size) or sum(lengths) != height * width or min(lengths, default=0) < 0:
        raise ValueError(f"runs of {sum(lengths)} pixels for a picture of {size[1]}×{size[0]}")
    runs = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return runs.reshape(width, height).T


def unpacked(text: str | bytes) -> list[int]:
    """Six-bit characters from "0" on: five bits of a number, and whether more follow; from the third number on, the
    difference to the one two before."""
    lengths: list[int] = []
    value = shift = 0
    for byte in text.encode() if isinstance(text, str) else text:
        character = byte - 48
        value |= (character & 0x1F) << shift
        shift += 5
        if character & 0x20:
            continue
        if character & 0x10:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("a run-length code that breaks off")
    return lengths


def open_coco(
    path: Path, name: str, images: Path | None = None
) -> tuple[list[Found], list[str], list[str], list[tuple[int, int, int]] | None]:
    """Pairs, classes, notes, and the classes' colours where the categories have them."""
    try:
        content = json.loads(path.read_bytes())
        categories = sorted(content["categories"], key=lambda category: category["id"])
        classes = [str(category["name"]) for category in categories]
        number = {category["id"]: index for index, category in enumerate(categories)}
        pictures = {picture["id"]: picture for picture in content["images"]}
        of_picture: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for annotation in content["annotations"]:
            of_picture[annotation["image_id"]].append(annotation)
        panoptic = any("segments_info" in annotation for annotation in content["annotations"])
        folder = images or _picture_folder(path, [picture["file_name"] for picture in pictures.values()])
        notes, rest = [], IGNORE
        if not panoptic and not REST & {label.lower() for label in classes}:
            classes, number, rest = ["background", *classes], {key: i + 1 for key, i in number.items()}, 0
            notes.append(f"{path.name} names no rest, so what no outline covers is the class background.")
        found = []
        split = _split(path)
        for key, picture in pictures.items():
            annotations = of_picture.pop(key, [])
            image = folder / picture["file_name"]
            mask: PanopticMask | PaintedMask | None = None
            if panoptic and annotations:
                segments = [(s["id"], number[s["category_id"]]) for s in annotations[0]["segments_info"]]
                mask = PanopticMask(path.with_suffix("") / annotations[0]["file_name"], tuple(segments))
            elif annotations or rest != IGNORE:
                shapes = [
                    (number[each["category_id"]], float(each.get("area", 0)), each["segmentation"])
                    for each in annotations
                    if each.get("segmentation")
                ]
                mask = PaintedMask(picture["file_name"], (picture["height"], picture["width"]), shapes, rest)
            found.append(Found(picture["file_name"], split, image, mask))
        for key, annotations in of_picture.items():
            orphan = annotations[0].get("file_name", f"annotation {annotations[0].get('id')} of image {key}")
            found.append(Found(orphan, split, None, PaintedMask(orphan, (1, 1), [], rest)))
    except OSError as error:
        raise VitrailError(f"{name} can't be read ({error.strerror or error}).") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise VitrailError(
            f"{name} is not COCO's JSON of masks ({type(error).__name__}: {error}): expected images, annotations with "
            "segments_info or segmentation, and categories."
        ) from None
    if not found:
        raise VitrailError(f"{name} lists no images.")
    colours = [tuple(category.get("color", ())) for category in categories]
    known = rest == IGNORE and all(len(colour) == 3 for colour in colours)
    return found, classes, notes, colours if known else None  # type: ignore[return-value]


def _split(path: Path) -> str:
    """panoptic_train2017.json is of train; a name without such a word is of all."""
    words = re.findall(r"[a-z]+", path.stem.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "all")


def _picture_folder(path: Path, names: list[str]) -> Path:
    """Where the pictures of a JSON lie, as COCO and others have it: beside it or one folder up, in images/, in a folder
    called like the last word of its name (train2017), or in both."""
    last = path.stem.rsplit("_", 1)[-1]
    inner = ["", "images", last, f"images/{last}", _split(path), f"images/{_split(path)}"]
    places = [root / each for root in (path.parent, path.parent.parent) for each in inner]
    for place in places:
        if any((place / name).is_file() for name in names[:5]):
            return place
    return path.parent
