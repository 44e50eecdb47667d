"""Tables: a CSV or Parquet file with the columns `path,label[,split]`.

Paths are relative to the table. `a|b` in any row makes the table multi-label, and an empty label then says "none of
them". A name that holds the bar itself is written `a\\|b`. What `write_split` writes is read back here, so a path may
also name a picture in a tar file (`shard.tar/0001.jpg`), in an array (`pictures.npz/train/7`) or in a data set
(`torchvision:CIFAR10/train/7`).
"""

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.data.samples import NAMED, SPLIT_WORDS, Item, Sample, Source, TarMember, in_order, numbered, plural, some
from vitrail.data.sources import arrays, named_datasets, shards
from vitrail.data.sources.folders import readable
from vitrail.errors import VitrailError, closest, extra, nearest

SUFFIXES = {".csv", ".tsv", ".parquet", ".pq"}
# What others call these columns: not read, since a guess may be wrong, but suggested.
_OTHERS_CALL_IT = {
    "path": [
        "filename",
        "file_name",
        "filepath",
        "file_path",
        "file",
        "image",
        "images",
        "img",
        "image_path",
        "name",
        "id",
    ],
    "label": ["labels", "class", "classes", "category", "target", "tag", "tags", "class_name", "label_name", "breed"],
}


def open_table(path: Path, name: str) -> Source:
    rows = list(_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path))
    if not rows:
        raise VitrailError(f"{name} has no rows: expected path,label and a row for each picture.")
    notes: list[str] = []
    multi_label = any(isinstance(label, list) or len(_parts(label)) > 1 for _, _, label, _ in rows)
    labelled: dict[tuple[str, tuple[str, ...], str | None], int] = {}  # each different row, and its line
    for line, file, label, split in rows:
        parts = label if isinstance(label, list) else filter(None, _parts(label))
        labels = tuple(dict.fromkeys(map(readable, parts)))
        if not file:
            raise VitrailError(f"Line {line} of {name} has no path.")
        if not labels and not multi_label:
            raise VitrailError(f"Line {line} of {name} ({file}) has no label.")
        labelled.setdefault((file, labels, _split(split, line, name)), line)
    if len(labelled) < len(rows):
        notes.append(f"{plural(len(rows) - len(labelled), 'row')} of {path.name} said the same again, and count once.")
    unsplit = [line for (_, _, split), line in labelled.items() if split is None]
    if unsplit and len(unsplit) < len(labelled):
        raise VitrailError(
            f"Line {unsplit[0]} of {name} has no split, and other lines have one: write train, val or test."
        )
    twice: list[str] = []
    seen: dict[tuple[str, str | None], tuple[str, ...]] = {}
    for file, labels, split in labelled:
        if seen.setdefault((file, split), labels) != labels:
            twice.append(file)
    if twice:
        notes.append(
            f"{plural(len(twice), 'row')} of {path.name} give another label to a picture that had one ({some(twice)}): "
            "for several labels on one picture write a|b."
        )

    classes = numbered(labels for _, labels, _ in labelled)
    index = {label: position for position, label in enumerate(classes)}
    locate = _Locator(path.parent)
    splits: dict[str, list[Sample]] = {}
    for file, labels, split in labelled:
        sample = Sample(readable(file), locate(file), tuple(sorted(index[label] for label in labels)))
        splits.setdefault(split or "all", []).append(sample)
    if len(locate.missing) == len(labelled):
        raise VitrailError(
            f"None of the {plural(len(labelled), 'file')} that {name} names is there; the first is looked for at "
            f"{locate.missing[0]}: paths are relative to the folder of the table."
        )
    if locate.missing:
        notes.append(f"{plural(len(locate.missing), 'file')} of {path.name} not found ({some(locate.missing)}).")
    return Source(name, classes, in_order(splits), multi_label, notes)


