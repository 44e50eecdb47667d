"""Boxes from Pascal VOC's XML: Annotations/, JPEGImages/ and the lists of ImageSets/, or files beside the images.

Corners are counted from 1 and belong to the box: xmin 1 and xmax 640 are all of an image 640 wide. Some tools count
from 0; one pixel is not worth guessing which.
"""

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from vitrail.data.samples import PICTURES, SPLITS
from vitrail.data.sources.boxes.samples import BoxSource, Entry, Gathering, Row, folder_split
from vitrail.errors import VitrailError

LARGEST = 2**24  # bytes of an annotation; the largest honest ones have some 100 kB
ANNOTATIONS, IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")


def annotation_folder(root: Path) -> Path | None:
    """Where the XML files lie, if there are any."""
    places = (
        [root / word for word in ANNOTATIONS] + [root] + [f for f in sorted(root.iterdir()) if folder_split(f.name)]
    )
    found = next((place for place in places if place.is_dir() and any(place.glob("*.xml"))), None)
    return root if found is not None and found.parent == root and folder_split(found.name) else found


def open_voc(root: Path, name: str) -> BoxSource:
    gathering = Gathering(name)
    folder = annotation_folder(root)
    if folder is None:
        raise VitrailError(f"{name} holds no XML files: expected Annotations/NAME.xml beside JPEGImages/NAME.jpg.")
    places = {"all": folder}
    if folder == root and (
        split := {folder_split(f.name): f for f in root.iterdir() if f.is_dir() and folder_split(f.name)}
    ):
        places = {word: split[word] for word in SPLITS if word in split}
    lists = _lists(root)
    for word, place in places.items():
        pictures = _pictures([root / each for each in IMAGES] if place.name in ANNOTATIONS else [place])
        annotations = {path.stem: path for path in sorted(place.glob("*.xml"))}
        wanted = lists or {word: sorted({*annotations, *pictures})}
        for split_name, stems in wanted.items():
            for stem in stems:
                _add(gathering, split_name, stem, annotations.get(stem), pictures.get(stem), root)
        if lists:
            listed = {stem for stems in lists.values() for stem in stems}
            for stem in sorted(pictures.keys() - listed):
                gathering.wrong("not in a list", pictures[stem].name)
    return gathering.source()


def _add(
    gathering: Gathering, split: str, stem: str, annotation: Path | None, picture: Path | None, root: Path
) -> None:
    if picture is None:
        gathering.wrong("no picture", annotation.name if annotation else f"{stem} of {split}.txt")
        return
    name = picture.relative_to(root).as_posix()
    if annotation is None:  # VOC writes one for an empty image too: nobody has looked at this one
        gathering.wrong("no annotation", name)
        return
    try:
        rows, size = _read(annotation)
    except VitrailError as error:
        gathering.wrong("unreadable annotation", str(error))
        return
    gathering.add(split, Entry(name, picture, rows, size))


def _read(path: Path) -> tuple[list[Row], tuple[int, int]]:
    try:
        if path.stat().st_size > LARGEST:
            raise VitrailError(f"{path.name}: larger than any annotation")
        content = path.read_bytes()
        if b"<!DOCTYPE" in content or b"<!ENTITY" in content:  # whose expansions could fill the memory
            raise VitrailError(f"{path.name}: declares entities, which no annotation needs")
        tree = ElementTree.fromstring(content)
        height, width = (int(float(tree.findtext(f"size/{side}") or 0)) for side in ("height", "width"))
    except OSError as error:
        raise VitrailError(f"{path.name}: {error.strerror or error}") from None
    except (ElementTree.ParseError, ValueError, OverflowError) as error:
        raise VitrailError(f"{path.name}: {error}") from None
    if height < 1 or width < 1:
        raise VitrailError(f"{path.name}: no width and height")
    rows = []
    for thing in tree.iter("object"):
        label = (thing.findtext("name") or "").strip() or "no name"
        try:
            left, top, right, bottom = (
                float(thing.findtext(f"bndbox/{side}") or "nan") for side in ("xmin", "ymin", "xmax", "ymax")
            )
        except ValueError:
            left = top = right = bottom = float("nan")
        box = ((left - 1) / width, (top - 1) / height, right / width, bottom / height)
        if right <= left or bottom <= top:  # a click, not a box: one pixel wide if taken by the letter
            box = (box[0], box[1], box[0], box[1])
        rows.append(Row(label, box, (thing.findtext("difficult") or "0").strip() == "1"))
    return rows, (height, width)


def _lists(root: Path) -> dict[str, list[str]]:
    """Split → names, from ImageSets/; trainval only where there is no train."""
    found: dict[str, list[str]] = {}
    for folder in (root / "ImageSets" / "Main", root / "ImageSets"):
        for word, split in (("train", "train"), ("val", "val"), ("test", "test"), ("trainval", "train")):
            path = folder / f"{word}.txt"
            if path.is_file() and split not in found:
                lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
                found[split] = [line.split()[0] for line in lines if line.split()]
    return {split: found[split] for split in SPLITS if split in found}


def _pictures(folders: list[Path]) -> dict[str, Path]:
    return {
        path.stem: path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if os.path.splitext(path.name)[1].lower() in PICTURES and not path.name.startswith(".")
    }
