"""Pictures in an .npz: the same pixels and labels as were saved, without taking them one by one."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.odd_files import photograph
from tests.training.support import small_options
from vitrail import VitrailError
from vitrail.data.cache import ArrayStore
from vitrail.data.image_set import fitted, shrunk
from vitrail.data.loader import Loader
from vitrail.data.sources.classification import open_pictures, open_source
from vitrail.data.split import write_split
from vitrail.models import Preprocessing


def pictures(count: int, side: int = 12, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    images = [np.array(photograph(n, side, side, hue=n % classes / classes)) for n in range(count)]
    return np.stack(images), np.arange(count) % classes


@pytest.fixture
def saved(tmp_path):
    images, labels = pictures(30)
    path = tmp_path / "toys.npz"
    np.savez(
        path, train_images=images[:18], train_labels=labels[:18], val_images=images[18:24], val_labels=labels[18:24],
        test_images=images[24:], test_labels=labels[24:], classes=["cube", "ball", "cone"],
    )  # fmt: skip
    return path, images, labels


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_was_saved_is_what_is_read(tmp_path, save):
    images, labels = pictures(20)
    path = tmp_path / "toys.npz"
    save(
        path, train_images=images[:15], train_labels=labels[:15, None], test_images=images[15:], test_labels=labels[15:]
    )
    source = open_source(path)
    assert source.classes == ["0", "1", "2"] and [*source.splits] == ["train", "test"]
    assert source.splits["test"][2].name == "toys.npz/test/2"
    assert [sample.labels for sample in source.splits["train"]] == [(int(label),) for label in labels[:15]]
    for split, start in (("train", 0), ("test", 15)):
        for number, sample in enumerate(source.splits[split]):
            assert np.array_equal(np.array(sample.decode()), images[start + number])


def test_names_grey_pictures_several_labels_and_others_words(tmp_path):
    images, labels = pictures(12)
    words = np.array(["cube", "ball", "cone"])
    np.savez(tmp_path / "words.npz", x_train=images, y_train=words[labels])
    source = open_source(tmp_path / "words.npz")
    assert source.classes == ["ball", "cone", "cube"] and source.counts("train") == [4, 4, 4]
    assert source.splits["train"][0].labels == (2,)
    np.savez(tmp_path / "grey.npz", images=images[..., 0], labels=np.eye(3, dtype=np.uint8)[labels] | [1, 0, 0])
    source = open_source(tmp_path / "grey.npz")
    assert source.multi_label and [sample.labels for sample in source.splits["all"][:3]] == [(0,), (0, 1), (0, 2)]
    assert np.array_equal(np.array(source.splits["all"][5].decode())[..., 2], images[5, ..., 0])
    np.savez(tmp_path / "bytes.npz", images=images, labels=labels, classes=words.astype("S"))
    assert open_source(tmp_path / "bytes.npz").classes == ["cube", "ball", "cone"]
    np.savez(tmp_path / "bare.npz", images=images)
    assert len(open_pictures(tmp_path / "bare.npz")) == 12
    with pytest.raises(VitrailError, match="no labels"):
        open_source(tmp_path / "bare.npz")


def test_labels_of_a_single_1_each_are_one_label_each_and_the_source_says_so(tmp_path):
    images, labels = pictures(12)
    for kind in (np.uint8, np.int64, bool):
        rows = np.eye(3, dtype=kind)[labels]
        np.savez(
            tmp_path / "hot.npz", train_images=images[:9], train_labels=rows[:9], test_images=images[9:],
            test_labels=rows[9:], classes=["cube", "ball", "cone"],
        )  # fmt: skip
        source = open_source(tmp_path / "hot.npz")
        assert not source.multi_label and source.classes == ["cube", "ball", "cone"]
        assert [sample.labels for sample in source.splits["train"]] == [(int(label),) for label in labels[:9]]
        assert "a single 1, so they are read as one label" in " ".join(source.notes)
    rows[11] = False  # a picture without any, in one split, and they are several labels again
    np.savez(tmp_path / "hot.npz", images=images, labels=rows)
    source = open_source(tmp_path / "hot.npz")
    assert source.multi_label and source.splits["all"][11].labels == () and not source.notes


def test_grey_pictures_may_have_a_last_axis_of_one(tmp_path):
    images, labels = pictures(12)
    np.savez(tmp_path / "flat.npz", images=images[..., 0], labels=labels)
    np.savez(tmp_path / "deep.npz", images=images[..., :1], labels=labels)
    flat, deep = (open_source(tmp_path / f"{name}.npz").splits["all"] for name in ("flat", "deep"))
    for one, other in zip(flat, deep, strict=True):
        assert np.array_equal(np.array(one.decode()), np.array(other.decode()))
    assert np.array_equal(deep[4].pixels("L")[..., 0], images[4, ..., 0])


def test_a_hundred_thousand_pictures_are_mapped_and_not_taken_one_by_one(tmp_path):
    count = 100_000
    images = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(count, 2, 2, 1).repeat(3, axis=3)
    np.savez(tmp_path / "many.npz", train_images=images, train_labels=np.arange(count) % 200)
    samples = open_source(tmp_path / "many.npz").splits["train"][::-1]
    decoded = []
    for view in (shrunk, fitted):
        found = view(samples, Preprocessing(size=(2, 2), crop=1.0))
        found.prepare = decoded.append
        found.read(range(count), workers=2)
        assert isinstance(found.store, ArrayStore) and not found.bad
        assert isinstance(found.store.array.base, np.memmap)
        assert np.array_equal(found.store.several(np.arange(count)), images[::-1])
        assert torch.equal(found[1], torch.from_numpy(images[count - 2]).permute(2, 0, 1)) and decoded == []


def test_whole_arrays_give_the_pixels_that_single_pictures_give(saved):
    path, images, _ = saved
    samples = open_source(path).splits["train"][::-1]
    small, large = Preprocessing(size=(12, 12), crop=1.0), Preprocessing(size=(16, 16), crop=0.9)
    for view, pre, whole in (
        (shrunk, small, True),
        (fitted, small, True),
        (shrunk, large, True),
        (fitted, large, False),
    ):
        found = view(samples, pre, "memory")
        assert isinstance(found.store, ArrayStore) == whole
        alone = view(samples, pre, "off")
        alone.store = None
        for number in range(len(samples)):
            assert torch.equal(found[number], alone[number])
    assert torch.equal(shrunk(samples, small)[0], torch.from_numpy(images[17]).permute(2, 0, 1))
    shrinks = shrunk(samples, Preprocessing(size=(6, 6), crop=1.0), "memory")
    assert not isinstance(shrinks.store, ArrayStore) and shrinks[0].shape == (3, 7, 7)


def test_an_array_moves_onto_a_device_whole(saved):
    """The device is the CPU here, which `move_in` leaves alone; what it would do on a GPU is the same."""
    path, images, _ = saved
    samples = open_source(path).splits["train"][::-1]
    loader = Loader(shrunk(samples, Preprocessing(size=(12, 12), crop=1.0)), torch.device("cpu"), workers=0)
    assert not loader.move_in(np.arange(18)) and loader.resident is None
    store = loader.images.store
    assert not loader._move_array(store, room=18 * 12 * 12 * 3 - 1) and loader._move_array(store, room=18 * 12 * 12 * 3)
    (numbers, canvas), = loader.batches([np.array([3, 0, 17])])  # fmt: skip
    assert numbers.tolist() == [3, 0, 17] and canvas.sizes.tolist() == [[12, 12]] * 3
    assert np.array_equal(canvas.pixels.permute(0, 2, 3, 1), images[[14, 17, 0]])


def test_a_run_on_an_array_is_the_run_on_the_same_pictures_as_files(saved, tmp_path):
    """To the bit: training, validation, and what `evaluate` says of test/."""
    _, images, labels = saved
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        split = "train" if number < 18 else "val" if number < 24 else "test"
        file = tmp_path / "files" / split / f"{label}" / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    order = np.argsort(labels[:18], kind="stable")  # folders come class by class
    np.savez(
        tmp_path / "sorted.npz", train_images=images[:18][order], train_labels=labels[:18][order],
        val_images=images[18:24], val_labels=labels[18:24], test_images=images[24:], test_labels=labels[24:],
    )  # fmt: skip
    runs = [
        vitrail.train(data, **small_options(epochs=2, batch_size=6, out=tmp_path / out))
        for data, out in ((tmp_path / "files", "a"), (tmp_path / "sorted.npz", "b"))
    ]
    states = [vitrail.load(run).model.state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (
        vitrail.evaluate(runs[0], tmp_path / "files")["top1"]
        == vitrail.evaluate(runs[1], tmp_path / "sorted.npz")["top1"]
    )


def test_a_split_of_an_array_is_kept_and_read_back(tmp_path):
    images, labels = pictures(24)
    np.savez(tmp_path / "toys.npz", images=images, labels=labels)
    run = vitrail.train(tmp_path / "toys.npz", **small_options(epochs=1, batch_size=8, val=0.25, out=tmp_path / "run"))
    figures = vitrail.evaluate(run, tmp_path / "toys.npz")
    assert figures["n"] == 6 and figures["split"] == "held out in training"  # not the 18 that it has learned
    table = open_source(run.folder / "split.csv")
    assert {split: len(samples) for split, samples in table.splits.items()} == {"train": 18, "val": 6}
    for sample in table.splits["val"]:
        row = int(sample.name.rpartition("/")[2])
        assert np.array_equal(np.array(sample.decode()), images[row]) and sample.labels == (labels[row],)
    source = open_source(tmp_path / "toys.npz")
    write_split(tmp_path / "here.csv", source.splits["all"][:4], [], source.splits["all"][4:], source.classes)
    assert (tmp_path / "here.csv").read_text().splitlines()[1] == "toys.npz/all/0,0,train"


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"a": np.zeros(3)}, "holds a: expected the arrays train_images"),
        ({"images": np.zeros((4, 8, 8, 3)), "labels": np.arange(4)}, "is float64: expected uint8"),
        ({"images": np.zeros((4, 3, 8, 8), np.uint8), "labels": np.arange(4)}, r"4×3×8×8: the colours go last"),
        ({"images": np.zeros((4, 8), np.uint8), "labels": np.arange(4)}, r"expected n×height×width×3"),
        ({"images": np.zeros((4, 8, 8, 3), np.uint8), "labels": np.arange(3)}, "4 images and 3 labels"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([0.5, 1])}, "are float64 in 1 dimension"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([-1, 1])}, "none of its 2 classes: -1"),
        (
            {"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([0, 2]), "classes": ["a", "b"]},
            "none of its 2 classes: 2",
        ),
        (
            {"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([0, 10**12])},
            "has the label 1,000,000,000,000 and 2 labels in all: number the classes from 0 on",
        ),
        (
            {"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([0, 10**12]), "classes": ["a", "b"]},
            "none of its 2 classes: 1000000000000",
        ),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([0, {}], object)}, "can't be read as arrays"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([[3, 0], [9, 1]])}, "that are not 0 or 1"),
        ({"images": np.zeros((1, 8, 8, 3), np.uint8), "labels": np.array(3)}, "labels of .* is a single value"),
        (
            {"train_images": np.zeros((1, 8, 8, 3), np.uint8), "x_train": np.zeros((1, 8, 8, 3), np.uint8)},
            "x_train and train_images: leave one",
        ),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused_in_a_sentence(tmp_path, arrays, words):
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(VitrailError, match=words):
        open_source(tmp_path / "odd.npz")


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "odd.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(VitrailError, match=re.escape("odd.npz can't be read as arrays")):
        open_source(tmp_path / "odd.npz")