class _Locator:
    """Path in a table → where the picture is. Keeps what it looked into, and lists what it did not find."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.missing: list[Path] = []
        self.inside: dict[str, dict[str, Path | TarMember | Item]] = {}  # tar or data set → name → place

    def __call__(self, file: str) -> Path | TarMember | Item:
        if file.startswith(NAMED):
            origin = file.rsplit("/", 2)[0]
            if origin not in self.inside:
                splits = named_datasets.open_named(origin).splits.values()
                self.inside[origin] = {sample.name: sample.where for samples in splits for sample in samples}
            if file not in self.inside[origin]:
                raise VitrailError(
                    f"{origin} has no picture {file}: the data set has changed since the table was written."
                )
            return self.inside[origin][file]
        path = self.folder / file  # an absolute path stays what it is
        if path.exists():
            return path
        if "\\" in file and (self.folder / file.replace("\\", "/")).exists():  # written on Windows
            return self.folder / file.replace("\\", "/")
        in_array = re.fullmatch(r"(.+\.npz)/(\w+/\d+)", str(path), re.IGNORECASE)
        if in_array and Path(in_array[1]).is_file():
            file, row = in_array.groups()
            if file not in self.inside:
                splits = arrays.open_arrays(Path(file), file).splits.values()
                self.inside[file] = {s.name.partition("/")[2]: s.where for samples in splits for s in samples}
            if row in self.inside[file]:
                return self.inside[file][row]
        in_tar = re.fullmatch(r"(.+?\.tar)/(.+)", str(path), re.IGNORECASE)
        if in_tar:
            shard, member = in_tar.groups()
            if shard not in self.inside and Path(shard).is_file():
                self.inside[shard] = dict(shards.members(Path(shard))[0])
            if member in self.inside.get(shard, {}):
                return self.inside[shard][member]
        self.missing.append(path)
        return path


def _parts(label: str) -> list[str]:
    return [part.replace("\\|", "|").strip() for part in re.split(r"(?<!\\)\|", label)]


def _split(word: str | None, line: int, name: str) -> str | None:
    if not word or not word.strip():
        return None
    split = SPLIT_WORDS.get(word.strip().lower())
    if split is None:
        raise VitrailError(
            f'Line {line} of {name} has the split "{word}": use train, val or test.{nearest(word, SPLIT_WORDS)}'
        )
    return split


def _columns(header: list[str], name: str) -> None:
    """Refuses a table that lacks a column, and says which one was probably meant."""
    missing = [wanted for wanted in _OTHERS_CALL_IT if wanted not in header]
    if missing:
        spare = [column for column in header if column not in ("path", "label", "split")]
        meant = {wanted: _called(wanted, spare) for wanted in missing}
        renamed = " and ".join(f"{column} to {wanted}" for wanted, column in meant.items() if column)
        hint = f"rename {renamed}." if renamed else "name the columns path,label[,split]."
        if header and os.path.splitext(header[0])[1].lower() in (".jpg", ".jpeg", ".png"):
            hint = "the first line seems to be a picture already, so put the line path,label above it."
        raise VitrailError(f'{name} has no column "{missing[0]}" (it has {some(header, 8)}): {hint}')
    repeated = [column for column in ("path", "label", "split") if header.count(column) > 1]
    if repeated:
        raise VitrailError(f'{name} has the column "{repeated[0]}" more than once: rename one of them.')


def _called(wanted: str, spare: list[str]) -> str:
    """The column that was probably meant, or ''."""
    usual = (column for column in spare if column.lower().strip() in (wanted, *_OTHERS_CALL_IT[wanted]))
    return next(usual, "") or closest(wanted, spare)


def _csv(path: Path) -> Iterator[tuple[int, str, Any, str | None]]:
    """(line, path, label, split). Bytes that are no UTF-8 pass through, for file names hold such."""
    csv.field_size_limit(1 << 24)
    try:
        with open(path, "rb") as file_:
            wide = file_.read(2) in (b"\xff\xfe", b"\xfe\xff")  # as spreadsheets save "Unicode text"
        encoding, errors = ("utf-16", "replace") if wide else ("utf-8-sig", "surrogateescape")
        with open(path, newline="", encoding=encoding, errors=errors) as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)  # the first wins a tie; spreadsheets of half of Europe write ";"
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            header = [readable(column.strip()) for column in next(reader, [])]
            if not any(header):
                raise VitrailError(f"{path} is empty: expected a line path,label and a row for each picture.")
            _columns(header, str(path))
            at = {column: position for position, column in enumerate(header)}
            for row in reader:
                if not any(row):
                    continue
                if len(row) != len(header):
                    raise VitrailError(
                        f"Line {reader.line_num} of {path} has {plural(len(row), 'field')}, and the first line has "
                        f"{len(header)}: put a field that holds a comma in quotes."
                    )
                yield reader.line_num, row[at["path"]], row[at["label"]], row[at["split"]] if "split" in at else None
    except (OSError, csv.Error) as error:
        raise VitrailError(f"{path} can't be read as a table ({error}).") from None


def _parquet(path: Path) -> Iterator[tuple[int, str, Any, str | None]]:
    """As `_csv`. A label that is a list of strings makes the table multi-label too."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise VitrailError(f"To read {path.name}, Parquet support is needed: {extra('parquet')}.") from None
    try:
        header = parquet.read_schema(path).names
        _columns(header, str(path))
        table = parquet.read_table(path, columns=[column for column in ("path", "label", "split") if column in header])
    except (OSError, pyarrow.ArrowException) as error:
        raise VitrailError(f"{path} can't be read as Parquet ({' '.join(str(error).split())}).") from None
    columns = [table[column].to_pylist() for column in table.column_names]
    rows = [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    for line, row in enumerate(rows, start=1):
        file, label = row["path"] or "", row["label"]
        if not isinstance(file, str):
            raise VitrailError(
                f'The column "path" of {path} holds {type(file).__name__}s: expected the paths of files.'
            )
        yield line, file, [_text(part) for part in label] if isinstance(label, list) else _text(label), row.get("split")


def _text(value: Any) -> str:
    """The name of a class that is a number: "3", also from a column that a missing value made floating-point."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
