"""Runs of a student that learns from labels and from a teacher."""

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.odd_files import photograph
from tests.training.support import QUIET, SMALL, Command, differences, make_folder, rows, small_options
from tests.training.test_distributed import together
from vitrail import VitrailError
from vitrail.models import create_model
from vitrail.models.dense.segmenter import Segmenter
from vitrail.reasons import Reason
from vitrail.tasks.classify.teacher import weights_digest
from vitrail.weights import model_from, read_checkpoint, save_weights

CLASSES = ["class 0", "class 1", "class 2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=60)


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory) -> Path:
    return vitrail.train(data, **small_options(epochs=4, out=tmp_path_factory.mktemp("runs") / "teacher")).folder


def retold(teacher: Path, path: Path, **about) -> Path:
    """The same teacher, whose header says something else."""
    checkpoint = read_checkpoint(teacher)
    return save_weights(model_from(checkpoint), path, labels=CLASSES, about=checkpoint.about | about)


def of_teacher(said: str) -> tuple[str, bool]:
    """The line that says how good the teacher is; and is there a warning below it?"""
    (line,) = re.findall(r"(?m)^Teacher: .*$", said)
    return line, bool(re.search(r"(?m)^  Warning: ", said))


def test_of_images_that_a_teacher_may_have_learned_from_its_own_figure_counts(data, teacher, tmp_path, capsys):
    options = small_options(epochs=1, seed=1)  # divides the images otherwise than the teacher's run
    good = vitrail.load(teacher, device="cpu").about["metrics"]["top1"]
    vitrail.train(data, **options, out=tmp_path / "run", teacher=teacher)
    line, warned = of_teacher(capsys.readouterr().out)
    assert not warned and re.findall(r"[\d.]+%", line)[0] == f"{good:.1%}" and line.count(" 12 ") == 2  # its own, here
    bad = retold(teacher, tmp_path / "bad.safetensors", metrics={"top1": 0.34, "n": 600})
    vitrail.train(data, **options, out=tmp_path / "warned", teacher=bad)
    line, warned = of_teacher(capsys.readouterr().out)
    assert warned and re.findall(r"[\d.]+%", line)[0] == "34.0%" and " 600 " in line and " 12 " in line
    unsaid = retold(teacher, tmp_path / "unsaid.safetensors", metrics={"epoch": 4})
    vitrail.train(data, **options, out=tmp_path / "flattered", teacher=unsaid)
    line, _ = of_teacher(capsys.readouterr().out)
    assert " 12 " in line and "flatter" in line


def test_a_run_says_how_good_its_teacher_is(data, teacher, tmp_path, capsys):
    options = small_options(epochs=1)
    good = vitrail.load(teacher, device="cpu").about["metrics"]["top1"]
    vitrail.train(data, **options, out=tmp_path / "run", teacher=teacher)
    line, warned = of_teacher(capsys.readouterr().out)
    assert re.findall(r"[\d.]+%", line) == [f"{good:.1%}"] and " 12 " in line and not warned
    model = create_model("vit_nano2", num_classes=3)
    torch.nn.init.zeros_(model.head.output.weight)  # one answer to all
    stubborn = save_weights(model, tmp_path / "stubborn.safetensors", labels=CLASSES)
    vitrail.train(data, **options, out=tmp_path / "other", teacher=stubborn)
    line, warned = of_teacher(capsys.readouterr().out)
    assert re.findall(r"[\d.]+%", line) == ["33.3%"] and warned
    vitrail.train(data, **options, out=tmp_path / "blind", teacher=stubborn, val=0)
    assert "Teacher:" not in capsys.readouterr().out


# Runs.


def test_a_run_says_how_it_learns_and_records_from_whom(data, teacher, tmp_path, capsys):
    run = vitrail.train(data, **small_options(epochs=1, out=tmp_path / "run", teacher=teacher))
    said = capsys.readouterr().out
    assert str(Reason("start_token")) in said
    row = next(line for line in said.splitlines() if line.startswith("  teacher "))
    assert str(teacher) in row and "8×8" in row and " 12 " in row
    assert str(Reason("distill_token", reason=Reason("hard_better"))) in said
    predictor = vitrail.load(run, device="cpu")
    assert predictor.model.settings.distillation_token
    record = json.loads((run.folder / "run.json").read_text())
    weights, facts = weights_digest(read_checkpoint(teacher).state), record["facts"]["teacher"]
    assert facts["weights"] == weights and facts["source"] == str(teacher)
    assert (record["recipe"]["distill"], record["recipe"]["alpha"], record["recipe"]["temperature"]) == (
        "hard",
        0.5,
        None,
    )
    about = predictor.about["teacher"]
    assert about["source"] == "teacher" and about["weights"] == weights and about["figures"]["n"] == 12
    assert predictor.about["recipe"]["teacher"] == "teacher"  # a name, not a place on this machine


