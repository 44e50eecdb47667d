"""What every data source comes down to: samples with a name, a place and labels; and the checks that all share."""

import io
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import open_image, open_pixels
from vitrail.errors import VitrailError

# By its suffix a file counts as an image; what it really is, the decoder finds out. HEIC is here although Pillow alone
# cannot read it: half of a phone's album left out must be listed, not passed over.
PICTURES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
    ".pnm", ".avif", ".jp2", ".tga", ".ico", ".heic", ".heif",
}  # fmt: skip
NAMED = ("torchvision:", "hf:")  # how a data set that is known by its name begins
SPLITS = ("train", "val", "test")
SPLIT_WORDS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TarMember:
    """Bytes inside a tar file that is never unpacked."""

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        # A handle of its own for every read: nothing is shared between threads or inherited by processes, and to open
        # a file costs a hundredth of what it costs to decode an image.
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise VitrailError(f"{self.path} can't be read ({error.strerror or error}).") from None
        if len(data) < self.size:
            raise VitrailError(
                f"{self.path} ends inside this picture ({len(data)} of {self.size} bytes): copy it again."
            )
        return data


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a map-style data set whose items begin with the image."""

    dataset: Any
    index: int

    def read(self) -> Any:
        return self.dataset[self.index][0]


@dataclass(frozen=True, slots=True)
class Sample:
    name: str  # relative to the source, or "shard.tar/member.jpg", or "torchvision:CIFAR10/train/7"
    where: Path | TarMember | Item
    labels: tuple[int, ...]  # class indices; exactly one unless the source is multi-label

    @property
    def target(self) -> tuple[float, ...]:
        """What is to be learned of it, as numbers: by these a changed data set is known."""
        return self.labels

    def open(self) -> Path | bytes | Image.Image:
        """What `open_image` takes. Safe to call from several threads, or processes, at once."""
        if isinstance(self.where, Path):
            return self.where
        try:
            return self.where.read()
        except VitrailError as error:
            raise VitrailError(f"{self.name} can't be read: {error}") from None
        except Exception as error:  # somebody else's data set, which may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise VitrailError(f"{self.name} can't be read from its data set ({reason}).") from error

    def identity(self) -> str:
        """Another string when the file becomes another; what a cache of decoded images is keyed by."""
        if isinstance(self.where, Item):
            return f"{self.name} of {self.where.dataset!r}"
        file, offset = (self.where, 0) if isinstance(self.where, Path) else (self.where.path, self.where.offset)
        try:
            status = file.stat()
        except OSError:
            return f"{os.path.abspath(file)} {offset}"
        return f"{os.path.abspath(file)} {offset} {status.st_size} {status.st_mtime_ns}"

    def decode(self, at_least: tuple[int, int] | None = None) -> Image.Image:
        """Upright RGB; an error calls the image by its file or its name here, never "the image of 812 bytes"."""
        opened = self.open()
        return open_image(NamedBytes(opened, self.name) if isinstance(opened, bytes) else opened, at_least)

    def pixels(self, mode: str = "RGB", at_least: tuple[int, int] | None = None) -> np.ndarray:
        """The same as uint8 [h, w, C], in less time."""
        opened = self.open()
        return open_pixels(NamedBytes(opened, self.name) if isinstance(opened, bytes) else opened, mode, at_least)


class NamedBytes(io.BytesIO):
    """Bytes that an error message can name."""

    def __init__(self, data: bytes, name: str):
        super().__init__(data)
        self.name = name


@dataclass(repr=False)
class Source:
    name: str  # as given
    classes: list[str]  # index = position
    splits: dict[str, list[Sample]]  # "train", "val", "test"; or "all" alone where the source names no splits
    multi_label: bool = False
    notes: list[str] = field(default_factory=list)  # sentences about what was noticed
    held_out: str = ""  # how "val" came to be, where the data did not have it

    def __repr__(self) -> str:  # the samples themselves would fill a book
        sizes = ", ".join(f"{split} {len(samples):,}" for split, samples in self.splits.items())
        return f"Source({self.name}, {plural(len(self.classes), 'class', 'classes')}, {sizes})"

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def words_of(self, sample: Sample) -> list[str]:
        """What a sample is labelled with, for a reader."""
        return [self.classes[label] for label in sample.labels]

    def counts(self, split: str) -> list[int]:
        """Samples of each class in a split."""
        counter = Counter(label for sample in self.splits[split] for label in sample.labels)
        return [counter[index] for index in range(len(self.classes))]


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 file", "1,200 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def some(names: Iterable[Any], limit: int = 5) -> str:
    """The first few, and how many more there are."""
    names = [str(name) for name in names]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def numbered(labels: Iterable[Iterable[str]]) -> list[str]:
    """The class names among the labels of all samples, in the order that gives each its index."""
    return sorted({label for several in labels for label in several})


def in_order(splits: dict[str, list[Sample]]) -> dict[str, list[Sample]]:
    """train, val, test, without the empty ones."""
    return {split: splits[split] for split in ("all", *SPLITS) if splits.get(split)}


def checked(source: Source, one_class: bool = False) -> Source:
    """The source, fit to learn from, or one sentence about why it is not; lesser troubles become notes.

    A class that is in val or test but not in train is an error, since no model could ever get it right. It is a note
    with several labels per image, where rare ones do fall that way, and in a data set known by its name, which nobody
    can mend. `one_class` lets a source of a single class pass: enough to evaluate on, not to train on.
    """
    if not len(source):
        raise VitrailError(f"{source.name} holds no pictures.")
    if len(source.classes) < 2 and not one_class and not source.multi_label:
        raise VitrailError(
            f'{source.name} holds one class only, "{source.classes[0]}": '
            "at least two are needed to tell anything apart, so put the others beside it."
        )
    counts = {split: source.counts(split) for split in source.splits}
    learnt = counts.get("train") or counts.get("all") or []
    for split in [split for split in counts if learnt and split not in ("train", "all")]:
        pairs = zip(source.classes, learnt, counts[split], strict=True)
        unknown = [name for name, there, here in pairs if here > there == 0]
        if unknown:
            many = plural(len(unknown), "class", "classes")
            sentence = f"{source.name} has {many} in {split} without a single picture in train ({some(unknown)})"
            if not source.multi_label and not source.name.startswith(NAMED):
                raise VitrailError(f"{sentence}: add some to train, or take the class out of {split}.")
            source.notes.append(f"{sentence}: nothing can be learnt about {'it' if len(unknown) == 1 else 'them'}.")
    single = [name for name, count in zip(source.classes, learnt, strict=False) if count == 1]
    if single:
        has = "class has" if len(single) == 1 else "classes have"
        source.notes.append(f"{len(single):,} {has} one picture to learn from ({some(single)}).")
    alike = Counter(name.casefold().strip() for name in source.classes)
    twins = [name for name in source.classes if alike[name.casefold().strip()] > 1]
    if twins:
        source.notes.append(f"Some class names differ by capitals or blanks alone: {some(twins)}.")
    return source
