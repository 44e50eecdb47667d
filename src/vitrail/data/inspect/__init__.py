"""A look at every image before anything is learned from it: what is there, what is broken, what is there twice."""

import hashlib
import io
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import exif_orientation, identify
from vitrail.data.image_set import default_workers, threaded
from vitrail.data.inspect.faces import labelled_faces
from vitrail.data.inspect.labels import Labelled, labelled
from vitrail.data.samples import Sample, Source
from vitrail.data.sources.faces.samples import Faces
from vitrail.errors import VitrailError


@dataclass(frozen=True, slots=True)
class Look:
    """What one image tells when it is decoded."""

    height: int
    width: int
    digest: bytes  # of the upright RGB pixels, so that a copy saved anew without loss is still the same
    grey: bool
    format: str
    mode: str  # of the file, Pillow's word: RGB, L, P, CMYK, I;16, …
    turned: bool  # by its EXIF tag


@dataclass(frozen=True)
class Unreadable:
    name: str
    split: str
    labels: list[str]
    reason: str


@dataclass(frozen=True)
class Duplicate:
    """The same pixels under several names."""

    names: list[str]
    splits: list[str]
    labels: list[list[str]]

    @property
    def across(self) -> bool:
        return len(set(self.splits)) > 1

    @property
    def conflicting(self) -> bool:
        return len(set(map(tuple, self.labels))) > 1


@dataclass
class Inspection:
    source: Source
    looks: dict[str, list[Look | None]]  # split → one for each sample, None where it can't be read
    unreadable: list[Unreadable]
    duplicates: list[Duplicate]
    seconds: float
    labelled: Labelled | None = None  # of masks, boxes or people

    @property
    def seen(self) -> list[Look]:
        return [look for looks in self.looks.values() for look in looks if look is not None]

    def counts(self, split: str) -> list[int]:
        """Readable images of each class."""
        pairs = zip(self.source.splits[split], self.looks[split], strict=True)
        counter = Counter(label for sample, look in pairs if look for label in sample.labels)
        return [counter[index] for index in range(len(self.source.classes))]

    @property
    def imbalance(self) -> float | None:
        """The largest class over the smallest, of what is learned from; None where a class has nothing readable."""
        counts = self.counts(next(iter(self.source.splits)))  # train, if there is one
        smallest = min(counts, default=0)
        return max(counts) / smallest if smallest else None

    def sizes(self) -> dict[str, tuple[float, float, float]]:
        """Height, width and aspect (width / height): least, median, greatest."""
        sides: dict[str, list[float]] = {
            "height": [look.height for look in self.seen],
            "width": [look.width for look in self.seen],
            "aspect": [look.width / look.height for look in self.seen],
        }
        return {side: (min(all_), statistics.median(all_), max(all_)) for side, all_ in sides.items() if all_}

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        seen, classes = self.seen, self.source.classes
        return {
            "source": self.source.name,
            "classes": classes,
            "multi_label": self.source.multi_label,
            "notes": self.source.notes,
            "pictures": len(self.source),
            "readable": len(seen),
            "counts": {split: dict(zip(classes, self.counts(split), strict=True)) for split in self.source.splits},
            "imbalance": self.imbalance,
            "sizes": {side: dict(zip(("min", "median", "max"), v, strict=True)) for side, v in self.sizes().items()},
            "formats": dict(Counter(look.format for look in seen).most_common()),
            "modes": dict(Counter(look.mode for look in seen).most_common()),
            "greyscale": sum(look.grey for look in seen),
            "turned_by_exif": sum(look.turned for look in seen),
            "unreadable": [asdict(one) for one in self.unreadable],
            "duplicates": [
                asdict(one) | {"across_splits": one.across, "conflicting_labels": one.conflicting}
                for one in self.duplicates
            ],
            **(self.labelled.as_dict() if self.labelled else {}),
        }


def inspect(
    source: Source, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Inspection:
    """Decodes every image once, in threads; `progress` is called with (done, total)."""
    start = time.perf_counter()
    places = [(split, sample) for split, samples in source.splits.items() for sample in samples]
    looks: dict[str, list[Look | None]] = {split: [] for split in source.splits}
    unreadable: list[Unreadable] = []
    alike: dict[bytes, list[tuple[str, Sample]]] = defaultdict(list)
    threads = default_workers() if workers is None else workers
    results = threaded(threads, lambda place: look_at(place[1]), places)
    for done, ((split, sample), result) in enumerate(zip(places, results, strict=True), 1):
        if isinstance(result, Look):
            looks[split].append(result)
            alike[result.digest].append((split, sample))
        else:
            looks[split].append(None)
            unreadable.append(Unreadable(sample.name, split, _names(sample, source), result))
        if progress:
            progress(done, len(places))
    duplicates = [
        Duplicate([s.name for _, s in group], [split for split, _ in group], [_names(s, source) for _, s in group])
        for group in alike.values()
        if len(group) > 1
    ]
    told = labelled_faces(source) if isinstance(source, Faces) else labelled(source)
    return Inspection(source, looks, unreadable, duplicates, time.perf_counter() - start, told)


def look_at(sample: Sample) -> Look | str:
    """What the image tells, or the reason why it can't be read."""
    try:
        image = sample.decode()
        kind, mode, turned = _header(sample)
    except VitrailError as error:
        return reason(sample, error)
    pixels = np.asarray(image)  # [H, W, 3]
    # Processors have instructions for SHA-1; of all that tell a million images apart it is the fastest here.
    digest = hashlib.sha1(f"{image.size}".encode(), usedforsecurity=False)
    digest.update(pixels.data)
    return Look(image.height, image.width, digest.digest(), _is_grey(pixels), kind, mode, turned)


def reason(sample: Sample, error: VitrailError) -> str:
    """The error without the name that it begins with."""
    sentence = str(error)
    for name in (str(sample.where), sample.name):
        sentence = sentence.removeprefix(f"{name} ")
    return sentence


def _header(sample: Sample) -> tuple[str, str, bool]:
    """Format, mode, and whether it lay on its side."""
    opened = sample.open()
    if isinstance(opened, Image.Image):
        return opened.format or "array", opened.mode, False
    with open(opened, "rb") if isinstance(opened, Path) else io.BytesIO(opened) as stream:
        image = identify(stream, sample.name)
        return image.format or "", image.mode, exif_orientation(image) > 1


def _is_grey(pixels: np.ndarray) -> bool:
    for part in (pixels[::8, ::8], pixels):  # most images show a colour at once
        if not (part[..., 0] == part[..., 1]).all() or not (part[..., 1] == part[..., 2]).all():
            return False
    return True


def _names(sample: Sample, source: Source) -> list[str]:
    return source.words_of(sample)
