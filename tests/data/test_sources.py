"""Folders, tables and named data sets, each built here; what is read is compared with what was written."""

import csv
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.odd_files import encoded, photograph
from vitrail.data.samples import Item, Sample
from vitrail.data.sources.classification import open_pictures, open_source
from vitrail.errors import VitrailError


def fill(root: Path, *files: str) -> Path:
    """A different small picture under each name; other suffixes get text."""
    for number, file in enumerate(files):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".jpg", ".png"):
            photograph(number, 8, 10).save(path)
        else:
            path.write_text("text")
    return root


def rows(source, split):
    """What a split holds, in words."""
    return [
        (sample.name, "|".join(source.classes[label] for label in sample.labels)) for sample in source.splits[split]
    ]


def write_csv(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_plain_class_folders_are_one_split(tmp_path, monkeypatch):
    fill(tmp_path, "dog/1.jpg", "cat/b.png", "cat/a.jpg", "cat/deep/er/c.jpg", "cat10/x.jpg", "cat2/y.jpg")
    source = open_source(tmp_path)
    assert source.classes == ["cat", "cat10", "cat2", "dog"] and list(source.splits) == ["all"]
    assert rows(source, "all") == [
        ("cat/a.jpg", "cat"), ("cat/b.png", "cat"), ("cat/deep/er/c.jpg", "cat"),
        ("cat10/x.jpg", "cat10"), ("cat2/y.jpg", "cat2"), ("dog/1.jpg", "dog"),
    ]  # fmt: skip
    assert not source.multi_label and source.counts("all") == [3, 1, 1, 1] and len(source) == 6
    assert source.splits["all"][0].decode().size == (10, 8)
    assert repr(source).endswith("4 classes, all 6)")
    monkeypatch.chdir(tmp_path)
    assert [s.name for s in open_source(".").splits["all"]] == [s.name for s in source.splits["all"]]


@pytest.mark.parametrize("val", ["val", "valid", "validation", "dev", "Val"])
def test_split_folders_share_their_classes(tmp_path, val):
    fill(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "train/c/3.jpg", f"{val}/a/4.jpg", "test/b/5.jpg", "notes/x.jpg")
    source = open_source(str(tmp_path))
    assert source.classes == ["a", "b", "c"] and list(source.splits) == ["train", "val", "test"]
    assert rows(source, "val") == [(f"{val}/a/4.jpg", "a")] and rows(source, "test") == [("test/b/5.jpg", "b")]
    assert "1 folder beside the splits left out (notes)." in source.notes


def test_a_class_called_train_is_a_class(tmp_path):
    source = open_source(fill(tmp_path, "train/1.jpg", "bus/2.jpg", "car/3.jpg"))
    assert source.classes == ["bus", "car", "train"] and list(source.splits) == ["all"]


def test_hidden_files_are_ignored_and_others_are_counted(tmp_path):
    fill(
        tmp_path, "a/1.jpg", "a/._1.jpg", "a/.hidden/2.jpg", "b/3.JPG", "b/readme.txt", "b/more/list.csv", "classes.txt"
    )
    (tmp_path / "b" / "3.JPG").write_bytes(encoded(photograph(), "JPEG"))
    fill(tmp_path, "__MACOSX/a/1.jpg", "stray.png")
    (tmp_path / "empty").mkdir()
    source = open_source(tmp_path)
    assert [name for name, _ in rows(source, "all")] == ["a/1.jpg", "b/3.JPG"]
    assert source.notes[:3] == [
        "1 picture beside the class folders left out (stray.png).",
        "1 folder without pictures left out (empty).",
        "3 files without a picture's suffix left out (2 .txt, 1 .csv).",
    ]


def test_links_are_followed_once_and_never_in_circles(tmp_path):
    fill(tmp_path / "far", "album/1.jpg", "album/sub/2.jpg")
    fill(tmp_path / "data", "a/0.jpg", "b/9.jpg")
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")  # a circle
    (tmp_path / "data/a/self").symlink_to(tmp_path / "data/a")
    (tmp_path / "data/a/album").symlink_to(tmp_path / "far/album")
    (tmp_path / "data/a/again").symlink_to(tmp_path / "far/album/sub")  # the same pictures by another way
    (tmp_path / "data/b/gone.jpg").symlink_to(tmp_path / "nothing")
    (tmp_path / "data/c").symlink_to(tmp_path / "far/album")
    os.mkfifo(tmp_path / "data/b/pipe.jpg")  # to open it would wait for ever
    source = open_source(tmp_path / "data")
    by_class = {label: [name for name, of in rows(source, "all") if of == label] for label in source.classes}
    assert len(by_class["a"]) == 3 and by_class["b"] == ["b/9.jpg", "b/gone.jpg"] and len(by_class["c"]) == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "The folder {} is empty: expected DATA/CLASS/picture.jpg."),
        (["1.jpg", "2.jpg"],
         "{} holds 2 pictures and no class folders: put the pictures of each class into a folder named after it. "
         "Without labels, `vitrail pretrain` can learn from them (`vitrail data inspect --task pretrain`)."),
        (["1.jpg", "labels.csv"],
         "{} holds 1 picture and no class folders: put the pictures of each class into a folder named after it; "
         "if labels.csv holds the labels, pass {}/labels.csv."),
        (["a/1.jpg", "a/2.jpg"],
         '{} holds one class only, "a": at least two are needed to tell anything apart, so put the others beside it.'),
        (["all/a/1.jpg", "all/b/2.jpg"],
         '{} holds one folder, "all", with 2 folders of pictures inside: point at {}/all.'),
        (["a/1.npy", "b/2.npy"],
         "{} holds no pictures in its folders; there are 2 .npy: expected DATA/CLASS/picture.jpg, "
         "or DATA/train/CLASS/picture.jpg."),
        (["images/a/1.jpg", "masks/a/1.png"],
         "{} holds images/ and masks/, which is segmentation: say so with --task, or point at {}/images to classify."),
        (["train/1.jpg", "test/2.jpg"],
         "{}/train holds 1 picture and no class folders: expected train/CLASS/picture.jpg."),
        (["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/c/1.jpg"],
         "{} has 1 class in test without a single picture in train (c): add some to train, "
         "or take the class out of test."),
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "valid/b/1.jpg"],
         "{} holds both val/ and valid/, two folders for val: join them, or rename one."),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_is_told_in_one_sentence(tmp_path, files, message):
    fill(tmp_path, *files)
    with pytest.raises(VitrailError) as error:
        open_source(tmp_path)
    assert str(error.value) == message.replace("{}", str(tmp_path))


