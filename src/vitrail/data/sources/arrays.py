"""Images in one array: an `.npz` file, as NumPy saves it.

    np.savez("cifar.npz", train_images=…, train_labels=…, test_images=…, test_labels=…, classes=[…])

Images are uint8, [n, height, width, 3], or [n, height, width] or [n, height, width, 1] for grey. Labels are numbers or
names, [n]; or 0 and 1, [n, classes], where an image may have several. Where each has exactly one 1 that is its one
label. `classes` names the numbers. Without splits the keys are `images` and `labels`. Keras' names (`x_train`,
`y_train`) are read as well.

What `np.savez` writes lies in the file as it lies in memory, so it is mapped and not read; what `np.savez_compressed`
writes is unpacked once.
"""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.samples import SPLIT_WORDS, Item, Sample, Source, in_order, plural, some
from vitrail.errors import VitrailError

SUFFIX = ".npz"
MOST_CLASSES = 100_000  # more than that are numbers of something else, unless most of them are there
Labels = list[tuple[int, ...]]


class ImageArray:
    """One array of images. `data` is what `vitrail.data.image_set` takes whole, where no image has to be changed."""

    def __init__(self, path: Path, key: str, data: np.ndarray):
        self.path, self.key, self.data = path, key, data

    def __repr__(self) -> str:  # what a cache is keyed by
        status = self.path.stat()
        return f"{self.key} of {self.path.absolute()} {status.st_size} {status.st_mtime_ns}"

    def __getitem__(self, index: int) -> tuple[Image.Image]:
        return (Image.fromarray(self.data[index]),)


def open_arrays(path: Path, name: str) -> Source:
    """A source without classes where the file has no labels, which is enough to learn without them."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = _keys(members, name)
            wanted = {key for pair in keys.values() for key in pair} | {"classes"} & members.keys()
            arrays = {key: _array(path, archive, members[key]) for key in sorted(wanted & members.keys())}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise VitrailError(f"{name} can't be read as arrays ({reason}): write it with np.savez.") from None
    for key, array in arrays.items():
        if not array.ndim:
            raise VitrailError(f"{key} of {name} is a single value: expected an array of them.")
    given = {split: arrays[labels] for split, (_, labels) in keys.items() if labels in arrays}
    for split, (images, labels) in keys.items():
        _check_images(arrays[images], images, name)
        if arrays[images].ndim == 4 and arrays[images].shape[3] == 1:
            arrays[images] = arrays[images][..., 0]
        if split not in given:
            if given:
                raise VitrailError(f"{name} has labels for {some(given)} and none for {split}: add {labels}.")
        elif len(given[split]) != len(arrays[images]):
            counts = f"{len(arrays[images]):,} {images} and {len(given[split]):,} {labels}"
            raise VitrailError(f"{name} has {counts}: expected as many of one as of the other.")
    names = [_word(value) for value in arrays["classes"].tolist()] if "classes" in arrays else None
    classes, labelled, multi_label = _labelled(given, names, name)
    notes = []
    if not multi_label and any(each.ndim == 2 and each.shape[1] > 1 for each in given.values()):
        notes.append("Each row of labels has a single 1, so they are read as one label for each image.")
    splits: dict[str, list[Sample]] = {}
    for split, (key, _) in keys.items():
        pictures = ImageArray(path, key, arrays[key])
        each = labelled.get(split) or [()] * len(arrays[key])
        splits[split] = [Sample(f"{path.name}/{split}/{i}", Item(pictures, i), one) for i, one in enumerate(each)]
    return Source(name, classes, in_order(splits), multi_label, notes)


def _keys(members: Iterable[str], name: str) -> dict[str, tuple[str, str]]:
    """split → the keys of its images and of its labels."""
    found: dict[str, tuple[str, str]] = {}
    for word, split in {"": "all", **SPLIT_WORDS}.items():
        both = (f"{word}_images", f"{word}_labels"), (f"x_{word}", f"y_{word}")
        for images, labels in [("images", "labels")] if not word else both:
            if images in members and found.setdefault(split, (images, labels)) != (images, labels):
                raise VitrailError(f"{name} has {images} and {found[split][0]}: leave one of them out.")
    if not found:
        raise VitrailError(
            f"{name} holds {some(members) or 'nothing'}: expected the arrays train_images and train_labels (also val_… "
            "and test_…), or images and labels."
        )
    if "all" in found and len(found) > 1:
        raise VitrailError(f"{name} has images and {some(found[split][0] for split in found if split != 'all')}: "
                           "leave one of them out.")  # fmt: skip
    return found


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Mapped where it is stored as it is. Never a pickle: NumPy refuses an array of objects."""
    with archive.open(info) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        begins = file.tell()
    if info.compress_type == zipfile.ZIP_STORED and not dtype.hasobject and not fortran and np.prod(shape) > 0:
        with open(path, "rb") as raw:  # the archive's own directory does not say where a member's bytes begin
            raw.seek(info.header_offset + 26)
            lengths = np.frombuffer(raw.read(4), "<u2")
        offset = info.header_offset + 30 + int(lengths.sum()) + begins
        # "c", copy on write: torch can't mark a tensor read-only, and warns of arrays that are
        return np.memmap(path, dtype, "c", offset, shape).view(np.ndarray)
    with archive.open(info) as file:
        return np.ascontiguousarray(np.lib.format.read_array(file, allow_pickle=False))


