"""Ten planted faults, each found by the finding that is about it, and by no other; but for a run that exploded, whose
weights may show it in other checks too."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.doctor.small import (
    LABELS,
    PRE,
    batch,
    check,
    codes,
    examine,
    make,
    normalised,
    pixels,
    teach,
    trained,
    write_pictures,
)
from tests.training.support import make_folder, small_options
from vitrail.doctor import diagnose


def saved(model: torch.nn.Module, path: Path, dialect: str = "vitrail") -> Path:
    labels = LABELS if dialect == "vitrail" else None
    return vitrail.save_weights(model, path, dialect, labels, PRE)


def rewritten(path: Path, change) -> Path:
    """The file with its tensors, or its header, changed."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    state = load_file(path)
    change(state, metadata)
    save_file(state, path, metadata)
    return path


# -- 1: positions all zero ---------------------------------------------------------------------------------------------


def test_positions_that_are_all_zero_are_found():
    model = trained()
    model.position.table.data.zero_()
    found = examine(model)
    assert codes(found) == {"positions_zero"}
    assert found.faults[0].figures["size"] == 0


def test_positions_that_are_all_equal_are_found():
    model = trained()
    model.position.table.data[:] = torch.randn(48)
    assert [finding.code for finding in check("positions", model)] == ["positions_equal"]


@pytest.mark.parametrize("kind", ["sincos", "factorised", "relative", "rotary", "conditional"])
def test_positions_of_every_kind_are_found_when_zero(kind):
    model = teach(make(position=kind), 5)
    assert [finding.severity for finding in check("positions", model)] == ["ok"]
    for tensor in [*model.position.parameters(), *model.position.buffers()]:
        tensor.data.zero_()
    assert [finding.code for finding in check("positions", model)] == ["positions_zero"]


def test_windows_without_relative_positions_are_found():
    model = teach(make("swin_t"), 5)
    model.blocks[2].bias.table.data.zero_()
    (found,) = check("positions", model)
    assert found.code == "positions_zero" and "block 3" in found.seen


# -- 2: blue, green, red -----------------------------------------------------------------------------------------------


def test_pictures_in_the_order_blue_green_red_are_found():
    pictures, labels = pixels()
    found = examine(trained(), (normalised(pictures.flip(1)), labels))
    assert codes(found) == {"channel_order"}
    assert found.faults[0].figures["t"] > 3


def test_weights_for_the_order_blue_green_red_are_found():
    model = trained()
    model.patch.weight.data = model.patch.weight.data.flip(1)
    assert [finding.code for finding in check("preprocessing", model)] == ["channel_order"]


# -- 3: missing normalisation ------------------------------------------------------------------------------------------


def test_pictures_that_were_never_normalised_are_found():
    assert codes(examine(trained(), pixels())) == {"normalisation"}


def test_pictures_from_0_to_255_are_found():
    pictures, labels = pixels()
    assert [finding.code for finding in check("preprocessing", trained(), (255 * pictures, labels))] == [
        "normalisation"
    ]


def test_without_labels_the_range_of_the_numbers_tells():
    (found,) = check("preprocessing", trained(), pixels()[0])
    assert found.severity == "fault" and found.code == "normalisation"


def test_a_file_that_states_no_normalisation_is_found(tmp_path):
    path = saved(trained(), tmp_path / "model.safetensors")

    def plain(state, metadata):
        header = json.loads(metadata["vitrail"])
        header["preprocessing"] |= {"mean": [0.0] * 3, "std": [1.0] * 3}
        metadata["vitrail"] = json.dumps(header)

    data = write_pictures(tmp_path / "data")
    assert codes(diagnose(rewritten(path, plain), data, device="cpu")) == {"normalisation"}


# -- 4: a frozen block -------------------------------------------------------------------------------------------------


def test_a_block_that_may_not_learn_is_found():
    model = trained()
    model.blocks[2].requires_grad_(False)
    found = examine(model)
    assert codes(found) == {"frozen"}
    assert found.faults[0].seen.startswith("block 3 of 4")


