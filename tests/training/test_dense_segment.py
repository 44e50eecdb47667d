"""`--task segment`, end to end: what is planned, learnt, kept, resumed to the bit, measured, and refused."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.dense_data import SEGMENT, make_masks
from tests.training.support import Command, differences, make_images, make_trainer, rows
from tests.training.test_distributed import together
from vitrail import VitrailError
from vitrail.models.dense.segmenter import Segmenter
from vitrail.reasons import Reason
from vitrail.tasks import registry
from vitrail.training.config import TrainConfig
from vitrail.training.optimization import depths_of, parameter_groups
from vitrail.weights import read_checkpoint

STEP = "vitrail.training.trainer.Trainer.train_step"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = make_masks(tmp_path_factory.mktemp("masks"))
    Image.new("L", (5, 5)).save(root / "masks" / "train" / "7.png")  # of another size than its image
    return root


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "whole"
    command = Command("train", data, *SEGMENT, "--out", folder, log=folder.with_suffix(".log"))
    assert command.wait() == 0, command.said
    return folder


def test_a_run_says_what_it_does_and_keeps_its_figures(data, run):
    said = run.with_suffix(".log").read_text()
    record = json.loads((run / "run.json").read_text())
    assert {split: text.split(" images")[0] for split, text in record["samples"].items()} == {"train": "7", "val": "4"}
    assert "(images/train/7.png)" in said  # left out
    assert record["given"]["head"] == "fcn" and record["why"]["head"] == record["why"]["pyramid"] == "as asked"
    assert re.search(r"head +fcn", said) and re.search(r"pyramid +simple", said)
    found = rows(run)
    assert [row["epoch"] for row in found] == [1, 2]
    assert {"val_loss", "val_miou", "val_pixel_accuracy", "val_miou_error", "train_loss"} <= found[0].keys()
    checkpoint = read_checkpoint(run / "model.safetensors")
    assert checkpoint.about["task"] == "segment" and checkpoint.about["finished"]
    assert checkpoint.labels == ["ground", "red", "blue"]
    kept = checkpoint.about["metrics"]
    assert kept["n"] == 4 and kept["miou_low"] <= kept["miou"] <= kept["miou_high"]
    assert kept["miou"] == pytest.approx(found[kept["epoch"] - 1]["val_miou"], abs=1e-6)


def test_the_report_shows_cases_classes_and_what_was_left_out(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('class="painted"') == 3  # of four images
    assert "images/train/7.png" in page  # left out
    for words in ("best: images/val/", "worst: images/val/", "Mean IoU", "Boundary F1", ">Pixels<"):
        assert words in page


def test_a_run_killed_twice_ends_with_the_same_bits(data, run, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    for number, at in enumerate([(STEP, 2, signal.SIGKILL), (STEP, 1, signal.SIGTERM)]):
        resume = ["--resume"] if number else []
        command = Command("train", data, *SEGMENT, "--out", folder, *resume, log=log, at=at)
        assert command.wait() in (-signal.SIGKILL, 130), command.said
    # The folder knows what it is: nothing but its name is needed.
    command = Command("train", "--out", folder, "--resume", "--workers", "1", log=log)
    assert command.wait() == 0, command.said
    assert differences(run, folder) == []


def test_two_processes_give_the_figures_of_one(data, tmp_path):
    quiet = ["--augment", "none", "--drop-path", "0", "--epochs", "1"]
    options = [*SEGMENT, *quiet, "--head", "linear"]
    del options[options.index("--pyramid") : options.index("--pyramid") + 2]
    together(1, "train", data, *options, "--out", tmp_path / "one", log=tmp_path / "log")
    together(2, "train", data, *options, "--out", tmp_path / "two", log=tmp_path / "log")
    (one,), (two,) = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert two["val_miou"] == pytest.approx(one["val_miou"], abs=0.02)
    # Dropout draws for each process; the loss before the first update is nearly the same all the same.
    assert two["train_loss"] == pytest.approx(one["train_loss"], abs=0.05)


def test_evaluate_measures_images_in_their_own_size(data, run, tmp_path):
    path, page = tmp_path / "figures.json", tmp_path / "page.html"
    command = Command(
        "evaluate", data, "--model", run, "--device", "cpu", "--json", path, "--report", page, log=tmp_path / "log"
    )
    assert command.wait() == 0, command.said
    figures = json.loads(path.read_text())
    assert figures["n"] == 4 and figures["split"] == "test" and figures["skipped"] == 0
    predictor = vitrail.load(run, device="cpu")
    counts = np.zeros((3, 3))
    for number in range(4):
        truth = np.array(Image.open(data / "masks" / "test" / f"{number}.png"))
        said = predictor.segment(data / "images" / "test" / f"{number}.png").mask
        assert said.shape == truth.shape == (20, 24)
        np.add.at(counts, (truth.ravel(), said.ravel()), 1)
    both = np.diag(counts)
    union = counts.sum(0) + counts.sum(1) - both
    assert figures["miou"] == pytest.approx(np.mean(both[union > 0] / union[union > 0]))
    assert figures["iou/ground"] == pytest.approx(both[0] / union[0])
    assert figures["pixel_accuracy"] == pytest.approx(both.sum() / counts.sum())
    assert re.search(rf"mean IoU +{100 * figures['miou']:.1f} %", command.said)
    assert page.read_text().count('class="painted"') == 3


def test_a_run_goes_on_from_a_segmenter_whole_or_from_its_backbone_and_says_which(data, run, tmp_path):
    options = {"task": "segment", "weights": run, "epochs": 0, "device": "cpu", "workers": 0, "cache": "off"}
    theirs = read_checkpoint(run / "model.safetensors").state

    def went_on(name: str, **more):
        made = vitrail.train(data, **options, **more, out=tmp_path / name)
        why = json.loads((made.folder / "run.json").read_text())["model"]["why"]
        return read_checkpoint(made.folder / "model.safetensors").state, why

    ours, why = went_on("same", head="fcn", pyramid="simple")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert why == str(Reason("start_whole", source=str(run)))
    ours, why = went_on("pyramid", head="fcn", pyramid="adapter")
    fitting = [name for name in theirs if name.startswith("head.")]
    assert all(torch.equal(ours[name], theirs[name]) for name in fitting)
    total = sum(not name.startswith("body.model.") for name in ours)
    assert why == str(Reason("start_backbone_more", count=len(fitting), total=total, source=str(run)))
    ours, why = went_on("other", head="linear")
    assert why == str(Reason("start_backbone", source=str(run)))
    inside = "body.model.blocks.0.attention.qkv.weight"
    assert torch.equal(ours[inside.replace("body.model", "body")], theirs[inside])


def test_what_stands_on_the_backbone_learns_at_the_full_rate_and_the_idle_part_not_at_all():
    model = Segmenter(vitrail.create_model("vit_nano4", num_classes=0), 3, "upernet", pyramid="simple", width=32)
    depths, last = depths_of(model)
    assert last == 4 and depths["body.model.blocks.0.attention.qkv.weight"] == 1
    assert (
        depths["body.model.patch.weight"] == 0 and depths["body.scales.8.weight"] == depths["head.fuse.0.weight"] == 4
    )
    groups = parameter_groups(model, 1.0, 0.05, 0.5)
    rate = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert rate[id(model.get_parameter("body.scales.8.weight"))] == (1.0, 0.05)
    assert rate[id(model.get_parameter("body.model.blocks.1.mlp.fc1.weight"))] == (0.25, 0.05)
    assert id(model.get_parameter("body.model.norm.weight")) not in rate


def test_with_the_head_alone_the_backbone_stays_what_it_was(data, run, tmp_path):
    fresh, tuned = (
        vitrail.train(
            data, task="segment", weights=run, tune="head", head="linear", epochs=epochs, batch_size=4, ema=0,
            device="cpu", workers=0, cache="off", out=tmp_path / f"{epochs}",
        )
        for epochs in (0, 1)
    )  # fmt: skip
    before, at_first, after = (
        read_checkpoint(f / "model.safetensors").state for f in (run, fresh.folder, tuned.folder)
    )
    for name in [name for name in after if name.startswith("body.")]:
        assert torch.equal(after[name], before[name.replace("body.", "body.model.", 1)])
    assert (after["head.output.weight"] - at_first["head.output.weight"]).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"head": "linear", "pyramid": "simple"}, "pyramid_unused"),
        ({"mixup": 0.2}, "option_of_another_task"),
        ({"calm": 2}, "option_of_another_task"),
        ({"refit": "on"}, "option_of_another_task"),
        ({"fit": "crop"}, "loses_borders"),
        ({"model": "tv:resnet18"}, "no_maps"),
        ({"task": "classify", "head": "fcn"}, "option_of_another_task"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_code_and_leaves_no_folder(data, tmp_path, options, code):
    given = {"task": "segment", "model": "vit_nano4", "weights": "none", "device": "cpu", "out": tmp_path / "run"}
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, **{**given, **options})
    assert info.value.code == code and "\n" not in str(info.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        ("head", "retinanet", ("linear", "fcn", "upernet")),
        ("tune", "lora", ("full", "head")),
        ("balance", "sampling", ("auto", "none", "weights")),
    ],
)
def test_a_value_that_only_other_tasks_know_is_refused_with_those_of_this_one(option, value, choices):
    with pytest.raises(VitrailError, match=", ".join(choices)):
        TrainConfig(task="segment", **{option: value})


def test_a_pyramid_that_a_backbone_has_not_is_refused(data, tmp_path):
    with pytest.raises(VitrailError, match="'own'"):
        vitrail.train(
            data, task="segment", model="vit_nano4", weights="none", pyramid="own", device="cpu", out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_long_run_is_validated_twenty_times_and_at_its_end():
    """Measuring is slow, and small data takes many short epochs."""

    def validated(epochs: int) -> list[int]:
        looks = registry.task("segment").validations
        trainer = make_trainer(
            images=make_images(2), epochs=epochs, batch_size=2, lr=0.0, validate_every=max(1, -(-epochs // looks)),
            validate=lambda model: {"top1": 0.5},
        )  # fmt: skip
        found = []
        for trainer.epoch in range(epochs):
            if trainer.validates:
                found.append(trainer.epoch + 1)
        return found

    assert validated(3) == [1, 2, 3] and validated(80) == [*range(4, 81, 4)]
    assert validated(50) == [*range(3, 50, 3), 50]
