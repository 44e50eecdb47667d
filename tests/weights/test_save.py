"""Bundles that keep everything, dialects that come back as they were, and refusals where a dialect has no place."""

import json
import os
from dataclasses import replace

import pytest
import timm
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchvision.models.vision_transformer import VisionTransformer

import vitrail
from tests.parity.peers import assert_same, pictures
from tests.weights.small import FAMILIES, assert_equal_states, output, small
from vitrail import VitrailError
from vitrail.models import Preprocessing
from vitrail.weights import DIALECTS, model_from, read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.* fits no model of the catalog")

LABELS = ["Käse", "猫", 'a "quoted", name', "", "b\nc"]


@pytest.mark.parametrize("family", FAMILIES)
def test_bundle_brings_back_weights_settings_labels_and_preprocessing(family, tmp_path):
    model = small(family)
    labels = LABELS if model.settings.num_classes else None
    pre = Preprocessing(size=(48, 32), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.77, fit="pad")
    path = vitrail.save_weights(model, tmp_path / "x" / "bundle.safetensors", "vitrail", labels, pre, name="mine")
    checkpoint = read_checkpoint(path)
    assert checkpoint.dialect == "vitrail"
    assert checkpoint.settings == model.settings
    assert type(checkpoint.settings) is type(model.settings)
    assert (checkpoint.labels, checkpoint.preprocessing, checkpoint.name) == (labels, pre, "mine")
    assert_equal_states(model_from(checkpoint), model)
    assert os.listdir(path.parent) == ["bundle.safetensors"]


def test_bundle_is_one_plain_safetensors_file(tmp_path):
    path = vitrail.save_weights(small("vit"), tmp_path / "b.safetensors", labels=LABELS)
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["vitrail"])
        assert set(header) == {"settings", "preprocessing", "labels", "name"}
        assert header["settings"]["family"] == "vit"
        assert header["preprocessing"]["size"] == [32, 32]
        assert file.get_tensor("head.output.bias").shape == (5,)


