"""Several processes train what one would: the same order, the same images, the same losses, one writer."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.training.support import QUIET, SMALL, Command, differences, make_folder, rows
from vitrail.distributed import Processes

OPTIONS = [*SMALL, "--epochs", "2", "--batch-size", "9", "--seed", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=70)


def start(count: int, *arguments, log: Path, at: tuple | None = None, armed: int = 0, **more: str) -> list[Command]:
    """What torchrun starts: the same command `count` times, and variables that tell each which one it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), **more}
    return [
        Command(
            *arguments, log=log.with_suffix(f".{rank}"), at=at if rank == armed else None,
            RANK=str(rank), LOCAL_RANK=str(rank), **shared,
        )
        for rank in range(count)
    ]  # fmt: skip


def together(count: int, *arguments, log: Path, **more: str) -> list[str]:
    """What each of them said."""
    commands = start(count, *arguments, log=log, **more)
    assert [command.wait() for command in commands] == [0] * count, "\n".join(command.said for command in commands)
    return [command.said for command in commands]


def test_two_processes_give_the_losses_of_one(data, tmp_path):
    """Also where a batch of 9 is not the same for both."""
    together(1, "train", data, *OPTIONS, *QUIET, "--out", tmp_path / "one", log=tmp_path / "log")
    said = together(2, "train", data, *OPTIONS, *QUIET, "--out", tmp_path / "two", log=tmp_path / "log")
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert len(one) == len(two) == 2
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-6)
        assert b["val_loss"] == pytest.approx(a["val_loss"], abs=1e-6)
        assert b["val_top1"] == a["val_top1"] and b["lr"] == a["lr"]
    assert one[0]["train_loss"] - one[1]["train_loss"] > 0.05  # it does learn
    # One writer, one speaker.
    assert "Accuracy" in said[0] and said[1] == ""
    assert len(list((tmp_path / "two").glob("events*"))) == 1
    shapes = {path.name.split(".")[0] for path in (tmp_path / "one").iterdir()}
    assert {path.name.split(".")[0] for path in (tmp_path / "two").iterdir()} == shapes


def test_three_processes_tune_a_head_share_a_cache_and_validate_on_two_images(data, tmp_path):
    """More processes than validation images, a frozen backbone, and a folder that is chosen when none is named."""
    first = vitrail.train(
        data, model="vit_nano2", weights="none", epochs=1, device="cpu", workers=0, out=tmp_path / "start"
    )
    split = make_folder(tmp_path / "data" / "train", count=12, classes=2)
    make_folder(split.parent / "val", count=2, classes=2, start=50)
    options = ["--weights", first.folder, "--tune", "head", "--epochs", "2", "--device", "cpu", "--cache", "disk"]
    together(3, "train", split.parent, *options, log=tmp_path / "log", VITRAIL_CACHE=str(tmp_path / "cache"))
    folder = tmp_path / "runs" / f"{tmp_path.name}-data"
    assert [row["epoch"] for row in rows(folder)] == [0, 1, 2]
    assert vitrail.load(folder, device="cpu").about["metrics"]["n"] == 2
    state = torch.load(folder / "last.pt", weights_only=True)
    assert {tuple(value["exp_avg"].shape) for value in state["optimizer"]["state"].values()} == {(2, 64), (2,)}
    before = vitrail.load(first, device="cpu").model.state_dict()
    assert all(torch.equal(v, before[name]) for name, v in state["model"].items() if not name.startswith("head"))
    # Each image is in the cache once, whoever decoded it: two of 8×8, twelve of 12×15 as they are.
    stores = [*(tmp_path / "cache" / "images").iterdir()]
    sizes = [sum(file.stat().st_size for file in store.glob("[0-9]*.bin")) for store in stores]
    assert sorted(sizes) == [2 * 8 * 8 * 3, 12 * 12 * 15 * 3]


def test_a_signal_to_one_process_stops_all_at_one_step_and_they_go_on_exactly(data, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    random = ["--augment", "medium", "--mixup", "0.5", "--drop-path", "0.2", "--ema", "0.9"]
    together(2, "train", data, *OPTIONS, *random, "--out", whole, log=tmp_path / "log")
    at = ("vitrail.training.trainer.Trainer.train_step", 3, signal.SIGTERM)
    commands = start(2, "train", data, *OPTIONS, *random, "--out", folder, log=tmp_path / "log", at=at, armed=1)
    assert [command.wait() for command in commands] == [130, 130], commands[0].said
    state = torch.load(folder / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 4)
    together(2, "train", "--out", folder, "--resume", log=tmp_path / "log")
    assert differences(whole, folder) == []


@pytest.mark.parametrize("dies", [0, 1])
def test_when_one_process_dies_the_others_do_not_wait_for_it(data, tmp_path, dies):
    at = ("vitrail.training.trainer.Trainer.gradients", 3, signal.SIGKILL)
    commands = start(2, "train", data, *OPTIONS, "--out", tmp_path / "run", log=tmp_path / "log", at=at, armed=dies)
    began = time.monotonic()
    codes = [command.wait(60) for command in commands]
    assert codes[dies] == -signal.SIGKILL and codes[1 - dies] == 2
    assert time.monotonic() - began < 30
    said = commands[1 - dies].said.splitlines()
    assert said[-1].startswith("vitrail: ") and "Traceback" not in "\n".join(said)


def test_more_processes_than_images_in_a_batch_is_an_error_that_says_so(data, tmp_path):
    commands = start(
        3, "train", data, *SMALL, "--epochs", 1, "--batch-size", 2, "--out", tmp_path / "run", log=tmp_path / "log"
    )
    assert [command.wait() for command in commands] == [2, 2, 2]
    last = commands[0].said.splitlines()[-1]
    assert last.startswith("vitrail: ") and " 3 " in last and " 2:" in last and "--batch-size" in last
    assert not (tmp_path / "run").exists()


def test_shares_are_the_whole_in_order():
    numbers = np.arange(10) * 3
    parts = [Processes(rank, 4).share(numbers) for rank in range(4)]
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert np.array_equal(np.concatenate(parts), numbers)


def test_no_thread_of_the_group_outlives_it(tmp_path):
    """One that did could be caught holding a tensor while Python ends, which aborts the process."""
    script = """
import os, pathlib, torch
from vitrail.distributed import processes
with processes("cpu") as group:
    assert group.total(torch.ones(1)) == 2
    import torch._dynamo  # as a step does in which PyTorch's compiler has a part
threads = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
assert not [name for name in threads if "gloo" in name], threads
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **shared, "RANK": rank},
                         stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]  # fmt: skip
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said


@pytest.mark.slow
def test_torchrun_trains_with_the_same_command(data, tmp_path):
    command = ["-m", "vitrail", "train", str(data), *OPTIONS, *QUIET, "--out", str(tmp_path / "run")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    done = subprocess.run(launch, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Kept: ") == 1
    together(1, "train", data, *OPTIONS, *QUIET, "--out", tmp_path / "one", log=tmp_path / "log")
    losses = [[row["train_loss"] for row in rows(tmp_path / name)] for name in ("one", "run")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
