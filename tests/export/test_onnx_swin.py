"""Swin and the hybrid as ONNX graphs: convolutions and windows."""

import numpy as np
import pytest
import torch

import vitrail
from tests.models.restatements import image, randomised
from vitrail.exporters import export
from vitrail.models import Preprocessing, SwinTransformer, VisionTransformer
from vitrail.weights.onnx import OnnxModel

SWIN = {"image_size": 16, "patch_size": 2, "width": 8, "depths": (2, 1), "heads": (2, 4), "window": 3, "num_classes": 5}
HYBRID = {"image_size": 32, "patch_size": 1, "width": 16, "depth": 1, "heads": 2, "num_classes": 5, "stem": (1, 1)}


def exported(model, path):
    model = randomised(model).float().eval()
    pre = Preprocessing().suited(model.settings)
    done = export(vitrail.Predictor(model, pre, device="cpu"), out=path)
    assert done.difference <= 1e-5
    return model, OnnxModel(done.path)


def test_swin_takes_any_batch_and_one_size(tmp_path):
    model, graph = exported(SwinTransformer(**SWIN), tmp_path / "swin.onnx")
    assert graph.fixed_size == (16, 16)
    for batch in (1, 4):
        x = image(batch, 3, 16, 16, dtype=torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(graph(x), model(x), rtol=0, atol=1e-4)
    with pytest.raises(vitrail.VitrailError, match="takes images of 16×16 only, got 16×20"):
        graph(image(1, 3, 16, 20, dtype=torch.float32))
    with pytest.raises(vitrail.VitrailError, match="takes images of 16×16 only; export the run again"):
        vitrail.load(tmp_path / "swin.onnx", image_size=32)
    assert vitrail.load(tmp_path / "swin.onnx").probabilities(np.zeros((9, 30, 3), np.uint8)).shape == (1, 5)


@pytest.mark.slow
def test_the_hybrid_takes_any_batch_height_and_width(tmp_path):
    model, graph = exported(VisionTransformer(**HYBRID), tmp_path / "hybrid.onnx")
    for shape in ((2, 3, 32, 32), (1, 3, 24, 40), (1, 3, 37, 18)):
        x = image(*shape, dtype=torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(graph(x), model(x), rtol=0, atol=1e-4)
