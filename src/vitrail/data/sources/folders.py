"""Class folders: `DATA/cat/1.jpg`, or `DATA/train/cat/1.jpg` beside `DATA/val` and `DATA/test`."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.samples import PICTURES, SPLIT_WORDS, Sample, Source, in_order, numbered, plural, some
from vitrail.errors import VitrailError

_NOT_OURS = {"__MACOSX", "@eaDir"}  # what archivers and disk stations leave behind


def open_folders(root: Path, name: str) -> Source:
    """Images at any depth below a class folder count; links are followed, and hidden files are not looked at."""
    folders, pictures, others = look_into(root)
    if {"images", "masks"} <= {folder.name for folder in folders}:
        raise VitrailError(
            f"{name} holds images/ and masks/, which is segmentation: say so with --task, or point at "
            f"{root / 'images'} to classify."
        )
    notes: list[str] = []
    by_split = _split_folders(root, folders)
    if by_split:
        unused = [folder.name for folder in folders if folder not in by_split.values()]
        if unused:
            notes.append(f"{plural(len(unused), 'folder')} beside the splits left out ({some(unused)}).")
    elif not folders:
        _refuse_flat(name, pictures, others)
    if pictures:
        notes.append(_left_out(pictures, "the splits" if by_split else "the class folders"))

    ignored = Counter(map(_suffix, others))
    found = {  # split → class → files
        split: _class_files(split, folder, root, ignored, notes)
        for split, folder in (by_split or {"all": root}).items()
    }
    classes = numbered(found.values())
    if not classes:
        suffixes = f"; there are {_suffixes(ignored)}" if ignored else ""
        raise VitrailError(
            f"{name} holds no pictures in its folders{suffixes}: "
            "expected DATA/CLASS/picture.jpg, or DATA/train/CLASS/picture.jpg."
        )
    if len(classes) == 1 and not by_split:
        inner = [folder for folder in look_into(root / classes[0])[0] if files_below(folder, set(), Counter())]
        if len(inner) > 1:
            raise VitrailError(
                f'{name} holds one folder, "{classes[0]}", with {len(inner)} folders of pictures inside: '
                f"point at {root / classes[0]}."
            )
    if ignored:
        notes.append(f"{plural(ignored.total(), 'file')} without a picture's suffix left out ({_suffixes(ignored)}).")
    sets = [label for label in classes if not by_split and _holds_splits(root / label)]
    if sets:
        notes.append(f"Taken for classes, {some(sets)} have train/ and other splits inside: were they meant instead?")
    index = {label: position for position, label in enumerate(classes)}
    begin = len(str(root / "x")) - 1  # of what is relative to the root
    splits = {
        split: [
            Sample(readable(path[begin:]).replace(os.sep, "/"), Path(path), (index[label],))
            for label, paths in by_class.items()
            for path in paths
        ]
        for split, by_class in found.items()
    }
    return Source(name, [readable(label) for label in classes], in_order(splits), notes=notes)


def open_loose(root: Path, name: str) -> Source | None:
    """For learning without labels: images that lie in a folder, or in its train/ and val/, beside class folders or
    without any. None where all lie in class folders, which then are labels."""
    folders, pictures, others = look_into(root)
    by_split = _split_folders(root, folders) or {"all": root}
    if not any(look_into(folder)[1] for folder in by_split.values()):
        return None
    ignored = Counter(map(_suffix, others))
    begin = len(str(root / "x")) - 1
    splits = {
        split: [
            Sample(readable(path[begin:]).replace(os.sep, "/"), Path(path), ())
            for path in files_below(folder, set(), ignored)
        ]
        for split, folder in by_split.items()
    }
    notes = []
    if pictures and "all" not in by_split:
        notes.append(_left_out(pictures, "the splits"))
    elif folders:
        notes.append("Some pictures lie beside the folders, so the folders are not taken for labels.")
    return Source(name, [], in_order(splits), notes=notes)


def _class_files(split: str, folder: Path, root: Path, ignored: Counter[str], notes: list[str]) -> dict[str, list[str]]:
    """The files of every class below the folder of a split, or below the root, whose split is "all"."""
    class_folders, flat, others = look_into(folder)
    if split != "all":
        ignored.update(map(_suffix, others))
        if flat and not class_folders and split == "train":
            raise VitrailError(
                f"{folder} holds {plural(len(flat), 'picture')} and no class folders: "
                f"expected {folder.name}/CLASS/picture.jpg."
            )
        if flat and not class_folders:
            notes.append(f"{folder.name}/ holds {plural(len(flat), 'picture')} without class folders, left out.")
        elif flat:
            notes.append(_left_out(flat, f"the class folders of {folder.name}/"))
    above = {_identity(root), _identity(folder)}
    files = {inner.name: files_below(inner, above, ignored) for inner in class_folders}
    empty = [(folder / label).relative_to(root).as_posix() for label, paths in files.items() if not paths]
    if empty:
        notes.append(f"{plural(len(empty), 'folder')} without pictures left out ({some(empty)}).")
    return {label: paths for label, paths in files.items() if paths}


def readable(name: str) -> str:
    """A file name that is not valid UTF-8, made printable."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _NOT_OURS