def test_what_is_not_there_is_told_what_was_perhaps_meant(tmp_path):
    fill(tmp_path, "flowers/a/1.jpg", "picture.jpg", "data.zip")
    with pytest.raises(VitrailError, match=r'There is no .*/flower: expected class folders.* Did you mean "flowers"\?'):
        open_source(tmp_path / "flower")
    with pytest.raises(VitrailError, match=r'There is no CIFAR11: .* Did you mean "CIFAR10+"\?'):
        open_source("CIFAR11")
    with pytest.raises(VitrailError, match="is a single picture: pass a folder"):
        open_source(tmp_path / "picture.jpg")
    with pytest.raises(VitrailError, match="unpack it"):
        open_source(tmp_path / "data.zip")


def test_one_class_is_enough_to_evaluate_on(tmp_path):
    fill(tmp_path, "a/1.jpg")
    assert open_source(tmp_path, one_class=True).classes == ["a"]


def test_test_pictures_without_labels_are_left_out_and_said_so(tmp_path):
    source = open_source(fill(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "test/3.jpg", "test/4.jpg"))
    assert (
        list(source.splits) == ["train"] and "test/ holds 2 pictures without class folders, left out." in source.notes
    )


def test_classes_that_seem_a_mistake_are_noted(tmp_path):
    fill(tmp_path, "Cat/1.jpg", "Cat/2.jpg", "cat/3.jpg", "pets/train/4.jpg", "pets/test/5.jpg")
    assert open_source(tmp_path).notes == [
        "Taken for classes, pets have train/ and other splits inside: were they meant instead?",
        "1 class has one picture to learn from (cat).",
        "Some class names differ by capitals or blanks alone: Cat, cat.",
    ]


