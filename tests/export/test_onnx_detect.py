"""Detectors as ONNX: what onnxruntime finds on a picture of any size, the same as the run, wherever a run is taken."""

import importlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from PIL import Image
from torch.export import Dim

from tests.parity.peers import shake
from tests.training.dense_data import make_boxes
from vitrail import VitrailError, create_model, evaluate, load
from vitrail.cli.export import export as export_verb
from vitrail.cli.predict import predict
from vitrail.data.sources.boxes.outlines import from_runs
from vitrail.exporters import export
from vitrail.exporters.onnx import OPSET, quiet
from vitrail.models.dense.deformable import DeformableAttention, centres
from vitrail.models.dense.detector import Detector
from vitrail.predict import Predictor
from vitrail.tasks.detect.export import Boxes, apart
from vitrail.weights.onnx import OnnxModel

LONG = pytest.mark.skipif("VITRAIL_LONG" not in os.environ, reason="takes minutes: set VITRAIL_LONG=1")
HEADS = ["faster_rcnn", "retinanet", "mask_rcnn"]
# Half a minute each: by default the one that has another's parts as well.
SHIPPED = [pytest.param("faster_rcnn", marks=LONG), pytest.param("retinanet", marks=LONG), "mask_rcnn"]
LABELS = ["square", "disc"]
VIT = {"width": 16, "depth": 1, "heads": 2, "num_classes": 0, "image_size": 32}
SWIN = {"width": 8, "depths": (2, 1, 1, 2), "heads": (1, 1, 2, 2), "num_classes": 0, "image_size": 64, "window": 3}
BODIES: dict[str, Callable[[], torch.nn.Module]] = {
    "simple": lambda: create_model("vit_ti16", **VIT),
    "adapter": lambda: create_model("vit_ti16", **{**VIT, "patch_size": 14, "image_size": 28}),
    "own": lambda: create_model("swin_t", **SWIN),
}
SIZES = [(70, 96), (33, 190), (150, 60), (64, 64), (9, 200)]  # height, width


def small(head: str, pyramid: str = "simple", **changes: object) -> Detector:
    torch.manual_seed(0)
    settings = {"pyramid_channels": 16, "hidden": 16, "short_side": 64, "long_side": 128, "proposals": 60, **changes}
    model = shake(Detector(BODIES[pyramid](), head, 2, pyramid=pyramid, **settings)).eval()
    if head == "retinanet":  # which at first says 0.01 of everything, and so finds nothing
        torch.nn.init.zeros_(model.net.head.classification_head.cls_logits.bias)
    return model


def picture(height: int, width: int) -> Image.Image:
    noise = np.random.default_rng(height).integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


@dataclass
class Shipped:
    run: Path
    file: Path
    printed: str
    difference: float | None


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Shipped]:
    """A run with such a head and the file that was exported from it, once for all tests."""
    made: dict[str, Shipped] = {}

    def ship(head: str) -> Shipped:
        if head not in made:
            run, model = tmp_path_factory.mktemp(head), small(head)
            about = {"task": "detect", "threshold": 0.2, "category_ids": [3, 7]}
            Predictor(model, model.preprocessing, LABELS, "small", "cpu", about).save(run / "model.safetensors")
            done = export(run)
            made[head] = Shipped(run, done.path, done.compared, done.difference)
        return made[head]

    return ship


def assert_same(found: object, expected: object) -> None:
    ours, theirs = expected.found, found.found
    assert len(ours) == len(theirs) > 0
    assert theirs.classes.tolist() == ours.classes.tolist()
    assert np.abs(theirs.boxes - ours.boxes).max() < 1e-2
    assert np.abs(theirs.scores - ours.scores).max() < 1e-4
    assert (ours.masks is None) == (theirs.masks is None)
    for one, other in zip(ours.masks or [], theirs.masks or [], strict=True):
        assert (from_runs(one) == from_runs(other)).mean() > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("head", SHIPPED)