# A block that did not move in a run: in test_healthy.py, with the run as it should be.


# -- 5: a dead head ----------------------------------------------------------------------------------------------------


def test_a_head_without_values_is_found():
    model = trained()
    attention = model.blocks[1].attention
    attention.qkv.weight.data.view(3, 3, 16, 48)[2, 1] = 0  # the values of head 1
    attention.qkv.bias.data.view(3, 3, 16)[2, 1] = 0
    found = examine(model)
    assert codes(found) == {"dead_head"}
    assert "block.head 2.2" in found.faults[0].seen


def test_a_head_that_the_projection_leaves_out_is_found():
    model = trained()
    model.blocks[3].attention.proj.weight.data[:, 32:] = 0
    (found,) = check("attention", model)
    assert found.code == "dead_head" and "4.3" in found.seen


def test_a_head_that_asks_nothing_is_found():
    model = trained()
    attention = model.blocks[0].attention
    attention.qkv.weight.data.view(3, 3, 16, 48)[0, 2] = 0
    attention.qkv.bias.data.view(3, 3, 16)[0, 2] = 0
    (found,) = check("attention", model)
    assert found.code == "blind_head" and "1.3" in found.seen


# -- 6: shuffled labels ------------------------------------------------------------------------------------------------


def test_shuffled_labels_are_found():
    x, labels = batch()
    found = examine(trained(), (x, labels[torch.randperm(len(labels))]))
    assert codes(found) == {"shuffled_labels"}
    assert abs(found.faults[0].figures["z"]) < 3


def test_classes_in_another_order_are_told_from_shuffled_labels():
    x, labels = batch()
    exchanged = torch.tensor([1, 0, 3, 2])[labels]
    assert [finding.code for finding in check("labels", trained(), (x, exchanged))] == ["class_order"]


# -- 7: a wrong patch size ---------------------------------------------------------------------------------------------


def test_a_header_with_another_patch_size_is_found(tmp_path):
    def other(state, metadata):
        header = json.loads(metadata["vitrail"])
        header["settings"]["patch_size"] = [4, 4]
        metadata["vitrail"] = json.dumps(header)

    path = rewritten(saved(trained(), tmp_path / "model.safetensors"), other)
    found = diagnose(path, device="cpu")
    assert codes(found) == {"patch_size"}
    assert found.faults[0].figures == {"file": 8, "claimed": 4}


def test_a_checkpoint_of_another_patch_size_than_it_is_called_is_found(tmp_path):
    model = vitrail.create_model("vit_ti16", depth=12, image_size=32)
    path = vitrail.save_weights(model, tmp_path / "model.safetensors", "timm")
    assert codes(diagnose(path, architecture="vit_s32", device="cpu")) == {"patch_size"}


def test_patches_cut_smaller_than_the_embedding_are_found():
    model = trained()
    model.patch.patch_size = (4, 4)
    assert codes(examine(model)) == {"patch_size"}


# -- 8: a learning rate that explodes ----------------------------------------------------------------------------------


def test_a_learning_rate_that_explodes_is_found_by_trying_it():
    assert codes(examine(make(), lr=1e-3)) == set()
    found = examine(make(), lr=3.0)
    assert codes(found) == {"lr_explodes"}
    assert found.faults[0].figures["most"] > 2 * found.faults[0].figures["first"]


def test_a_run_whose_learning_rate_exploded_is_found(tmp_path):
    data = make_folder(tmp_path / "data", 48, 3, 12)
    options = small_options(augment="none", epochs=3, clip=0.0, warmup=0.0) | {"lr": 30.0}
    try:
        vitrail.train(data, out=tmp_path / "run", **options)
    except vitrail.VitrailError as error:
        assert "--lr" in str(error)
    found = diagnose(tmp_path / "run", device="cpu")
    assert {finding.code for finding in found.faults if finding.check in ("learning", "history")} >= {"lr_explodes"}


# -- 9: half-loaded weights --------------------------------------------------------------------------------------------


