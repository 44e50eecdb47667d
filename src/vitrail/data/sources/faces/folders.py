"""Faces in folders: wherever a folder of live faces lies, the folders beside it are attacks.

What lies above says the split and the domain, what lies below the subject and the session:
`msu/train/live/0012/phone/3.jpg`, `msu/train/print/0012/3.jpg`. Under a folder that only says "attack", folders are
types (`attack/print/…`), unless live/ has folders of the same names, or they are numbers: then they are people.
"""

import os
from pathlib import Path

from vitrail.data.samples import PICTURES, plural, some
from vitrail.data.sources.faces.samples import ATTACK, ATTACK_WORDS, LIVE_WORDS, SPLITS, Face, plain
from vitrail.data.sources.folders import is_hidden, readable
from vitrail.errors import VitrailError


def read_folders(root: Path, name: str) -> tuple[dict[str, list[Face]], list[str]]:
    splits: dict[str, list[Face]] = {}
    notes: list[str] = []
    loose: list[str] = []
    places: list[Path] = []  # the folders that have live/ in them
    for at, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(folder for folder in folders if not is_hidden(folder))
        if any(plain(folder) in LIVE_WORDS for folder in folders):
            places.append(Path(at))
            folders.clear()
        loose += [os.path.join(at, file) for file in files if _is_picture(file)]
    if not places:
        raise VitrailError(
            f"{name} has no folder of live faces: put them into live/, and attacks into folders beside it (print/, …)."
        )
    named = {place: _above(place, root) for place in places}
    if any(split for split, _ in named.values()) and not all(split for split, _ in named.values()):
        other = next(place for place, (split, _) in named.items() if not split)
        raise VitrailError(f"Some folders of {name} lie in train/ or test/ and {other} does not: put all into splits.")
    for place, (split, domain) in named.items():
        splits.setdefault(split or "all", []).extend(_faces(place, root, domain))
    if loose:
        notes.append(f"{plural(len(loose), 'picture')} beside live/ left out ({some(map(os.path.basename, loose))}).")
    return splits, notes


def _above(place: Path, root: Path) -> tuple[str, str]:
    """(split, domain): of the folders on the way down, the one that is a split, and the others."""
    parts = place.relative_to(root).parts
    splits = [SPLITS[part.lower()] for part in parts if part.lower() in SPLITS]
    return (splits[0] if splits else ""), "/".join(readable(part) for part in parts if part.lower() not in SPLITS)


def _faces(place: Path, root: Path, domain: str) -> list[Face]:
    folders = sorted(folder for folder in place.iterdir() if folder.is_dir() and not is_hidden(folder.name))
    live = [folder for folder in folders if plain(folder.name) in LIVE_WORDS]
    people = {inner.name for folder in live for inner in folder.iterdir() if inner.is_dir()}
    faces: list[Face] = []
    for folder in folders:
        general = plain(folder.name) in ATTACK_WORDS
        for file in _pictures(folder):
            below = file.relative_to(folder).parts[:-1]
            attack = "" if folder in live else ATTACK if general else readable(folder.name)
            if general and below and below[0] not in people and not below[0].isdigit():
                attack, below = readable(below[0]), below[1:]
            subject, session = (*map(readable, below), "", "")[:2]
            called = readable(str(file.relative_to(root))).replace(os.sep, "/")
            faces.append(Face(called, file, (), attack, subject, session, domain))
    return faces


def _pictures(folder: Path) -> list[Path]:
    found = []
    for at, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [inner for inner in folders if not is_hidden(inner)]
        found += [Path(at) / file for file in files if _is_picture(file)]
    return sorted(found)


def _is_picture(name: str) -> bool:
    return not is_hidden(name) and os.path.splitext(name)[1].lower() in PICTURES
