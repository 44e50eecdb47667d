"""Loading: the arithmetic that comes with the weights, what does not fit, and models built from a checkpoint."""

import pytest
import timm
import torch
from safetensors.torch import save_file

import vitrail
from tests.parity.peers import assert_same, pictures, shake
from tests.weights.small import FAMILIES, SWIN, assert_equal_states, fresh, output, saved, small
from vitrail import VitrailError
from vitrail.weights import model_from, read_checkpoint

X = pictures(32, 32)


def test_rules_of_the_file_are_adopted_and_survive_our_bundle(tmp_path):
    model = small("vit", norm_eps=1e-12, activation="quick_gelu")
    other = fresh("vit")
    vitrail.load_weights(other, saved(model, tmp_path, "hf"))
    again = fresh("vit")
    vitrail.load_weights(again, vitrail.save_weights(other, tmp_path / "bundle.safetensors"))
    loaded = model_from(read_checkpoint(tmp_path / "bundle.safetensors"))
    for filled in (other, again, loaded):
        settings = filled.settings
        assert (settings.norm_eps, settings.activation, settings.position_rule) == (1e-12, "quick_gelu", "hf")
        assert {m.eps for m in filled.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-12}
        assert {block.mlp.activation for block in filled.blocks} == {"quick_gelu"}
        assert filled.position.rule == "hf"
        assert torch.equal(output(filled, X), output(model, X))


@pytest.mark.parametrize(
    ("family", "eps"), [("vit", 1e-6), ("dinov2", 1e-6), ("clip", 1e-5), ("dinov3", 1e-5), ("swin", 1e-5)]
)
def test_files_of_timm_bring_the_epsilon_of_its_class(family, eps, tmp_path):
    other = fresh(family, norm_eps=1e-12)
    vitrail.load_weights(other, saved(small(family), tmp_path, "timm"))
    assert other.settings.norm_eps == eps
    assert {m.eps for m in other.modules() if isinstance(m, torch.nn.LayerNorm)} == {eps}


def test_failed_load_changes_nothing(tmp_path):
    other = fresh("vit", width=64)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    settings = other.settings
    with pytest.raises(VitrailError):
        vitrail.load_weights(other, saved(small("vit", norm_eps=1e-12), tmp_path, "hf"))
    assert other.settings == settings
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


# Swin: its rule of padding decides windows and shifts


def test_swin_of_timm_in_a_model_of_the_default_rule_takes_over_its_windows_and_shifts(tmp_path):
    """At 64 pixels the maps are 16, 8 and 4: with a window of 8 the second may not shift, the third window shrinks."""
    shape = {"img_size": 64, "embed_dim": 16, "depths": (2, 2, 2), "num_heads": (2, 4, 8), "window_size": 8}
    peer = shake(timm.models.SwinTransformer(**shape, num_classes=5))
    save_file(peer.state_dict(), tmp_path / "model.safetensors")
    ours = {**SWIN, "depths": (2, 2, 2), "heads": (2, 4, 8), "window": 8, "image_size": 64}
    model = fresh("swin", **ours)
    assert vitrail.load_weights(model, tmp_path).notes == []
    assert model.settings.padding == "timm"
    assert [block.shift for block in model.blocks] == [(0, 0), (4, 4), (0, 0), (0, 0), (0, 0), (0, 0)]
    assert_same(output(model, pictures(64, 64)), output(peer, pictures(64, 64)))
    again = model_from(read_checkpoint(saved(model, tmp_path / "bundle")))
    assert torch.equal(output(again, pictures(64, 64)), output(model, pictures(64, 64)))


def test_swin_of_torchvision_in_a_model_of_timms_rule_shifts_again(tmp_path):
    model = small("swin")
    path = saved(model, tmp_path, "torchvision")
    other = fresh("swin", padding="timm")
    assert [block.shift for block in other.blocks][3] == (0, 0)
    vitrail.load_weights(other, path)
    x = pictures(44, 60)  # padded: here the rules differ
    assert torch.equal(output(other, x), output(model, x))


def test_rectangular_window_is_read_into_a_model_that_has_it(tmp_path):
    model = small("swin", window=(2, 4))
    path = saved(model, tmp_path, "torchvision")
    other = fresh("swin", window=(2, 4))
    assert vitrail.load_weights(other, path).notes == []
    assert torch.equal(output(other, X), output(model, X))
    with pytest.raises(VitrailError, match=r"has 21 rows, and a window of .* say window=\(height, width\)"):
        vitrail.load_weights(fresh("swin", window=(4, 4)), path)


def test_continuous_bias_of_swin_v2_carries_over_to_another_window(tmp_path):
    model, other = small("swinv2"), fresh("swinv2", window=8)
    vitrail.load_weights(other, saved(model, tmp_path))
    bias = other.stages[0][0].bias
    assert torch.equal(bias.fc1.weight, model.stages[0][0].bias.fc1.weight)
    assert bias.offsets.shape == (15 * 15, 2)


# Mismatches


