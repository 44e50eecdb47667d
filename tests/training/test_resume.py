"""A run that is stopped, by whatever means and wherever, and resumed, is the run that was never stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import vitrail
from tests.training.support import SMALL, Command, differences, make_folder, rows, small_options, watch_steps
from vitrail import VitrailError
from vitrail.training import listeners
from vitrail.training.run_folder import load_state
from vitrail.training.signals import Stopped
from vitrail.training.trainer import Trainer

# Everything random is on: drop path, augmentation, mixup, cutmix (not in the last epoch), EMA. An epoch has 10 steps.
OPTIONS = [
    *SMALL, "--epochs", "3", "--batch-size", "6", "--drop-path", "0.3", "--augment", "strong", "--mixup", "0.4",
    "--cutmix", "1", "--calm", "1", "--ema", "0.9", "--seed", "3", "--label-smoothing", "0.1",
]  # fmt: skip
STEP, FORWARD = "vitrail.training.trainer.Trainer.train_step", "vitrail.inference.forward.Forward._fitting"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=80)


@pytest.fixture(scope="module")
def never_stopped(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "whole"
    command = Command("train", data, *OPTIONS, "--out", folder, log=folder.with_suffix(".log"))
    assert command.wait() == 0, command.said
    state = torch.load(folder / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"], state["average"]["updates"]) == (3, 0, 30)
    return folder


def test_a_run_killed_again_and_again_ends_with_the_same_bits(data, never_stopped, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    points = [
        ("torch.save", 1),  # while it writes its first state
        (STEP, 4),  # in the first epoch
        (FORWARD, 1),  # while it validates
        ("vitrail.weights.save.save_file", 1),  # while it writes the best weights
        (STEP, 16),  # in the middle of the second
        ("vitrail.training.trainer.Trainer.save", 1),  # when the best weights are written, and the state is not
        ("torch.save", 1),  # while it writes the state after the second
    ]
    reached = []
    for number, point in enumerate(points):
        resume = ["--resume"] if number else []
        command = Command("train", data, *OPTIONS, "--out", folder, *resume, log=log, at=(*point, signal.SIGKILL))
        assert command.wait() == -signal.SIGKILL, command.said
        state = load_state(folder / "last.pt")
        reached.append(state and (state["epoch"], state["step"]))
    assert reached == [None, (0, 0), (0, 0), (0, 0), (1, 0), (1, 0), (1, 0)]
    assert len(list(folder.glob(".last.pt.*.part"))) == 1
    command = Command("train", data, *OPTIONS, "--out", folder, "--resume", log=log)
    assert command.wait() == 0, command.said
    assert differences(never_stopped, folder) == []
    assert not list(folder.glob(".*"))
    assert len(rows(folder)) == 3


@pytest.mark.parametrize(
    ("at", "position"),
    [
        ((STEP, 4, signal.SIGTERM), (0, 5)),  # the wish is known to all processes one step later
        ((STEP, 17, signal.SIGINT), (1, 8)),
        ((STEP, 10, signal.SIGTERM), (0, 10)),  # in the last step of an epoch: before it is validated
        ((FORWARD, 2, signal.SIGINT), (1, 10)),  # in a validation, which is left at once
    ],
)
def test_a_run_that_is_asked_to_stop_saves_and_goes_on_in_the_middle_of_an_epoch(
    data, never_stopped, tmp_path, at, position
):
    folder, log = tmp_path / "run", tmp_path / "log"
    command = Command("train", data, *OPTIONS, "--out", folder, log=log, at=at)
    assert command.wait() == 130, command.said
    last = command.said.splitlines()[-1]
    assert last.startswith("Stopped ") and last.endswith(f" vitrail train {data} --out {folder} --resume")
    assert "Traceback" not in command.said
    state = torch.load(folder / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == position
    assert state["average"]["updates"] == position[0] * 10 + position[1]
    again = Command("train", "--out", folder, "--resume", log=log)  # the data and all options are the run's own
    assert again.wait() == 0, again.said
    assert differences(never_stopped, folder) == []


def test_ctrl_c_before_the_first_step_leaves_nothing_behind(data, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    reading = ("vitrail.data.image_set.ImageSet._try", 20, signal.SIGINT)
    command = Command("train", data, *OPTIONS, "--out", folder, log=log, at=reading)
    assert command.wait() == 130
    assert "nothing" in command.said.splitlines()[-1] and "Traceback" not in command.said
    assert not folder.exists()


def test_ctrl_c_while_the_report_is_made_names_what_was_saved(data, tmp_path):
    folder = tmp_path / "run"
    reporting = ("vitrail.training.run.write_page", 1, signal.SIGINT)
    command = Command("train", data, *OPTIONS, "--out", folder, log=tmp_path / "log", at=reporting)
    assert command.wait() == 130
    last = command.said.splitlines()[-1]
    assert "--resume" in last and last.endswith(f" {folder}.")
    assert "Traceback" not in command.said and (folder / "last.pt").exists()


def test_states_saved_in_the_middle_of_an_epoch_change_nothing(data, never_stopped, tmp_path, monkeypatch):
    """As in an epoch of more than ten minutes: a state after every step."""
    saved = []
    save = Trainer.save
    monkeypatch.setattr(listeners, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(Trainer, "save", lambda trainer: (saved.append(trainer.step), save(trainer)))
    vitrail.train(data, **resume_options(), out=tmp_path / "run")
    assert saved[:7] == [0, 2, 4, 6, 8, 10, 0]
    assert differences(never_stopped, tmp_path / "run") == []


def resume_options() -> dict:
    return small_options(
        epochs=3, batch_size=6, drop_path=0.3, augment="strong", mixup=0.4, cutmix=1.0, calm=1, ema=0.9,
        seed=3, label_smoothing=0.1,
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_killed_at_any_moment_ends_with_the_same_bits(data, never_stopped, tmp_path):
    """`python -m vitrail train` itself, killed by the clock: wherever that is."""
    folder, chance = tmp_path / "run", random.Random(0)
    command = [sys.executable, "-m", "vitrail", "train", str(data), *OPTIONS, "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(2):
        resume = ["--resume"] if (folder / "run.json").exists() else []
        before = (folder / "last.pt").stat().st_mtime_ns if resume else 0
        with subprocess.Popen([*command, *resume], env=environment, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (folder / "last.pt").exists():
                time.sleep(0.01)
            while process.poll() is None and resume and (folder / "last.pt").stat().st_mtime_ns == before:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
    done = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert differences(never_stopped, folder) == []


def test_what_the_run_is_can_not_be_changed_on_the_way(data, tmp_path):
    folder = tmp_path / "run"
    first = vitrail.train(data, **small_options(epochs=1, out=folder, batch_size=16))
    for option, value, has in (("batch_size", 8, "16"), ("drop_path", 0.2, "0.1"), ("schedule", "wsd", "cosine")):
        with pytest.raises(VitrailError, match=f"{option} {has}") as info:  # drop path as planned: not asked for
            vitrail.train(out=folder, resume=True, **{option: value})
        assert (info.value.code, info.value.fields) == ("not_the_same_run", {"option": option})
    vitrail.train(out=folder, resume=True, micro_batch=4)  # what a machine can do may change
    again = vitrail.train(out=folder, resume=True, drop_path=0.1)  # the same in other words
    assert again.metrics == first.metrics
    make_folder(data, count=1, start=80)
    with pytest.raises(VitrailError) as info:
        vitrail.train(out=folder, resume=True)
    assert (info.value.code, info.value.fields) == ("data_changed", {"split": "train"})
    (data / "class 2" / "080.png").unlink()
    with pytest.raises(VitrailError, match="--resume") as info:
        vitrail.train(data, **small_options(epochs=1, out=folder))
    assert info.value.code == "folder_taken"
    for options, code in (({"out": tmp_path / "none"}, "no_run"), ({}, "no_folder")):
        with pytest.raises(VitrailError) as info:
            vitrail.train(data, resume=True, **options)
        assert info.value.code == code
    with pytest.raises(VitrailError, match="vitrail train") as info:
        vitrail.pretrain(out=folder, resume=True)
    assert info.value.code == "other_verb"


@pytest.mark.parametrize(("asked", "used"), [({}, 2), ({"micro_batch": 8}, 8), ({"micro_batch": 2}, 2)])
def test_another_machine_may_take_more_images_at_a_time(data, tmp_path, monkeypatch, asked, used):
    seen = watch_steps(monkeypatch, lambda trainer: trainer.micro_batch, stop_in=[3])
    options = small_options(epochs=1, batch_size=8, micro_batch=2)
    with pytest.raises(Stopped):
        vitrail.train(data, **options, out=tmp_path / "run")
    begun = len(seen)
    vitrail.train(out=tmp_path / "run", resume=True, device="cpu", **asked)
    assert set(seen[:begun]) == {2} and set(seen[begun:]) == {used}


def test_what_a_resume_asked_for_stays_in_the_next_one(data, tmp_path, monkeypatch):
    seen = watch_steps(monkeypatch, lambda trainer: trainer.micro_batch, stop_in=[3, 6])
    with pytest.raises(Stopped):
        vitrail.train(data, **small_options(epochs=2, batch_size=8), out=tmp_path / "run")
    with pytest.raises(Stopped):
        vitrail.train(out=tmp_path / "run", resume=True, device="cpu", micro_batch=2)
    begun = len(seen)
    vitrail.train(out=tmp_path / "run", resume=True, device="cpu")
    assert set(seen[begun:]) == {2}


def test_a_damaged_state_is_an_error_that_says_so(data, tmp_path):
    folder = tmp_path / "run"
    vitrail.train(data, **small_options(epochs=1, out=folder))
    content = (folder / "last.pt").read_bytes()
    (folder / "last.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(VitrailError, match=r"last\.pt") as info:
        vitrail.train(out=folder, resume=True)
    assert info.value.code == "bad_state"
    (folder / "run.json").write_text("{")
    with pytest.raises(VitrailError, match=r"run\.json") as info:
        vitrail.train(out=folder, resume=True)
    assert info.value.code == "bad_record"
