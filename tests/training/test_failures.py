"""What goes wrong around a run, such as bad data or a full disk: one sentence, exit code 2, no traceback, and nothing
half-written."""

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.support import SMALL, Command, make_folder, small_options
from vitrail import VitrailError


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=24)


def refused(command: Command) -> str:
    """The one sentence."""
    assert command.wait() == 2, command.said
    assert "Traceback" not in command.said
    last = command.said.splitlines()[-1]
    assert last.startswith("vitrail: ") and last.endswith((".", "?"))
    return last.removeprefix("vitrail: ")


def empty(folder: Path) -> None:
    (folder / "data").mkdir()


def no_images(folder: Path) -> None:
    (folder / "data" / "cat").mkdir(parents=True)
    (folder / "data" / "cat" / "notes.txt").write_text("none yet")


def one_class(folder: Path) -> None:
    make_folder(folder / "data", count=4, classes=1)


def unreadable(folder: Path) -> None:
    for label in "ab":
        (folder / "data" / label).mkdir(parents=True)
        (folder / "data" / label / "1.jpg").write_bytes(b"nothing")


def wrong_column(folder: Path) -> None:
    make_folder(folder, count=4)
    (folder / "data").write_text("")
    (folder / "labels.csv").write_text("path,lable\nclass 0/000.png,a\nclass 1/001.png,b\n")


def nothing(folder: Path) -> None:
    make_folder(folder / "dta", count=4)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (empty, "data", ["data is empty"]),
        (no_images, "data", ["data ", "1 .txt"]),
        (one_class, "data", ["data ", '"class 0"']),
        (unreadable, "data", ["a/1.jpg, b/1.jpg."]),
        (wrong_column, "labels.csv", ["labels.csv", '"label"', "path, lable"]),
        (nothing, "data", ["no data", ".csv", ".npz"]),
    ],
)
def test_data_that_nothing_can_be_learned_from(tmp_path, make: Callable[[Path], None], name, words):
    make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    command = Command("train", name, *SMALL, log=tmp_path / "log")
    sentence = refused(command)
    assert all(word in sentence for word in words)
    assert sorted(tmp_path.rglob("*")) == [*before, tmp_path / "log"] or not (tmp_path / "runs").exists()


def test_a_class_of_one_image_is_learned_from_and_noted(tmp_path):
    data = make_folder(tmp_path / "data", count=12, classes=2)
    make_folder(data / "rare", count=1, classes=1, start=90)
    (data / "rare" / "class 0" / "090.png").rename(data / "rare" / "090.png")
    (data / "rare" / "class 0").rmdir()
    command = Command("train", data, *SMALL, "--epochs", 1, "--out", tmp_path / "run", log=tmp_path / "log")
    assert command.wait() == 0, command.said
    assert re.search(r"(?m)^  note: .*\brare\b", command.said)
    split = (tmp_path / "run" / "split.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in split if "rare" in line] == ["train"]
    assert vitrail.load(tmp_path / "run", device="cpu").labels == ["class 0", "class 1", "rare"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_said_before_anything_is_read(tmp_path, name):
    if __import__("importlib.util").util.find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(VitrailError, match=f"pip install {name}") as info:
        vitrail.train("no such data", out=tmp_path / "run", **{name: True})
    assert (info.value.code, info.value.fields) == ("no_package", {"package": name})
    assert not (tmp_path / "run").exists()


def test_a_run_folder_inside_a_file(data, tmp_path):
    (tmp_path / "file").write_text("")
    command = Command("train", data, *SMALL, "--out", tmp_path / "file" / "run", log=tmp_path / "log")
    sentence = refused(command)
    assert f"{tmp_path}/file/run" in sentence and f"{tmp_path}/file is" in sentence and "--out" in sentence
    assert "reading" not in command.said and "epochs" not in command.said  # it is the first thing looked at


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; a file in the way is tested instead")
def test_a_folder_that_may_not_be_written(data, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    command = Command("train", data, *SMALL, "--out", tmp_path / "locked" / "run", log=tmp_path / "log")
    assert f"{tmp_path}/locked/run" in refused(command) and "--out" in command.said


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own of a given size."""
    place = tmp_path / "disk"

    def mount(size: str) -> Path:
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip("needs the right to mount a small file system")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


FULL = os.strerror(errno.ENOSPC)


def files(folder: Path) -> set[str]:
    return {path.name.split(".")[0] for path in folder.iterdir()}


def test_a_disk_that_is_full_from_the_start(data, small_disk, tmp_path):
    disk = small_disk("64k")
    (disk / "ballast").write_bytes(bytes(65536))
    command = Command("train", data, *SMALL, "--epochs", 1, "--out", disk / "run", log=tmp_path / "log")
    assert refused(command).startswith(f"{disk}/run/run.json ") and FULL in command.said
    assert not (disk / "run").exists()


def test_a_disk_without_room_for_the_first_state(data, small_disk, tmp_path):
    disk = small_disk("400k")
    command = Command("train", data, *SMALL, "--epochs", 1, "--out", disk / "run", log=tmp_path / "log")
    assert refused(command).startswith(f"{disk}/run/last.pt ") and FULL in command.said
    assert files(disk / "run") == {"run", "split"}
    assert not list((disk / "run").glob(".*"))


def test_a_disk_that_fills_up_on_the_way_keeps_what_was_whole(data, small_disk, tmp_path):
    disk = small_disk("2500k")
    command = Command("train", data, *SMALL, "--epochs", 2, "--out", disk / "run", log=tmp_path / "log")
    assert refused(command).startswith(f"{disk}/run/last.pt ") and FULL in command.said
    assert not list((disk / "run").glob(".*"))
    assert torch.load(disk / "run" / "last.pt", weights_only=True)["epoch"] == 0
    assert len(load_file(disk / "run" / "model.safetensors")) == 56
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    again = Command("train", "--out", disk / "run", "--resume", log=tmp_path / "log")
    assert again.wait() == 0, again.said


def test_an_image_cache_without_room(data, small_disk, tmp_path):
    disk = small_disk("8k")
    arguments = [*SMALL[:-2], "--cache", "disk", "--epochs", 1, "--out", tmp_path / "run"]
    command = Command("train", data, *arguments, log=tmp_path / "log", VITRAIL_CACHE=str(disk))
    assert f" {disk}/images/" in refused(command)
    assert FULL in command.said and "--cache off" in command.said
    assert not (tmp_path / "run").exists()


def test_python_gets_the_same_sentence(tmp_path):
    (tmp_path / "data").mkdir()
    command = Command("train", tmp_path / "data", *SMALL, log=tmp_path / "log")
    with pytest.raises(VitrailError) as info:
        vitrail.train(tmp_path / "data", **small_options())
    assert refused(command) == str(info.value)
