"""Which mask belongs to which image, in folders and tables; and the values of a mask file.

What has no partner is found too, to be listed. Nothing is decoded until a mask is read.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import PIXEL_LIMIT, exif_orientation, guarded, identify, open_stream
from vitrail.data.samples import SPLIT_WORDS
from vitrail.data.sources.folders import pictures_below, readable
from vitrail.errors import VitrailError, nearest

IGNORE = 255  # in every mask that is handed out: a pixel that counts neither in the loss nor in a figure
MASKS = ("masks", "annotations")  # what the folder beside images/ may be called
LOSSY = {"JPEG", "MPO"}


@dataclass(frozen=True, slots=True)
class MaskFile:
    """Class numbers as a grey image, or as the indices of one with a palette."""

    path: Path

    def values(self) -> np.ndarray:
        """[h, w], uint8 or a wider integer, as they stand in the file."""
        image = opened(self.path)
        if image.mode in ("P", "L"):
            return np.asarray(image)
        if image.mode == "1":
            return np.asarray(image).astype(np.uint8)
        if image.mode[0] == "I":
            return np.asarray(image).astype(np.int64)
        channels = np.asarray(image.convert("RGB"))
        if (channels == channels[..., :1]).all():  # grey after all
            return channels[..., 0]
        raise VitrailError(
            f"{self.path} holds colours, and a mask holds class numbers: save it as a grey or palette PNG."
        )

    def palette(self) -> list[int] | None:
        """red, green, blue of value 0, of value 1 …, where the file has colours for them."""
        image = opened(self.path)
        return image.getpalette("RGB") if image.mode == "P" else None

    def identity(self) -> str:
        status = self.path.stat()
        return f"{self.path.absolute()} {status.st_size} {status.st_mtime_ns}"


@dataclass(frozen=True, slots=True)
class Found:
    """An image and its mask, or one of them alone."""

    name: str
    split: str
    image: Path | None
    mask: Any | None  # a MaskFile, or one of coco.py


def opened(path: Path) -> Image.Image:
    """The file with its pixels, in its own mode, within the limits of every image here."""
    name = str(path)
    with open_stream(path, name) as stream:

        def load() -> Image.Image:
            image = identify(stream, name)
            if image.format in LOSSY:
                raise VitrailError(f"{name} is a JPEG, which changes class numbers: save masks as PNG.")
            if image.width * image.height > PIXEL_LIMIT:
                raise VitrailError(f"{name} has {image.width}×{image.height} pixels, above the limit: shrink it.")
            image.load()
            return image

        return guarded(name, load)


def picture_size(path: Path) -> tuple[int, int]:
    """Height and width of an upright image, from its header alone."""
    name = str(path)
    with open_stream(path, name) as stream:
        image = guarded(name, lambda: identify(stream, name))
        size = (image.height, image.width)
        return size[::-1] if exif_orientation(image) >= 5 else size


def find_pairs(root: Path, name: str) -> list[Found]:
    """In images/ beside masks/, with or without splits inside; or in SPLIT/images beside SPLIT/masks."""
    folders = {folder.name.lower(): folder for folder in sorted(root.iterdir()) if folder.is_dir()}
    beside = _mask_folder(folders)
    if "images" in folders and beside:
        splits = _splits(folders["images"])
        if not splits:
            return [*_match(folders["images"], beside, "all", root)]
        masks = _splits(beside)
        found: list[Found] = []
        for split, folder in splits.items():
            found += _match(folder, masks.get(split), split, root)
        for split in [split for split in masks if split not in splits]:
            found += _match(None, masks[split], split, root)
        return found
    found = []
    for split, folder in _splits(root).items():
        inner = {each.name.lower(): each for each in sorted(folder.iterdir()) if each.is_dir()}
        if "images" in inner and _mask_folder(inner):
            found += _match(inner["images"], _mask_folder(inner), split, root)
    if not found:
        raise VitrailError(
            f"{name} holds no images/ beside masks/: expected images/a.jpg and masks/a.png, "
            "or images/train/a.jpg and masks/train/a.png."
        )
    return found


def _mask_folder(folders: dict[str, Path]) -> Path | None:
    return next((folders[word] for word in MASKS if word in folders), None)


def _splits(folder: Path) -> dict[str, Path]:
    """Split → folder, of the folders that are called like one."""
    inner = [each for each in sorted(folder.iterdir()) if each.is_dir() and each.name.lower() in SPLIT_WORDS]
    return {SPLIT_WORDS[each.name.lower()]: each for each in inner}


def _match(images: Path | None, masks: Path | None, split: str, root: Path) -> Iterator[Found]:
    """By the path below the two folders without its suffix; a mask may also be called NAME_mask.png."""
    by_stem: dict[str, Path] = {}
    for mask in _pictures(masks):
        by_stem.setdefault(_stem(mask, masks), mask)
    used = set()
    for image in _pictures(images):
        stem = _stem(image, images)
        taken = next((each for each in (stem, f"{stem}_mask") if each in by_stem), None)
        used.add(taken)
        yield Found(_name(image, root), split, image, None if taken is None else MaskFile(by_stem[taken]))
    for stem, path in by_stem.items():
        if stem not in used:
            yield Found(_name(path, root), split, None, MaskFile(path))


def _pictures(folder: Path | None) -> list[Path]:
    return [] if folder is None else pictures_below(folder)


def _stem(path: Path, folder: Path | None) -> str:
    return path.relative_to(folder or path.parent).with_suffix("").as_posix()


def _name(path: Path, root: Path) -> str:
    return readable(path.relative_to(root).as_posix())


def read_pairs(table: Path, name: str) -> list[Found]:
    """A table path,mask[,split], relative to its own folder."""
    found = []
    try:
        with open(table, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=max(",;\t", key=first.count), skipinitialspace=True)
            columns = reader.fieldnames or []
            for column in ("path", "mask"):
                if column not in columns:
                    raise VitrailError(
                        f"{name} has no column {column}, only {', '.join(columns) or 'nothing'}: "
                        f"expected path,mask[,split].{nearest(column, columns)}"
                    )
            for row in reader:
                split = (row.get("split") or "all").strip().lower()
                if split != "all" and split not in SPLIT_WORDS:
                    raise VitrailError(
                        f'Line {reader.line_num} of {name} has the split "{split}": write train, val or test.'
                    )
                image, mask = row["path"] or "", row["mask"] or ""
                found.append(
                    Found(
                        readable(image or mask),
                        SPLIT_WORDS.get(split, "all"),
                        table.parent / image if image else None,
                        MaskFile(table.parent / mask) if mask else None,
                    )
                )
    except (OSError, csv.Error) as error:
        raise VitrailError(f"{name} can't be read as a table ({error}).") from None
    if not found:
        raise VitrailError(f"{name} has no rows: expected path,mask and a row for each picture.")
    if len({pair.split == "all" for pair in found}) > 1:
        raise VitrailError(f"Some rows of {name} have a split and others none: write train, val or test in all.")
    return found
