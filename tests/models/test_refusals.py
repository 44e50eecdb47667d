"""What can't be done is refused in one sentence that says what was found and what was expected."""

import numpy as np
import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.models import (
    MAESettings,
    MaskedAutoencoder,
    SwinSettings,
    SwinTransformer,
    VisionTransformer,
    ViTSettings,
    create_model,
)

VIT = {"image_size": 32, "width": 16, "depth": 1, "heads": 2, "num_classes": 3}
MODELS = {
    "vit": lambda **changes: VisionTransformer(**VIT, **changes),
    "hybrid": lambda **changes: VisionTransformer(**VIT, stem=(1, 1), patch_size=2, **changes),
    "swin": lambda **changes: SwinTransformer(
        image_size=32, width=8, depths=(1,), heads=(1,), patch_size=16, **changes
    ),
    "mae": lambda **changes: MaskedAutoencoder(
        **VIT | {"num_classes": 0}, decoder_width=8, decoder_depth=1, decoder_heads=1, **changes
    ),
}


def refusal(call, *arguments, **settings):
    with pytest.raises(VitrailError) as error:
        call(*arguments, **settings)
    sentence = str(error.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


@pytest.fixture(params=MODELS, scope="module")
def model(request):
    return MODELS[request.param]()


def test_an_image_without_a_batch_is_told_how_to_get_one(model):
    assert refusal(model, torch.rand(3, 32, 40)) == (
        "Expected a batch of images [B, 3, H, W], got a tensor of shape [3, 32, 40];"
        " add a batch dimension with x[None] for [1, 3, 32, 40]."
    )


@pytest.mark.parametrize("shape", [(2, 1, 3, 32, 32), (32, 32), ()])
def test_other_ranks_are_refused(model, shape):
    sentence = refusal(model, torch.rand(shape))
    assert sentence == f"Expected a batch of images [B, 3, H, W], got a tensor of shape {list(shape)}."


def test_wrong_channels_name_the_setting(model):
    assert refusal(model, torch.rand(2, 1, 32, 40)) == (
        "Expected 3 channels in [B, 3, H, W], got shape [2, 1, 32, 40];"
        " build the model with channels=1, or convert the images."
    )


def test_channels_that_come_last_are_recognised(model):
    assert refusal(model, torch.rand(2, 32, 40, 3)) == (
        "Expected 3 channels in [B, 3, H, W], got shape [2, 32, 40, 3];"
        " the channels look to be last: x.permute(0, 3, 1, 2) puts them first."
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_advice_on_channels_helps(name):
    x, model = torch.rand(2, 1, 32, 40), MODELS[name](channels=1).eval()
    loss_or_logits = model(x)[0] if name == "mae" else model(x)
    assert loss_or_logits.isfinite().all()


@pytest.mark.parametrize(("height", "width"), [(15, 40), (40, 9), (1, 1)])
def test_an_image_smaller_than_a_patch_is_refused(model, height, width):
    assert refusal(model, torch.rand(2, 3, height, width)) == (
        f"An image of {height}×{width} pixels is smaller than one patch of 16×16;"
        " enlarge the image, or use a model with smaller patches."
    )


@pytest.mark.parametrize(
    ("settings", "changes", "sentence"),
    [
        (ViTSettings, {"width": 100}, "A width of 100 can't be divided among 12 heads."),
        (ViTSettings, {"heads": 0}, "heads must be a whole number of at least 1, got 0."),
        (ViTSettings, {"depth": 0}, "depth must be a whole number of at least 1, got 0."),
        (ViTSettings, {"width": "768"}, "width must be a whole number of at least 1, got '768'."),
        (ViTSettings, {"num_classes": -1}, "num_classes must be a whole number of at least 0, got -1."),
        (ViTSettings, {"channels": 0}, "channels must be a whole number of at least 1, got 0."),
        (ViTSettings, {"registers": -2}, "registers must be a whole number of at least 0, got -2."),
        (ViTSettings, {"drop_path": 1.5}, "drop_path is a probability, between 0 and 1, got 1.5."),
        (ViTSettings, {"dropout": -0.1}, "dropout is a probability, between 0 and 1, got -0.1."),
        (ViTSettings, {"drop_path": "0.1"}, "drop_path is a probability, between 0 and 1, got '0.1'."),
        (ViTSettings, {"drop_path": None}, "drop_path is a probability, between 0 and 1, got None."),
        (ViTSettings, {"mlp_ratio": "4"}, "mlp_ratio must be a number above 0, got '4'."),
        (ViTSettings, {"mlp_ratio": 0}, "mlp_ratio must be a number above 0, got 0."),
        (SwinSettings, {"mlp_ratio": -1}, "mlp_ratio must be a number above 0, got -1."),
        (ViTSettings, {"stem": 5}, "stem must be a list of whole numbers of at least 1, got 5."),
        (SwinSettings, {"heads": 3}, "heads must be a list of whole numbers of at least 1, got 3."),
        (SwinSettings, {"depths": 5}, "depths must be a list of whole numbers of at least 1, got 5."),
        (
            SwinSettings,
            {"depths": (2, 2, -1, 2)},
            "depths must be a list of whole numbers of at least 1, got (2, 2, -1, 2).",
        ),
        (
            SwinSettings,
            {"pretrained_window": 7},
            "pretrained_window must be a list of whole numbers of at least 0, got 7.",
        ),
        (ViTSettings, {"patch_size": 0}, "patch_size must be one or two positive whole numbers, got 0."),
        (
            ViTSettings,
            {"patch_size": (4, 4, 4)},
            "patch_size must be one or two positive whole numbers, got (4, 4, 4).",
        ),
        (ViTSettings, {"image_size": 224.0}, "image_size must be a number or (height, width), got 224.0."),
        (ViTSettings, {"image_size": True}, "image_size must be a number or (height, width), got True."),
        (
            ViTSettings,
            {"activation": "gleu"},
            "activation='gleu' is not known; choose one of ['gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'swiglu'].",
        ),
        (ViTSettings, {"patch_embed": "mlp"}, "patch_embed='mlp' is not known; choose one of ['conv', 'linear']."),
        (ViTSettings, {"pool": "max"}, "pool='max' is not known; choose one of ['token', 'mean', 'attention']."),
        (ViTSettings, {"qkv_bias": "k"}, "qkv_bias='k' is not known; choose one of [True, False, 'qv']."),
        (ViTSettings, {"qkv_bias": 1}, "qkv_bias=1 is not known; choose one of [True, False, 'qv']."),
        (ViTSettings, {"head": "conv"}, "head='conv' is not known; choose one of ['linear', 'mlp']."),
        (
            ViTSettings,
            {"position_rule": "keras"},
            "position_rule='keras' is not known; choose one of ['timm', 'hf', 'torchvision', 'google'].",
        ),
        (
            ViTSettings,
            {"class_token": False},
            'pool="token" reads the class token; with class_token=False use pool="mean" or "attention".',
        ),
        (
            ViTSettings,
            {"distillation_token": True, "pool": "mean"},
            'A distillation token goes with pool="token": both tokens have a head of their own.',
        ),
        (
            ViTSettings,
            {"position": "sincos", "width": 18, "heads": 2},
            "Sine-cosine positions need a width that is a multiple of 4, got 18.",
        ),
        (
            VisionTransformer,
            {"position": "rotary", "width": 12, "heads": 2},
            "Rotary positions need a head width that is a multiple of 4, got 6.",
        ),
        (
            SwinSettings,
            {"depths": (2, 2)},
            "depths (2, 2) and heads (3, 6, 12, 24) must name the same stages, one or more.",
        ),
        (SwinSettings, {"depths": (), "heads": ()}, "depths () and heads () must name the same stages, one or more."),
        (
            SwinSettings,
            {"heads": (3, 5, 12, 24)},
            "A width of 192 (stage 1) can't be divided among 5 heads.",
        ),
        (SwinSettings, {"version": 3}, "version=3 is not known; choose one of [1, 2]."),
        (SwinSettings, {"padding": "same"}, "padding='same' is not known; choose one of ['torchvision', 'timm']."),
        (SwinSettings, {"window": (7, 0)}, "window must be one or two positive whole numbers, got (7, 0)."),
        (SwinSettings, {"drop_path": 2}, "drop_path is a probability, between 0 and 1, got 2."),
        (
            MAESettings,
            {"position": "rotary"},
            "MAE drops patches, so it needs positions that are added to them, not 'rotary'.",
        ),
        (
            MAESettings,
            {"stem": ()},
            "MAE masks patches of the picture; a hybrid's stem would look behind the mask: use a ViT.",
        ),
        (MAESettings, {"mask_ratio": 1.0}, "mask_ratio must be at least 0 and below 1, got 1.0."),
        (MAESettings, {"mask_ratio": "a"}, "mask_ratio must be at least 0 and below 1, got 'a'."),
        (
            MAESettings,
            {"num_classes": 10},
            "A masked autoencoder has no classes, got num_classes=10: leave it out, or use a ViT.",
        ),
        (MaskedAutoencoder, {"decoder_heads": 7}, "A width of 512 can't be divided among 7 heads."),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_no_model_can_have_are_refused(settings, changes, sentence):
    assert refusal(settings, **changes) == sentence


def test_an_unknown_position_lists_the_known_ones():
    sentence = refusal(ViTSettings, position="sinusoidal")
    for kind in ("none", "learned", "sincos", "sincos1d", "factorised", "relative", "rotary", "conditional"):
        assert repr(kind) in sentence


def test_a_mask_ratio_at_call_time_is_checked_too():
    model = MODELS["mae"]()
    for ratio in (1.0, -0.1, 75):
        sentence = refusal(model, torch.rand(1, 3, 32, 32), mask_ratio=ratio)
        assert sentence == f"mask_ratio must be at least 0 and below 1, got {ratio}."


def test_layers_that_are_not_there_are_refused():
    for name in ("vit", "swin"):
        sentence = refusal(MODELS[name]().features, torch.rand(1, 3, 32, 32), layers=[0, 1])
        assert sentence == "This model has layers 0 to 0; there is no layer 1."
        for layers in ([True], [0.0], "0"):
            sentence = refusal(MODELS[name]().features, torch.rand(1, 3, 32, 32), layers=layers)
            assert sentence == f"layers must be a list of whole numbers, got {layers!r}."


def test_one_layer_may_be_named_without_a_list():
    model, x = MODELS["vit"]().eval(), torch.rand(1, 3, 32, 32)
    one, listed = model.features(x, layers=0), model.features(x, layers=[0])
    for layers in (np.int64(0), np.array([0]), torch.tensor([0])):
        assert model.features(x, layers=layers).keys() == one.keys()
    assert one.keys() == listed.keys() and all(torch.equal(one[name], listed[name]) for name in one)
    sentence = refusal(create_model("tv:resnet18", num_classes=0).features, x, layers=3)
    assert sentence == "torchvision's resnet18 has no layers of tokens; it gives pooled features."


def test_bad_settings_are_refused_through_create_model():
    assert refusal(create_model, "vit_b16", heads=7) == "A width of 768 can't be divided among 7 heads."


def test_a_switch_is_true_or_false():
    assert refusal(create_model, "vit_nano4:local=perhaps") == "local must be True or False, got 'perhaps'."
    assert refusal(ViTSettings, norm_first="no") == "norm_first must be True or False, got 'no'."
    assert create_model("vit_nano4:local=true").settings.local is True
    assert create_model("vit_nano4:class_token=FALSE,pool=mean,position=none").settings.class_token is False


def test_a_masked_autoencoder_has_no_neighbours_to_see():
    assert "lost the neighbours" in refusal(MAESettings, local=True)


@pytest.mark.parametrize("base", ["vit_mini4", "swin_t"])
def test_a_tuning_that_is_none_is_refused(base):
    help = "is not known; give its fields, tuning={'kind': 'lora', 'rank': 8}, or train with --tune."
    assert refusal(create_model, f"{base}:tuning=abc") == f"tuning='abc' {help}"
    for value in (3, {"kid": "lora"}, ["lora"]):
        assert refusal(create_model, base, tuning=value) == f"tuning={value!r} {help}"


def test_the_advice_on_tuning_helps():
    model = create_model("vit_nano2", tuning={"kind": "lora", "rank": 8})
    assert model.settings.tuning.rank == 8 and sum("lora" in name for name, _ in model.named_parameters()) > 0
