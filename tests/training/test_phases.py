"""The end of fine-tuning: how far to go from the linear probe, and the refit on all images."""

import csv
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.odd_files import photograph
from tests.training.support import Command, differences, make_folder, small_options
from vitrail.models.interpolation import SHARES, between
from vitrail.tasks.scoring import places_in_training
from vitrail.training import messages, phases
from vitrail.training.listeners import Show
from vitrail.weights import read_checkpoint

OPTIONS = {"lr": 1e-4, "epochs": 4, "batch_size": 16, "ema": 0.9, "drop_path": 0.2, "augment": "light", "seed": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Classes of close hues: frozen features are not enough, and tuning helps."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(160):
        index = number % 4
        path = folder / f"class {index}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        photograph(number, 12, 15, hue=index / 24).save(path)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    other = make_folder(tmp_path_factory.mktemp("others"), count=40, classes=2, start=200)
    folder = tmp_path_factory.mktemp("base") / "run"
    vitrail.train(other, **small_options(epochs=2, out=folder))
    return folder / "model.safetensors"


@pytest.fixture(scope="module")
def run(data, weights, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "run"
    vitrail.train(data, **tuning(weights), out=folder)
    return folder


def tuning(weights: Path) -> dict:
    return {"weights": str(weights), "device": "cpu", "workers": 0, "cache": "memory", **OPTIONS}


def test_the_weights_kept_are_those_of_a_run_on_all_images(run, data, weights, tmp_path):
    """Built by hand: the same images in the same order as a table, none held out; then the share of the way."""
    about = read_checkpoint(run / "model.safetensors").about
    share = about["metrics"]["share"]
    assert share in SHARES[1:] and about["finished"]
    table = tmp_path / "all.csv"
    with (run / "split.csv").open() as file, table.open("w", newline="") as out:
        rows = list(csv.DictReader(file))
        writer = csv.writer(out)
        writer.writerow(["path", "label"])
        for split in ("train", "val"):
            writer.writerows([data / row["path"], row["label"]] for row in rows if row["split"] == split)
    same = {**tuning(weights), "val": 0.0, "refit": "off"}
    vitrail.train(table, **{**same, "tune": "probe", "drop_path": 0.0}, out=tmp_path / "linear")
    vitrail.train(table, **same, out=tmp_path / "tuned")
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("linear", "tuned"))
    kept = load_file(run / "model.safetensors")
    for name, value in between(first, last, share).items():
        assert torch.equal(kept[name], value), name


def test_nothing_of_the_way_there_is_left(run):
    assert not (run / phases.REFIT).exists() and not (run / phases.START).exists()
    assert "all 160" in (run / "report.html").read_text()


def test_the_time_left_counts_the_refit_and_a_long_run_is_told_of_once(data, weights, tmp_path, monkeypatch, capsys):
    ends, on_step = [], Show.on_step

    def watched(show, trainer):
        on_step(show, trainer)
        if trainer.step == trainer.steps:
            ends.append((trainer.epoch + 1, show.seconds_left(trainer), show.rate(trainer)))

    monkeypatch.setattr(Show, "on_step", watched)
    monkeypatch.setattr(messages, "LONG", 0.0)
    vitrail.train(data, **tuning(weights), out=tmp_path / "run")
    assert [epoch for epoch, *_ in ends] == [1, 2, 3, 4, 1, 2, 3, 4]
    _, left, rate = ends[3]  # of the first training, after which all 160 are learned from, as often
    assert left == pytest.approx(4 * 160 / rate, rel=1e-6)
    assert ends[-1][1] == 0
    assert capsys.readouterr().out.count("--tune probe") == 1


def test_a_run_killed_in_its_refit_ends_with_the_same_bits(run, data, weights, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    options = [word for name, value in tuning(weights).items() for word in (f"--{name.replace('_', '-')}", str(value))]
    step = "vitrail.training.trainer.Trainer.train_step"
    for at in (
        (step, 4 * 8 + 5, signal.SIGKILL),  # in the first epoch of the refit
        (step, 12, signal.SIGKILL),  # in the second, after a resumption
        ("vitrail.training.run_folder.write_report", 1, signal.SIGKILL),
        ("vitrail.weights.save.save_file", 1, signal.SIGKILL),  # the last file
    ):
        resume = ["--resume"] if folder.exists() else []
        command = Command("train", data, *options, "--out", folder, *resume, log=log, at=at)
        assert command.wait() == -signal.SIGKILL, command.said
        assert (folder / phases.REFIT / "last.pt").exists()
        assert set(places_in_training(folder).values()) == {"train", "val"}  # its weights have not learned from val
    command = Command("train", "--out", folder, "--resume", log=log)
    assert command.wait() == 0, command.said
    assert differences(run, folder) == []
    assert set(places_in_training(folder).values()) == {"train", "again"}
    again = Command("train", "--out", folder, "--resume", log=log)
    assert again.wait() == 0 and "epoch" not in again.said


def test_images_held_out_by_the_user_are_never_trained_on(data, weights, tmp_path):
    root = tmp_path / "data"
    make_folder(root / "train", count=40, classes=2)
    make_folder(root / "val", count=12, classes=2, start=100)
    vitrail.train(root, **{**tuning(weights), "epochs": 1}, out=tmp_path / "run")
    assert "all 52" not in (tmp_path / "run" / "report.html").read_text()
    assert read_checkpoint(tmp_path / "run" / "model.safetensors").about["recipe"]["refit"] == "off"


def test_a_run_whose_linear_probe_wins_is_finished_and_its_report_says_so(tmp_path, monkeypatch, capsys):
    """Then only the head is solved for again, on all images that can be read, and no matrix is left for Muon."""
    data = make_folder(tmp_path / "data", count=36)
    base = vitrail.train(data, **small_options(epochs=1, batch_size=8), out=tmp_path / "base")
    monkeypatch.setattr(phases, "best_share", lambda *_: 0.0)
    options = small_options(weights=base, optimizer="muon", epochs=1, batch_size=8, refit="on")
    (data / "class 0" / "empty.png").touch()
    run = vitrail.train(data, **options, out=tmp_path / "run")
    said, report = capsys.readouterr().out, (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    kept = str(messages.Kept("probe", tuned=True))
    assert f"Kept: {kept}" in said and kept in report
    assert "marks epoch" not in report  # as a line would, of the best one
    assert "all 36 images" in said and "all 36 " in report
    about = vitrail.load(run).about["metrics"]
    assert about["share"] == 0 and about["epoch"] == 0 and "lr" not in about