def with_header(path, change):
    """The same bundle with another header."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["vitrail"])
    header = change(header)
    save_file(load_file(path), path, {"vitrail": header if isinstance(header, str) else json.dumps(header)})
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda h: h | {"settings": h["settings"] | {"magic": 1, "more": 2}},
            "have magic, more, unknown to this version",
        ),
        (lambda h: h | {"settings": h["settings"] | {"position": "magic"}}, "position='magic' is not known"),
        (lambda h: h | {"settings": h["settings"] | {"family": "rnn"}}, "its header was not understood"),
        (lambda h: h | {"preprocessing": {"sharpen": 1}}, "its header was not understood"),
        (lambda h: {}, "its header was not understood"),
        (lambda h: "{broken", "its header was not understood"),
    ],
)
def test_header_that_is_not_understood_is_one_sentence(change, said, tmp_path):
    path = with_header(vitrail.save_weights(small("vit"), tmp_path / "b.safetensors"), change)
    with pytest.raises(VitrailError) as caught:
        read_checkpoint(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_model_without_three_channels_gets_a_preprocessing_that_fits(tmp_path):
    path = vitrail.save_weights(small("vit", channels=1), tmp_path / "grey.safetensors")
    assert read_checkpoint(path).preprocessing.mean == (0.5,)  # ViT's, for one channel


def test_file_that_can_not_be_written_is_told_and_leaves_nothing_behind(tmp_path):
    model = small("vit")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder.safetensors", tmp_path / "file" / "below.safetensors"):
        with pytest.raises(VitrailError, match="can't be written") as caught:
            vitrail.save_weights(model, path)
        assert str(path) in str(caught.value)
    with pytest.raises(VitrailError, match="can't be written"):
        vitrail.save_weights(model, "/proc/nowhere/model.pth", dialect="timm")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.safetensors"]


def test_file_that_was_there_is_replaced_as_a_whole(tmp_path):
    path = vitrail.save_weights(small("vit"), tmp_path / "model.safetensors")
    with path.open("rb") as reader:  # an open reader keeps the old file
        before = path.read_bytes()
        vitrail.save_weights(small("vit", depth=3), path)
        assert reader.read() == before
    assert read_checkpoint(path).settings.depth == 3
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_wrong_arguments_are_refused(tmp_path):
    model = small("vit")
    with pytest.raises(VitrailError, match=r'dialect=.tim. is not known; choose one of .* Did you mean "timm"'):
        vitrail.save_weights(model, tmp_path / "x", dialect="tim")
    with pytest.raises(VitrailError, match="2 labels were given for a model of 5 classes"):
        vitrail.save_weights(model, tmp_path / "x", labels=["a", "b"])
    with pytest.raises(VitrailError, match=r"name it x\.safetensors"):
        vitrail.save_weights(model, tmp_path / "x.pth")
    with pytest.raises(VitrailError, match=r"is a folder with config\.json"):
        vitrail.save_weights(model, tmp_path / "x.safetensors", dialect="hf")
    assert os.listdir(tmp_path) == []


def test_compiled_model_is_saved_and_filled_under_the_names_of_the_model(tmp_path):
    model, other = small("vit"), vitrail.create_model(FAMILIES["vit"][0], **FAMILIES["vit"][1])
    path = vitrail.save_weights(torch.compile(model, backend="eager"), tmp_path / "x.safetensors")
    assert_equal_states(model_from(read_checkpoint(path)), model)
    vitrail.load_weights(torch.compile(other, backend="eager"), path)
    assert_equal_states(other, model)


# What each dialect can express comes back exactly, and what it can't is refused by name.

EXPRESSIBLE = {
    "vit": ("timm", "hf", "torchvision"),
    "vit_mlp_head": ("torchvision",),
    "deit_distilled": ("timm", "hf"),
    "deit3": ("timm",),
    "mean_pool": ("timm",),
    "root_hybrid": ("timm",),
    "hybrid": ("timm",),
    "dinov2": ("timm", "hf"),
    "dinov2_gated": ("timm", "hf"),
    "dinov2_registers": ("timm", "hf"),
    "dinov2_registers_gated": ("timm", "hf"),
    "dinov3": ("timm", "hf"),
    "dinov3_gated": ("timm", "hf"),
    "clip": ("timm", "hf"),
    "siglip": ("timm", "hf"),
    "cpvt": (),
    "factorised": (),
    "relative": (),
    "sincos": ("timm", "hf", "torchvision"),
    "mae": ("timm", "hf"),
    "swin": ("timm", "hf", "torchvision"),
    "swinv2": ("timm", "hf", "torchvision"),
}


def target(tmp_path, dialect):
    return tmp_path / ("model" if dialect == "hf" else "model.safetensors")


@pytest.mark.parametrize("dialect", DIALECTS[1:])
@pytest.mark.parametrize("family", FAMILIES)
def test_dialect_comes_back_as_the_same_model_or_is_refused(family, dialect, tmp_path):
    model = small(family)
    path = target(tmp_path, dialect)
    if dialect not in EXPRESSIBLE[family]:
        with pytest.raises(VitrailError) as caught:
            vitrail.save_weights(model, path, dialect=dialect)
        assert "\n" not in str(caught.value)
        assert "can't do" in str(caught.value) or "has no masked autoencoder" in str(caught.value)
        assert not path.exists()
        return
    vitrail.save_weights(model, path, dialect=dialect)
    settings = model.settings
    facts = {} if "swin" in family else {"heads": settings.heads, "activation": settings.activation}
    if family == "mae":
        facts["decoder_heads"] = settings.decoder_heads
    if family in ("dinov3", "dinov3_gated"):
        facts["image_size"] = settings.image_size
    if "swin" in family:
        facts = {"window": settings.window, "image_size": settings.image_size}
    checkpoint = read_checkpoint(path, **facts)
    assert checkpoint.dialect == dialect
    assert checkpoint.unknown == []
    again = model_from(checkpoint)
    x = pictures(*settings.image_size)
    if family == "mae":
        again, model = again.encoder, model.encoder
    difference = (output(again, x) - output(model, x)).abs().max()
    assert difference < 1e-6
    # Tables of fixed positions come back as learned ones, and a dialect may add rows of zeros; all else is identical.
    ours, theirs = again.state_dict(), model.state_dict()
    same = [name for name in theirs if name != "position.table"]
    assert [name for name in same if not torch.equal(ours[name], theirs[name])] == []


REFUSED = [
    ("timm", "vit", {"position": "factorised"}, "position='factorised'"),
    ("timm", "vit", {"position": "relative"}, "position='relative'"),
    ("timm", "vit", {"position": "conditional"}, "position='conditional'"),
    ("timm", "vit", {"norm_first": False}, "norm_first=False"),
    ("timm", "vit", {"head": "mlp"}, "head='mlp'"),
    ("timm", "vit", {"head_bias": False}, "head_bias=False"),
    ("timm", "vit", {"qkv_bias": "qv"}, "qkv_bias='qv'"),
    ("timm", "vit", {"norm_before": True}, "patch_bias=True"),
    ("timm", "vit", {"stem": "conv2", "patch_size": 4}, "stem='conv2'"),
    ("timm", "vit", {"position": "rotary", "qk_norm": True, "qkv_bias": "qv"}, "can't do qk_norm=True;"),
    ("timm", "deit_distilled", {"registers": 2}, "registers=2"),
    ("timm", "mae", {"qk_norm": True}, "qk_norm=True"),
    ("timm", "swin", {"mask_padding": True}, "mask_padding=True"),
    ("timm", "swin", {"image_size": 36}, "padding='torchvision'"),
    ("hf", "vit", {"pool": "mean"}, "ViTForImageClassification, its nearest class, can't do pool='mean';"),
    ("hf", "vit", {"position": "factorised"}, "position='factorised'"),
    ("hf", "vit", {"registers": 2}, "registers=2"),
    ("hf", "vit", {"norm_first": False}, "norm_first=False"),
    ("hf", "vit", {"head_bias": False}, "head_bias=False"),
    ("hf", "vit", {"activation": "swiglu"}, "activation='swiglu'"),
    ("hf", "dinov2", {"num_classes": 5}, "ViTForImageClassification, its nearest class, can't do layer_scale"),
    ("hf", "dinov2", {"mlp_ratio": 2.5}, "mlp_ratio=2.5"),
    ("hf", "dinov2_registers", {"layer_scale": None}, "registers=4"),
    ("hf", "mae", {"position": "learned"}, "position='learned'"),
    ("hf", "mae", {"image_size": (32, 48)}, "ViTMAEForPreTraining, its nearest class, can't do image_size=(32, 48);"),
    ("hf", "clip", {"image_size": (32, 48)}, "CLIPVisionModel, its nearest class, can't do image_size=(32, 48);"),
    ("hf", "siglip", {"patch_size": (8, 4)}, "SiglipVisionModel, its nearest class, can't do patch_size=(8, 4);"),
    ("hf", "dinov2", {"image_size": (32, 48)}, "Dinov2Model, its nearest class, can't do image_size=(32, 48);"),
    ("hf", "dinov2_registers", {"image_size": (32, 48)}, "can't do image_size=(32, 48);"),
    ("hf", "swin", {"window": (2, 4)}, "window=(2, 4)"),
    ("hf", "swin", {"image_size": 36, "padding": "timm"}, "padding='timm'"),
    ("torchvision", "vit", {"pool": "mean"}, "pool='mean'"),
    ("torchvision", "vit", {"registers": 2}, "registers=2"),
    ("torchvision", "vit", {"layer_scale": 0.1}, "layer_scale=0.1"),
    ("torchvision", "vit", {"norm_first": False}, "norm_first=False"),
    ("torchvision", "vit", {"position": "relative"}, "position='relative'"),
    ("torchvision", "vit", {"position": "none"}, "position='none'"),
    ("torchvision", "vit", {"activation": "quick_gelu"}, "activation='quick_gelu'"),
    ("torchvision", "vit", {"qkv_bias": False}, "qkv_bias=False"),
    ("torchvision", "vit", {"norm_after_pool": True, "pool": "mean"}, "pool='mean', norm_after_pool=True"),
    ("torchvision", "vit", {"image_size": (32, 48)}, "image_size=(32, 48)"),
    ("torchvision", "vit", {"channels": 1}, "channels=1"),
    ("torchvision", "vit_mlp_head", {"head_activation": "gelu"}, "head_activation='gelu'"),
    ("torchvision", "deit_distilled", {}, "distillation_token=True"),
    ("torchvision", "swin", {"qkv_bias": False}, "qkv_bias=False"),
    ("torchvision", "swin", {"image_size": 36, "padding": "timm"}, "padding='timm'"),
]


@pytest.mark.parametrize(("dialect", "family", "changes", "said"), REFUSED)
def test_settings_without_a_place_in_a_dialect_are_named(dialect, family, changes, said, tmp_path):
    with pytest.raises(VitrailError) as caught:
        vitrail.save_weights(small(family, **changes), target(tmp_path, dialect), dialect=dialect)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


# Settings that a peer has an argument for are written, and compute the same there.

SHAPE = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"activation": "relu"}, {"act_layer": torch.nn.ReLU}),
        ({"position": "none"}, {"pos_embed": "none"}),
        ({"position": "sincos"}, {}),
        ({"position_prefix": False}, {"no_embed_class": True}),
        ({"position": "sincos", "position_prefix": False, "registers": 2}, {"no_embed_class": True, "reg_tokens": 2}),
        ({"registers": 2}, {"reg_tokens": 2}),
        ({"pool": "mean"}, {"global_pool": "avg", "fc_norm": False}),
        ({"pool": "mean", "norm_after_pool": True, "class_token": False}, {"global_pool": "avg", "class_token": False}),
        ({"pool": "attention"}, {"global_pool": "map", "pool_include_prefix": True}),
        (
            {"qk_norm": True, "layer_scale": 0.1, "qkv_bias": False},
            {"qk_norm": True, "init_values": 0.1, "qkv_bias": False},
        ),
        ({"norm_before": True, "patch_bias": False}, {"pre_norm": True}),
        ({"channels": 2}, {"in_chans": 2}),
    ],
)
def test_timm_computes_the_same_with_the_arguments_that_say_so(changes, arguments, tmp_path):
    model = small("vit", **changes)
    peer = timm.models.VisionTransformer(**SHAPE, **arguments).eval()
    path = vitrail.save_weights(model, tmp_path / "timm.pth", dialect="timm")
    peer.load_state_dict(torch.load(path, weights_only=True), strict=True)
    x = pictures(32, 32, channels=model.settings.channels)
    assert_same(output(model, x), output(peer, x))


@pytest.mark.parametrize(
    "changes", [{}, {"position_prefix": False}, {"position": "sincos"}, {"head": "mlp"}, {"num_classes": 0}]
)
def test_torchvision_computes_the_same(changes, tmp_path):
    model = small("vit", **changes)
    hidden = 32 if changes.get("head") == "mlp" else None
    peer = VisionTransformer(32, 8, 2, 2, 32, 128, num_classes=5, representation_size=hidden).eval()
    if changes.get("num_classes") == 0:
        peer.heads = torch.nn.Identity()
    peer.load_state_dict(load_file(vitrail.save_weights(model, tmp_path / "x.safetensors", dialect="torchvision")))
    assert_same(output(model, pictures(32, 32)), output(peer, pictures(32, 32)))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("vit", {"activation": "gelu_tanh", "norm_eps": 1e-3}),
        ("vit", {"position_prefix": False}),
        ("vit", {"position": "sincos"}),
        ("vit", {"num_classes": 0}),
        ("vit", {"image_size": (32, 48), "channels": 2}),
        ("deit_distilled", {"position_prefix": False}),
        ("swin", {"num_classes": 0}),
        ("swin", {"qkv_bias": False}),
        ("swinv2", {"image_size": 64, "window": 16, "padding": "timm"}),  # the second map is smaller than the window
    ],
)
def test_transformers_computes_the_same(family, changes, tmp_path):
    model = small(family, **changes)
    folder = vitrail.save_weights(model, tmp_path / "hf", dialect="hf")
    peer, report = transformers.AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    x = pictures(*model.settings.image_size, channels=model.settings.channels)
    with torch.no_grad():
        assert_same(output(model, x), peer.eval()(x).logits)
    if family == "swinv2":  # and read back, under the rule that its windows need
        assert read_checkpoint(folder).settings.padding == "timm"
        assert_same(output(model_from(read_checkpoint(folder)), x), output(model, x))


def test_folder_for_transformers_says_the_preprocessing_that_was_given(tmp_path):
    pre = Preprocessing(size=(32, 32), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.8, interpolation="bilinear")
    for fit in ("crop", "stretch"):
        stated = replace(pre, fit=fit, crop=0.8 if fit == "crop" else 1.0)
        folder = vitrail.save_weights(small("vit"), tmp_path / fit, dialect="hf", preprocessing=stated, labels=LABELS)
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        assert list(processor.image_mean) == [0.1, 0.2, 0.3]
        assert processor(images=torch.zeros(3, 50, 70), return_tensors="pt")["pixel_values"].shape == (1, 3, 32, 32)
        checkpoint = read_checkpoint(folder)
        assert checkpoint.preprocessing == stated
        assert checkpoint.labels == LABELS
