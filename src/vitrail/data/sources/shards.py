"""Tar shards in WebDataset format: `0001.jpg` beside `0001.cls`, `0001.json` or `0001.txt`, read where they lie.

A tar file is gone through once, for the place of every member; afterwards an image is one read at an offset, from any
thread, in any order, and nothing is ever unpacked. That takes plain tar files: a compressed one can only be read from
its beginning.
"""

import itertools
import json
import os
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from vitrail.data.samples import PICTURES, SPLIT_WORDS, Sample, Source, TarMember, in_order, plural, some
from vitrail.data.sources.folders import is_hidden, readable
from vitrail.errors import VitrailError

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_LABEL_KEYS = ("label", "labels", "cls", "class", "class_name")  # of a .json, the first that is there
_NAMES = ("classnames.txt", "classes.txt")  # beside the shards: line i names the class that a .cls calls i

Label = str | int


def open_shards(where: Path | str, name: str) -> Source:
    """`where`: a tar file, a folder of them (with train/, val/, test/ or such words in their names), or a pattern."""
    root, paths = _paths(where, name)
    by_split = _by_split(root, paths, name)
    notes: list[str] = []
    found: dict[str, list[tuple[str, TarMember, list[Label]]]] = {}
    without_label: list[str] = []
    multi_label = False
    for split, tars in by_split.items():
        for path in tars:
            places, trouble = members(path)
            notes += trouble
            called = readable(path.relative_to(root).as_posix())
            for picture, labels in _grouped(path, places):
                if labels is None:
                    without_label.append(f"{called}/{picture}")
                    continue
                many = isinstance(labels, list)
                multi_label |= many
                found.setdefault(split, []).append(
                    (f"{called}/{picture}", places[picture], labels if isinstance(labels, list) else [labels])
                )
    if not found:
        what = f"{plural(len(without_label), 'picture')} without a label" if without_label else "no pictures"
        raise VitrailError(
            f"{name} holds {what}: expected WebDataset shards, with 0001.jpg beside 0001.cls, "
            "0001.json (with label) or 0001.txt."
        )
    if without_label:
        notes.append(f"{plural(len(without_label), 'picture')} without a label left out ({some(without_label)}).")
    values = {label for samples in found.values() for _, _, labels in samples for label in labels}
    classes, index = _classes(values, root, name)
    splits = {
        split: [
            Sample(member, place, tuple(sorted({index[label] for label in labels})))
            for member, place, labels in samples
        ]
        for split, samples in found.items()
    }
    return Source(name, classes, in_order(splits), multi_label, notes)


def members(path: Path) -> tuple[dict[str, TarMember], list[str]]:
    """Every file in a tar by its name, and a note if the tar is damaged: what stands before the damage is kept."""
    places: dict[str, TarMember] = {}
    try:
        with open(path, "rb") as file:
            begin = file.read(6)
            for magic, kind in _COMPRESSED.items():
                if begin.startswith(magic):
                    raise VitrailError(
                        f"{path} is compressed with {kind}, and pictures are read out of their order: "
                        "decompress it to a plain .tar."
                    )
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                damage = ""
                try:
                    while (member := tar.next()) is not None:
                        tar.members = []  # type: ignore[attr-defined]  # it would keep all, a kilobyte each
                        if member.isreg() and not any(is_hidden(part) for part in PurePosixPath(member.name).parts):
                            member_name = readable(member.name.removeprefix("./"))
                            places[member_name] = TarMember(path, member.offset_data, member.size)
                except tarfile.TarError as error:
                    damage = str(error)
            # tarfile takes a header that makes no sense for the end, which is two blocks of zeros.
            file.seek(tar.offset)  # type: ignore[attr-defined]
            if not damage and any(file.read(512)):
                damage = f"no header at byte {tar.offset:,}"  # type: ignore[attr-defined]
    except tarfile.TarError as error:
        raise VitrailError(f"{path} is not a tar file ({error}).") from None
    except OSError as error:
        raise VitrailError(f"{path} can't be read ({error.strerror or error}).") from None
    return places, [
        f"{path} is damaged ({damage}): only the {plural(len(places), 'file')} before that are used."
    ] if damage else []


