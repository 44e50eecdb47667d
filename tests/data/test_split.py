import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_shards import shard
from tests.data.test_sources import fill, write_csv, write_mnist
from vitrail.data.samples import Sample
from vitrail.data.sources.classification import open_source
from vitrail.data.split import divide, write_split
from vitrail.errors import VitrailError


def samples_of(*sizes):
    return [
        Sample(f"{label}/{number}.jpg", Path(), (label,)) for label, size in enumerate(sizes) for number in range(size)
    ]


def counts(samples):
    return Counter(label for sample in samples for label in sample.labels)


@pytest.mark.parametrize("fraction", [0.1, 0.15, 0.2, 1 / 3, 0.5])
@pytest.mark.parametrize("sizes", [(30,) * 37, (1000, 10, 10, 100), (7, 11, 13, 17, 19), (50, 1, 2, 3)])
def test_every_class_is_divided_alike(sizes, fraction):
    rest, part = divide(samples_of(*sizes), fraction, seed=0)
    assert len(part) == round(fraction * sum(sizes)) and len(rest) + len(part) == sum(sizes)
    left, taken = counts(rest), counts(part)
    for label, size in enumerate(sizes):
        assert left[label] >= 1 and taken[label] >= (size > 1)
        assert abs(taken[label] - fraction * size) < 2 + 0.05 * fraction * size


def test_the_order_of_the_listing_changes_nothing_and_the_seed_does():
    samples = samples_of(40, 60, 5)
    shuffled = random.Random(0).sample(samples, len(samples))
    names = {sample.name for sample in divide(samples, 0.2, 3)[1]}
    assert {sample.name for sample in divide(shuffled, 0.2, 3)[1]} == names
    assert {sample.name for sample in divide(samples, 0.2, 4)[1]} != names
    rest, part = divide(shuffled, 0.2, 3)  # and the order of the listing is kept
    assert [s for s in shuffled if s in set(rest)] == rest and [s for s in shuffled if s in set(part)] == part


def test_the_division_is_the_same_on_every_machine_for_ever():
    """A split that moved with a version would leak yesterday's test pictures into today's training."""
    part = divide(samples_of(6, 6), 1 / 3, seed=0)[1]
    assert [sample.name for sample in part] == ["0/0.jpg", "0/5.jpg", "1/3.jpg", "1/5.jpg"]


def test_a_part_too_small_for_one_of_each_is_still_of_the_right_size():
    rest, part = divide(samples_of(*[3] * 100), 0.1, seed=0)
    assert len(part) == 30 and max(counts(part).values()) == 1 and min(counts(rest).values()) == 2


def test_a_class_of_one_stays_and_nothing_is_taken_for_nothing():
    rest, part = divide(samples_of(1, 1, 8), 0.5, seed=0)
    assert counts(rest)[0] == counts(rest)[1] == 1 and counts(part) == {2: 5}
    assert divide(samples_of(1, 1), 0.5, seed=0)[1] == [] and divide(samples_of(5, 5), 0, seed=0)[1] == []
    assert divide([], 0.5, seed=0) == ([], [])
    for wrong in (-0.1, 1, 20):
        with pytest.raises(VitrailError, match=f"fraction to set apart is {wrong}"):
            divide(samples_of(3, 3), wrong, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_samples_with_several_labels_are_divided_by_their_rarest(seed):
    chance = np.random.default_rng(seed)
    frequency = np.array([0.5, 0.3, 0.1, 0.02, 0.005])
    samples = [
        Sample(f"{i}.jpg", Path(), tuple(np.flatnonzero(chance.random(5) < frequency).tolist())) for i in range(1000)
    ]
    samples += [Sample(f"rare{i}.jpg", Path(), (0, 5)) for i in range(2)] + [Sample("once.jpg", Path(), (6,))]
    rest, part = divide(samples, 0.2, seed)
    assert abs(len(part) - 200) <= 3
    every, left, taken = counts(samples), counts(rest), counts(part)
    for label in every:
        assert left[label] >= 1 and taken[label] >= (every[label] > 1)
        assert abs(taken[label] - 0.2 * every[label]) < 2 + 0.12 * every[label]


def test_thousands_of_classes_are_divided_at_once():
    samples = samples_of(*[5] * 5_000)
    assert len(divide(samples, 0.2, 0)[1]) == 5_000


def same(one, other):
    """Samples by where they lie and what they show, whatever their names."""

    def facts(source, split):
        return {(s.where, tuple(source.classes[label] for label in s.labels)) for s in source.splits[split]}

    assert list(one.splits) == list(other.splits)
    assert all(facts(one, split) == facts(other, split) for split in one.splits)


def test_a_written_split_is_read_back(tmp_path):
    files = [f"{split}/{label}/{name}" for split in ("train", "val", "test") for label in ("a|b", "c, d", "ünï")
             for name in ('x".jpg', "y, z.jpg", "ü 猫.jpg")]  # fmt: skip
    source = open_source(fill(tmp_path / "data", *files))
    for place in (tmp_path / "data" / "split.csv", tmp_path / "elsewhere" / "split.csv"):
        table = write_split(place, *(source.splits[split] for split in ("train", "val", "test")), source.classes)
        again = open_source(table)
        assert again.classes == source.classes and not again.multi_label
        same(source, again)
    assert (
        "train/a|b" in (tmp_path / "data/split.csv").read_text()
        and str(tmp_path) not in (tmp_path / "data/split.csv").read_text()
    )
    assert str(tmp_path) in (tmp_path / "elsewhere/split.csv").read_text()


def test_several_labels_are_read_back(tmp_path):
    fill(tmp_path, "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    lines = ["1.jpg,a|b,train", "2.jpg,,train", "3.jpg,b,val", "4.jpg,a,test"]
    source = open_source(write_csv(tmp_path / "t.csv", "path,label,split", *lines))
    again = open_source(write_split(tmp_path / "u.csv", *source.splits.values(), source.classes))
    assert again.multi_label
    same(source, again)


def test_members_of_tar_files_and_data_sets_are_read_back(tmp_path, monkeypatch):
    source = open_source(shard(tmp_path / "shards" / "x.tar", 0, 1, 0, 1, 0, 1))
    rest, part = divide(source.splits["all"], 1 / 3, 0)
    again = open_source(write_split(tmp_path / "split.csv", rest, part, [], source.classes))
    assert {s.where for s in again.splits["train"]} == {s.where for s in rest}
    assert [s.open() for s in again.splits["val"]] == [s.open() for s in part]

    monkeypatch.setenv("VITRAIL_DATASETS", str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
    write_mnist(tmp_path, "train", images, [0, 1, 0, 1, 0, 1])
    write_mnist(tmp_path, "t10k", images[:2], [0, 1])
    source = open_source("FashionMNIST")
    rest, part = divide(source.splits["train"], 1 / 3, 0)
    again = open_source(write_split(tmp_path / "split.csv", rest, part, source.splits["test"], source.classes))
    assert [s.name for s in again.splits["val"]] == [s.name for s in part]
    assert np.array_equal(again.splits["val"][0].decode(), part[0].decode())


def test_a_split_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(VitrailError, match="can't be written"):
        write_split(tmp_path / "file" / "split.csv", [], [], [], [])
    (tmp_path / "split.csv").mkdir()
    with pytest.raises(VitrailError, match=r"split\.csv can't be written: Is a directory"):
        write_split(tmp_path / "split.csv", [], [], [], [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "split.csv"]
