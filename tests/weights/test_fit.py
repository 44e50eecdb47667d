"""Weights into models of other heads, sizes, channels and tokens: what is kept, changed, new, and said about it."""

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import vitrail
from tests.parity.peers import assert_same, pictures, shake
from tests.weights.small import fresh, output, saved, small
from vitrail import VitrailError
from vitrail.weights import read_checkpoint

X = pictures(32, 32)


# Heads


def test_head_of_as_many_classes_is_kept(tmp_path):
    model, other = small("vit"), fresh("vit")
    assert vitrail.load_weights(other, saved(model, tmp_path)).notes == []
    assert torch.equal(output(other, X), output(model, X))


def test_head_of_other_classes_stays_new_and_the_rest_is_taken(tmp_path):
    model, other = small("vit"), fresh("vit", num_classes=9)
    before = other.head.output.weight.clone()
    report = vitrail.load_weights(other, saved(model, tmp_path))
    assert report.notes == ["the head is new (the file's has 5 classes, the model 9)"]
    assert torch.equal(other.head.output.weight, before)
    assert torch.equal(other.features(X)["pooled"], model.features(X)["pooled"])


def test_head_is_new_where_asked_although_it_would_fit(tmp_path):
    model, other = small("swin"), fresh("swin")
    before = other.head.output.weight.clone()
    assert vitrail.load_weights(other, saved(model, tmp_path), head="new").notes == ["the head is new (as asked)"]
    assert torch.equal(other.head.output.weight, before)


def test_head_that_must_be_kept_but_does_not_fit_is_refused(tmp_path):
    other = fresh("vit", num_classes=9)
    with pytest.raises(VitrailError, match=r"head\.output\.weight: \[5, 32\], expected \[9, 32\]"):
        vitrail.load_weights(other, saved(small("vit"), tmp_path), head="keep")
    path = saved(small("vit", num_classes=0), tmp_path)
    with pytest.raises(VitrailError, match="has no head to keep"):
        vitrail.load_weights(other, path, head="keep")
    with pytest.raises(VitrailError, match="head='none' is not known; choose one of auto, keep, new"):
        vitrail.load_weights(other, path, head="none")


@pytest.mark.parametrize("family", ["vit", "vit_mlp_head", "deit_distilled", "swin"])
def test_model_without_classes_drops_the_head(family, tmp_path):
    model, other = small(family), fresh(family, num_classes=0, **({"head": "linear"} if "mlp" in family else {}))
    assert vitrail.load_weights(other, saved(model, tmp_path)).notes == []
    assert torch.equal(other.features(X)["pooled"], model.features(X)["pooled"])


def test_file_without_a_head_leaves_the_model_its_own(tmp_path):
    other = fresh("vit")
    report = vitrail.load_weights(other, saved(small("vit", num_classes=0), tmp_path))
    assert report.notes == ["the head is new (the file has none)"]


def test_head_with_a_hidden_layer_serves_as_a_whole_or_not_at_all(tmp_path):
    model = small("vit_mlp_head")
    path = saved(model, tmp_path)
    other = fresh("vit_mlp_head")
    vitrail.load_weights(other, path)
    assert torch.equal(output(other, X), output(model, X))

    linear = fresh("vit")  # as many classes, but without the hidden layer they would be others
    before = linear.head.output.weight.clone()
    assert vitrail.load_weights(linear, path).notes == ["the head is new (the file's has a hidden layer)"]
    assert torch.equal(linear.head.output.weight, before)
    report = vitrail.load_weights(other, saved(small("vit"), tmp_path))
    assert report.notes == ["the head is new (the file's has no hidden layer)"]


def test_distilled_to_plain_leaves_out_token_head_and_row(tmp_path):
    model, other = small("deit_distilled"), fresh("vit")
    report = vitrail.load_weights(other, saved(model, tmp_path, "timm"))
    assert report.notes == ["the distillation token and its head were left out"]
    assert torch.equal(other.position.table[0, 0], model.position.table[0, 0])
    assert torch.equal(other.position.table[0, 1:], model.position.table[0, 2:])
    assert torch.equal(other.head.output.weight, model.head.output.weight)


def test_plain_to_distilled_starts_token_and_head_afresh_and_says_so(tmp_path):
    model, other = small("vit"), fresh("deit_distilled")
    token, head = other.distillation_token.clone(), other.head_distillation.output.weight.clone()
    report = vitrail.load_weights(other, saved(model, tmp_path, "timm"))
    assert report.notes == ["the distillation token and its head are new: the file has none"]
    assert torch.equal(other.distillation_token, token)
    assert torch.equal(other.head_distillation.output.weight, head)
    assert torch.equal(other.position.table[0, 0], model.position.table[0, 0])
    assert torch.equal(other.position.table[0, 1], torch.zeros(32))
    assert torch.equal(other.position.table[0, 2:], model.position.table[0, 1:])


# Positions

RULES = {
    "timm": {"mode": "bicubic", "antialias": True},
    "hf": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
}