def _check_images(images: np.ndarray, key: str, name: str) -> None:
    shape = "×".join(map(str, images.shape))
    if images.dtype != np.uint8:
        raise VitrailError(f"{key} of {name} is {images.dtype}: expected uint8, from 0 to 255.")
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3, 4):
        raise VitrailError(f"{key} of {name} is {shape}: the colours go last, images.transpose(0, 2, 3, 1).")
    if not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] in (1, 3, 4))) or 0 in images.shape[1:]:
        raise VitrailError(f"{key} of {name} is {shape}: expected n×height×width×3, or n×height×width for grey.")


def _labelled(
    given: dict[str, np.ndarray], names: list[str] | None, name: str
) -> tuple[list[str], dict[str, Labels], bool]:
    """The classes, the labels of each split as class indices, and whether an image may have several."""
    given = {split: each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for split, each in given.items()}
    if not given:
        return names or [], {}, False
    if len({(each.dtype.kind, each.shape[1:]) for each in given.values()}) > 1:
        raise VitrailError(f"The labels of {name} differ in kind between {some(given)}: make them alike.")
    first = next(iter(given.values()))
    if first.ndim == 2 and first.dtype.kind in "iub":
        classes = names or [str(number) for number in range(first.shape[1])]
        if len(classes) != first.shape[1]:
            raise VitrailError(f"{name} has {first.shape[1]} columns of labels, and {len(classes)} names in classes.")
        if any(each.min(initial=0) < 0 or each.max(initial=0) > 1 for each in given.values()):
            raise VitrailError(f"{name} has columns of labels that are not 0 or 1: give each image one label, [n].")
        found = {split: [tuple(np.flatnonzero(row).tolist()) for row in each] for split, each in given.items()}
        return classes, found, any(len(labels) != 1 for each in found.values() for labels in each)
    if first.ndim != 1 or first.dtype.kind not in "iuUS":
        kind = f"{first.dtype} in {plural(first.ndim, 'dimension')}"
        raise VitrailError(f"The labels of {name} are {kind}: expected one whole number or name for each image.")
    values = sorted({value for each in given.values() for value in np.unique(each).tolist()})
    words = [_word(value) for value in values]
    if first.dtype.kind in "US":
        classes = names or words
        at = {value: classes.index(word) if word in classes else -1 for value, word in zip(values, words, strict=True)}
    else:
        if not names and max(values) >= max(MOST_CLASSES, 10 * len(values)):
            raise VitrailError(
                f"{name} has the label {max(values):,} and {plural(len(values), 'label')} in all: number the classes "
                "from 0 on, as np.unique(labels, return_inverse=True) does."
            )
        classes = names or [str(number) for number in range(max(values) + 1)]
        at = {value: value if 0 <= value < len(classes) else -1 for value in values}
    unknown = [word for value, word in zip(values, words, strict=True) if at[value] < 0]
    if unknown:
        raise VitrailError(f"{name} has labels that are none of its {len(classes)} classes: {some(unknown)}.")
    one = {value: (number,) for value, number in at.items()}  # one tuple for each class, not for each image
    return classes, {split: [one[value] for value in each.tolist()] for split, each in given.items()}, False


def _word(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
