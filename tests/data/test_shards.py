"""Tar shards written with Python's tarfile, and read without it."""

import gzip
import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.odd_files import encoded, photograph
from vitrail.data.samples import TarMember
from vitrail.data.sources.classification import open_source
from vitrail.data.sources.shards import expand, members
from vitrail.errors import VitrailError


def write_tar(path: Path, files: dict[str, bytes | str], kind: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def png(number: int) -> bytes:
    return encoded(photograph(number, 8, 10), "PNG")


def shard(path: Path, *labels: object, first: int = 0) -> Path:
    files: dict[str, bytes | str] = {}
    for number, label in enumerate(labels, first):
        files[f"{number:04d}.png"] = png(number)
        files[f"{number:04d}.cls"] = str(label)
    return write_tar(path, files)


def labels(source, split):
    return ["|".join(source.classes[label] for label in sample.labels) for sample in source.splits[split]]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_are_read_where_they_lie(tmp_path, kind):
    long = "folder/" * 12 + "x" * 40  # longer than a plain header holds
    files = {"0001.jpg": png(1), "0001.cls": "2", f"{long}.png": png(2), f"{long}.cls": "10\n", "./0003.png": png(3),
             "./0003.cls": "2", "readme.md": "text", "._0001.jpg": "a Mac's"}  # fmt: skip
    source = open_source(write_tar(tmp_path / "one.tar", files, kind))
    assert source.classes == ["2", "10"] and list(source.splits) == ["all"]  # numbers in the order of numbers
    names = ["one.tar/0001.jpg", f"one.tar/{long}.png", "one.tar/0003.png"]
    assert [sample.name for sample in source.splits["all"]] == names and labels(source, "all") == ["2", "10", "2"]
    assert [sample.open() for sample in source.splits["all"]] == [png(1), png(2), png(3)]
    assert isinstance(source.splits["all"][0].where, TarMember)


def test_labels_come_from_cls_json_or_txt(tmp_path):
    files: dict[str, bytes | str] = {f"{key}.png": png(i) for i, key in enumerate("abcdefg")}
    files |= {"a.cls": "cat", "b.json": json.dumps({"label": "dog"}), "c.txt": "bird\n", "d.json": '{"class": 7}'}
    files |= {"e.json": "not json", "g.seg.png": png(9), "g.cls": "cat"}
    source = open_source(write_tar(tmp_path / "x.tar", files))
    assert source.classes == ["7", "bird", "cat", "dog"] and labels(source, "all") == ["cat", "dog", "bird", "7", "cat"]
    assert source.splits["all"][-1].name == "x.tar/g.png"  # and not the mask beside it
    assert "2 pictures without a label left out (x.tar/e.png, x.tar/f.png)." in source.notes


def test_a_list_of_labels_makes_the_shards_multi_label(tmp_path):
    files = {"a.png": png(0), "a.json": '{"labels": ["x", "y"]}', "b.png": png(1), "b.json": '{"labels": []}'}
    source = open_source(write_tar(tmp_path / "x.tar", files))
    assert source.multi_label and [sample.labels for sample in source.splits["all"]] == [(0, 1), ()]


@pytest.mark.parametrize(
    "names",
    [("train/000.tar", "train/001.tar", "val/000.tar"), ("train-000.tar", "train-001.tar", "valid-000.tar"),
     ("set_train_0.tar", "set_train_1.tar", "set_validation_0.tar")],
)  # fmt: skip
def test_splits_are_folders_or_words_in_the_names(tmp_path, names):
    for number, name in enumerate(names):
        shard(tmp_path / name, 0, 1, first=2 * number)
    source = open_source(tmp_path)
    assert [len(source.splits[split]) for split in ("train", "val")] == [4, 2]
    assert source.splits["val"][0].name == f"{names[2]}/0004.png" and source.splits["val"][0].open() == png(4)


def test_a_pattern_stands_for_many_shards(tmp_path):
    assert expand("a-{008..010}.tar") == ["a-008.tar", "a-009.tar", "a-010.tar"]
    assert expand("{train,val}-{0..1}.tar") == ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]
    for number in range(3):
        shard(tmp_path / f"train-{number:03d}.tar", 0, 1, first=2 * number)
    source = open_source(f"{tmp_path}/train-{{000..001}}.tar")
    assert [sample.name for sample in source.splits["train"]][2:] == [
        "train-001.tar/0002.png",
        "train-001.tar/0003.png",
    ]
    with pytest.raises(VitrailError, match=r"stands for 4 files, and 1 are not there \(.*train-003\.tar\)"):
        open_source(f"{tmp_path}/train-{{000..003}}.tar")