def test_a_table_is_read_with_paths_relative_to_it(tmp_path):
    fill(tmp_path, "x/1.jpg", "x/2, with comma.jpg", "3.jpg")
    elsewhere = fill(tmp_path / "far", "4.jpg")
    table = write_csv(
        tmp_path / "labels.csv", "\ufeffsplit, path, label, photographer", "train, x/1.jpg, cat, ann", "",
        'train,"x/2, with comma.jpg", dog, bob', "validation, 3.jpg, dog, ann", f"Test,{elsewhere}/4.jpg,cat,",
    )  # fmt: skip
    source = open_source(table)
    assert source.classes == ["cat", "dog"] and not source.multi_label
    assert rows(source, "train") == [("x/1.jpg", "cat"), ("x/2, with comma.jpg", "dog")]
    assert rows(source, "val") == [("3.jpg", "dog")] and rows(source, "test") == [(f"{elsewhere}/4.jpg", "cat")]
    assert all(s.decode().size == (10, 8) for samples in source.splits.values() for s in samples)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_spreadsheets_delimiter_is_understood(tmp_path, delimiter):
    fill(tmp_path, "1.jpg", "2.jpg")
    lines = ["path,label", "1.jpg,a", "2.jpg,b"]
    source = open_source(write_csv(tmp_path / "t.csv", *(line.replace(",", delimiter) for line in lines)))
    assert rows(source, "all") == [("1.jpg", "a"), ("2.jpg", "b")]


def test_a_table_in_another_encoding_is_read(tmp_path):
    fill(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "t.csv").write_text("path\tlabel\n1.jpg\tcafé\n2.jpg\tthé\n", encoding="utf-16")
    assert open_source(tmp_path / "t.csv").classes == ["café", "thé"]
    (tmp_path / "t.csv").write_text("path,label\n1.jpg,café\n2.jpg,thé\n", encoding="latin-1")
    assert open_source(tmp_path / "t.csv").classes == ["caf\ufffd", "th\ufffd"]  # printable at least


def test_a_bar_makes_a_table_multi_label(tmp_path):
    fill(tmp_path, *(f"{i}.jpg" for i in range(5)))
    lines = ["0.jpg,a|b", "1.jpg,", "2.jpg,b", r"3.jpg,c\|d|a", "4.jpg,b|b|"]
    source = open_source(write_csv(tmp_path / "t.csv", "path,label", *lines))
    assert source.multi_label and source.classes == ["a", "b", "c|d"]
    assert [sample.labels for sample in source.splits["all"]] == [(0, 1), (), (1,), (0, 2), (1,)]


