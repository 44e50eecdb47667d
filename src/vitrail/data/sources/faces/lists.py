"""Faces in lists, as NUAA has them: `client_train_raw.txt` names live faces to train on, `imposter_test_raw.txt`
attacks to test with. A line is a path, with slashes of either kind, and perhaps the numbers of a face box.

The first folder of a path is the subject; the images lie beside the lists, or in a folder named after their kind
(ClientRaw/, ImposterRaw/). What a list names and nobody has is left out, and counted.
"""

import re
from collections import defaultdict
from pathlib import Path

from vitrail.data.samples import PICTURES, plural, some
from vitrail.data.sources.faces.samples import ATTACK, ATTACK_WORDS, LIVE_WORDS, SPLITS, Box, Face, plain
from vitrail.data.sources.folders import readable
from vitrail.errors import VitrailError

LINE = re.compile(rf"(.+?(?:{'|'.join(re.escape(suffix) for suffix in sorted(PICTURES))}))(?:[\s,;]+(.*))?$", re.I)
NUAA = re.compile(r"\d+_\d+_\d+_(\d+)_\d+")  # person, glasses, place and light, session, number of the image

Lists = dict[str, dict[tuple[str, str], Path]]  # what they are called besides → (split, "" or "attack") → file


def lists_in(root: Path) -> Lists:
    """The text files whose names have a word for live or attack, and one for a split."""
    found: Lists = defaultdict(dict)
    for file in sorted(root.glob("*.txt")):
        words = [word for word in re.split(r"[\W_]+", file.stem.lower()) if word]
        kinds = ["" if word in LIVE_WORDS else ATTACK for word in words if word in LIVE_WORDS | ATTACK_WORDS]
        splits = [SPLITS[word] for word in words if word in SPLITS]
        if len(kinds) == 1 and len(splits) == 1:
            rest = "_".join(word for word in words if word not in LIVE_WORDS | ATTACK_WORDS | SPLITS.keys())
            found[rest][splits[0], kinds[0]] = file
    return {rest: lists for rest, lists in found.items() if {kind for _, kind in lists} == {"", ATTACK}}


def read_lists(root: Path, name: str, lists: Lists) -> tuple[dict[str, list[Face]], list[str]]:
    """Of several sets of lists (of whole images, of cut faces), the one whose images are there; raw ones first."""
    tried = []
    for rest in sorted(lists, key=lambda rest: (rest != "raw", rest)):
        splits, notes, missing = _read(root, lists[rest])
        if any(splits.values()):
            others = [other for other in lists if other != rest]
            if others:
                notes.append(
                    f"Of the lists in {name} those of {rest or 'no kind'} are read, not those of {some(others)}."
                )
            return splits, notes
        tried += missing
    raise VitrailError(
        f"None of the {plural(len(tried), 'picture')} that the lists in {name} name is there, for instance {tried[0]}: "
        "put them beside the lists, in folders named after them, such as ClientRaw/ and ImposterRaw/."
    )


def _read(root: Path, lists: dict[tuple[str, str], Path]) -> tuple[dict[str, list[Face]], list[str], list[str]]:
    splits: dict[str, list[Face]] = {}
    notes: list[str] = []
    all_missing: list[str] = []
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir()]
    for (split, kind), file in lists.items():
        words = LIVE_WORDS if kind == "" else ATTACK_WORDS
        own = [folder for folder in folders if plain(folder.name) in words]
        missing, odd = [], []
        for line in _lines(file):
            match = LINE.match(line)
            if not match:
                odd.append(line)
                continue
            path, rest = match[1].replace("\\", "/").lstrip("/"), match[2] or ""
            # A live face and an attack may have the same path, each in its own folder: the list says which.
            where = next((place / path for place in (*own, root) if (place / path).is_file()), None)
            if where is None:
                missing.append(path)
                continue
            session = NUAA.fullmatch(where.stem)
            splits.setdefault(split, []).append(
                Face(
                    readable(where.relative_to(root).as_posix()),
                    where,
                    (),
                    kind,
                    readable(_subject(path)),
                    session[1] if session else "",
                    box=_box(rest),
                )
            )
        all_missing += missing
        if missing:
            notes.append(f"{plural(len(missing), 'picture')} of {file.name} not found, left out ({some(missing, 3)}).")
        if odd:
            notes.append(f"{plural(len(odd), 'line')} of {file.name} name no picture ({some(odd, 3)}).")
    return splits, notes, all_missing


def _lines(file: Path) -> list[str]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise VitrailError(f"The list {file} can't be read ({error.strerror or error}).") from None
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = data.decode("utf-16", "replace") if wide else data.decode("utf-8-sig", "surrogateescape")
    return [line.strip().strip('"') for line in re.split(r"[\r\n]+", text) if line.strip()]


def _subject(path: str) -> str:
    folder, _, rest = path.partition("/")
    return folder if rest else ""


def _box(text: str) -> Box | None:
    """left top width height, the first four of what follows a path."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text)
    if len(numbers) < 4:
        return None
    left, top, width, height = map(float, numbers[:4])
    return (left, top, left + width, top + height) if width > 0 and height > 0 else None
