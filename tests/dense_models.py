"""Small segmenters and detectors for tests of their use, with no training behind them."""

import torch

from vitrail import create_model
from vitrail.models.dense.detector import Detector
from vitrail.models.dense.segmenter import Segmenter
from vitrail.predict import Predictor

BACKBONE = {"width": 16, "depth": 4, "heads": 2, "num_classes": 0, "image_size": 32}


def segmenter(classes: int) -> Segmenter:
    return Segmenter(create_model("vit_ti16", **BACKBONE), classes, "linear").eval()


def seeing_colours(fit: str) -> Predictor:
    """Says 1 where there is more red than blue: patches of 2 pixels, blocks that change nothing, and a linear head."""
    model = Segmenter(create_model("vit_ti16", **{**BACKBONE, "patch_size": 2, "position": "none"}), 2, "linear").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attention.proj" in name or ".mlp.fc2" in name or "head.output" in name:
                parameter.zero_()
        weight = model.backbone.patch.weight.zero_()
        weight[0, 0], weight[1, 2] = 1.0, 1.0  # red, blue
        model.backbone.patch.bias.zero_()
        model.head.output.weight[0, 1], model.head.output.weight[1, 0] = 1.0, 1.0
    pre = model.preprocessing
    predictor = Predictor(model, pre, ["blue", "red"], "colours", "cpu")
    predictor.preprocessing = type(pre)(**{**vars(pre), "fit": fit})
    return predictor


def detector(head: str) -> Predictor:
    model = Detector(
        create_model("vit_ti16", **BACKBONE), head, 2, pyramid="simple", pyramid_channels=16, hidden=32, short_side=64,
        long_side=128, proposals=30, score_threshold=0.0, detections=6,
    )  # fmt: skip
    return Predictor(model, model.preprocessing, ["cat", "dog"], "small", "cpu")
