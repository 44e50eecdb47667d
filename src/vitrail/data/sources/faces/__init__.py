"""Faces, live or attacked, as a data source: who each is of, where it was taken, and which part it plays.

    DATA/[DOMAIN/][train/]live/SUBJECT/1.jpg       folders; the attack types lie beside live/ (print/, replay/, …)
    faces.csv                                      path,label[,attack][,split][,subject][,session][,domain][,box]
    DATA/client_train_raw.txt, imposter_test…      lists, as NUAA has them

What is read is then arranged by a protocol (spoof_protocol.py), which keeps people apart.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.existence import FACES, check_exists
from vitrail.data.samples import SPLIT_WORDS, Sample, Source, in_order, plural, some
from vitrail.errors import VitrailError
from vitrail.whole import whole

LIVE_WORDS = {"live", "real", "bonafide", "genuine", "client", "clientraw", "clientface"}
# An attack of no particular type; any other word beside live/ is the type itself.
ATTACK_WORDS = {
    "attack", "attacks", "spoof", "fake", "imposter", "impostor", "imposterraw", "imposterface", "presentationattack",
}  # fmt: skip
LIVE, ATTACK = "live", "attack"
SPLITS = SPLIT_WORDS | {"devel": "val", "development": "val"}  # as Replay-Attack has it
MARGIN = 0.3  # of the face box's longer side, added on every side: the edge of a photograph or screen is evidence

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
        """What is cut out of a picture of (height, width)."""
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
    """left, top, right, bottom of the square around the box; moved into the picture, and smaller if it is."""
    height, width = size[:2]
    left, top, right, bottom = box
    side = max(1, min(round(max(right - left, bottom - top) * (1 + 2 * margin)), height, width))
    x = min(max(round((left + right - side) / 2), 0), width - side)
    y = min(max(round((top + bottom - side) / 2), 0), height - side)
    return x, y, x + side, y + side


def plain(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())


def open_faces(
    data: str | Path,
    protocol: str = "disjoint",
    fold: str | None = None,
    leave_out: str | None = None,
    val: float | None = None,
    seed: int = 0,
    boxes: str | Path | None = None,
    margin: float = MARGIN,
    training: bool = True,
) -> Faces:
    """The faces of DATA, arranged by the protocol and checked; without `training`, as they are, to be scored."""
    from vitrail.data.sources.faces.protocol import arrange

    check_exists(data, FACES, by_name=False)
    splits, notes = _read(Path(data).expanduser(), os.fspath(data))
    splits = _with_boxes(splits, boxes, margin, notes)
    if not any(splits.values()):
        raise VitrailError(f"{data} holds no pictures.")
    facts: dict[str, Any] = {}
    if training:
        splits, facts, more = arrange(splits, os.fspath(data), protocol, fold, leave_out, val, seed)
        notes += more
    learnt = splits.get("train") or splits.get("all") or [face for faces in splits.values() for face in faces]
    classes = [LIVE, *sorted({face.attack for face in learnt} - {""})]
    index = {"" if name == LIVE else name: (number,) for number, name in enumerate(classes)}
    labelled: dict[str, list[Sample]] = {
        split: [replace(face, labels=index.get(face.attack, ())) for face in faces] for split, faces in splits.items()
    }
    known = sum(face.box is not None for faces in splits.values() for face in faces)
    facts |= {"boxes": known, "margin": margin} if known else {}
    how = facts.get("development", "")
    return Faces(os.fspath(data), classes, in_order(labelled), notes=notes, held_out=how, protocol=facts)


def _read(path: Path, name: str) -> tuple[dict[str, list[Face]], list[str]]:
    from vitrail.data.sources.faces import folders, lists, table

    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        return table.read_table(path, name)
    if path.is_dir():
        found = lists.lists_in(path)
        return lists.read_lists(path, name, found) if found else folders.read_folders(path, name)
    raise VitrailError(f"{name} is no table of faces: --task spoof takes {FACES}.")


def _with_boxes(
    splits: dict[str, list[Face]], boxes: str | Path | None, margin: float, notes: list[str]
) -> dict[str, list[Face]]:
    """The faces with the boxes of a table beside them, where a face has none of its own."""
    found: dict[str, Box] = {}
    if boxes is not None:
        from vitrail.data.sources.faces.table import read_boxes

        found = read_boxes(Path(boxes).expanduser())

    def boxed(face: Face) -> Face:
        box = face.box or found.get(face.name) or found.get(os.path.basename(face.name))
        return replace(face, box=box, margin=margin)

    done = {split: [boxed(face) for face in faces] for split, faces in splits.items()}
    without = [face.name for faces in done.values() for face in faces if face.box is None]
    total = sum(map(len, done.values()))
    if boxes is not None and len(without) == total:
        raise VitrailError(f"{boxes} has no box for any picture, for instance {some(without, 1)}: check its paths.")
    if without and len(without) < total:
        notes.append(f"{plural(len(without), 'picture')} without a face box, taken at the centre ({some(without)}).")
    return done


def write_faces(path: Path, splits: dict[str, list[Sample]]) -> Path:
    """The table that `open_faces` reads back as the same faces and splits."""
    columns = ["path", "label", "attack", "split", "subject", "session", "domain", "box"]
    with whole(path) as part, open(part, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for split, faces in splits.items():
            for face in faces:
                assert isinstance(face, Face) and isinstance(face.where, Path)
                place = Path(os.path.abspath(face.where)).as_posix()
                box = "" if face.box is None else " ".join(f"{value:g}" for value in _sized(face.box))
                kind = ATTACK if face.attack else LIVE
                writer.writerow([place, kind, face.attack, split, face.subject, face.session, face.domain, box])
    return path


def _sized(box: Box) -> Box:
    return box[0], box[1], box[2] - box[0], box[3] - box[1]
