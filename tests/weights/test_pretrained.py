"""`create_model` with public weights, from a cache in huggingface_hub's own layout or from inside the package."""

import pytest
import torch

import vitrail
from tests.weights.small import assert_equal_states
from tests.weights.test_hub import run, snapshot
from vitrail.errors import VitrailError
from vitrail.models import catalog
from vitrail.weights import model_from, read_checkpoint


def test_public_weights_come_from_the_cache(tmp_path):
    torch.manual_seed(3)
    model = vitrail.create_model("deit_ti16")
    vitrail.save_weights(model, snapshot(tmp_path / "hub", catalog()["deit_ti16"].hub) / "model.safetensors", "timm")
    out = tmp_path / "out.safetensors"
    script = f"""
import vitrail
for name in ("deit_ti16", "deit_tiny_patch16_224", "deit_tiny_patch16_224.fb_in1k"):
    model = vitrail.create_model(name, pretrained=True)
    print(model.training, model.num_classes, model.preprocessing.size)
vitrail.save_weights(model, {str(out)!r})
model = vitrail.create_model("deit_ti16", pretrained=True, num_classes=4, image_size=96, drop_path=0.1)
print(model.num_classes, model.preprocessing.size, model.position.grid, model.settings.drop_path)
for name in ("deit_ti16:position=rotary", "deit_ti16_384", "vit_b16", "vit_nano4", "tv:resnet18", "vit_b61"):
    try:
        vitrail.create_model(name, pretrained=True)
    except vitrail.VitrailError as error:
        print(error)
"""
    lines = run(script, HF_HUB_CACHE=str(tmp_path / "hub")).splitlines()
    assert lines[:3] == ["True 1000 (224, 224)"] * 3
    assert lines[3] == "4 (96, 96) (6, 6) 0.1"
    assert_equal_states(model_from(read_checkpoint(out)), model)
    hub = catalog()["vit_b16"].hub
    for line, start in zip(
        lines[4:],
        (
            "No public weights are recorded for deit_ti16:position=rotary (another than timm/deit_tiny_patch16_224",
            "No public weights are recorded for deit_ti16_384 (another than",
            f"hf://{hub} can't be had: it is not in the local cache",
            "No public weights are recorded for vit_nano4",
            "No public weights are recorded for tv:resnet18",
            "'vit_b61' is neither a file or folder nor a model name",
        ),
        strict=True,
    ):
        assert line.startswith(start), line


def test_a_model_that_ships_inside_needs_no_network():
    model = vitrail.create_model("vitrail_tiny", pretrained=True).eval()
    inside = vitrail.load("vitrail_tiny", device="cpu").model
    assert_equal_states(model, inside)
    other = vitrail.create_model("vitrail_tiny", pretrained=True, num_classes=3)
    assert other.num_classes == 3 and torch.equal(other.patch.weight, inside.patch.weight)
    with pytest.raises(VitrailError, match="vitrail_tiny is a trained model and no architecture: add pretrained=True"):
        vitrail.create_model("vitrail_tiny")


def test_without_it_the_weights_are_fresh_and_architecture_is_the_keyword():
    torch.manual_seed(1)
    ours = vitrail.create_model(architecture="vit_nano4", num_classes=3)
    torch.manual_seed(1)
    assert_equal_states(ours, vitrail.models.create_model("vit_nano4", num_classes=3))
