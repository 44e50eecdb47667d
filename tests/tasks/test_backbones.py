"""The model that a run starts from: one that suits images and machine, or that of the weights that are named."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

import vitrail
from vitrail.errors import VitrailError
from vitrail.models import create_model
from vitrail.tasks.backbones import check_asked, start_model, suited
from vitrail.weights import read_checkpoint, save_weights


@pytest.mark.parametrize(
    ("largest", "gpu", "plain", "name"),
    [(8, True, False, "vit_nano4"), (32, False, False, "vit_mini4"), (32, True, False, "hybrid_mini4"),
     (64, True, False, "hybrid_mini8"), (64, True, True, "vit_mini8"), (300, True, False, "vit_s16"),
     (300, False, False, "deit_ti16")],
)  # fmt: skip
def test_a_model_that_suits_the_images_and_the_machine(largest, gpu, plain, name):
    assert suited(largest, gpu, plain) == name


@pytest.mark.parametrize(
    ("there", "asked", "differs"),
    [
        ("tv:resnet18", "tv:resnet18", {}),  # whose stem its images have settled
        ("tv:resnet18", "tv:resnet34", {"arch": ("resnet18", "resnet34")}),
        ("hybrid_mini4", "hybrid_mini4", {}),
        (
            "vit_mini4:width=64,heads=2,depth=1",
            "vit_mini4",
            {"width": (64, 192), "depth": (1, 9)},
        ),
        ("vit_nano2", "tv:resnet18", {"arch": (None, "resnet18")}),
        ("vit_nano2:position=rotary", "vit_nano2:position=rotary", {}),
        ("vit_nano2", "vit_nano2:position=rotary", {"position": ("learned", "rotary")}),
        ("vit_nano2:position=rotary", "vit_nano2", {}),  # which says nothing of positions
        ("vit_nano2", "vit_nano2_distilled", {"distillation_token": (False, True)}),
    ],
)
def test_only_what_shapes_a_model_is_compared_with_its_weights(there, asked, differs, tmp_path):
    path = vitrail.save_weights(vitrail.create_model(there, num_classes=3), tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(path)
    with pytest.raises(VitrailError) if differs else nullcontext() as info:
        check_asked(asked, checkpoint, str(path))
    if info is not None:
        assert (info.value.code, info.value.fields) == ("other_model", {"differs": differs})


def test_images_no_larger_than_what_a_model_learned_from_are_not_enlarged(tmp_path):
    model = create_model("vit_nano4", num_classes=3, image_size=16)
    pre = replace(model.preprocessing, size=(24, 24))
    path = save_weights(model, tmp_path / "model.safetensors", preprocessing=pre)
    sizes = [start_model(None, str(path), ["a", "b"], None, None, side, False).preprocessing.size for side in (16, 17)]
    assert sizes == [(16, 16), (24, 24)]
    assert start_model(None, str(path), ["a", "b"], 24, None, 16, False).preprocessing.size == (24, 24)
