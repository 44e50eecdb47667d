"""Boxes from COCO's JSON: a file, or a folder with one for each split."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.samples import SPLITS, plural, some
from vitrail.data.sources.boxes.outlines import Outline, sound
from vitrail.data.sources.boxes.samples import BoxSource, Entry, Gathering, Row, folder_split, split_word
from vitrail.errors import VitrailError

# Other annotations that lie beside the boxes in COCO's own folder.
NOT_BOXES = ("captions_", "person_keypoints_", "image_info_", "panoptic_", "stuff_")


def json_files(root: Path) -> list[Path]:
    """Those that may hold boxes: in the folder, its annotations/, or the folder of a split."""
    places = [root, root / "annotations", *(inner for inner in _folders(root) if folder_split(inner.name))]
    found = [path for place in places for path in sorted(place.glob("*.json")) if not path.name.startswith(NOT_BOXES)]
    instances = [path for path in found if path.name.startswith("instances_")]
    return instances or [path for path in found if path.name not in ("classes.json", "package.json")]


def open_coco(files: list[Path], name: str, images: Path | None = None, root: Path | None = None) -> BoxSource:
    """`images` is the folder that file names are relative to, where it can't be found beside the file. Of several files
    the images are named by their places below `root`: train/0.png is not val/0.png."""
    gathering = Gathering(name)
    categories: dict[str, int] = {}  # name → id, of all files
    by_split: dict[str, Path] = {}
    for path in files:
        split = split_word(path.stem) or folder_split(path.parent.name) or "all"
        if split in by_split:
            raise VitrailError(
                f"{name} holds {by_split[split].name} and {path.name}, and it can't be told which is for which split: "
                "pass one of the files."
            )
        by_split[split] = path
    if "all" in by_split and len(by_split) > 1:
        gathering.notes.append(
            f"{by_split.pop('all').name} names no split, as the files beside it do, and is not read."
        )
    base = root if images is None and len(by_split) > 1 else None
    for split in ("all", *SPLITS):
        if split in by_split:
            _read(by_split[split], split, gathering, categories, images, base)
    by_id = sorted(categories.items(), key=lambda item: item[1])
    return gathering.source([label for label, _ in by_id], [number for _, number in by_id])


def _read(
    path: Path, split: str, gathering: Gathering, categories: dict[str, int], images: Path | None, base: Path | None
) -> None:
    content = _json(path)
    labels: dict[Any, str] = {}
    for category in content["categories"]:
        label = str(category.get("name", category.get("id")))
        labels[category.get("id")] = label
        if categories.setdefault(label, category["id"]) != category["id"]:
            raise VitrailError(f'{path} gives the class "{label}" another id than the file of another split does.')
    by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for annotation in content["annotations"]:
        by_image[_key(annotation, "image_id")].append(annotation)
    pictures = _once([picture for picture in content["images"] if picture.get("file_name")], path, gathering)
    folder = images or _images_of(path, split, [str(picture["file_name"]) for picture in pictures])
    for picture in pictures:
        found, file = by_image.pop(picture["id"], []), str(picture["file_name"]).replace("\\", "/")
        width, height = (_side(picture.get(name)) for name in ("width", "height"))
        if not (folder / file).is_file():
            gathering.wrong("no picture", f"{file} of {path.name}")
            continue
        if not (width and height):
            gathering.wrong("unreadable annotation", f"{file} of {path.name}: no width and height")
            continue
        name = file if base is None else _below(base, folder / file)
        rows = [row for each in found if (row := _row(each, labels, (height, width), name, gathering))]
        number = picture["id"] if isinstance(picture["id"], int) else None
        gathering.add(split, Entry(name, folder / file, rows, (height, width), number, len(found)))
    for image, several in by_image.items():
        gathering.wrong("no picture", f"{plural(len(several), 'box', 'boxes')} of image {image} in {path.name}")


def _once(pictures: list[dict[str, Any]], path: Path, gathering: Gathering) -> list[dict[str, Any]]:
    """Each id once: of two images with one id, it can't be told whose its boxes are."""
    by_id: dict[Any, dict[str, Any]] = {}
    twice = []
    for picture in pictures:
        first = by_id.setdefault(picture["id"], picture)
        if first["file_name"] != picture["file_name"]:
            raise VitrailError(
                f"{path} gives {first['file_name']} and {picture['file_name']} the same id, {picture['id']}: "
                "whose its boxes are can't be told."
            )
        if first is not picture:
            twice.append(str(picture["file_name"]))
    if twice:
        times = plural(len(twice), "picture")
        gathering.notes.append(f"{times} of {path.name} with an entry that is there already ({some(twice, 3)}).")
    return [*by_id.values()]