def test_names_of_numbered_classes_are_taken_from_beside_the_shards(tmp_path):
    shard(tmp_path / "0.tar", 2, 0, 2)
    (tmp_path / "classnames.txt").write_text("ant\nbee\ncat\n")
    source = open_source(tmp_path)
    assert source.classes == ["ant", "bee", "cat"] and labels(source, "all") == ["cat", "ant", "cat"]
    (tmp_path / "classnames.txt").write_text("ant\nbee\n")
    with pytest.raises(VitrailError, match=r"names 2 classes, and .* holds the class 2"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": png(0)}, "holds 1 picture without a label: expected WebDataset shards"),
        ({"a.txt": "text"}, "holds no pictures: expected WebDataset shards"),
        ({"a.png": png(0), "a.cls": "1"}, 'holds one class only, "1"'),
    ],
)
def test_shards_that_cannot_be_used_are_told_in_one_sentence(tmp_path, files, message):
    with pytest.raises(VitrailError, match=message):
        open_source(write_tar(tmp_path / "x.tar", files))


def test_a_compressed_tar_is_refused(tmp_path):
    plain = shard(tmp_path / "x.tar", 0, 1)
    packed = tmp_path / "y.tar.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(VitrailError, match=r"y\.tar\.gz is compressed with gzip, .* decompress it to a plain \.tar"):
        open_source(packed)
    plain.write_bytes(packed.read_bytes())  # whatever it is called
    with pytest.raises(VitrailError, match="is compressed with gzip"):
        open_source(plain)
    (tmp_path / "z.tar").write_bytes(b"text " * 300)
    with pytest.raises(VitrailError, match=r"z\.tar is not a tar file"):
        open_source(tmp_path / "z.tar")


def test_shards_beside_folders_are_refused_and_a_leftover_archive_is_not(tmp_path):
    for file in ("a/1.png", "b/2.png"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_bytes(png(0))
    (tmp_path / "download.tar.gz").write_bytes(b"\x1f\x8b")
    assert open_source(tmp_path).classes == ["a", "b"]
    shard(tmp_path / "x.tar", 0, 1)
    with pytest.raises(VitrailError, match=r"holds both tar files \(x\.tar\) and folders \(a, b\)"):
        open_source(tmp_path)
    shard(tmp_path / "mixed" / "train-0.tar", 0, 1)
    shard(tmp_path / "mixed" / "more-0.tar", 0, 1)
    with pytest.raises(VitrailError, match=r"named after a split and others that are not \(more-0\.tar\)"):
        open_source(tmp_path / "mixed")


def test_of_a_damaged_tar_the_sound_part_is_kept_and_the_damage_is_told(tmp_path):
    whole = shard(tmp_path / "x.tar", 0, 1, 0, 1)
    data, places = whole.read_bytes(), members(whole)[0]
    last = places["0003.png"]
    (tmp_path / "x.tar").write_bytes(data[: last.offset + 20])  # ends inside the last picture
    source = open_source(whole)
    assert len(source) == 3 and "is damaged (unexpected end of data): only the 7 files" in source.notes[0]
    with pytest.raises(VitrailError, match=r"x\.tar ends inside this picture \(20 of \d+ bytes\)"):
        last.read()
    header = places["0002.png"].offset - 512
    (tmp_path / "x.tar").write_bytes(data[:header] + b"?" * 512 + data[header + 512 :])  # a header overwritten
    source = open_source(whole)
    assert len(source) == 2 and f"no header at byte {header:,}" in source.notes[0]


def test_many_threads_read_one_shard_at_once(tmp_path):
    source = open_source(shard(tmp_path / "x.tar", *(number % 2 for number in range(64))))
    samples = source.splits["all"] * 4
    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(lambda sample: np.asarray(sample.decode()), samples))
    assert all(np.array_equal(image, photograph(i % 64, 8, 10)) for i, image in enumerate(images))


def test_a_damaged_picture_in_a_shard_is_called_by_its_name(tmp_path):
    files = {"a.png": png(0)[:60], "a.cls": "0", "b.png": png(1), "b.cls": "1"}
    sample = open_source(write_tar(tmp_path / "x.tar", files)).splits["all"][0]
    with pytest.raises(VitrailError, match=r"^x\.tar/a\.png is a damaged or incomplete image"):
        sample.decode()
