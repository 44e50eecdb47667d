"""Segmenters and detectors in one file: read back to the bit, and their backbone taken out of it."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from vitrail import VitrailError, create_model
from vitrail.models.dense.detector import Detector
from vitrail.models.dense.segmenter import Segmenter
from vitrail.weights import load_weights, model_from, read_checkpoint, save_weights
from vitrail.weights.checkpoint import backbone_of
from vitrail.weights.header import settings_from_dict, settings_to_dict

BACKBONES = {
    "vit": ("deit_ti16", {"width": 16, "depth": 4, "heads": 2, "image_size": (32, 48), "registers": 1}),
    "swin": ("swin_t", {"width": 8, "depths": (1, 1, 1, 1), "heads": (1, 1, 2, 2), "image_size": 64}),
}
SMALL = {"pyramid_channels": 16, "hidden": 16, "short_side": 32, "long_side": 64, "proposals": 20, "regions": 8}


def backbone(kind: str) -> nn.Module:
    name, changes = BACKBONES[kind]
    return create_model(name, num_classes=5, **changes)


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("head", ["linear", "upernet"])
def test_a_segmenter_is_read_back_to_the_bit(tmp_path: Path, kind: str, head: str) -> None:
    model = Segmenter(backbone(kind), 3, head, width=16).eval()
    path = save_weights(model, tmp_path / "model.safetensors", labels=["a", "b", "c"])
    checkpoint = read_checkpoint(path)
    again = model_from(checkpoint)
    x = torch.randn(1, 3, 40, 52)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    assert again.settings == model.settings
    assert checkpoint.labels == ["a", "b", "c"]
    frozen = [{name for name, p in net.named_parameters() if not p.requires_grad} for net in (model, again)]
    assert frozen[0] == frozen[1] == set(model.idle)


@pytest.mark.parametrize("head", ["mask_rcnn", "retinanet"])
def test_a_detector_is_read_back_to_the_bit(tmp_path: Path, head: str) -> None:
    model = Detector(backbone("swin"), head, 2, **SMALL, score_threshold=0.0).eval()
    again = model_from(read_checkpoint(save_weights(model, tmp_path / "model.safetensors")))
    image = torch.randn(3, 40, 52)
    with torch.no_grad():
        found, expected = again([image])[0], model([image])[0]
    assert len(found["scores"]) > 0
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert again.preprocessing == model.preprocessing and again.preprocessing.fit == "native"


@pytest.mark.parametrize("kind", BACKBONES)
def test_the_backbone_of_a_dense_run_starts_a_classifier(tmp_path: Path, kind: str) -> None:
    x = torch.randn(1, 3, 64, 64)
    for number, model in enumerate([Segmenter(backbone(kind), 3, width=16), Detector(backbone(kind), **SMALL)]):
        path = save_weights(model, tmp_path / f"{number}.safetensors")
        inside = model_from(backbone_of(read_checkpoint(path)))
        classifier = backbone(kind)
        report = load_weights(classifier, path)
        assert report.used == len(model.backbone.state_dict())
        assert "head left" in report.notes[0] and "the head is new" in report.notes[-1]
        with torch.no_grad():
            expected = model.backbone.eval().features(x)["tokens"]
            assert torch.equal(inside.features(x)["tokens"], expected)
            assert torch.equal(classifier.eval().features(x)["tokens"], expected)


def dense(kind: str, head: str = "linear", classes: int = 3, pyramid: str = "auto", **changes: object) -> nn.Module:
    name, shape = BACKBONES[kind]
    model = create_model(name, num_classes=0, **{**shape, **changes})
    return Segmenter(model, classes, head, pyramid=pyramid, width=16) if head in ("linear", "upernet") else Detector(
        model, head, classes, **SMALL
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "wanted", "head", "note"),
    [
        (("vit",), ("vit", "linear", 4), "auto", "the file's num_classes is 3"),
        (("vit",), ("vit", "upernet"), "auto", "the file's head is linear"),
        (("vit", "upernet"), ("vit",), "auto", "the file's head is upernet"),
        (("vit", "upernet"), ("vit", "upernet", 3, "simple"), "auto", "the file's pyramid is adapter"),
        (("vit", "upernet"), ("vit", "upernet"), "new", "as asked"),
        (("swin", "retinanet"), ("swin", "retinanet"), "new", "as asked"),
    ],
)
def test_a_head_that_is_new_leaves_the_backbone_of_the_file(
    tmp_path: Path, made: tuple, wanted: tuple, head: str, note: str
) -> None:
    model, other = dense(*made), dense(*wanted)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    report = load_weights(other, save_weights(model, tmp_path / "model.safetensors"), head=head)
    assert report.notes == [f"the head and its pyramid are new ({note})"]
    assert report.used == len(model.backbone.state_dict())
    inside = other.settings.inside
    assert all(torch.equal(tensor, before[n]) for n, tensor in other.state_dict().items() if not n.startswith(inside))
    theirs, ours = model.backbone.state_dict(), other.backbone.state_dict()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_a_segmenter_for_another_size_keeps_its_head_and_resizes_its_positions(tmp_path: Path) -> None:
    model, other = dense("vit").eval(), dense("vit", image_size=(64, 48)).eval()
    report = load_weights(other, save_weights(model, tmp_path / "model.safetensors"))
    assert report.notes == ["positions resized from 2×3 to 4×3 by the rule 'timm'"]
    x = torch.randn(1, 3, 64, 48)
    with torch.no_grad():
        assert (other(x) - model(x)).abs().max() < 1e-5  # which resizes on every call


def test_settings_pass_through_json_and_an_unknown_one_is_named() -> None:
    for model in (Segmenter(backbone("vit"), 3, width=16), Detector(backbone("swin"), **SMALL)):
        values = json.loads(json.dumps(settings_to_dict(model.settings)))
        assert settings_from_dict(values) == model.settings
        with pytest.raises(VitrailError, match="A backbone's settings are those of a ViT or a Swin, got None"):
            settings_from_dict(values | {"backbone": None})
        values["backbone"]["wings"] = 2
        with pytest.raises(VitrailError, match="wings, unknown to this version"):
            settings_from_dict(values)


def test_what_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    path = save_weights(Segmenter(backbone("vit"), 3, width=16), tmp_path / "three.safetensors")
    with pytest.raises(VitrailError, match=r"3 classes.* does not fit this model .*4 classes"):
        load_weights(Segmenter(backbone("vit"), 4, width=16), path, head="keep")
    with pytest.raises(VitrailError, match="was trained with norm_eps=1e-06, this model has norm_eps=1e-12"):
        load_weights(Segmenter(create_model("deit_ti16", norm_eps=1e-12, **BACKBONES["vit"][1]), 3, width=16), path)
    with pytest.raises(VitrailError, match="holds a segmenter, which can't fill a detector"):
        load_weights(Detector(backbone("vit"), **SMALL), path)
    plain = save_weights(backbone("vit"), tmp_path / "plain.safetensors")
    with pytest.raises(VitrailError, match="holds a ViT, which can't fill a segmenter"):
        load_weights(Segmenter(backbone("vit"), 3, width=16), plain)
