"""Segmenters as ONNX: what onnxruntime says of every pixel."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.dense_models import BACKBONE
from vitrail import VitrailError, create_model, load
from vitrail.exporters import export
from vitrail.models.dense.segmenter import Segmenter
from vitrail.predict import Predictor


def predictor(head: str) -> Predictor:
    torch.manual_seed(0)
    model = Segmenter(create_model("vit_ti16", **BACKBONE), 3, head, pyramid="simple", width=16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        last = model.head.output if head == "linear" else model.head.outputs[0]
        last.bias -= model.eval()(torch.randn(4, 3, 48, 32)).mean(dim=(0, 2, 3))  # or one class would win everywhere
    about = {"task": "segment", "colours": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}
    return Predictor(model, model.preprocessing, ["a", "b", "c"], "small", "cpu", about)


@pytest.mark.parametrize("head", ["linear", "fcn"])
def test_the_classes_of_an_exported_segmenter_are_the_runs_at_the_pictures_size(tmp_path: Path, head: str) -> None:
    run = predictor(head)
    run.preprocessing = replace(run.preprocessing, size=(48, 32), fit="pad")
    done = export(run, "onnx", tmp_path / "model.onnx")
    assert done.difference is not None and done.difference < 1e-4
    again = load(done.path, device="cpu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8))
    found, expected = again.segment(image), run.segment(image)
    assert (again.task, again.labels) == ("segment", ["a", "b", "c"])
    assert found.mask.shape == (70, 90) and len(np.unique(expected.mask)) > 1
    assert (found.mask == expected.mask).mean() > 0.999
    assert found.colours[1].tolist() == [4, 5, 6]
    with pytest.raises(VitrailError, match="takes images of 48×32 only"):
        again.segment(image, window=40)
    with pytest.raises(VitrailError, match="load the run itself"):
        again.embed(image)


def test_a_run_that_takes_pictures_as_they_are_is_exported_for_one_size(tmp_path: Path) -> None:
    run = predictor("linear")
    run.preprocessing = replace(run.preprocessing, fit="native")
    done = export(run, "onnx", tmp_path / "model.onnx", check=False)
    assert "32×32" in done.notes[0]
    assert load(done.path, device="cpu").segment(Image.new("RGB", (50, 40))).mask.shape == (40, 50)


def test_what_cannot_be_exported_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    for to in ("timm", "torchvision", "hf"):
        out = tmp_path / ("folder" if to == "hf" else "model.pth")
        with pytest.raises(VitrailError, match=r"this linear on its backbone: keep it as a bundle .*export it to ONNX"):
            export(predictor("linear"), to, out)
    assert list(tmp_path.iterdir()) == []
