"""Every kind of position and head as an ONNX graph, at sizes that the example was not."""

import pytest
import torch

from tests.models.restatements import image, randomised
from vitrail.exporters.onnx import write_onnx
from vitrail.models import Preprocessing, VisionTransformer
from vitrail.tasks.classify.task import ClassifyTask
from vitrail.weights.header import header_of
from vitrail.weights.onnx import OnnxModel

VIT = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 1, "heads": 2, "num_classes": 5}


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "relative", "distillation_token": True, "registers": 2},
        {"position": "rotary", "activation": "swiglu", "qkv_bias": "qv"},
        {"position": "sincos", "pool": "attention", "class_token": False, "position_rule": "hf"},
        {"position": "conditional", "num_classes": 0, "channels": 1},
    ],
    ids=lambda c: c["position"],
)
def test_a_graph_gives_the_logits_of_its_model_at_three_sizes(changes, tmp_path):
    model = randomised(VisionTransformer(**{**VIT, **changes})).float().eval()
    header = header_of(model.settings, Preprocessing().suited(model.settings), None, None)
    write_onnx(ClassifyTask().graph(model, (16, 16)), tmp_path / "m.onnx", header)
    graph = OnnxModel(tmp_path / "m.onnx")
    assert graph.fixed_size is None
    assert graph.settings == model.settings
    for shape in ((2, 16, 16), (3, 12, 40), (1, 13, 18)):
        x = image(shape[0], model.settings.channels, *shape[1:], dtype=torch.float32)
        with torch.no_grad():
            logits, pooled = model(x), model.features(x)["pooled"]
        assert logits.abs().max() > 1e-2
        torch.testing.assert_close(graph(x), logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(graph.features(x)["pooled"], pooled, rtol=0, atol=1e-4)