def test_wrong_model_is_told_in_a_few_lines_by_kinds_of_names_with_shapes(tmp_path):
    path = saved(small("vit"), tmp_path, "timm")
    with pytest.raises(VitrailError) as caught:
        vitrail.load_weights(fresh("vit", width=64, depth=4, registers=2, layer_scale=0.1), path)
    lines = str(caught.value).splitlines()
    file, model = "timm, width 32, depth 2, patch 8, 5 classes", "width 64, depth 4, patch 8, 5 classes"
    assert lines[0] == f"{path} ({file}) does not fit this model ({model}):"
    assert lines[1].startswith("  missing in the file: registers, blocks.0–3.scale1.gamma,")
    assert "more kinds" in lines[1]
    assert "  blocks.0–1.attention.proj.bias, blocks.0–1.mlp.fc2.bias and 7 more kinds: [32], expected [64]" in lines
    assert "  patch.weight: [32, 3, 8, 8], expected [64, 3, 8, 8]" in lines
    assert len(lines) <= 8
    assert max(map(len, lines)) < 400


def test_weights_that_the_model_has_no_place_for_are_named(tmp_path):
    path = saved(small("dinov2_registers"), tmp_path, "timm")
    with pytest.raises(
        VitrailError, match=r"not in the model: registers, blocks\.0–1\.scale1\.gamma, blocks\.0–1\.scale2"
    ):
        vitrail.load_weights(fresh("vit"), path)


def test_swin_and_vit_do_not_mix(tmp_path):
    with pytest.raises(VitrailError, match="holds a Swin, which can't fill a ViT"):
        vitrail.load_weights(fresh("vit"), saved(small("swin"), tmp_path))


def test_model_with_a_part_replaced_is_not_filled_in_silence(tmp_path):
    model = fresh("vit")
    model.head = torch.nn.Linear(32, 5)
    with pytest.raises(VitrailError, match=r"missing in the file: head\.weight, head\.bias"):
        vitrail.load_weights(model, saved(small("vit"), tmp_path))


def test_module_that_is_no_model_of_ours_is_refused(tmp_path):
    with pytest.raises(VitrailError, match="Linear is not a model of vitrail"):
        vitrail.load_weights(torch.nn.Linear(2, 2), saved(small("vit"), tmp_path))


# model_from


@pytest.mark.parametrize("family", FAMILIES)
def test_model_from_a_checkpoint_equals_one_that_was_created_and_filled(family, tmp_path):
    path = saved(small(family), tmp_path)
    loaded, filled = model_from(read_checkpoint(path)), fresh(family)
    vitrail.load_weights(filled, path)
    assert not loaded.training
    assert_equal_states(loaded, filled)
    ours, theirs = dict(loaded.named_buffers()), dict(filled.named_buffers())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {t.device.type for t in [*loaded.parameters(), *loaded.buffers()]} == {"cpu"}
    assert all(p.requires_grad and p.is_contiguous() for p in loaded.parameters())
    size = loaded.settings.image_size
    if family != "mae":
        assert torch.equal(output(loaded, pictures(*size)), output(filled, pictures(*size)))


def test_model_from_a_checkpoint_does_not_initialise(tmp_path):
    """The generator of random numbers is where it was; and no memory is filled only to be thrown away."""
    checkpoint = read_checkpoint(saved(small("vit"), tmp_path))
    before = torch.random.get_rng_state()
    model_from(checkpoint)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_model_from_a_checkpoint_takes_changes(tmp_path):
    model = small("vit")
    checkpoint = read_checkpoint(saved(model, tmp_path))
    features = model_from(checkpoint, num_classes=0)
    assert torch.equal(output(features, X), model.features(X)["pooled"])
    larger = model_from(checkpoint, image_size=64, num_classes=3)
    assert larger.position.table.shape[1] == 65
    assert output(larger, pictures(64, 64)).shape == (2, 3)
    assert larger.head.output.weight.std() > 0
    assert checkpoint.settings.num_classes == 5


def test_model_for_another_size_or_other_channels_has_the_preprocessing_for_them(tmp_path):
    checkpoint = read_checkpoint(saved(small("swin"), tmp_path))
    assert model_from(checkpoint, num_classes=0).preprocessing == checkpoint.preprocessing
    pre = model_from(checkpoint, image_size=(48, 64), channels=1).preprocessing
    assert pre.size == (48, 64) and pre.mean == (pytest.approx(0.449, abs=1e-6),)  # of ImageNet's three
    filled = fresh("swin", image_size=(48, 64), channels=1)
    vitrail.load_weights(filled, checkpoint.path)
    assert filled.preprocessing == pre


def test_weights_trained_with_other_heads_are_refused_though_every_shape_fits(tmp_path):
    path = vitrail.save_weights(
        vitrail.create_model("vit_ti16", depth=1, num_classes=3), tmp_path / "three.safetensors"
    )
    other = vitrail.create_model("vit_ti16", depth=1, num_classes=3, heads=12)
    with pytest.raises(VitrailError, match="trained with heads=3, this model has heads=12"):
        vitrail.load_weights(other, path)


def test_preprocessing_of_the_weights_is_saved_with_them(tmp_path):
    source = vitrail.save_weights(vitrail.create_model("vit_ti16", depth=1), tmp_path / "half.safetensors")
    assert read_checkpoint(source).preprocessing.mean == (0.5, 0.5, 0.5)  # the catalog's for ViT
    model = vitrail.create_model("deit_ti16", depth=1)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    vitrail.load_weights(model, source)
    again = vitrail.save_weights(model, tmp_path / "again.safetensors")
    assert read_checkpoint(again).preprocessing.mean == (0.5, 0.5, 0.5)


def test_two_models_of_one_checkpoint_do_not_share_memory(tmp_path):
    path = vitrail.save_weights(vitrail.create_model("vit_ti16", depth=1), tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(path)
    one, two = model_from(checkpoint), model_from(checkpoint)
    one.norm.weight.data.zero_()
    assert two.norm.weight.abs().sum() > 0
