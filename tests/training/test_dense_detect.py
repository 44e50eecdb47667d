"""`--task detect`, end to end: what is planned, learnt, kept, resumed to the bit, measured, and refused."""

import json
import re
import signal
from pathlib import Path

import pytest
import torch

import vitrail
from tests.training.dense_data import DETECT, make_boxes
from tests.training.support import Command, differences, rows
from tests.training.test_distributed import together
from vitrail import VitrailError
from vitrail.models import SwinSettings, ViTSettings
from vitrail.reasons import Reason
from vitrail.tasks import registry
from vitrail.tasks.dense.cases import shown_cases, standard_error
from vitrail.tasks.detect.task import viewing_sides
from vitrail.tasks.planning import Facts
from vitrail.training.config import TrainConfig
from vitrail.training.run import plan
from vitrail.weights import read_checkpoint

STEP = "vitrail.training.trainer.Trainer.train_step"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_boxes(tmp_path_factory.mktemp("boxes"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "whole"
    command = Command("train", data, *DETECT, "--out", folder, log=folder.with_suffix(".log"))
    assert command.wait() == 0, command.said
    return folder


def test_a_run_says_what_it_does_and_keeps_its_figures(run):
    said = run.with_suffix(".log").read_text()
    record = json.loads((run / "run.json").read_text())
    assert {split: text.split(" images")[0] for split, text in record["samples"].items()} == {"train": "8", "val": "4"}
    assert "(train/7.png)" in said  # has no box, and is kept as a negative example
    assert re.search(r"images +32 to 53", said) and re.search(r"head +faster_rcnn", said)
    found = rows(run)
    assert [row["epoch"] for row in found] == [1, 2]
    assert {"val_map", "val_map50", "val_map_error", "train_loss"} <= found[0].keys() and "val_loss" not in found[0]
    assert found[1]["train_loss"] < found[0]["train_loss"]
    checkpoint = read_checkpoint(run / "model.safetensors")
    assert checkpoint.about["task"] == "detect" and checkpoint.about["category_ids"] == [1, 2]
    assert 0 <= checkpoint.about["threshold"] <= 1
    assert checkpoint.labels == ["square", "disc"] and checkpoint.settings.short_side == 32
    assert checkpoint.about["metrics"]["n"] == 4
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('class="painted"') == 3 and ">Objects<" in page and "train/7.png" in page


def test_of_other_classes_what_proposes_regions_goes_on_and_what_names_them_does_not(run, tmp_path):
    data = make_boxes(tmp_path / "boxes", {"train": 2, "val": 2})
    for path in (data / "annotations").iterdir():
        path.write_text(path.read_text().replace('"disc"', '"ring"'))
    options = {"task": "detect", "weights": run, "epochs": 0, "device": "cpu", "workers": 0, "cache": "off", "seed": 1}
    other = vitrail.train(data, **options, pyramid="simple", image_size=32, out=tmp_path / "run")
    ours, theirs = (read_checkpoint(folder / "model.safetensors").state for folder in (other.folder, run))
    same = {name: torch.equal(ours[name], theirs[name]) for name in theirs if name.endswith("weight")}
    assert {name for name, kept in same.items() if not kept} == {
        "net.roi_heads.box_predictor.cls_score.weight", "net.roi_heads.box_predictor.bbox_pred.weight",
    }  # fmt: skip
    assert same["net.rpn.head.cls_logits.weight"]


def test_a_run_killed_and_interrupted_ends_with_the_same_bits(data, run, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    for number, at in enumerate([(STEP, 2, signal.SIGKILL), (STEP, 1, signal.SIGINT)]):
        resume = ["--resume"] if number else []
        command = Command("train", data, *DETECT, "--out", folder, *resume, log=log, at=at)
        assert command.wait() in (-signal.SIGKILL, 130), command.said
    command = Command("train", "--out", folder, "--resume", "--workers", "1", log=log)
    assert command.wait() == 0, command.said
    assert differences(run, folder) == []


def test_two_processes_train_and_measure_together(data, tmp_path):
    said = together(2, "train", data, *DETECT, "--epochs", "1", "--out", tmp_path / "two", log=tmp_path / "log")
    (row,) = rows(tmp_path / "two")
    assert 0 < row["train_loss"] < 10 and 0 <= row["val_map"] <= 1
    assert "mAP" in said[0] and not said[1].strip()
    assert read_checkpoint(tmp_path / "two" / "model.safetensors").about["metrics"]["n"] == 4


def test_evaluate_prints_coco_figures_and_writes_them(data, run, tmp_path):
    path = tmp_path / "figures.json"
    command = Command("evaluate", data, "--model", run, "--device", "cpu", "--json", path, log=tmp_path / "log")
    assert command.wait() == 0, command.said
    figures = json.loads(path.read_text())
    assert figures["n"] == 4 and figures["split"] == "test"
    assert {"map", "map50", "map75", "map_low", "map_high", "ap/square", "ap/disc"} <= figures.keys()
    assert figures["map"] == pytest.approx((figures["ap/square"] + figures["ap/disc"]) / 2)
    said = command.said
    assert re.search(rf"mean average precision +{100 * figures['map']:.1f} %", said) and "AP of disc" in said
    with pytest.raises(VitrailError) as info:
        vitrail.evaluate(run, data, flip=True, device="cpu")
    assert info.value.code == "option_of_another_task" and info.value.fields["task"] == "detect"


def test_a_mask_rcnn_learns_outlines_and_refuses_boxes_alone(data, tmp_path):
    options = {
        "task": "detect", "head": "mask_rcnn", "pyramid": "simple", "model": "vit_nano4", "weights": "none",
        "image_size": 32, "epochs": 1, "batch_size": 4, "device": "cpu", "workers": 0, "cache": "off",
    }  # fmt: skip
    run = vitrail.train(data, **options, out=tmp_path / "run")
    assert {"map", "mask_map", "mask_map50"} <= run.metrics.keys()
    content = json.loads((data / "annotations" / "instances_train.json").read_text())
    for row in content["annotations"]:
        del row["segmentation"]
    bare = data / "train" / "bare.json"
    bare.write_text(json.dumps(content))
    with pytest.raises(VitrailError) as info:
        vitrail.train(bare, **options, out=tmp_path / "other")
    assert info.value.code == "no_outlines" and not (tmp_path / "other").exists()
    bare.unlink()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"label_smoothing": 0.1}, "option_of_another_task"),
        ({"balance": "weights"}, "option_of_another_task"),
        ({"refit": "on"}, "option_of_another_task"),
        ({"fit": "pad"}, "own_proportions"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_code(data, tmp_path, options, code):
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, task="detect", weights="none", device="cpu", out=tmp_path / "run", **options)
    assert info.value.code == code and not (tmp_path / "run").exists()


def test_a_head_of_another_task_is_refused_with_those_of_this_one():
    with pytest.raises(VitrailError, match="faster_rcnn, mask_rcnn, retinanet"):
        TrainConfig(task="detect", head="fcn")


def planned(task: str, images: int, pretrained: bool, settings=None, **options):
    facts = Facts(images, 2, pretrained, 224, settings or ViTSettings())
    return plan(registry.task(task), TrainConfig(task=task, **options), facts)


def test_a_plan_follows_from_the_data_and_the_machine():
    small, why = planned("detect", 200, True)
    assert (small.head, small.pyramid, small.batch_size, small.epochs) == ("faster_rcnn", "adapter", 8, 80)
    assert small.lr == 2e-4 and small.layer_decay == 0.75 and why["epochs"] == Reason("images", n=200)
    large, why = planned("segment", 60_000, True, SwinSettings(), batch_size=64)
    assert (large.head, large.pyramid, large.epochs, large.lr) == ("upernet", "own", 8, 6e-4)  # √(64/16) times
    assert why["lr"] == Reason("batch_scaled", reason=Reason("dense_new"), batch=64, usual=16)
    scratch, why = planned("segment", 500, False)
    assert scratch.layer_decay == 1.0 and scratch.epochs == 200 and why["epochs"] == Reason("scratch_images", n=500)


def test_a_detector_looks_closer_than_its_images_are_and_closer_on_a_gpu():
    assert viewing_sides(None, 480, gpu=True) == (480, 800, Reason("view_gpu"))
    assert viewing_sides(None, 480, gpu=False) == (320, 533, Reason("view_cpu"))
    assert viewing_sides(None, 64, gpu=True) == (96, 160, Reason("view_small", short=64))
    assert viewing_sides(200, 64, gpu=True) == (200, 333, Reason("as_asked"))


def test_a_report_shows_two_of_each_kind_and_none_twice():
    assert shown_cases([5, 3, 1]) == [("best", 1), ("median", 3), ("worst", 5)]
    assert shown_cases([0]) == [("best", 0)]
    assert [number for _, number in shown_cases(range(10))] == [9, 8, 5, 4, 0, 1]
    error = standard_error({"map": 0.5, "map_low": 0.304, "map_high": 0.696}, "map")
    assert error == {"map_error": pytest.approx(0.1)} and standard_error({"map": 0.5}, "map") == {}