def look_into(folder: Path) -> tuple[list[Path], list[str], list[str]]:
    """What lies directly in a folder, sorted: folders, images by their suffix, other files.

    Files are left as strings, for there may be millions of them and a Path takes a while to make.
    """
    folders, pictures, others = [], [], []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    folders.append(folder / entry.name)
                elif _is_picture(entry.name) and (entry.is_file() or entry.is_symlink()):
                    pictures.append(entry.path)  # a link that leads nowhere too, so that it is listed as unreadable
                else:
                    others.append(entry.path)
    except OSError as error:
        raise VitrailError(f"The folder {folder} can't be read ({error.strerror or error}).") from None
    return folders, pictures, others


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in PICTURES


def pictures_below(folder: Path) -> list[Path]:
    """What is meant wherever a folder of images is named: all at any depth, as `open_folders` finds them."""
    return [Path(path) for path in files_below(folder, set(), Counter())]


def first_below(folder: Path) -> Path | None:
    """One image, without listing all of a large data set."""
    return next((Path(path) for _, _, pictures, _ in _folders_below(folder, set()) for path in pictures), None)


def files_below(folder: Path, visited: set[tuple[int, int]], ignored: Counter[str]) -> list[str]:
    """Images at any depth, sorted by path."""
    pictures: list[str] = []
    for current, folders, files, others in _folders_below(folder, visited):
        pictures += files
        ignored.update(map(_suffix, others))
        if current != folder and _is_picture(current.name) and not folders and not files:
            pictures.append(str(current))  # a folder named like an image, with none in it: a mistake, to be listed
    return sorted(pictures)


def _folders_below(
    folder: Path, visited: set[tuple[int, int]]
) -> Iterator[tuple[Path, list[Path], list[str], list[str]]]:
    """A folder and those inside it, each with what lies in it; each once, however many links lead to it."""
    visited = visited | {_identity(folder)}
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        folders, pictures, others = look_into(current)
        yield current, folders, pictures, others
        fresh = []
        for inner in folders:
            identity = _identity(inner)
            if identity not in visited:
                visited.add(identity)
                fresh.append(inner)
        waiting += reversed(fresh)  # the first is taken first


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _split_folders(root: Path, folders: list[Path]) -> dict[str, Path]:
    """Split → folder, if these are splits. A folder "train" of images among "bus" and "car" is a class."""
    named = [folder for folder in folders if folder.name.lower() in SPLIT_WORDS]
    if not named or (len(named) < len(folders) and not _is_split(named)):
        return {}
    by_split: dict[str, Path] = {}
    for folder in named:
        split = SPLIT_WORDS[folder.name.lower()]
        if split in by_split:
            raise VitrailError(
                f"{root} holds both {by_split[split].name}/ and {folder.name}/, two folders for {split}: "
                "join them, or rename one."
            )
        by_split[split] = folder
    return by_split


def _holds_splits(folder: Path) -> bool:
    words = {SPLIT_WORDS.get(inner.name.lower()) for inner in look_into(folder)[0]}
    return len(words - {None}) > 1


def _is_split(named: list[Path]) -> bool:
    train = [folder for folder in named if SPLIT_WORDS[folder.name.lower()] == "train"]
    if not train:
        return False
    folders, pictures, _ = look_into(train[0])
    return bool(folders) and not pictures


def _refuse_flat(name: str, pictures: list[str], others: list[str]) -> None:
    if not pictures and not others:
        raise VitrailError(f"The folder {name} is empty: expected DATA/CLASS/picture.jpg.")
    tables = [path for path in others if _suffix(path) in (".csv", ".tsv", ".parquet")]
    advice = f"; if {os.path.basename(tables[0])} holds the labels, pass {tables[0]}" if tables else ""
    if not pictures:
        raise VitrailError(f"{name} holds no pictures, in folders or not{advice}.")
    unlabelled = " Without labels, `vitrail pretrain` can learn from them (`vitrail data inspect --task pretrain`)."
    raise VitrailError(
        f"{name} holds {plural(len(pictures), 'picture')} and no class folders: put the pictures of each class into a "
        f"folder named after it{advice}.{'' if tables else unlabelled}"
    )


def _left_out(pictures: list[str], beside: str) -> str:
    return f"{plural(len(pictures), 'picture')} beside {beside} left out ({some(map(os.path.basename, pictures))})."


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower() or os.path.basename(path)


def _suffixes(counter: Counter[str]) -> str:
    return some(f"{count:,} {suffix}" for suffix, count in counter.most_common())
