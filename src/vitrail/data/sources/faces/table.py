"""Faces in a table: `path,label[,attack][,split][,subject][,session][,domain][,box]`, one row for each image.

label is live (or real, genuine, bona fide, client), attack (or spoof, fake, imposter), or the type of attack itself;
the column attack names the type where label does not. box is `left top width height` in pixels. A second table of
boxes alone has the columns path,box, or path,left,top,width,height.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.samples import plural, some
from vitrail.data.sources.faces.samples import ATTACK, ATTACK_WORDS, LIVE_WORDS, SPLITS, Box, Face, plain
from vitrail.data.sources.folders import readable
from vitrail.errors import VitrailError, nearest

COLUMNS = ("path", "label", "attack", "split", "subject", "session", "domain", "box")
PARTS = ("left", "top", "width", "height")


def read_table(path: Path, name: str) -> tuple[dict[str, list[Face]], list[str]]:
    splits: dict[str, list[Face]] = {}
    missing: list[str] = []
    unknown: set[str] = set()
    seen: dict[tuple[str, str], tuple[int, str]] = {}  # image and split → the first line that has it, and the attack
    for line, row in _rows(path, ("path", "label"), COLUMNS, unknown):
        file = row["path"].replace("\\", "/") if not (path.parent / row["path"]).exists() else row["path"]
        if not file or not row["label"]:
            raise VitrailError(f"Line {line} of {name} has no {'label' if file else 'path'}.")
        split = _split(row.get("split", ""), line, name)
        attack = _attack(row["label"], row.get("attack", ""), line, name)
        first, before = seen.setdefault((file, split), (line, attack))
        if before != attack:
            said, was = attack or "live", before or "live"
            raise VitrailError(
                f"Line {line} of {name} says {said} of {file}, and line {first} says {was}: which is it?"
            )
        if first != line:
            continue  # said again
        if not (path.parent / file).is_file():
            missing.append(file)
            continue
        splits.setdefault(split, []).append(
            Face(
                readable(file),
                path.parent / file,
                (),
                attack,
                row.get("subject", ""),
                row.get("session", ""),
                row.get("domain", ""),
                _box(row.get("box", ""), line, name),
            )
        )
    if not seen:
        raise VitrailError(f"{name} has no rows: expected path,label and a row for each picture.")
    if not splits:
        raise VitrailError(
            f"None of the {plural(len(missing), 'picture')} that {name} names is there, for instance {missing[0]}: "
            "paths are relative to the folder of the table."
        )
    if "all" in splits and len(splits) > 1:
        raise VitrailError(f"{name} has rows with a split and rows without: write train, val or test in all of them.")
    notes = [f"{plural(len(missing), 'picture')} of {path.name} not found, left out ({some(missing)})."] * bool(missing)
    if unknown:
        notes.append(f"Columns of {path.name} that nothing is made of: {some(sorted(unknown))}.")
    return splits, notes


def read_boxes(path: Path) -> dict[str, Box]:
    """Path → box."""
    boxes: dict[str, Box] = {}
    for line, row in _rows(path, ("path",), ("path", "box", *PARTS), set()):
        text = row.get("box") or " ".join(row.get(part, "") for part in PARTS)
        if (box := _box(text, line, str(path))) is not None:
            boxes[row["path"].replace("\\", "/")] = box
    return boxes


def _rows(
    path: Path, needed: tuple[str, ...], known: tuple[str, ...], unknown: set[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, column → text), the columns by their names in small letters."""
    try:
        with open(path, "rb") as raw:
            wide = raw.read(2) in (b"\xff\xfe", b"\xfe\xff")
        encoding, errors = ("utf-16", "replace") if wide else ("utf-8-sig", "surrogateescape")
        with open(path, newline="", encoding=encoding, errors=errors) as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count), skipinitialspace=True)
            header = [readable(column.strip()).lower() for column in next(reader, [])]
            for column in needed:
                if column not in header:
                    raise VitrailError(
                        f'{path} has no column "{column}" (it has {some(header, 8) or "none"}): '
                        f"name the columns {','.join(known)}.{nearest(column, header)}"
                    )
            unknown |= {column for column in header if column not in known}
            for row in reader:
                if any(row):
                    if len(row) != len(header):
                        raise VitrailError(
                            f"Line {reader.line_num} of {path} has {plural(len(row), 'field')}, and the first line has "
                            f"{len(header)}: put a field that holds a comma in quotes."
                        )
                    yield reader.line_num, {c: v.strip() for c, v in zip(header, row, strict=True)}
    except (OSError, csv.Error) as error:
        raise VitrailError(f"{path} can't be read as a table ({error}).") from None


def _attack(label: str, attack: str, line: int, name: str) -> str:
    """The type; "" of a live face."""
    if plain(label) in LIVE_WORDS:
        if attack and plain(attack) not in LIVE_WORDS | {"none"}:
            raise VitrailError(f"Line {line} of {name} is labelled {label} and has the attack {attack}: which is it?")
        return ""
    if plain(label) in ATTACK_WORDS:
        return readable(attack) or ATTACK
    if label.isdigit():  # of two data sets, one has 1 for live and the other 0
        raise VitrailError(f'Line {line} of {name} has the label "{label}": write live or attack, so that it is clear.')
    return readable(label)


def _split(word: str, line: int, name: str) -> str:
    if not word:
        return "all"
    split = SPLITS.get(word.lower())
    if split is None:
        hint = nearest(word, SPLITS)
        raise VitrailError(f'Line {line} of {name} has the split "{word}": use train, dev or test.{hint}')
    return split


def _box(text: str, line: int, name: str) -> Box | None:
    if not text.strip():
        return None
    numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)
    if len(numbers) != 4:
        raise VitrailError(f'Line {line} of {name} has the box "{text}": expected left top width height in pixels.')
    left, top, width, height = map(float, numbers)
    if width <= 0 or height <= 0:
        raise VitrailError(f"Line {line} of {name} has a box of {width:g} × {height:g}: expected sides above 0.")
    return left, top, left + width, top + height
