"""What a source of faces comes down to: samples with a subject, an attack type and a face box."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.kinds import FACE_MARGIN
from vitrail.data.samples import SPLIT_WORDS, Sample, Source
from vitrail.errors import VitrailError

LIVE_WORDS = {"live", "real", "bonafide", "genuine", "client", "clientraw", "clientface"}
# An attack of no particular type; any other word beside live/ is the type itself.
ATTACK_WORDS = {
    "attack", "attacks", "spoof", "fake", "imposter", "impostor", "imposterraw", "imposterface", "presentationattack",
}  # fmt: skip
LIVE, ATTACK = "live", "attack"
SPLITS = SPLIT_WORDS | {"devel": "val", "development": "val"}  # as Replay-Attack has it
MARGIN = FACE_MARGIN

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


@dataclass(frozen=True, slots=True)
class Face(Sample):
    """A sample with what a protocol has to know. `labels` has no entry where its attack was not in training."""

    attack: str = ""  # the type; "" is a live face
    subject: str = ""
    session: str = ""
    domain: str = ""
    box: Box | None = None  # of the face; without one, the model's own fit takes the centre
    margin: float = MARGIN

    @property
    def person(self) -> str:
        """Subject 1 of one data set is nobody in another."""
        return f"{self.domain}/{self.subject}" if self.domain and self.subject else self.subject

    # No super() in a class with slots: dataclasses makes it anew.

    def identity(self) -> str:
        plain = Sample.identity(self)
        return plain if self.box is None else f"{plain} {self.box} {self.margin}"

    def decode(self, at_least: tuple[int, int] | None = None) -> Image.Image:
        if self.box is None:
            return Sample.decode(self, at_least)
        image = Sample.decode(self)
        return image.crop(self.square((image.height, image.width)))

    def pixels(self, mode: str = "RGB", at_least: tuple[int, int] | None = None) -> np.ndarray:
        pixels = Sample.pixels(self, mode, at_least if self.box is None else None)
        if self.box is None:
            return pixels
        left, top, right, bottom = self.square(pixels.shape[:2])
        return np.ascontiguousarray(pixels[top:bottom, left:right])

    def square(self, size: tuple[int, ...]) -> tuple[int, int, int, int]:
        """What is cut out of an image of (height, width)."""
        left, top, right, bottom = self.box  # type: ignore[misc]
        if not (left < size[1] and top < size[0] and right > 0 and bottom > 0):
            corner = f"{left:g}, {top:g} to {right:g}, {bottom:g}"
            raise VitrailError(f"{self.name} is {size[1]}×{size[0]} pixels, and its face box ({corner}) lies outside.")
        return square(size, (left, top, right, bottom), self.margin)


@dataclass(repr=False)
class Faces(Source):
    """`classes` are live, then the attack types of training."""

    protocol: dict[str, Any] = field(default_factory=dict)  # what was done, for the record of a run


def cut_face(image: Image.Image, box: Sequence[float], margin: float = MARGIN) -> Image.Image:
    """The square around a face as training saw it; `box` is left, top, right, bottom."""
    return image.crop(square((image.height, image.width), box, margin))


def square(size: tuple[int, ...], box: Sequence[float], margin: float) -> tuple[int, int, int, int]:
    """left, top, right, bottom of the square around the box; moved into the image, and smaller if it is."""
    height, width = size[:2]
    left, top, right, bottom = box
    side = max(1, min(round(max(right - left, bottom - top) * (1 + 2 * margin)), height, width))
    x = min(max(round((left + right - side) / 2), 0), width - side)
    y = min(max(round((top + bottom - side) / 2), 0), height - side)
    return x, y, x + side, y + side


def plain(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())