def test_files_that_a_table_names_in_vain_are_counted_and_kept_to_be_listed(tmp_path):
    fill(tmp_path, "1.jpg", "2.jpg")
    source = open_source(
        write_csv(tmp_path / "t.csv", "path,label", "1.jpg,a", "2.jpg,b", "9.jpg,a", "1.jpg,a", "2.jpg,a")
    )
    assert len(source) == 4
    assert source.notes[0] == "1 row of t.csv said the same again, and count once."
    assert source.notes[1].startswith("1 row of t.csv give another label to a picture that had one (2.jpg)")
    assert source.notes[2] == f"1 file of t.csv not found ({tmp_path}/9.jpg)."
    with pytest.raises(VitrailError, match=r"9\.jpg was not found"):
        source.splits["all"][2].decode()
    with pytest.raises(
        VitrailError, match=r"None of the 2 files that .*u\.csv names is there; the first is looked for at .*/8"
    ):
        open_source(write_csv(tmp_path / "u.csv", "path,label", "8.jpg,a", "9.jpg,b"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["filename,label", "1.jpg,a"], r'no column "path" \(it has filename, label\): rename filename to path\.$'),
        (["Path,label", "1.jpg,a"], 'no column "path".*: rename Path to path'),
        (["image,breed", "1.jpg,a"], r'no column "path".*: rename image to path and breed to label\.$'),
        (["x,y", "1.jpg,a"], r'no column "path" \(it has x, y\): name the columns path,label'),
        (["path,Category", "1.jpg,a"], 'no column "label".*: rename Category to label'),
        (["path,lable", "1.jpg,a"], 'no column "label".*: rename lable to label'),
        (["1.jpg,a", "2.jpg,b"], "first line seems to be a picture already, so put the line path,label above it"),
        (["path,path,label", "1.jpg,1.jpg,a"], 'has the column "path" more than once'),
        (["path,label", "1.jpg,a", "2.jpg,b,c"], "Line 3 of .* has 3 fields, and the first line has 2"),
        (["path,label", "1.jpg,a", "2.jpg,"], r"Line 3 of .* \(2\.jpg\) has no label"),
        (["path,label", "1.jpg,a", ",b"], "Line 3 of .* has no path"),
        (["path,label,split", "1.jpg,a,trian"], 'has the split "trian": use train, val or test. Did you mean "train"'),
        (["path,label,split", "1.jpg,a,train", "2.jpg,b,"], "Line 3 of .* has no split, and other lines have one"),
        (
            ["path,label,split", "1.jpg,a,train", "2.jpg,b,test"],
            r"1 class in test without a single picture in train \(b\)",
        ),
        (["path,label", "1.jpg,a", "2.jpg,a"], 'holds one class only, "a"'),
        (["path,label"], "has no rows"),
        ([""], "is empty"),
    ],
)
def test_a_table_that_cannot_be_used_is_told_in_one_sentence(tmp_path, lines, message):
    fill(tmp_path, "1.jpg", "2.jpg")
    with pytest.raises(VitrailError, match=message) as error:
        open_source(write_csv(tmp_path / "t.csv", *lines))
    assert "\n" not in str(error.value)


