"""The benchmark beside torchvision's dense models: what it says of a picture, and how that is measured."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.training.dense_data import make_boxes, make_masks
from vitrail import create_model, evaluate
from vitrail.models import Preprocessing
from vitrail.models.dense.detector import Detector
from vitrail.models.dense.segmenter import Segmenter
from vitrail.predict import Predictor

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import dense_peers


def test_boxes_of_torchvisions_detector_are_taken_too():
    pixels = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    (found,) = dense_peers.find(dense_peers.FasterRCNN(2, 64, 96), [pixels], Preprocessing())
    assert set(found.classes.tolist()) <= {0, 1}


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_a_peer_is_measured_as_vitrail_measures_its_own(task, tmp_path):
    torch.manual_seed(0)
    data = (make_masks if task == "segment" else make_boxes)(tmp_path / "data", {"train": 2, "test": 4})
    classes = dense_peers.opened(task, data).classes
    body = create_model("vit_nano4", num_classes=0)
    if task == "segment":
        model = Segmenter(body, len(classes), "linear")
    else:
        model = Detector(
            body, "faster_rcnn", len(classes), pyramid="simple", pyramid_channels=16, hidden=16, short_side=32,
            long_side=48,
        )  # fmt: skip
    own = Predictor(model.eval(), model.preprocessing, classes, "own", "cpu", {"task": task})
    answer = dense_peers.answers(task, own.model, own.preprocessing, torch.device("cpu"))
    found, expected = dense_peers.measure(task, data, answer, classes), evaluate(own, data, split="test")
    assert found["n"] == expected["n"] == 4
    figure = "miou" if task == "segment" else "map"
    assert found[figure] == pytest.approx(expected[figure], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segment", "detect"])
def test_a_peer_is_trained_by_our_loop_under_the_budget_of_our_runs(task, tmp_path):
    data = (make_masks if task == "segment" else make_boxes)(tmp_path / "data", {"train": 4, "val": 2, "test": 2})
    options = SimpleNamespace(device="cpu", epochs=1, image_size=32)
    budget = dense_peers.budget_of(task, str(data), options)
    assert (budget.epochs, budget.batch_size, budget.augment) == (1, 2, "medium")
    budget = replace(budget, epochs=2)
    model, told = dense_peers.train_peer(task, str(data), budget, 0, 1e-4, torch.device("cpu"))
    assert told["epoch"] in (1, 2) and 0 < told["loss"] < 20 and 0 <= told["validation"] <= 1
    answer = dense_peers.answers(task, model, budget.pre, torch.device("cpu"))
    assert dense_peers.measure(task, data, answer, dense_peers.opened(task, data).classes)["n"] == 2
