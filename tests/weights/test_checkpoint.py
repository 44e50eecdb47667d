"""What a file is a checkpoint of: decided by its config, then by the caller, then by its name, else assumed aloud."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

import vitrail
from tests.weights.small import FAMILIES, VIT, output, pth, small
from vitrail import VitrailError
from vitrail.models.checks import setting_values
from vitrail.models.registry import model_settings
from vitrail.weights import model_from, read_checkpoint, timm
from vitrail.weights.load import without_memory

IMAGENET = (0.485, 0.456, 0.406)
HALF = (0.5, 0.5, 0.5)


def file_of(name: str, path: Path, **changes) -> Path:
    """A file of a catalog model under timm's names. Only its shapes matter here, so it is all zeros, of one byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = model_settings(name, **changes)
    theirs, left = timm.layout_for(settings).write(without_memory(settings).state_dict())
    assert left == []
    save_file({key: torch.zeros(value.shape, dtype=torch.int8) for key, value in theirs.items()}, path)
    return path


def quietly(source, **facts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_checkpoint(source, **facts)


def aloud(source, **facts):
    """The checkpoint, and the one line that was said about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = read_checkpoint(source, **facts)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "\n" not in text
    return checkpoint, text


@pytest.fixture
def tiny(tmp_path):
    """A ViT-Ti/16 or a DeiT-Ti/16: the same shapes, other mean and deviation."""
    return file_of("vit_ti16", tmp_path / "weights" / "model.safetensors")


def test_config_of_timm_decides(tiny):
    for architecture, name, mean in [
        ("deit_tiny_patch16_224", "deit_ti16", IMAGENET),
        ("vit_tiny_patch16_224", "vit_ti16", HALF),
    ]:
        (tiny.parent / "config.json").write_text(json.dumps({"architecture": architecture}))
        checkpoint = quietly(tiny.parent)
        assert (checkpoint.name, checkpoint.preprocessing.mean) == (name, mean)
        assert quietly(tiny.parent, architecture=name).name == name


def test_config_of_timm_goes_before_the_caller_who_is_told(tiny):
    (tiny.parent / "config.json").write_text(json.dumps({"architecture": "deit_tiny_patch16_224"}))
    checkpoint, text = aloud(tiny.parent, architecture="vit_ti16")
    assert checkpoint.name == "deit_ti16"
    assert "vit_ti16 was not followed" in text


def test_config_of_timm_overrules_preprocessing_and_pooling(tiny):
    stated = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 0.95, "interpolation": "bilinear"}
    config = {"architecture": "vit_tiny_patch16_224", "global_pool": "avg", "pretrained_cfg": stated}
    (tiny.parent / "config.json").write_text(json.dumps(config))
    checkpoint = quietly(tiny.parent)
    pre = checkpoint.preprocessing
    assert (pre.mean, pre.std, pre.crop, pre.interpolation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.95, "bilinear")
    assert checkpoint.settings.pool == "mean"


def test_config_that_names_no_model_here_or_another_shape_leaves_it_to_the_rest(tiny):
    for architecture in ("vit_wonderful", "vit_base_patch16_224"):
        (tiny.parent / "config.json").write_text(json.dumps({"architecture": architecture}))
        assert quietly(tiny.parent, architecture="deit_ti16").name == "deit_ti16"


def test_caller_goes_before_the_name_of_the_folder(tmp_path):
    path = file_of("vit_ti16", tmp_path / "deit_tiny_in1k" / "model.safetensors")
    checkpoint = quietly(path, architecture="vit_ti16")
    assert (checkpoint.name, checkpoint.preprocessing.mean) == ("vit_ti16", HALF)
    assert quietly(path, architecture="ViT-Ti/16").name == "vit_ti16"


@pytest.mark.parametrize(
    ("place", "name", "mean"),
    [
        ("deit_tiny_in1k/model.safetensors", "deit_ti16", IMAGENET),
        ("weights/deit_tiny_patch16_224-a1311bcf.safetensors", "deit_ti16", IMAGENET),
        ("weights/vit_tiny_patch16_224.augreg_in21k.safetensors", "vit_ti16", HALF),
        ("deit_runs/vit_tiny_epoch_16.safetensors", "vit_ti16", HALF),  # the file before its folder
    ],
)
def test_name_of_the_file_or_its_folder_decides_without_a_warning(place, name, mean, tmp_path):
    path = file_of("vit_ti16", tmp_path / place)
    checkpoint = quietly(path)
    assert (checkpoint.name, checkpoint.preprocessing.mean) == (name, mean)
    assert quietly(path.parent).name == name


def test_name_counts_when_the_path_is_relative(tmp_path, monkeypatch):
    file_of("vit_ti16", tmp_path / "deit_tiny_in1k" / "model.safetensors")
    monkeypatch.chdir(tmp_path / "deit_tiny_in1k")
    assert quietly("model.safetensors").name == "deit_ti16"


def test_default_is_said_in_one_line_with_the_candidates_and_the_preprocessing(tiny):
    checkpoint, text = aloud(tiny)
    assert checkpoint.name == "vit_ti16"
    assert "may be vit_ti16 or deit_ti16; taken as vit_ti16" in text
    assert "mean (0.5, 0.5, 0.5) and deviation (0.5, 0.5, 0.5)" in text
    assert "say --architecture deit_ti16 (to `train`, --model deit_ti16;" in text
    assert text.strip().endswith("to `vitrail.load`, architecture='deit_ti16') if it is not.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vitrail.load(tiny, architecture="deit_ti16").name == "deit_ti16"


def test_number_in_a_file_name_is_no_patch_size(tmp_path):
    _, text = aloud(file_of("vit_b16", tmp_path / "run" / "epoch_16.safetensors", depth=12, width=768))
    assert "vit_b16 or deit_b16" in text


def test_heads_that_no_shape_tells_are_assumed_aloud_or_said_by_the_caller(tmp_path):
    path = file_of("vit_ti16", tmp_path / "model.safetensors", depth=5)  # no catalog has such a depth
    checkpoint, text = aloud(path)
    assert checkpoint.settings.heads == 3
    assert "fits no model of the catalog; assumed: heads 3, mean (0.485, 0.456, 0.406)" in text
    checkpoint, text = aloud(path, heads=12)
    assert checkpoint.settings.heads == 12
    assert "assumed: mean" in text
    with pytest.raises(VitrailError, match="can't be divided among 5 heads"):
        read_checkpoint(path, heads=5)


def test_heads_said_by_the_caller_rule_out_models_with_other_heads(tmp_path):
    path = file_of("vit_mini4", tmp_path / "model.safetensors")
    assert quietly(path).name == "vit_mini4"
    assert quietly(path, heads=12).name == "vit_mini4"
    assert aloud(path, heads=3)[0].name is None


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("vit_b16", "width 192 (not 768)"),
        ("deit3_s16", "layer_scale None (not 1e-06)"),
        ("deit_ti16_distilled", "distillation_token False (not True)"),
        ("vit_mini4", "depth 12 (not 9)"),
        ("swin_t", "the layout of a vit model"),
    ],
)
def test_model_that_contradicts_the_shapes_is_one_sentence(model, said, tiny):
    with pytest.raises(VitrailError) as caught:
        read_checkpoint(tiny, architecture=model)
    text = str(caught.value)
    assert f"{tiny} is not a checkpoint of {model}: it has " in text
    assert said in text
    assert "\n" not in text


def test_model_of_the_caller_says_nothing_about_classes_channels_or_size(tmp_path):
    path = file_of("vit_b16", tmp_path / "x.safetensors", num_classes=37, image_size=384, channels=1)
    checkpoint = quietly(path, architecture="vit_b16")
    settings = checkpoint.settings
    assert (settings.num_classes, settings.image_size, settings.channels) == (37, (384, 384), 1)
    assert checkpoint.preprocessing.size == (384, 384)
    assert checkpoint.preprocessing.mean == (0.5,)


def test_unknown_model_of_the_caller_suggests_the_nearest(tiny):
    with pytest.raises(VitrailError, match='Did you mean "vit_b16"'):
        read_checkpoint(tiny, architecture="vit_b61")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deit_ti16_distilled", {}),
        ("deit3_s16", {}),
        ("dinov2_s14_reg4", {}),
        ("dinov3_s16", {}),
        ("clip_b32", {}),
        ("siglip_b16", {}),
        ("r_vit_ti16", {}),
        ("vit_mini8", {"num_classes": 200}),
        ("mae_b16", {}),
        ("swin_t", {}),
        ("swin_s", {}),
    ],
)
def test_shapes_alone_decide_where_they_can(name, changes, tmp_path):
    path = file_of(name, tmp_path / "weights" / "model.safetensors", **changes)
    if name == "siglip_b16":  # trained with the tanh GELU, built by timm with the exact one
        checkpoint, text = aloud(path)
        assert "siglip_b16 or vit_base_patch16_siglip; taken as siglip_b16, with activation gelu_tanh" in text
    elif name == "clip_b32":  # OpenAI's GELU or the exact one: that no shape tells
        checkpoint, text = aloud(path)
        assert "may be clip_b32 or vit_base_patch32_clip; taken as clip_b32, with activation quick_gelu" in text
    else:
        checkpoint = quietly(path)
    assert checkpoint.name == name
    settings = model_settings(name, **changes)
    expected = {**setting_values(settings), "padding": "timm", "position_rule": checkpoint.settings.position_rule}
    found = setting_values(checkpoint.settings)
    assert {key: (value, expected[key]) for key, value in found.items() if value != expected[key]} == {}


def test_window_of_swin_v2_is_told_by_the_name_or_assumed_aloud(tmp_path):
    path = file_of("swinv2_t", tmp_path / "weights" / "model.safetensors")
    checkpoint, text = aloud(path)
    assert checkpoint.settings.window == (8, 8)
    assert "may be swinv2_t or swinv2_tiny_window16; taken as swinv2_t, with window (8, 8)" in text
    named = file_of("swinv2_t", tmp_path / "swinv2_tiny_window16_256" / "model.safetensors")
    assert quietly(named).settings.window == (16, 16)
    assert quietly(path, window=16).settings.window == (16, 16)


def test_image_size_of_swin_follows_from_its_windows(tmp_path):
    path = file_of("swin_b", tmp_path / "model.safetensors", window=12, image_size=384, padding="timm")
    checkpoint = quietly(path)
    assert (checkpoint.settings.window, checkpoint.settings.image_size) == ((12, 12), (384, 384))
    assert checkpoint.preprocessing.size == (384, 384)


def test_table_that_is_not_square_is_read_once_its_size_is_said(tmp_path):
    path = file_of("vit_ti16", tmp_path / "vit_tiny.safetensors", image_size=(160, 320))
    with pytest.raises(VitrailError, match=r"table of 201 rows is not that of a square image; say which: image_size"):
        read_checkpoint(path)
    assert quietly(path, image_size=(160, 320)).settings.image_size == (160, 320)
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {"input_size": [3, 160, 320]}}))
    assert quietly(path).settings.image_size == (160, 320)


def test_image_size_that_contradicts_the_table_is_refused(tiny):
    with pytest.raises(VitrailError, match=r"one for images of \(224, 224\), not of \(384, 384\)"):
        read_checkpoint(tiny, architecture="vit_ti16", image_size=384)


def test_incomplete_checkpoint_names_what_is_missing(tmp_path):
    state = {"patch_embed.proj.weight": torch.zeros(8, 3, 4, 4), "blocks.0.attn.qkv.weight": torch.zeros(24, 8)}
    with pytest.raises(
        VitrailError, match=r"half\.pth: the checkpoint is incomplete: it has no blocks\.0\.mlp\.fc1\.weight"
    ):
        read_checkpoint(pth(tmp_path / "half.pth", state))
    state["patch_embed.proj.weight"] = torch.zeros(8, 48)
    with pytest.raises(
        VitrailError, match=r"half\.pth: the shapes of its tensors are not those of a Vision Transformer"
    ):
        read_checkpoint(pth(tmp_path / "half.pth", state))


def test_config_of_transformers_decides_heads_epsilon_and_activation(tmp_path):
    shape = {"hidden_size": 192, "num_hidden_layers": 2, "intermediate_size": 384, "image_size": 32, "patch_size": 8}
    config = transformers.ViTConfig(
        **shape,
        num_attention_heads=12,
        layer_norm_eps=3e-5,
        hidden_act="relu",
        id2label={0: "Ärger", 1: "愛"},
    )
    torch.manual_seed(0)
    reference = transformers.ViTForImageClassification(config).eval()
    reference.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1] * 3).save_pretrained(tmp_path)
    checkpoint = quietly(tmp_path)
    settings = checkpoint.settings
    assert (settings.heads, settings.norm_eps, settings.activation, settings.position_rule) == (12, 3e-5, "relu", "hf")
    assert checkpoint.labels == ["Ärger", "愛"]
    pre = checkpoint.preprocessing
    assert (pre.mean, pre.std, pre.size, pre.fit) == ((0.1, 0.1, 0.1), (0.5, 0.5, 0.5), (32, 32), "stretch")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(output(model_from(checkpoint), x), reference(x).logits, atol=1e-5)
    with pytest.raises(VitrailError, match=r"it has .*heads 12 \(not 3\)"):
        read_checkpoint(tmp_path, architecture="vit_ti16")


def test_processor_of_transformers_that_crops_is_understood(tmp_path):
    folder = vitrail.save_weights(small("vit"), tmp_path / "vit", dialect="hf")
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}, resample=2
    )
    processor.save_pretrained(folder)
    pre = quietly(folder).preprocessing
    assert (pre.fit, pre.size, pre.crop, pre.interpolation) == ("crop", (32, 32), 0.8, "bilinear")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("model_type", "beit", "model_type 'beit'"), ("hidden_act", "swishy", "hidden_act 'swishy'")],
)
def test_config_of_transformers_that_is_not_known_is_named(field, value, said, tmp_path):
    folder = vitrail.save_weights(small("vit"), tmp_path / "vit", dialect="hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(VitrailError, match=said):
        read_checkpoint(folder)


def test_torchvision_files_come_with_its_preprocessing_and_without_doubt(tmp_path):
    path = vitrail.save_weights(vitrail.create_model("vit_b32"), tmp_path / "x.pth", dialect="torchvision")
    checkpoint = quietly(path)
    pre = checkpoint.preprocessing
    assert checkpoint.name == "vit_b32"
    assert (pre.mean, pre.crop, pre.interpolation) == (IMAGENET, 0.875, "bilinear")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("sincos", "dinov3", "dinov3_gated")])
def test_bare_state_dict_of_ours_is_read_by_its_shapes(family, tmp_path):
    """Where positions leave no trace (fixed, rotary) the model that is filled must know; see the next test."""
    model = small(family)
    path = pth(tmp_path / "state.pth", model.state_dict())
    settings = model.settings
    facts = {"heads": settings.heads, "activation": settings.activation, "norm_eps": settings.norm_eps}
    if family == "mae":
        facts |= {"decoder_heads": 2, "image_size": settings.image_size}
    elif family == "cpvt":
        facts["image_size"] = settings.image_size
    elif "swin" in family:
        facts = {"window": settings.window, "image_size": settings.image_size}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint = read_checkpoint(path, **facts)
    assert checkpoint.dialect == "vitrail"
    x = torch.randn(2, 3, *settings.image_size)
    if family == "mae":
        assert torch.equal(output(model_from(checkpoint).encoder, x), output(model.encoder, x))
    else:
        assert torch.equal(output(model_from(checkpoint), x), output(model, x))


@pytest.mark.parametrize("position", ["sincos", "rotary", "none", "relative", "conditional"])
def test_bare_state_dict_of_ours_fills_a_model_of_the_same_settings(position, tmp_path):
    model = small("vit", position=position)
    other = vitrail.create_model("vit_b16", **VIT, num_classes=5, position=position)
    report = vitrail.load_weights(other, pth(tmp_path / "state.pth", model.state_dict()))
    assert report.notes == []
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(output(other, x), output(model, x))
