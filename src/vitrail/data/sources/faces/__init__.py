"""Faces, live or attacked, as a data source: who each is of, where it was taken, and which part it plays.

    DATA/[DOMAIN/][train/]live/SUBJECT/1.jpg       folders; the attack types lie beside live/ (print/, replay/, …)
    faces.csv                                      path,label[,attack][,split][,subject][,session][,domain][,box]
    DATA/client_train_raw.txt, imposter_test…      lists, as NUAA has them

What is read is then arranged by a protocol (spoof_protocol.py), which keeps people apart.
"""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.existence import check_exists
from vitrail.data.kinds import FACES
from vitrail.data.samples import Sample, in_order, plural, some
from vitrail.data.sources.faces.folders import read_folders
from vitrail.data.sources.faces.lists import lists_in, read_lists
from vitrail.data.sources.faces.protocol import arrange
from vitrail.data.sources.faces.samples import ATTACK, LIVE, MARGIN, Box, Face, Faces
from vitrail.data.sources.faces.table import read_boxes, read_table
from vitrail.errors import VitrailError
from vitrail.whole import whole


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
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        return read_table(path, name)
    if path.is_dir():
        found = lists_in(path)
        return read_lists(path, name, found) if found else read_folders(path, name)
    raise VitrailError(f"{name} is no table of faces: --task spoof takes {FACES}.")


def _with_boxes(
    splits: dict[str, list[Face]], boxes: str | Path | None, margin: float, notes: list[str]
) -> dict[str, list[Face]]:
    """The faces with the boxes of a table beside them, where a face has none of its own."""
    found: dict[str, Box] = {}
    if boxes is not None:
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