def test_a_file_finds_what_the_run_finds_on_pictures_of_any_size(shipped: Callable[[str], Shipped], head: str) -> None:
    run, file = load(shipped(head).run, device="cpu"), load(shipped(head).file, device="cpu")
    assert (file.task, file.labels, file.about) == ("detect", LABELS, run.about)
    assert file.model.settings == run.model.settings and file.preprocessing == run.preprocessing
    for size in SIZES:
        assert_same(file.detect(picture(*size), 0.0), run.detect(picture(*size), 0.0))
    assert all(one.probability >= 0.2 for one in file.detect(picture(70, 96)))  # the run's threshold
    larger = [load(source, image_size=100, device="cpu") for source in (shipped(head).run, shipped(head).file)]
    assert larger[1].model.settings.image_size == (100, 200)
    assert_same(larger[1].detect(picture(70, 96), 0.0), larger[0].detect(picture(70, 96), 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("head", SHIPPED)
def test_the_graph_says_what_goes_in_and_out_and_may_find_nothing(shipped: Callable[[str], Shipped], head: str) -> None:
    import onnx as library

    graph = library.load(shipped(head).file).graph
    shapes = {
        each.name: [side.dim_param or side.dim_value for side in each.type.tensor_type.shape.dim]
        for each in (*graph.input, *graph.output)
    }
    masks = {"masks": ["found", 28, 28]} if head == "mask_rcnn" else {}
    boxes = {"boxes": ["found", 4], "scores": ["found"], "labels": ["found"]}
    assert shapes == {"images": [1, 3, "height", "width"], **boxes, **masks}
    strict = OnnxModel(shipped(head).file, "cpu", {"score_threshold": np.array(1, np.float32)})
    (none,) = strict([torch.randn(3, 50, 70)])
    assert {name: each.shape[0] for name, each in none.items()} == dict.fromkeys([*boxes, *masks], 0)
    (some,) = OnnxModel(shipped(head).file, "cpu")([torch.randn(3, 50, 70)])
    assert some["scores"].tolist() == sorted(some["scores"].tolist(), reverse=True) and some["labels"].min() >= 0


@pytest.mark.slow
def test_predict_writes_the_same_boxes_and_evaluate_the_same_figures(
    shipped: Callable[[str], Shipped], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    for number, size in enumerate(SIZES[:3]):
        picture(*size).save(f"pictures/{number}.png")
    said, ship = [], shipped("mask_rcnn")
    for model in (ship.run, ship.file):
        arguments = ["pictures", "--model", str(model), "--threshold", "0.1", "--json", "found.json", "--device", "cpu"]
        assert tyro.cli(predict, args=arguments) == 0
        said.append(json.loads(Path("found.json").read_text()))
    ours, theirs = (each.pop("annotations") for each in said)
    assert said[0] == said[1] and len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert other["bbox"] == pytest.approx(one["bbox"], abs=0.02)  # written to a hundredth
        assert other["score"] == pytest.approx(one["score"], abs=1e-4)
        assert (other["image_id"], other["category_id"]) == (one["image_id"], one["category_id"])
    make_boxes(tmp_path / "data", {"test": 4})
    figures = [evaluate(model, "data", device="cpu") for model in (ship.run, ship.file)]
    assert figures[0]["n"] == 4
    assert figures[1]["map"] == pytest.approx(figures[0]["map"], abs=1e-6)


@pytest.mark.slow
def test_the_check_says_how_far_apart_they_are_and_keeps_no_other_model(
    shipped: Callable[[str], Shipped], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = shipped("mask_rcnn")
    same, boxes, score, corner = re.fullmatch(
        r"(\d+) of (\d+) boxes are the model's\. Largest difference of the scores: (\S+), of the corners: (\S+) pixels",
        ship.printed,
    ).groups()  # type: ignore[union-attr]
    assert int(same) > 0.97 * int(boxes) > 50
    assert float(score) == pytest.approx(ship.difference, rel=0.1) and float(score) < 1e-4 and float(corner) < 1e-2
    room = importlib.import_module("vitrail.exporters")
    monkeypatch.setattr(room, "write_onnx", lambda model, path, *rest: shutil.copy(ship.file, path))
    run = load(ship.run, device="cpu")
    with torch.no_grad():
        run.model.net.roi_heads.box_predictor.cls_score.bias[1] += 0.1
    with pytest.raises(VitrailError, match=r"other\.onnx was not kept: of the \d+ boxes .* find \d+ alike"):
        export(run, "onnx", tmp_path / "other.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_a_file_has_not_and_other_formats_are_refused(shipped: Callable[[str], Shipped], tmp_path: Path) -> None:
    file = load(shipped("mask_rcnn").file, device="cpu")
    for ask in (lambda: file.embed(picture(40, 40)), lambda: file.explain(picture(40, 40))):
        with pytest.raises(VitrailError, match="load the run itself"):
            ask()
    with pytest.raises(VitrailError, match="give the short side as image_size, and no fit"):
        load(file.model.path, fit="crop")
    for to in ("timm", "torchvision", "hf"):
        out = tmp_path / ("folder" if to == "hf" else "model.pth")
        with pytest.raises(VitrailError, match=r"has a place for this mask_rcnn on its backbone: .*ONNX"):
            export(load(shipped("mask_rcnn").run, device="cpu"), to, out)
    assert list(tmp_path.iterdir()) == []


@LONG
def test_a_retinanet_that_is_sure_of_an_empty_picture_is_exported_too(tmp_path: Path) -> None:
    """Its scores are so faint that a runtime's own sigmoid would rank them otherwise."""
    model = small("retinanet")
    torch.nn.init.constant_(model.net.head.classification_head.cls_logits.bias, -12.0)
    Predictor(model, model.preprocessing, LABELS, "small", "cpu").save(tmp_path / "model.safetensors")
    found, of = re.search(r"(\d+) of (\d+) boxes", export(tmp_path / "model.safetensors").compared).groups()
    assert found == of


@LONG
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pyramid", ["adapter", "own"])
@pytest.mark.parametrize("head", HEADS)
def test_every_pyramid_is_exported_for_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], head: str, pyramid: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = small(head, pyramid)
    Predictor(model, model.preprocessing, LABELS, "small", "cpu").save("model.safetensors")
    tyro.cli(export_verb, args=["model.safetensors", "--out", "small.onnx"])
    assert "boxes are the model's" in capsys.readouterr().out
    run, file = load("model.safetensors", device="cpu"), load("small.onnx", device="cpu")
    for size in SIZES:
        assert_same(file.detect(picture(*size), 0.0), run.detect(picture(*size), 0.0))


class Looking(torch.nn.Module):
    """Deformable attention of a map to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = DeformableAttention(8, heads=2, levels=1, points=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # B h w D
        grid = (x.shape[1], x.shape[2])
        tokens, places = x.flatten(1, 2), centres(grid, (1, 1), grid, x.device)[:, None]
        return self.layer(tokens, places, tokens, [grid])


@pytest.mark.parametrize("pyramid", ["adapter", "own"])
def test_what_a_pyramid_is_made_of_takes_any_size_by_itself(tmp_path: Path, pyramid: str) -> None:
    """In seconds; whole pyramids take minutes."""
    import onnxruntime

    part: Any = Looking() if pyramid == "adapter" else BODIES[pyramid]()
    model = shake(part if pyramid == "adapter" else part.blocks[1])  # one that shifts its windows
    sizes = {1: Dim("height", min=4), 2: Dim("width", min=4)}
    with torch.no_grad(), quiet():
        traced = torch.export.export(
            model, (torch.randn(1, 37, 41, 8),), dynamic_shapes=(sizes,),
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
        torch.onnx.export(traced, dynamo=True, opset_version=OPSET, input_names=["x"], verbose=False).save(
            str(tmp_path / "part.onnx")
        )
    session = onnxruntime.InferenceSession(str(tmp_path / "part.onnx"))
    for size in ((37, 41), (6, 19), (3, 12), (2, 1)):  # Swin's window is 3
        x = torch.randn(1, *size, 8)
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("head", "pyramid"), zip(HEADS, BODIES, strict=True))
def test_the_rules_between_the_parts_are_torchvisions(head: str, pyramid: str) -> None:
    """Without an exporter: to the bit, also where so much is found that torchvision takes each class by itself."""
    model = small(head, pyramid, score_threshold=0.0, proposals=1000, detections=300)
    graph = Boxes(model)
    for height, width in ((64, 128), (100, 64), (64, 64)):  # as they are looked at
        x = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(height))
        with torch.no_grad():
            (expected,), found = model(list(x)), dict(zip(graph.names, graph(x), strict=True))
        assert len(expected["scores"]) > 50 and set(found) == set(expected)
        for name, values in expected.items():
            torch.testing.assert_close(found[name], values, rtol=0, atol=1e-5)


def test_boxes_of_many_classes_are_kept_apart_to_a_hundredth_of_a_pixel() -> None:
    box = torch.tensor([[100.0, 200.0, 110.0, 210.0]])
    moved = box + torch.tensor([0.0, 0.0, 0.0, 10.02])  # of the height, 49.95 % is shared: they may both stay
    boxes, scores = torch.cat([box, moved]).repeat(1000, 1), torch.linspace(1, 0, 2000)
    groups = torch.arange(1000).repeat_interleave(2)
    assert apart(boxes, scores, groups, 1000, 0.5).tolist() == list(range(2000))
    assert apart(boxes, scores, groups, 1000, 0.499).tolist() == list(range(0, 2000, 2))
    assert apart(boxes[:0], scores[:0], groups[:0], 1000, 0.5).tolist() == []