def reason_of(option: str, folder: Path) -> str:
    return json.loads((folder / "run" / "run.json").read_text())["why"][option]


def test_where_the_blocks_are_frozen_a_token_would_learn_nothing(data, teacher, tmp_path):
    options = {name: value for name, value in small_options().items() if name != "model"} | {"weights": teacher}
    vitrail.train(data, **options, tune="head", epochs=1, out=tmp_path / "run", teacher=teacher)
    assert reason_of("distill", tmp_path) == str(Reason("distill_frozen", reason=Reason("hard_better"), tune="head"))


def test_a_student_without_a_class_token_learns_with_its_logits(data, teacher, tmp_path):
    options = small_options(model="tv:shufflenet_v2_x0_5", image_size=8, batch_size=24)
    run = vitrail.train(data, **options, epochs=1, out=tmp_path / "run", teacher=teacher, distill="soft", temperature=2)
    assert reason_of("distill", tmp_path) == str(Reason("distill_logits", reason=Reason("as_asked")))
    recipe = json.loads((run.folder / "run.json").read_text())["recipe"]
    assert (recipe["alpha"], recipe["temperature"]) == (0.1, 2)


def test_weights_keep_what_they_have_and_get_a_token(data, teacher, tmp_path):
    """Also in the refit."""
    options = small_options(model=None, weights=teacher, epochs=1, refit="on", drop_path=0.0)
    run = vitrail.train(data, **options, out=tmp_path / "run", teacher=teacher)
    settings = vitrail.load(run, device="cpu").model.settings
    assert settings.distillation_token and settings.depth == 4
    assert [row["epoch"] for row in rows(run.folder)] == [0, 1]


def test_distillation_beats_none_at_equal_steps(tmp_path):
    """The student has a few images, every second with a wrong label; the teacher had more, and better."""
    clean = make_folder(tmp_path / "clean", count=160, classes=4, start=1000)
    options = small_options(augment="light", val=0.2, batch_size=16)
    teacher = vitrail.train(clean, **options, epochs=6, out=tmp_path / "teacher")
    chance = np.random.default_rng(0)
    for number in range(64):
        index = number % 4
        label = index if chance.uniform() < 0.4 else int(chance.integers(4))
        path = tmp_path / "noisy" / "train" / f"class {label}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, 12, 15, hue=index / 4).save(path)
    make_folder(tmp_path / "noisy" / "val", count=120, classes=4, start=2000)
    options |= {"epochs": 6, "val": None}
    score = {}
    for how in ("none", "hard", "soft"):
        more = {} if how == "none" else {"teacher": teacher, "distill": how}
        more |= {"alpha": 0.5} if how == "soft" else {}
        score[how] = vitrail.train(tmp_path / "noisy", **options, **more, out=tmp_path / how).metrics["top1"]
    assert teacher.metrics["top1"] > 0.95
    assert score["none"] < 0.85 and min(score["hard"], score["soft"]) > 0.95, score


RANDOM = ["--drop-path", "0.3", "--augment", "strong", "--mixup", "0.4", "--cutmix", "1", "--ema", "0.9"]
OPTIONS = [*SMALL, "--epochs", "2", "--batch-size", "8", *RANDOM]


def test_a_run_that_is_killed_and_resumed_elsewhere_ends_with_the_same_bits(data, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "teacher")
    whole, folder, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    command = Command("train", data, *OPTIONS, "--teacher", "teacher", "--out", whole, log=log)
    assert command.wait() == 0, command.said
    at = ("vitrail.training.trainer.Trainer.train_step", 4, signal.SIGTERM)
    command = Command("train", data, *OPTIONS, "--teacher", "teacher", "--out", folder, log=log, at=at)
    assert command.wait() == 130, command.said
    state = torch.load(folder / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 5)
    again = Command("train", "--out", folder, "--resume", log=log, cwd=data)  # where there is no folder "teacher"
    assert again.wait() == 0, again.said
    assert differences(whole, folder) == []


