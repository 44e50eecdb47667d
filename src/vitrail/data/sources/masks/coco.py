"""COCO's masks: panoptic (a PNG of segment numbers beside the JSON) and stuff or instances (outlines inside it).

The JSON is found to be of one kind or the other. Its categories are the classes, in the order of their ids.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.boxes.outlines import from_runs, rasterise
from vitrail.data.sources.boxes.samples import split_word
from vitrail.data.sources.masks.pairs import IGNORE, Found, opened
from vitrail.errors import VitrailError

# Categories that mean "all the rest". Where there is one, a pixel without any is a gap, to be ignored.
REST = {"other", "background", "unlabeled", "unlabelled", "void"}
UNKNOWN = -1  # the class of a category that is not declared: its image is left out, the others remain


@dataclass(frozen=True, slots=True)
class PanopticMask:
    """Each pixel has the number of its segment, red + 256·green + 65536·blue; 0, or one that is not listed, is void."""

    path: Path
    segments: tuple[tuple[int, int], ...]  # number, class

    def values(self) -> np.ndarray:
        _declared([label for _, label in self.segments], str(self.path))
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
        if min(self.size) < 1:
            raise VitrailError(f"{self.name} has no height and width in the JSON.")
        found = np.full(self.size, self.rest, np.uint8)
        _declared([label for label, _, _ in self.shapes], self.name)
        for label, _, segmentation in sorted(self.shapes, key=lambda shape: -shape[1]):
            try:
                found[filled(segmentation, self.size)] = label
            except (VitrailError, ValueError, TypeError) as error:
                raise VitrailError(f"{self.name} has an outline that can't be read ({error}).") from None
        return found

    def identity(self) -> str:
        return f"{self.name} {self.size} {zlib.crc32(repr(self.shapes).encode())} {self.rest}"


def _declared(labels: Sequence[int], name: str) -> None:
    if UNKNOWN in labels:
        raise VitrailError(f"{name} has a category that the JSON does not declare.")


def filled(segmentation: Any, size: tuple[int, int]) -> np.ndarray:
    """bool [h, w] from polygons [[x, y, x, y, …], …] or run lengths."""
    if isinstance(segmentation, dict):
        mask = from_runs(segmentation)
        if mask.shape != size:
            raise ValueError(f"runs for {mask.shape[1]}×{mask.shape[0]} in a picture of {size[1]}×{size[0]}")
        return mask
    polygons = [np.array(each, np.float64).reshape(-1, 2) / (size[1], size[0]) for each in segmentation]
    polygons = [polygon for polygon in polygons if len(polygon) >= 3]
    if not all(np.isfinite(polygon).all() for polygon in polygons):
        raise ValueError("a corner is nowhere")
    return rasterise(polygons, size) if polygons else np.zeros(size, bool)


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
        split = split_word(path.stem) or "all"  # panoptic_train2017.json is of train
        for key, picture in pictures.items():
            annotations = of_picture.pop(key, [])
            image = folder / picture["file_name"]
            mask: PanopticMask | PaintedMask | None = None
            if panoptic and annotations:
                segments = [(s["id"], number.get(s["category_id"], UNKNOWN)) for s in annotations[0]["segments_info"]]
                mask = PanopticMask(path.with_suffix("") / annotations[0]["file_name"], tuple(segments))
            elif annotations or rest != IGNORE:
                shapes = [
                    (number.get(each["category_id"], UNKNOWN), float(each.get("area", 0)), each["segmentation"])
                    for each in annotations
                    if each.get("segmentation")
                ]
                size = (int(picture.get("height") or 0), int(picture.get("width") or 0))
                mask = PaintedMask(picture["file_name"], size, shapes, rest)
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


def _picture_folder(path: Path, names: list[str]) -> Path:
    """Where the images of a JSON lie, as COCO and others have it: beside it or one folder up, in images/, in a folder
    called like the last word of its name (train2017), or in both."""
    last, split = path.stem.rsplit("_", 1)[-1], split_word(path.stem) or "all"
    inner = ["", "images", last, f"images/{last}", split, f"images/{split}"]
    places = [root / each for root in (path.parent, path.parent.parent) for each in inner]
    for place in places:
        if any((place / name).is_file() for name in names[:5]):
            return place
    return path.parent