def expand(pattern: str) -> list[str]:
    """ "train-{000..009}.tar" → ten names, "{train,val}.tar" → two."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        choices = [f"{number:0{len(numbers[1])}d}" for number in range(first, last + 1)]
    else:
        choices = braces[1].split(",")
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return list(itertools.chain.from_iterable(expand(before + choice + after) for choice in choices))


def tars_in(folder: Path) -> list[Path]:
    """The tar files of a folder and of its split folders."""
    inside = [path for path in folder.iterdir() if path.is_dir() and path.name.lower() in SPLIT_WORDS]
    found = [path for place in (folder, *inside) for path in place.iterdir() if is_tar(path)]
    return sorted(path for path in found if not is_hidden(path.name))


def folders_beside(folder: Path) -> list[str]:
    """Folders that do not merely sort the shards into splits."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not is_hidden(path.name):
            is_split = path.name.lower() in SPLIT_WORDS and not any(inner.is_dir() for inner in path.iterdir())
            found += [] if is_split else [path.name]
    return found


def is_tar(path: Path) -> bool:
    return re.search(r"\.(tar(\.\w+)?|tgz)$", path.name.lower()) is not None and path.is_file()


def _paths(where: Path | str, name: str) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the tar files."""
    if isinstance(where, Path):
        return (where, tars_in(where)) if where.is_dir() else (where.parent, [where])
    paths = [Path(path) for path in expand(where)]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise VitrailError(
            f"{name} stands for {plural(len(paths), 'file')}, and {len(missing)} are not there ({some(missing, 3)})."
        )
    return Path(os.path.commonpath([path.parent for path in paths])), paths


def _by_split(root: Path, paths: list[Path], name: str) -> dict[str, list[Path]]:
    by_split: dict[str, list[Path]] = {}
    for path in paths:
        # train/000.tar, train-000.tar and imagenet-train-000.tar alike
        words = re.split(r"[^a-z]+", path.relative_to(root).as_posix().lower())
        splits = [SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS]
        by_split.setdefault(splits[0] if splits else "all", []).append(path)
    if len(by_split) > 1 and "all" in by_split:
        raise VitrailError(
            f"{name} holds shards named after a split and others that are not "
            f"({some(path.name for path in by_split['all'])}): put train, val or test into every name."
        )
    return by_split


def _grouped(path: Path, places: dict[str, TarMember]) -> list[tuple[str, Label | list[Label] | None]]:
    """(image, label) for every key of a tar that has an image."""
    groups: dict[str, dict[str, str]] = {}  # key → extension → member
    for member in places:
        folder, slash, file = member.rpartition("/")
        key, _, extension = file.partition(".")  # at the first dot, as WebDataset has it
        groups.setdefault(folder + slash + key, {})[extension.lower()] = member
    result: list[tuple[str, Label | list[Label] | None]] = []
    with open(path, "rb") as file_:
        for files in groups.values():
            pictures = sorted((extension.count("."), extension) for extension in files if _is_picture(extension))
            if pictures:
                texts: dict[str, str] = {}
                for extension in ("cls", "json", "txt"):
                    if extension in files:
                        place = places[files[extension]]
                        file_.seek(place.offset)
                        texts[extension] = file_.read(place.size).decode("utf-8", "replace").strip()
                result.append((files[pictures[0][1]], _label(texts)))
    return result


def _is_picture(extension: str) -> bool:
    return "." + extension.rpartition(".")[2] in PICTURES


def _label(texts: dict[str, str]) -> Label | list[Label] | None:
    """A number, a name, a list of them for several labels, or None."""
    if texts.get("cls"):
        return _plain(texts["cls"])
    if "json" in texts:
        try:
            content: Any = json.loads(texts["json"])
        except ValueError:
            content = None
        if isinstance(content, dict):
            content = next((content[key] for key in _LABEL_KEYS if key in content), None)
        if isinstance(content, list):
            return [_plain(str(label)) for label in content]
        if isinstance(content, int | float | str) and content != "":
            return _plain(str(content))
    if texts.get("txt"):
        return _plain(texts["txt"])
    return None


def _plain(text: str) -> Label:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else text


def _classes(values: set[Label], root: Path, name: str) -> tuple[list[str], dict[Label, int]]:
    """Class names, and the index of each label. Numbers keep their order (2 before 10), names are sorted."""
    if any(isinstance(value, str) for value in values):
        classes = sorted({str(value) for value in values})
        at = {label: position for position, label in enumerate(classes)}
        return classes, {value: at[str(value)] for value in values}
    numbers = sorted(value for value in values if isinstance(value, int))
    for file in (root / names for names in _NAMES):
        if file.is_file():
            classes = file.read_text(encoding="utf-8").splitlines()
            if numbers[-1] >= len(classes):
                raise VitrailError(
                    f"{file} names {len(classes)} classes, and {name} holds the class {numbers[-1]}: "
                    "counted from 0, each needs a line."
                )
            return classes, {number: number for number in numbers}
    return [str(number) for number in numbers], {number: position for position, number in enumerate(numbers)}