def _below(base: Path, path: Path) -> str:
    """Relative to the base, with slashes; as it is where the file names a place of its own."""
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()


def _key(annotation: dict[str, Any], name: str) -> int | str | None:
    """An id, or None where there is something else."""
    return key if isinstance(key := annotation.get(name), int | str) else None


def _side(value: Any) -> int:
    """In pixels; 0 where it is not told."""
    return int(value) if isinstance(value, int | float) and 0 < value < 2**31 else 0


def _row(
    annotation: dict[str, Any], labels: dict[Any, str], size: tuple[int, int], file: str, gathering: Gathering
) -> Row | None:
    height, width = size
    label = labels.get(_key(annotation, "category_id"), f"category {annotation.get('category_id')}")
    outline = _outline(annotation.get("segmentation"), size)
    box = annotation.get("bbox")
    try:
        if box is None and isinstance(outline, list):
            points = np.concatenate(outline)
            x0, y0, x1, y1 = (float(side) for side in (*points.min(axis=0), *points.max(axis=0)))
        else:
            x, y, w, h = (float(side) for side in box)  # type: ignore[union-attr]
            x0, y0, x1, y1 = x / width, y / height, (x + w) / width, (y + h) / height
    except (TypeError, ValueError):
        gathering.wrong("unreadable box", f"{file}: {label} {box}")
        return None
    return Row(label, (x0, y0, x1, y1), bool(annotation.get("iscrowd")), outline)


def _outline(segmentation: Any, size: tuple[int, int]) -> Outline | None:
    if isinstance(segmentation, dict):
        return segmentation if sound(segmentation, size) else None
    if not isinstance(segmentation, list):
        return None
    try:
        polygons = [np.array(each, np.float32).reshape(-1, 2) / (size[1], size[0]) for each in segmentation]
    except (TypeError, ValueError):
        return None
    return [polygon for polygon in polygons if len(polygon) >= 3] or None


def _images_of(path: Path, split: str, names: list[str]) -> Path:
    """The folder that the names are relative to: the first that holds most of a few of them."""
    here, above = path.parent, path.parent.parent
    words = [path.stem.removeprefix("instances_"), *([split] if split != "all" else []), "valid"]
    places = [here, here / "images", above, above / "images"]
    places += [place / word for place in (here, here / "images", above, above / "images") for word in words]
    probe = names[:: max(1, len(names) // 20)]
    best = max(places, key=lambda place: sum((place / name).is_file() for name in probe))
    if probe and not any((best / name).is_file() for name in probe):
        raise VitrailError(
            f"{path} names {probe[0]}, which is neither beside it nor in images/ or {' or '.join(words[:2])}/: "
            "put the pictures there, or name their folder."
        )
    return best


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise VitrailError(f"{path} can't be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise VitrailError(f"{path} is no JSON ({error}).") from None
    keys = ("images", "annotations", "categories")
    lists = isinstance(content, dict) and all(
        isinstance(content.get(key), list) and all(isinstance(each, dict) for each in content[key]) for key in keys
    )
    if not lists:
        raise VitrailError(
            f"{path} is not COCO's JSON of boxes: it needs the lists images, annotations and categories."
        )
    if not all(isinstance(category.get("id"), int) for category in content["categories"]):
        raise VitrailError(f"{path} has a category without a number as its id.")
    if not all(isinstance(picture.get("id"), int | str) for picture in content["images"]):
        raise VitrailError(f"{path} has an image without an id.")
    return content


def _folders(root: Path) -> list[Path]:
    return sorted(inner for inner in root.iterdir() if inner.is_dir())
