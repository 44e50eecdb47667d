"""The images that a Studio knows: what was uploaded to it, and the samples that it offers."""

import hashlib
import importlib.util
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data import open_image
from vitrail.data.samples import PICTURES
from vitrail.data.sources.folders import first_below, look_into
from vitrail.errors import VitrailError
from vitrail.explain.drawing import encoded

LARGEST_FILE = 32 * 2**20
# A 50-megapixel photograph takes 200 MB while it is decoded, one at a time; the limit is checked in its header.
LARGEST_PICTURE = 50_000_000
KEPT_BYTES = 64 * 2**20  # of files, as they were sent
KEPT_PIXELS = 24_000_000  # of decoded images, four bytes each: two of a phone's
MOST_SAMPLES = 12


@dataclass(frozen=True)
class Sample:
    name: str
    path: Path
    credit: str = ""


class Gone(Exception):
    """The image has been forgotten; the page sends it again."""


class ImageSet:
    """Files by the digest of their content, the oldest forgotten when they grow too many. Only the model's thread comes
    here."""

    def __init__(self, samples: list[Sample]):
        self.samples = samples
        self.files: OrderedDict[str, bytes] = OrderedDict()
        self.decoded: OrderedDict[str, Image.Image] = OrderedDict()

    def add(self, content: bytes) -> tuple[str, Image.Image]:
        name = hashlib.sha256(content).hexdigest()[:24]
        image = self.decoded.get(name) or decode(content)
        self.files[name] = content
        self.files.move_to_end(name)
        while len(self.files) > 1 and sum(map(len, self.files.values())) > KEPT_BYTES:
            self.files.popitem(last=False)
        self._keep(name, image)
        return name, image

    def add_sample(self, number: int) -> tuple[str, Image.Image]:
        """By its place in the list, which was made at the start: a request never names a path."""
        if not 0 <= number < len(self.samples):
            raise VitrailError(f"There is no sample {number}; there are {len(self.samples)}.")
        return self.add(self.samples[number].path.read_bytes())

    def get(self, name: str) -> Image.Image:
        if name not in self.files:
            raise Gone
        self.files.move_to_end(name)
        image = self.decoded.get(name) or decode(self.files[name])
        self._keep(name, image)
        return image

    def _keep(self, name: str, image: Image.Image) -> None:
        self.decoded[name] = image
        self.decoded.move_to_end(name)
        while len(self.decoded) > 1 and sum(i.width * i.height for i in self.decoded.values()) > KEPT_PIXELS:
            self.decoded.popitem(last=False)


def decode(content: bytes) -> Image.Image:
    """Upright RGB, or one sentence for the person who dropped it."""
    if not content:
        raise VitrailError("That file is empty (0 bytes): choose another.")
    try:
        return open_image(content, limit=LARGEST_PICTURE)
    except VitrailError as error:
        reason = str(error).replace(f"The image of {len(content)} bytes", "That file")
        reason = re.sub(r" \(it begins with .*\)(?=:)", "", reason, flags=re.S)
        reason = reason.replace(": replace or remove it", ": choose another")
        raise VitrailError(reason.replace(": shrink it", ": save it smaller")) from None


def thumbnail(sample: Sample, side: int = 160) -> bytes:
    """A square JPEG of the middle."""
    image = open_image(sample.path, at_least=(side, side))
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    square = image.crop((left, top, left + short, top + short)).resize((side, side), Image.Resampling.BICUBIC)
    return jpeg(square)


def jpeg(image: Image.Image) -> bytes:
    return encoded(np.asarray(image), "JPEG")


def find_samples(folder: Path | None) -> list[Sample]:
    """Images of a folder, or one of each folder inside it; without one, photographs that come with packages."""
    if folder is None:
        return _installed()
    if not folder.is_dir():
        raise VitrailError(f"There is no folder {folder} to take samples from.")
    inside, files, _ = look_into(folder)
    paths = [*map(Path, files)] or [found for p in _spread(inside) if (found := first_below(p))]
    if not paths:
        raise VitrailError(f"The folder {folder} holds no pictures ({', '.join(sorted(PICTURES))}).")
    return offered(paths, folder)


def offered(paths: list[Path], folder: Path) -> list[Sample]:
    """A few of them, called by their places in the folder; what lies elsewhere by its name alone."""
    chosen = _spread(paths)
    names = [path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name) for path in chosen]
    return [Sample(" / ".join(name.parts), path) for name, path in zip(names, chosen, strict=True)]


def _spread(paths: list[Path]) -> list[Path]:
    """At most `MOST_SAMPLES`, from all over the list."""
    return [paths[i * len(paths) // MOST_SAMPLES] for i in range(MOST_SAMPLES)] if len(paths) > MOST_SAMPLES else paths


def _installed() -> list[Sample]:
    places = [
        ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "Grace Hopper", "US Navy, public domain"),
        ("sklearn", "datasets/images/flower.jpg", "Dahlia", "vultilion, CC BY 2.0"),
        ("sklearn", "datasets/images/china.jpg", "Summer Palace", "danielbuechele, CC BY 2.0"),
    ]
    samples = []
    for package, path, name, credit in places:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec else []:
            if (file := Path(root) / path).is_file():
                samples.append(Sample(name, file, credit))
    return samples