def test_weights_that_were_loaded_half_are_found():
    model = make()
    half = {
        name: value for name, value in trained().state_dict().items() if not name.startswith(("blocks.2", "blocks.3"))
    }
    model.load_state_dict(half, strict=False)
    found = examine(model)
    assert codes(found) == {"half_loaded"}
    assert "blocks 3–4" in found.faults[0].seen


def test_a_file_that_lacks_half_of_its_blocks_is_found(tmp_path):
    def cut(state, _):
        for name in [name for name in state if name.startswith(("blocks.2.", "blocks.3."))]:
            del state[name]

    found = diagnose(rewritten(saved(trained(), tmp_path / "model.safetensors"), cut), device="cpu")
    assert codes(found) == {"half_loaded"}
    assert "blocks 3–4" in found.faults[0].seen


def test_a_bare_file_that_ends_half_way_is_found(tmp_path):
    """What is left is whole in itself, and loads: only its name tells that there was more."""
    model = vitrail.create_model("deit_ti16", depth=6, image_size=32)
    path = vitrail.save_weights(model, tmp_path / "deit_tiny_in1k" / "model.safetensors", "timm")
    found = diagnose(path, device="cpu")
    assert codes(found) == {"half_loaded"}
    assert "deit_ti16 but for its depth 6 (not 12)" in found.faults[0].seen


def test_a_bare_file_that_lacks_a_tensor_is_found(tmp_path):
    path = saved(trained(), tmp_path / "model.safetensors", "timm")
    found = diagnose(rewritten(path, lambda state, _: state.pop("blocks.1.mlp.fc1.bias")), device="cpu")
    assert codes(found) == {"half_loaded"}


def test_a_patch_embedding_that_did_not_fit_and_was_passed_over_is_found():
    model, long_trained = make(patch_size=16), trained()
    for name, parameter in long_trained.named_parameters():
        if "norm" in name:
            parameter.data *= 1.2
    own = model.state_dict()
    theirs = {name: tensor for name, tensor in long_trained.state_dict().items() if tensor.shape == own[name].shape}
    assert set(own) - set(theirs) == {"patch.weight", "position.table"}
    model.load_state_dict(theirs, strict=False)
    (found,) = check("weights", model)
    assert found.code == "half_loaded" and "the patch embedding" in found.seen


# -- 10: a token left out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "token"), [("vit_ti16", "cls_token"), ("deit_ti16_distilled", "dist_token")])
def test_a_bare_file_without_one_of_its_tokens_is_found(tmp_path, name, token):
    path = saved(make(name), tmp_path / "model.safetensors", "timm")
    found = diagnose(rewritten(path, lambda state, _: state.pop(token)), device="cpu")
    assert codes(found) == {"token_left_out"}
    tokens = {"vit_ti16": 1, "deit_ti16_distilled": 2}[name]
    assert found.faults[0].figures == {"rows": 16 + tokens, "expected": 15 + tokens}


def test_a_bundle_without_its_class_token_is_found(tmp_path):
    path = saved(trained(), tmp_path / "model.safetensors")
    found = diagnose(rewritten(path, lambda state, _: state.pop("class_token")), device="cpu")
    assert codes(found) == {"token_left_out"}


def test_a_file_of_dinov2_without_its_registers_is_found(tmp_path):
    model = vitrail.create_model("dinov2_s14_reg4", width=32, depth=2, heads=2, image_size=28)
    path = vitrail.save_weights(model, tmp_path / "model.safetensors")
    found = diagnose(rewritten(path, lambda state, _: state.pop("registers")), device="cpu")
    assert codes(found) == {"token_left_out"}
    assert found.faults[0].figures == {"file": 0, "claimed": 4}


def test_a_model_that_leaves_its_class_token_out_is_found():
    model = trained()
    model.class_token = None
    assert codes(examine(model)) == {"token_left_out"}


def test_a_class_token_of_zeros_is_found():
    model = trained()
    model.class_token.data.zero_()
    assert [finding.code for finding in check("weights", model)] == ["token_left_out"]
