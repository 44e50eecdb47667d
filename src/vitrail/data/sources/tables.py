"""Tables: a CSV or Parquet file with the columns `path,label[,split]`.

Paths are relative to the table. `a|b` in any row makes the table multi-label, and an empty label then says "none of
them". A name that holds the bar itself is written `a\\|b`. What `write_split` writes is read back here, so a path may
also name an image in a tar file (`shard.tar/0001.jpg`), in an array (`pictures.npz/train/7`) or in a data set
(`torchvision:CIFAR10/train/7`).
"""

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from vitrail.data.samples import NAMED, SPLIT_WORDS, Item, Sample, Source, TarMember, in_order, numbered, plural, some
from vitrail.data.sources import arrays, named_datasets, shards
from vitrail.data.sources.folders import readable
from vitrail.errors import VitrailError, closest, extra, nearest

SUFFIXES = {".csv", ".tsv", ".parquet", ".pq"}
Choose = Callable[[list[str]], list[str]]  # from the header of a table to the columns that are read
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
    rows = [
        (line, row["path"], _labels(row["label"]), row.get("split"))
        for line, row in read_rows(path, name, lambda header: _columns(header, str(path)), "path,label")
    ]
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
        labelled.setdefault((file, labels, split_of(split, line, name)), line)
    if len(labelled) < len(rows):
        notes.append(f"{plural(len(rows) - len(labelled), 'row')} of {path.name} said the same again, and count once.")
    check_splits(((line, split) for (_, _, split), line in labelled.items()), name)
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
    locate = Locator(path.parent)
    splits: dict[str, list[Sample]] = {}
    for file, labels, split in labelled:
        sample = Sample(readable(file), locate(file), tuple(sorted(index[label] for label in labels)))
        splits.setdefault(split or "all", []).append(sample)
    notes += locate.notes(len(labelled), path, name)
    return Source(name, classes, in_order(splits), multi_label, notes)


class Locator:
    """Path in a table → where the image is. Keeps what it looked into, and lists what it did not find."""

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

    def notes(self, count: int, table: Path, name: str) -> list[str]:
        """What was not found of so many files; if that is all of them, an error."""
        if len(self.missing) == count:
            raise VitrailError(
                f"None of the {plural(count, 'file')} that {name} names is there; the first is looked for at "
                f"{self.missing[0]}: paths are relative to the folder of the table."
            )
        missing = f"{plural(len(self.missing), 'file')} of {table.name} not found ({some(self.missing)})."
        return [missing] if self.missing else []


def _parts(label: str) -> list[str]:
    return [part.replace("\\|", "|").strip() for part in re.split(r"(?<!\\)\|", label)]


def check_splits(splits: Iterable[tuple[int, str | None]], name: str) -> None:
    """Either every line says its split, or none."""
    known = [*splits]
    unsplit = [line for line, split in known if split is None]
    if unsplit and len(unsplit) < len(known):
        raise VitrailError(
            f"Line {unsplit[0]} of {name} has no split, and other lines have one: write train, val or test."
        )


def split_of(word: str | None, line: int, name: str) -> str | None:
    """What a cell of the column "split" says; None where it is empty."""
    if not word or not word.strip():
        return None
    split = SPLIT_WORDS.get(word.strip().lower())
    if split is None:
        raise VitrailError(
            f'Line {line} of {name} has the split "{word}": use train, val or test.{nearest(word, SPLIT_WORDS)}'
        )
    return split


def _columns(header: list[str], name: str) -> list[str]:
    """Those that a table of classes has."""
    check_columns(header, name, ("path", "label"))
    return [column for column in ("path", "label", "split") if column in header]


def check_columns(header: list[str], name: str, needed: tuple[str, ...], example: str = "path,label[,split]") -> None:
    """Refuses a table that lacks a column, and says which one was probably meant."""
    missing = [wanted for wanted in needed if wanted not in header]
    if missing:
        spare = [column for column in header if column not in (*needed, "split")]
        meant = {wanted: _called(wanted, spare) for wanted in missing}
        renamed = " and ".join(f"{column} to {wanted}" for wanted, column in meant.items() if column)
        hint = f"rename {renamed}." if renamed else f"name the columns {example}."
        if header and os.path.splitext(header[0])[1].lower() in (".jpg", ".jpeg", ".png"):
            first = example.partition("[")[0]
            hint = f"the first line seems to be a picture already, so put the line {first} above it."
        raise VitrailError(f'{name} has no column "{missing[0]}" (it has {some(header, 8)}): {hint}')
    repeated = [column for column in (*needed, "split") if header.count(column) > 1]
    if repeated:
        raise VitrailError(f'{name} has the column "{repeated[0]}" more than once: rename one of them.')


def _called(wanted: str, spare: list[str]) -> str:
    """The column that was probably meant, or ''."""
    usual = (column for column in spare if column.lower().strip() in (wanted, *_OTHERS_CALL_IT[wanted]))
    return next(usual, "") or closest(wanted, spare)


def read_rows(path: Path, name: str, choose: Choose, expected: str) -> list[tuple[int, dict[str, Any]]]:
    """(line, values by column) of a CSV or Parquet table, of the columns that `choose` picks."""
    rows = [*(_parquet if path.suffix.lower() in (".parquet", ".pq") else _csv)(path, choose, expected)]
    if not rows:
        raise VitrailError(f"{name} has no rows: expected {expected} and a row for each picture.")
    return rows


def _csv(path: Path, choose: Choose, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Values are text. Bytes that are no UTF-8 pass through, for file names hold such."""
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
                raise VitrailError(f"{path} is empty: expected a line {expected} and a row for each picture.")
            chosen = choose(header)
            at = {column: position for position, column in enumerate(header)}
            for row in reader:
                if not any(row):
                    continue
                if len(row) != len(header):
                    raise VitrailError(
                        f"Line {reader.line_num} of {path} has {plural(len(row), 'field')}, and the first line has "
                        f"{len(header)}: put a field that holds a comma in quotes."
                    )
                yield reader.line_num, {column: row[at[column]] for column in chosen}
    except (OSError, csv.Error) as error:
        raise VitrailError(f"{path} can't be read as a table ({error}).") from None


def _parquet(path: Path, choose: Choose, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """As `_csv`, with values of the types of their columns."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise VitrailError(f"To read {path.name}, Parquet support is needed: {extra('parquet')}.") from None
    try:
        table = parquet.read_table(path, columns=choose(parquet.read_schema(path).names))
    except (OSError, pyarrow.ArrowException) as error:
        raise VitrailError(f"{path} can't be read as Parquet ({' '.join(str(error).split())}).") from None
    columns = [table[column].to_pylist() for column in table.column_names]
    rows = [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    for line, row in enumerate(rows, start=1):
        file = row["path"] or ""
        if not isinstance(file, str):
            raise VitrailError(
                f'The column "path" of {path} holds {type(file).__name__}s: expected the paths of files.'
            )
        yield line, row | {"path": file}


def _labels(cell: Any) -> str | list[str]:
    """A list of strings, which Parquet may hold, makes the table multi-label as a|b does."""
    return [_text(part) for part in cell] if isinstance(cell, list) else _text(cell)


def _text(value: Any) -> str:
    """The name of a class that is a number: "3", also from a column that a missing value made floating-point."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