def test_parquet_says_the_same_as_csv(tmp_path):
    import pyarrow
    from pyarrow import parquet

    fill(tmp_path, *(f"{i}.jpg" for i in range(4)))
    columns = {"path": [f"{i}.jpg" for i in range(4)], "label": ["a", "b", "a", "b"], "split": ["train"] * 3 + ["test"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with open(tmp_path / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    one, other = open_source(tmp_path / "t.parquet"), open_source(tmp_path / "t.csv")
    assert (one.classes, one.splits) == (other.classes, other.splits)
    for labels, classes, first in (
        ([3.0, 1.0, 3.0, 10.0], ["1", "10", "3"], (2,)),
        ([["x", "y"], [], ["x"], ["y"]], ["x", "y"], (0, 1)),
    ):
        parquet.write_table(pyarrow.table({"path": columns["path"], "label": labels}), tmp_path / "t.parquet")
        source = open_source(tmp_path / "t.parquet")
        assert source.classes == classes and source.splits["all"][0].labels == first
        assert source.multi_label == isinstance(labels[0], list)
    parquet.write_table(pyarrow.table({"image": ["1.jpg"], "label": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(VitrailError, match=r'no column "path".*: rename image to path'):
        open_source(tmp_path / "t.parquet")
    (tmp_path / "u.parquet").write_text("not parquet")
    with pytest.raises(VitrailError, match=r"u\.parquet can't be read as Parquet"):
        open_source(tmp_path / "u.parquet")


def write_mnist(root, name, images, labels):
    """The files that torchvision's FashionMNIST reads: numbers, then bytes."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">IIII", 0x803, *images.shape)
    (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(labels)) + bytes(labels))


@pytest.mark.parametrize("name", ["FashionMNIST", "fashionmnist", "torchvision:FASHIONMNIST"])
def test_a_torchvision_data_set_is_opened_by_name(tmp_path, monkeypatch, name):
    monkeypatch.setenv("VITRAIL_DATASETS", str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
    write_mnist(tmp_path, "train", images[:4], [9, 0, 3, 3])
    write_mnist(tmp_path, "t10k", images[4:], [1, 9])
    source = open_source(name)
    assert source.name == "torchvision:FashionMNIST" and len(source.classes) == 10 and source.classes[9] == "Ankle boot"
    assert [sample.labels for sample in source.splits["train"]] == [(9,), (0,), (3,), (3,)]
    assert (
        "1 class in test without a single picture in train (Trouser)" in source.notes[0]
    )  # a note: who could mend it?
    sample = source.splits["test"][1]
    assert sample.name == "torchvision:FashionMNIST/test/1" and isinstance(sample.where, Item)
    assert np.array_equal(np.asarray(sample.decode())[..., 0], images[5])
    again = pickle.loads(pickle.dumps(sample))  # as a worker process gets it
    assert np.array_equal(np.asarray(again.decode()), np.asarray(sample.decode()))
    assert again.identity() == sample.identity() != source.splits["test"][0].identity()


def test_a_torchvision_data_set_of_files_is_left_to_our_decoder(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_DATASETS", str(tmp_path))
    fill(tmp_path / "eurosat" / "2750", "Forest/1.jpg", "River/2.jpg", "River/3.jpg")
    source = open_source("eurosat")
    assert source.classes == ["Forest", "River"] and list(source.splits) == ["all"]
    assert [sample.where.name for sample in source.splits["all"]] == ["1.jpg", "2.jpg", "3.jpg"]


def test_a_torchvision_data_set_that_cannot_be_had_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_DATASETS", str(tmp_path))
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nobody answers
    with pytest.raises(
        VitrailError, match=r"CIFAR10 is not in .* and could not be downloaded \(.*\): put its files there"
    ):
        open_source("CIFAR10")
    with pytest.raises(VitrailError, match=r"ImageNet is not in .* and has to be fetched by hand"):
        open_source("torchvision:imagenet")
    with pytest.raises(VitrailError, match=r'torchvision has no data set "CIFAR".* Did you mean "CIFAR10+"\?'):
        open_source("torchvision:CIFAR")


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """Hugging Face's, without its network and with a cache of our own."""
    import datasets as package
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(package.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return package


def test_a_hugging_face_data_set_is_read_from_disk(tmp_path, datasets):
    pictures = [encoded(photograph(i, 8, 10), "PNG") for i in range(4)]
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=["no", "yes"]),
            "coarse": datasets.ClassLabel(names=["x"]),
        }
    )
    columns = {"img": [{"bytes": b, "path": None} for b in pictures], "fine_label": [1, 0, 1, 0], "coarse": [0] * 4}
    whole = datasets.Dataset.from_dict(columns, features)
    splits = {"train": whole.select([0, 1]), "validation": whole.select([2]), "test": whole.select([3]), "extra": whole}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    source = open_source(f"hf:{tmp_path}/saved")
    assert source.classes == ["no", "yes"] and list(source.splits) == ["train", "val", "test"]
    assert [s.labels for s in source.splits["train"]] == [(1,), (0,)] and [s.labels for s in source.splits["val"]] == [
        (1,)
    ]
    assert source.splits["test"][0].open() == pictures[3]  # the very bytes, for our decoder
    assert source.splits["test"][0].decode().size == (10, 8)
    assert source.notes[0] == 'The column "fine_label" is used, and not coarse.'
    assert source.notes[1] == 'The split "extra" (4 pictures) left out: it is none of train, val, test.'
    assert pickle.loads(pickle.dumps(source.splits["val"][0])).open() == pictures[2]

    hidden = datasets.Dataset.from_dict(columns | {"fine_label": [1, -1, 0, None]}, features)
    hidden.save_to_disk(tmp_path / "hidden")
    source = open_source(f"hf:{tmp_path}/hidden")
    assert [sample.name.rsplit("/", 1)[1] for sample in source.splits["all"]] == ["0", "2"]
    assert '2 pictures of the split "all" without a label left out.' in source.notes

    features = datasets.Features(
        {"image": datasets.Image(), "labels": datasets.Sequence(datasets.ClassLabel(names=["a", "b"]))}
    )
    columns = {"image": columns["img"], "labels": [[0, 1], [], [1], [0]]}
    datasets.Dataset.from_dict(columns, features).save_to_disk(tmp_path / "several")
    source = open_source(f"hf:{tmp_path}/several")
    assert source.multi_label and [s.labels for s in source.splits["all"]] == [(0, 1), (), (1,), (0,)]


def test_a_folder_is_read_through_hugging_faces_own_loader(tmp_path, datasets):
    fill(tmp_path / "data", "train/a/1.jpg", "train/b/2.jpg", "test/a/3.jpg")
    source = open_source(f"hf:{tmp_path}/data")
    assert source.classes == ["a", "b"] and [len(source.splits[split]) for split in ("train", "test")] == [2, 1]
    assert source.splits["test"][0].decode().size == (10, 8)
    with pytest.raises(VitrailError, match="hf:nobody/nothing can't be loaded"):
        open_source("hf:nobody/nothing")


def test_a_data_set_that_raises_is_named(tmp_path):
    class Broken:
        def __getitem__(self, index):
            raise RuntimeError("disk\non fire")

    with pytest.raises(VitrailError, match=r"^x/7 can't be read from its data set \(disk on fire\)\.$"):
        Sample("x/7", Item(Broken(), 7), (0,)).decode()


def test_a_picture_that_changes_is_another(tmp_path, monkeypatch):
    fill(tmp_path, "a/1.jpg", "b/2.jpg")
    monkeypatch.chdir(tmp_path)
    before = [sample.identity() for sample in open_source(tmp_path).splits["all"]]
    assert [sample.identity() for sample in open_source(".").splits["all"]] == before and len(set(before)) == 2
    photograph(5, 9, 9).save(tmp_path / "b/2.jpg")
    after = [sample.identity() for sample in open_source(tmp_path).splits["all"]]
    assert after[0] == before[0] and after[1] != before[1]


def test_a_name_that_is_no_text_still_prints(tmp_path):
    fill(tmp_path, "a/1.jpg", "b/2.jpg")
    os.rename(os.fsencode(tmp_path / "a/1.jpg"), os.fsencode(tmp_path) + b"/a/\xff.jpg")
    source = open_source(tmp_path)
    sample = source.splits["all"][0]
    assert sample.name.encode() == "a/\ufffd.jpg".encode() and isinstance(sample.decode(), Image.Image)


@pytest.mark.data
def test_real_folders_are_read(real_data):
    source = open_source(real_data / "pets" / "images")
    assert len(source.classes) == 37 and {split: len(samples) for split, samples in source.splits.items()} == {
        "train": 1110,
        "test": 555,
    }
    assert source.counts("train") == [30] * 37 and source.notes == []


def test_a_folder_without_any_picture_has_nothing_to_learn_from(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("a")
    with pytest.raises(VitrailError, match=r"notes holds no pictures, in folders or not\.$"):
        open_pictures(tmp_path / "notes")
    (tmp_path / "notes/all.csv").write_text("path\n")
    with pytest.raises(VitrailError, match=r"or not; if all\.csv holds the labels, pass .*notes/all\.csv\.$"):
        open_pictures(tmp_path / "notes")
