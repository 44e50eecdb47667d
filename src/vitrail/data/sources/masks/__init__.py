"""Images with a mask each, for segmentation: every pixel has a class, or is ignored.

images/SPLIT/…/a.jpg beside masks/SPLIT/…/a.png     also SPLIT/images beside SPLIT/masks, or without splits
pairs.csv                                           path,mask[,split], relative to the table
panoptic.json, stuff.json                           COCO's, see coco.py

A mask is a PNG whose values are class numbers: grey, or the indices of a palette. All masks are read once when a source
is opened. What can't be learned from is left out, each with its reason: training goes on with the rest.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.existence import check_exists
from vitrail.data.image_set import default_workers, threaded
from vitrail.data.kinds import MASKS
from vitrail.data.samples import Sample, Source, checked, in_order, plural, some
from vitrail.data.sources.masks.coco import PaintedMask, PanopticMask, open_coco
from vitrail.data.sources.masks.pairs import IGNORE, Found, MaskFile, find_pairs, picture_size, read_pairs
from vitrail.errors import VitrailError

MOST = 255  # classes, so that a byte holds them all beside IGNORE

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class MaskedSample(Sample):
    """An image with its mask; `labels` are the classes that have a pixel in it."""

    mask: MaskFile | PanopticMask | PaintedMask
    values: tuple[int, ...] = field(repr=False)  # what the file has for class 0, for class 1, …
    counts: tuple[int, ...] = field(default=(), repr=False)  # pixels of each of the `labels`

    def mask_pixels(self) -> np.ndarray:
        """uint8 [h, w] of class indices and IGNORE, at the size of the upright image."""
        table = np.full(max(256, 2 + max(self.values)), IGNORE, np.uint8)
        table[list(self.values)] = np.arange(len(self.values))
        found = self.mask.values()
        return table[found if found.dtype == np.uint8 else np.minimum(found, len(table) - 1)]

    def identity(self) -> str:
        return f"{Sample.identity(self)} {self.mask.identity()} {self.values}"


def pixels_of(samples: Sequence[Sample], classes: int) -> np.ndarray:
    """int64 [C]: pixels of each class."""
    total = np.zeros(classes, np.int64)
    for sample in samples:
        assert isinstance(sample, MaskedSample)
        total[[*sample.labels]] += sample.counts
    return total


@dataclass(repr=False)
class MaskSource(Source):
    """`multi_label` in the sense that an image holds several classes."""

    left_out: dict[str, str] = field(default_factory=dict)  # name → reason
    pixels: dict[str, np.ndarray] = field(default_factory=dict)  # split → int64 [C]: pixels of each class
    colours: list[tuple[int, int, int]] | None = None  # of the classes, where the data has them


@dataclass
class _Looked:
    """What was seen of a pair: the values of its mask, or why it can't be used."""

    pair: Found
    values: dict[int, int] = field(default_factory=dict)  # value → pixels
    kind: str = ""
    reason: str = ""


