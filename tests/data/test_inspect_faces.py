"""`vitrail data inspect --task spoof`: pictures of each split, subject and attack type, and who is in two splits."""

import json
from pathlib import Path

from tests.training.test_spoof import make_faces
from vitrail.cli.data import inspect as data_inspect
from vitrail.data.inspect import inspect
from vitrail.data.inspect.faces import NAMELESS, SHARED, faces_as_they_are


def test_people_are_counted_and_those_in_two_splits_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_faces(Path("faces/train"), range(4), each=2)
    make_faces(Path("faces/test"), range(3, 6), each=3, kinds=("live", "replay"))
    assert data_inspect("faces", task="spoof", out=Path("seen.png"), json=Path("seen.json")) == 1
    text = capsys.readouterr().out
    assert "4 in train, 3 in test; 4 to 6 pictures of each, median 4" in text
    assert "test has 1 attack type that train does not (replay)" in text
    assert "subjects in more than one split, so that a score would flatter: 1\n  0003 (train and test)" in text
    assert "without a picture that can be read" not in text and Path("seen.png").stat().st_size > 1000
    found = json.loads(Path("seen.json").read_text())
    assert found["counts"]["test"] == {"live": 9, "print": 0, "replay": 9}
    assert found["labels"]["amounts"] == {"train": [4, 4, 0], "test": [3, 0, 3]}
    assert found["labels"]["people"]["test"]["0003"] == {"live": 3, "replay": 3}


def test_people_kept_apart_are_no_fault_and_nor_are_pictures_of_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_faces(Path("faces/train"), range(2), each=2)
    make_faces(Path("faces/test"), range(2, 4), each=2)
    assert data_inspect("faces", task="spoof", out=Path("seen.png")) == 0
    for kind in ("live", "print"):
        Path("faces/test", kind, "0002", "0.png").rename(Path("faces/test", kind, "nobody.png"))
    told = inspect(faces_as_they_are("faces")).labelled
    assert told is not None and not told.flawed and SHARED not in told.problems
    assert sorted(told.problems[NAMELESS]) == ["test/live/nobody.png", "test/print/nobody.png"]
    assert told.facts["subjects"] == "2 in train, 2 in test; 2 to 4 pictures of each, median 4"
    assert told.amounts == {"train": [2, 2], "test": [2, 2]}


def test_of_many_pictures_of_nobody_a_few_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_faces(Path("faces/train"), range(2), each=6)
    for number, path in enumerate(sorted(Path("faces").rglob("*.png"))):
        path.rename(path.parents[1] / f"{number:02d}.png")
    assert data_inspect("faces", task="spoof", out=Path("seen.png"), json=Path("seen.json")) == 0
    told = capsys.readouterr().out.partition(f"{NAMELESS}: 24\n")[2].splitlines()
    assert told[:6] == [*(f"  train/live/{n:02d}.png" for n in range(5)), "  … and 19 more; --json FILE lists them all"]
    assert len(json.loads(Path("seen.json").read_text())["labels"]["problems"][NAMELESS]) == 24
