"""Boxes from YOLO's text files: a line `class cx cy w h` for each, in fractions, beside images or in labels/.

Class names come from data.yaml, classes.txt or obj.names; a line of more numbers is a polygon.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrail.data.samples import PICTURES, SPLIT_WORDS, SPLITS
from vitrail.data.sources.boxes.samples import BoxSource, Entry, Gathering, Row, folder_split
from vitrail.errors import VitrailError

MOST_CLASSES = 100_000  # each below the highest becomes one
NAMES = ("classes.txt", "obj.names", "classes.names", "_darknet.labels")


def is_yolo(root: Path) -> bool:
    return (
        bool(_yaml(root)) or any((root / place).is_dir() for place in ("labels", "train/labels")) or bool(_names(root))
    )


def open_yolo(root: Path, name: str, settings: Path | None = None) -> BoxSource:
    gathering = Gathering(name)
    settings = settings or _yaml(root)
    told = read_yaml(settings) if settings else {}
    names = told.get("names") or _names(root)
    splits = _told_splits(root, told, gathering) if settings else {}
    if not splits:
        splits = _folders(root)
    if not splits:
        raise VitrailError(
            f"{name} holds no pictures with text files: expected images/NAME.jpg beside labels/NAME.txt."
        )
    highest = -1
    for split, pictures in splits.items():
        for picture in pictures:
            rows: list[Row] = []
            label = label_of(picture)
            if label.is_file():
                try:
                    rows = list(_rows(label))
                except VitrailError as error:
                    gathering.wrong("unreadable annotation", f"{_relative(label, root)}: {error}")
                    continue
            highest = max([highest, *(int(row.label) for row in rows)])
            rows = [row._replace(label=_named(int(row.label), names)) for row in rows]
            gathering.add(split, Entry(_relative(picture, root), picture, rows))
    expected = {label_of(picture) for pictures in splits.values() for picture in pictures}
    for folder in sorted({label.parent for label in expected}):
        for path in sorted(folder.glob("*.txt")) if folder.is_dir() else []:
            if path not in expected and path.name not in NAMES and path.stem not in SPLITS:
                gathering.wrong("no picture", _relative(path, root))
    return gathering.source(names or [_named(number, None) for number in range(highest + 1)])


def label_of(picture: Path) -> Path:
    """labels/ for the last images/ in the path; else beside the image."""
    parts = [*picture.parts]
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            return Path(*parts).with_suffix(".txt")
    return picture.with_suffix(".txt")


def _rows(path: Path) -> Iterator[Row]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        raise VitrailError("can't be read as text") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            raise VitrailError(f'line {number} is no row of numbers ("{line[:40]}")') from None
        if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
            raise VitrailError(f"line {number} has {len(values)} numbers, and a box has 5: class, centre, size")
        if not 0 <= values[0] <= MOST_CLASSES or not values[0].is_integer():
            raise VitrailError(f"line {number} begins with {values[0]:g}, which is no class")
        if max(values[1:]) > 2:
            raise VitrailError(f"line {number} holds {max(values[1:]):g}, and fractions of the picture are expected")
        if len(values) == 5:
            x, y, w, h = values[1:]
            yield Row(str(int(values[0])), (x - w / 2, y - h / 2, x + w / 2, y + h / 2))
        else:
            polygon = np.array(values[1:], np.float32).reshape(-1, 2)
            x0, y0, x1, y1 = (float(side) for side in (*polygon.min(axis=0), *polygon.max(axis=0)))
            yield Row(str(int(values[0])), (x0, y0, x1, y1), outline=[polygon])


def _named(number: int, names: list[str] | None) -> str:
    return names[number] if names and number < len(names) else f"class {number}"


# -- where things lie --------------------------------------------------------------------------------------------------


def _told_splits(root: Path, told: dict, gathering: Gathering) -> dict[str, list[Path]]:
    """From data.yaml, whose paths are relative to it, to `path`, or (as some exporters have it) to a folder beside.
    A split may be several folders or lists."""
    bases = [root / str(told["path"]), root] if told.get("path") else [root]
    found: dict[str, list[Path]] = {}
    for word, split in SPLIT_WORDS.items():
        if word not in told or not told[word]:
            continue
        for name in told[word] if isinstance(told[word], list) else [told[word]]:
            tried = [base / each for each in (re.sub(r"^(\.\./)+", "", name), name) for base in bases]
            if place := next((place for place in tried if place.exists()), None):
                found.setdefault(split, []).extend(_listed(place) if place.is_file() else _pictures(place))
            else:
                gathering.notes.append(f"{name}, which is to hold {split} pictures, is not there.")
    return {split: found[split] for split in SPLITS if found.get(split)}


def _listed(path: Path) -> list[Path]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [path.parent / line.strip().removeprefix("./") for line in lines if line.strip()]


def _folders(root: Path) -> dict[str, list[Path]]:
    """images/train, or train/images, or images/ alone, or images beside their text files."""
    images = root / "images"
    for base, inside in ((images, "."), (root, "images"), (root, ".")):
        inner = sorted(base.iterdir()) if base.is_dir() else []
        places = {word: f / inside for f in inner if (word := folder_split(f.name)) and (f / inside).is_dir()}
        if places and (found := {s: _pictures(places[s]) for s in SPLITS if s in places and _pictures(places[s])}):
            return found
    pictures = _pictures(images if images.is_dir() else root)
    return {"all": pictures} if pictures else {}


def _pictures(folder: Path) -> list[Path]:
    found = (Path(place) / file for place, _, files in os.walk(folder) for file in files)
    return sorted(p for p in found if p.suffix.lower() in PICTURES and not p.name.startswith("."))


def _names(root: Path) -> list[str] | None:
    for path in (place / name for place in (root, root / "labels", root / "train") for name in NAMES):
        if path.is_file():
            lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
            return [line.strip() for line in lines if line.strip()]
    return None


def _yaml(root: Path) -> Path | None:
    return next(
        (path for path in (root / "data.yaml", root / "dataset.yaml", root / "data.yml") if path.is_file()), None
    )


def _relative(path: Path, root: Path) -> str:
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def read_yaml(path: Path) -> dict:
    """As much of YAML as these files use: words, lists in either form, and names numbered from 0."""
    told: dict = {}
    key = ""
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if not line.strip():
            continue
        top = re.match(r"([\w-]+)\s*:\s*(.*)$", line)
        if top:
            key, value = top.groups()
            told[key] = _value(value)
        elif key and (item := re.match(r"\s*-\s+(.*)$", line)):
            told[key] = [*(told[key] or []), _bare(item[1])]
        elif key and (pair := re.match(r"\s+['\"]?(\d+)['\"]?\s*:\s*(.*)$", line)):
            told[key] = {**(told[key] or {}), int(pair[1]): _bare(pair[2])}
    if isinstance(told.get("names"), dict):
        names = told["names"]
        told["names"] = [names.get(number, f"class {number}") for number in range(max(names) + 1)]
    if isinstance(told.get("names"), str):
        told["names"] = None
    return told


def _value(text: str) -> object:
    if text.startswith("[") and text.endswith("]"):
        return [_bare(part) for part in re.findall(r"\s*('[^']*'|\"[^\"]*\"|[^,\[\]]+)", text) if part.strip()]
    if text.startswith("{") and text.endswith("}"):
        parts = re.findall(r"(\d+)\s*:\s*('[^']*'|\"[^\"]*\"|[^,}]+)", text)
        return {int(number): _bare(part) for number, part in parts}
    return _bare(text) or None


def _bare(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