def test_a_teacher_may_move_but_not_change(data, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "teacher")
    folder, log = tmp_path / "run", tmp_path / "log"
    at = ("vitrail.training.trainer.Trainer.train_step", 9, signal.SIGTERM)
    command = Command("train", data, *OPTIONS, "--teacher", "teacher", "--out", folder, log=log, at=at)
    assert command.wait() == 130, command.said
    (tmp_path / "teacher").rename(tmp_path / "moved")
    with pytest.raises(VitrailError, match="--teacher") as info:
        vitrail.train(out=folder, resume=True)
    assert (info.value.code, info.value.fields) == ("teacher_gone", {"source": str(tmp_path / "teacher")})
    other = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "other.safetensors", labels=CLASSES)
    with pytest.raises(VitrailError) as info:
        vitrail.train(out=folder, resume=True, teacher=other)
    assert info.value.code == "teacher_changed"
    vitrail.train(out=folder, resume=True, teacher=tmp_path / "moved")
    assert [row["epoch"] for row in rows(folder)] == [1, 2]


def test_two_processes_learn_from_a_teacher_what_one_does(data, teacher, tmp_path):
    options = [*SMALL, "--epochs", "2", "--batch-size", "9", *QUIET, "--teacher", teacher]
    together(1, "train", data, *options, "--out", tmp_path / "one", log=tmp_path / "log")
    together(2, "train", data, *options, "--out", tmp_path / "two", log=tmp_path / "log")
    for a, b in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-6)
        assert b["val_loss"] == pytest.approx(a["val_loss"], abs=1e-6)


# Refusals.


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        ({"teacher": "nowhere"}, ["--teacher", "nowhere"], "teacher_unreadable"),
        ({"distill": "hard"}, ["--distill", "--teacher"], "no_teacher"),
        ({"alpha": 0.3}, ["--alpha", "--teacher"], "no_teacher"),
        ({"teacher": "x", "temperature": 2.0}, ["--temperature", "--distill soft"], "hard_answer"),
        ({"teacher": "x", "distill": "soft", "temperature": 0}, ["--temperature", "0.01", " 0."], ""),
        ({"teacher": "x", "alpha": 1.5}, ["--alpha", "1.5"], ""),
        ({"teacher": "x", "distill": "warm"}, ["--distill warm", "hard, soft"], ""),
        ({"model": "swin_t_distilled"}, ["swin_t", "--teacher"], ""),
        ({"teacher": "x", "task": "spoof"}, ["--teacher", "--task classify"], "option_of_another_task"),
    ],
)
def test_options_that_do_not_go_together(data, tmp_path, options, words, code):
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, **{**small_options(epochs=1, out=tmp_path / "run"), **options})
    assert info.value.code == code and all(word in str(info.value) for word in words)
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_does_not_fit_is_refused_before_a_folder_is_made(data, teacher, tmp_path):
    options = small_options(epochs=1, out=tmp_path / "run")

    def refused(**more) -> VitrailError:
        with pytest.raises(VitrailError) as info:
            vitrail.train(data, **{**options, **more})
        assert not (tmp_path / "run").exists()
        assert str(more["teacher"]) in str(info.value) or "--teacher" in str(info.value)
        return info.value

    labels = ["class 0", "class 1", "zebra"]
    other = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "other.safetensors", labels=labels)
    error = refused(teacher=other)
    assert (error.code, error.fields) == ("teacher_classes", {"lacking": ["class 2"], "more": ["zebra"]})
    more = save_weights(create_model("vit_nano2", num_classes=5), tmp_path / "more.safetensors")
    error = refused(teacher=more)
    assert (error.code, error.fields) == ("teacher_classes", {"counts": (5, 3)})
    features = save_weights(create_model("vit_nano2", num_classes=0), tmp_path / "features.safetensors")
    assert refused(teacher=features).code == "teacher_without_classes"
    several = save_weights(
        create_model("vit_nano2", num_classes=3), tmp_path / "several.safetensors", labels=CLASSES,
        about={"multi_label": True},
    )  # fmt: skip
    assert refused(teacher=several).code == "teacher_labels"
    grey = save_weights(create_model("vit_nano2", num_classes=3, channels=1), tmp_path / "grey.safetensors")
    assert refused(teacher=grey).code == "teacher_channels"
    dense = Segmenter(create_model("vit_nano2"), 3, "linear")
    segmenter = save_weights(dense, tmp_path / "segmenter.safetensors", labels=CLASSES)
    assert refused(teacher=segmenter).code == "teacher_dense"
    assert refused(teacher=teacher, tune="probe", weights=teacher, model=None).code == "probe_with_teacher"