@pytest.mark.parametrize("dialect", RULES)
@pytest.mark.parametrize("size", [(64, 64), (24, 40), (16, 16)])
def test_table_is_resized_at_load_by_the_rule_of_the_source(dialect, size, tmp_path):
    model = small("vit")
    other = fresh("vit", image_size=size)
    grid = size[0] // 8, size[1] // 8
    report = vitrail.load_weights(other, saved(model, tmp_path, dialect))
    assert report.notes == [f"positions resized from 4×4 to {grid[0]}×{grid[1]} by the rule '{dialect}'"]
    table = model.position.table.detach()
    patches = table[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    expected = F.interpolate(patches, size=grid, **RULES[dialect]).permute(0, 2, 3, 1).flatten(1, 2)
    assert (other.position.table[:, 1:] - expected).abs().max() < 1e-6
    assert torch.equal(other.position.table[:, 0], table[:, 0])
    assert other.settings.position_rule == other.position.rule == dialect
    # At other sizes the model goes on resizing by that rule, from the table it now has.
    on_the_fly = other.position.add(torch.zeros(1, 7, 6, 32))
    image = expected.unflatten(1, grid).permute(0, 3, 1, 2)
    assert (on_the_fly[0].permute(2, 0, 1) - F.interpolate(image, size=(7, 6), **RULES[dialect])[0]).abs().max() < 1e-6


@pytest.mark.parametrize("family", ["vit", "deit_distilled"])
def test_table_without_rows_for_tokens_and_with_them_compute_the_same(family, tmp_path):
    with_rows = small(family)
    without = fresh(family, position_prefix=False)
    vitrail.load_weights(without, saved(with_rows, tmp_path))
    assert without.position.table.shape[1] == 16
    assert (output(without, X) - output(with_rows, X)).abs().max() < 1e-6
    back = fresh(family)
    vitrail.load_weights(back, saved(without, tmp_path))
    assert (output(back, X) - output(with_rows, X)).abs().max() < 1e-6


def test_timm_table_with_rows_for_registers_computes_the_same_here(tmp_path):
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    peer = shake(timm.models.VisionTransformer(**shape, reg_tokens=3))
    save_file(peer.state_dict(), tmp_path / "model.safetensors")
    assert peer.pos_embed.shape[1] == 1 + 3 + 16
    model = fresh("vit", registers=3)
    assert vitrail.load_weights(model, tmp_path).notes == []
    assert_same(output(model, X), output(peer, X))
    vitrail.save_weights(model, tmp_path / "back.safetensors", dialect="timm")
    peer.load_state_dict(load_file(tmp_path / "back.safetensors"), strict=True)
    assert_same(output(model, X), output(peer, X))


def test_table_of_a_wide_image_is_read_into_a_model_of_that_size(tmp_path):
    model, other = small("vit", image_size=(16, 48)), fresh("vit", image_size=(16, 48))
    assert vitrail.load_weights(other, saved(model, tmp_path, "timm")).notes == []
    assert torch.equal(output(other, pictures(16, 48)), output(model, pictures(16, 48)))


def test_table_of_a_wide_image_whose_rows_make_a_square_is_the_models_own(tmp_path):
    shape = {"img_size": (16, 32), "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    peer = shake(timm.models.VisionTransformer(**shape))
    assert peer.pos_embed.shape[1] == 3 * 3 == 1 + 2 * 4  # not 3×3 patches: 2×4, and the class token
    save_file(peer.state_dict(), tmp_path / "model.safetensors")
    model, x = fresh("vit", image_size=(16, 32)), pictures(16, 32)
    assert vitrail.load_weights(model, tmp_path).notes == []
    assert_same(output(model, x), output(peer, x))
    with pytest.warns(UserWarning, match="its 9 positions are taken as 3×3 patches and none for the class token; say"):
        assert read_checkpoint(tmp_path).settings.position_prefix is False
    with pytest.warns(UserWarning, match=r"assumed: mean \(0.485, 0.456, 0.406\) and deviation \(\S+ \S+ \S+\.$"):
        told = read_checkpoint(tmp_path, image_size=(16, 32), heads=2).settings
    assert (told.grid, told.position_prefix) == ((2, 4), True)


def test_fixed_positions_start_a_learned_table_and_come_back(tmp_path):
    model, learned = small("sincos"), fresh("vit")
    for dialect in ("vitrail", "timm"):
        assert vitrail.load_weights(learned, saved(model, tmp_path, dialect)).notes == []
        assert (output(learned, X) - output(model, X)).abs().max() < 1e-6
    fixed = fresh("sincos")
    assert vitrail.load_weights(fixed, saved(learned, tmp_path)).notes == []
    assert torch.equal(output(fixed, X), output(model, X))
    report = vitrail.load_weights(fixed, saved(small("vit"), tmp_path))
    assert report.notes == ["positions are sincos; those of the file, learned, were left out"]


@pytest.mark.parametrize(
    ("source", "target", "note"),
    [
        ("learned", "rotary", "positions are rotary; those of the file, learned, were left out"),
        ("factorised", "learned", "positions are learned; those of the file, factorised, were left out"),
        ("factorised", "sincos", "positions are sincos; those of the file, factorised, were left out"),
        ("rotary", "learned", "positions are learned; those of the file, rotary, were left out"),
        ("rotary", "none", "positions are none; those of the file, rotary, were left out"),
        ("rotary", "sincos", "positions are sincos; those of the file, rotary, were left out"),
        ("sincos", "none", "positions are none; those of the file, sincos, were left out"),
        ("sincos", "sincos1d", "positions are sincos1d; those of the file, sincos, were left out"),
        ("none", "rotary", "positions are rotary and new: the file has none"),
        ("none", "conditional", "positions are conditional and new: the file has none"),
    ],
)
def test_other_kind_of_positions_starts_afresh_and_says_so(source, target, note, tmp_path):
    model, other = small("vit", position=source), fresh("vit", position=target)
    before = {key: value.clone() for key, value in other.state_dict().items() if key.startswith("position.")}
    assert vitrail.load_weights(other, saved(model, tmp_path)).notes == [note]
    assert all(torch.equal(other.state_dict()[key], value) for key, value in before.items())
    assert torch.equal(other.blocks[1].mlp.fc1.weight, model.blocks[1].mlp.fc1.weight)


@pytest.mark.parametrize(
    ("family", "theirs", "ours", "note"),
    [
        ("vit", {"pool": "mean"}, {}, "pool is 'token' in the model, and the file is taken for one with 'mean'"),
        ("vit", {}, {"pool": "mean"}, "pool is 'mean' in the model, and the file is taken for one with 'token'"),
        ("swinv2", {}, {"window": 8}, "window is (8, 8) in the model, and the file is taken for one with (4, 4)"),
        (
            "swinv2",
            {},
            {"pretrained_window": (3, 3)},
            "pretrained_window is (3, 3) in the model, and the file is taken for one with ()",
        ),
    ],
)
def test_what_no_shape_tells_and_changes_the_output_is_said(family, theirs, ours, note, tmp_path):
    model, other = small(family, **theirs), fresh(family, **ours)
    if family == "swinv2":  # whose branches start from nothing
        for block in model.blocks:
            torch.nn.init.ones_(block.norm1.weight)
            torch.nn.init.normal_(block.bias.fc2.weight)
    assert vitrail.load_weights(other, saved(model, tmp_path)).notes == [note]
    assert (output(other, X) - output(model, X)).abs().max() > 1e-4


def test_kept_head_with_another_activation_is_refused(tmp_path):
    path = saved(small("vit_mlp_head"), tmp_path)
    other = fresh("vit_mlp_head", head_activation="gelu")
    with pytest.raises(VitrailError, match="trained with head_activation=tanh, this model has head_activation=gelu"):
        vitrail.load_weights(other, path)
    assert vitrail.load_weights(other, path, head="new").notes == ["the head is new (as asked)"]


@pytest.mark.parametrize("position", ["factorised", "relative"])
def test_other_learned_positions_are_resized_too(position, tmp_path):
    model, other = small("vit", position=position), fresh("vit", position=position, image_size=(48, 24))
    report = vitrail.load_weights(other, saved(model, tmp_path))
    assert report.notes == ["positions resized from 4×4 to 6×3 by the rule 'timm'"]
    # Resizing once at load is resizing on every call.
    assert_same(output(other, pictures(48, 24)), output(model, pictures(48, 24)))


# Channels


@pytest.mark.parametrize(("family", "size"), [("vit", 32), ("swin", 32), ("vit_linear", 32)])
def test_grey_picture_gives_what_its_copy_in_three_channels_gave(family, size, tmp_path):
    changes = {"patch_embed": "linear"} if family == "vit_linear" else {}
    family = family.removesuffix("_linear")
    model, grey = small(family), fresh(family, channels=1, **changes)
    report = vitrail.load_weights(grey, saved(model, tmp_path))
    assert report.notes == ["the patch embedding was adapted from 3 to 1 channels"]
    x = pictures(size, size, channels=1)
    assert (output(grey, x) - output(model, x.expand(-1, 3, -1, -1))).abs().max() < 1e-5


def test_more_channels_keep_the_size_of_the_response(tmp_path):
    model, many = small("vit"), fresh("vit", channels=5)
    vitrail.load_weights(many, saved(model, tmp_path))
    x = pictures(32, 32, channels=1)  # the same picture in every channel: the sums weigh the colours differently
    weight = model.patch.weight.detach()
    expected = torch.stack([weight[:, i % 3] for i in range(5)], dim=1) * 3 / 5
    assert torch.allclose(many.patch.weight, expected)
    with torch.no_grad():
        ratio = many.patch(x.expand(-1, 5, -1, -1)).std() / model.patch(x.expand(-1, 3, -1, -1)).std()
    assert 0.8 < ratio < 1.25


def test_linear_and_convolutional_patches_exchange_weights(tmp_path):
    model, linear = small("vit"), fresh("vit", patch_embed="linear")
    assert vitrail.load_weights(linear, saved(model, tmp_path, "timm")).notes == []
    assert (output(linear, X) - output(model, X)).abs().max() < 1e-6
    back = fresh("vit")
    vitrail.load_weights(back, saved(linear, tmp_path, "hf"))
    assert torch.equal(output(back, X), output(model, X))