def open_masks(
    data: str | Path,
    classes: Sequence[str] | None = None,
    ignore: Sequence[int] | None = None,
    images: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> MaskSource:
    """The pairs of DATA, as the head of this file says.

    Names come from `classes`, or classes.txt (a name a line, from value 0 on) or classes.json (a list, or {"7": "cat"})
    beside the data; else a class is called after its value. `ignore` are values that mean no class, as are those that
    classes.json calls null; 255 alone if nothing is said. Masks of 0 and 255 alone, though, are a thing and what is
    behind it. `images` is where the images of a COCO file lie, where that is neither beside it nor in a folder called
    as usual.
    """
    check_exists(data, MASKS, by_name=False)
    name, path = str(data), Path(data).expanduser()
    notes: list[str] = []
    named: dict[int, str] | None = None
    colours: list[tuple[int, int, int]] | None = None
    if path.is_dir():
        pairs, named = find_pairs(path, name), _named(path, classes)
    elif path.suffix.lower() in (".csv", ".tsv") and path.is_file():
        pairs, named = read_pairs(path, name), _named(path.parent, classes)
    elif path.suffix.lower() == ".json" and path.is_file():
        pairs, found, notes, colours = open_coco(path, name, None if images is None else Path(images))
        named = dict(enumerate(classes or found))
    else:
        raise VitrailError(f"{name} is neither a folder, a .csv nor a .json: expected {MASKS}.")
    looked = []
    for seen in threaded(default_workers() if workers is None else workers, _look, pairs):
        looked.append(seen)
        if progress:
            progress(len(looked), len(pairs))
    unnamed = [value for value, label in (named or {}).items() if not label]
    if ignore is not None:
        ignore = [*ignore, *unnamed]
    else:
        ignore = [IGNORE, *unnamed]
        if named is None and {value for seen in looked for value in seen.values} == {0, IGNORE}:
            ignore, named = [], {0: "background", IGNORE: "foreground"}
            notes.append("The masks hold 0 and 255 alone: taken for background and foreground.")
    named = _classes(looked, named, ignore, name)
    for seen in looked:
        if seen.values and not seen.reason:
            _check_values(seen, named, ignore)
    colours = colours or _palette(looked, named)
    return _source(name, looked, named, notes, colours)


def _look(pair: Found) -> _Looked:
    """Reads the mask, and of the image its size."""
    if pair.mask is None:
        return _Looked(pair, kind="image without a mask", reason=f"{pair.name} has no mask.")
    if pair.image is None:
        return _Looked(pair, kind="mask without an image", reason=f"The mask {pair.name} has no image.")
    kind = "unreadable image"
    try:
        size = picture_size(pair.image)
        kind = "unreadable mask"
        values = pair.mask.values()
    except VitrailError as error:
        return _Looked(pair, kind=kind, reason=str(error))
    if values.shape != size:
        return _Looked(
            pair,
            kind="mask of another size",
            reason=f"The mask of {pair.name} is {values.shape[1]}×{values.shape[0]} and the upright picture "
            f"{size[1]}×{size[0]}: save both in one size.",
        )
    found, counts = np.unique(values, return_counts=True)
    return _Looked(pair, dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _named(folder: Path, classes: Sequence[str] | None) -> dict[int, str] | None:
    """Value → name, if anybody says."""
    if classes is not None:
        return dict(enumerate(classes))
    text, table = folder / "classes.txt", folder / "classes.json"
    try:
        if text.is_file():
            lines = text.read_text(encoding="utf-8-sig").splitlines()
            return dict(enumerate(line.strip() for line in lines if line.strip()))
        if table.is_file():
            content: Any = json.loads(table.read_bytes())
            names = dict(enumerate(content)) if isinstance(content, list) else {int(v): n for v, n in content.items()}
            if min(names, default=0) < 0:
                raise ValueError(f"{min(names)} is no value of a mask")
            return {value: "" if names[value] is None else str(names[value]) for value in sorted(names)}
    except (OSError, ValueError, AttributeError) as error:
        raise VitrailError(
            f"The class names in {folder} can't be read ({error}): expected classes.txt with a name a line, or "
            'classes.json with a list or {"0": "name"}.'
        ) from None
    return None


def _classes(looked: list[_Looked], named: dict[int, str] | None, ignore: Sequence[int], name: str) -> dict[int, str]:
    """Value → name of what is learned. Without names, the values that occur in train, or in all."""
    if named is None:
        split = "train" if any(seen.pair.split == "train" and seen.values for seen in looked) else None
        seen_values = {v for seen in looked if split in (None, seen.pair.split) for v in seen.values}
        named = {value: f"class {value}" for value in sorted(seen_values)}
    named = {value: label for value, label in named.items() if value not in ignore}
    if len(named) > MOST:
        raise VitrailError(
            f"The masks of {name} have {len(named)} different values, and at most {MOST} classes can be told apart: "
            "name the classes, or check that the values are class numbers."
        )
    if len(named) < 2:
        first = next((seen.reason for seen in looked if seen.reason), "")
        what = f"one class only, {next(iter(named.values()))}" if named else "no class"
        raise VitrailError(f"{name} holds {what}: at least two are needed to tell anything apart. {first}".rstrip())
    return named


def _check_values(seen: _Looked, named: dict[int, str], ignore: Sequence[int]) -> None:
    outside = [value for value in seen.values if value not in named and value not in ignore]
    if outside:
        seen.kind = "mask with a value outside the classes"
        seen.reason = (
            f"The mask of {seen.pair.name} holds {some(outside)}, outside the {len(named)} classes "
            f"({_ranges([*named])}): mend it, name the class, or ignore the value."
        )
    elif not any(value in named for value in seen.values):
        seen.kind, seen.reason = "mask of ignored pixels", f"The mask of {seen.pair.name} has ignored pixels alone."


def _ranges(values: list[int]) -> str:
    contiguous = values == [*range(values[0], values[-1] + 1)]
    return f"{values[0]} to {values[-1]}" if contiguous else some(values)


def _palette(looked: list[_Looked], named: dict[int, str]) -> list[tuple[int, int, int]] | None:
    """The colours of the first mask with a palette, unless they are shades of grey."""
    for seen in looked:
        if isinstance(seen.pair.mask, MaskFile) and seen.values and not seen.reason:
            flat = seen.pair.mask.palette() or []
            colours = [tuple(flat[3 * value : 3 * value + 3]) for value in named]
            if all(len(colour) == 3 for colour in colours) and any(len({*colour}) > 1 for colour in colours):
                return colours  # type: ignore[return-value]
            return None
    return None


def _source(
    name: str,
    looked: list[_Looked],
    named: dict[int, str],
    notes: list[str],
    colours: list[tuple[int, int, int]] | None,
) -> MaskSource:
    values = tuple(named)
    index = {value: number for number, value in enumerate(values)}
    splits: dict[str, list[Sample]] = {}
    left_out: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    for seen in looked:
        pair = seen.pair
        if seen.reason:
            left_out[pair.name] = seen.reason
            kinds.setdefault(seen.kind, []).append(pair.name)
            continue
        assert pair.image is not None and pair.mask is not None
        present = {index[value]: count for value, count in seen.values.items() if value in index}
        labels = tuple(sorted(present))
        counts = tuple(present[label] for label in labels)
        sample = MaskedSample(pair.name, pair.image, labels, pair.mask, values, counts)
        splits.setdefault(pair.split, []).append(sample)
    for kind, names in kinds.items():
        first, rest = kind.split(" ", 1)
        one, many = kind, " ".join([first + "s", rest]) if first in ("image", "mask") else kind + "s"
        notes.append(f"{plural(len(names), one, many)} left out ({some(names)}).")
    twice = [label for label, count in Counter(named.values()).items() if count > 1]
    if twice:
        raise VitrailError(f"{name} gives one name to several classes ({some(twice)}): make them different.")
    pixels = {split: pixels_of(samples, len(values)) for split, samples in splits.items()}
    source = MaskSource(
        name, [*named.values()], in_order(splits), True, notes, left_out=left_out, pixels=pixels, colours=colours
    )
    if not len(source):
        raise VitrailError(f"{name} holds no pair to learn from, for instance: {next(iter(left_out.values()), '')}")
    return checked(source)  # type: ignore[return-value]
