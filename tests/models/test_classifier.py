"""What users of timm ask of every model: features and head apart, another number of classes, checkpointing."""

import pytest
import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import ConvNet, MaskedAutoencoder, SwinTransformer, VisionTransformer, create_model
from vitrail.models.classifier import decays
from vitrail.models.position import KINDS

VIT = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "num_classes": 5}
SWIN = {"image_size": 32, "patch_size": 2, "width": 8, "depths": (2, 2), "heads": (2, 2), "window": 4, "num_classes": 5}
MAKERS = {
    "vit": lambda **changes: VisionTransformer(**{**VIT, **changes}),
    "vit mean": lambda **changes: VisionTransformer(**{**VIT, "pool": "mean", "norm_after_pool": True, **changes}),
    "vit mlp head": lambda **changes: VisionTransformer(**{**VIT, "head": "mlp", **changes}),
    "vit no bias": lambda **changes: VisionTransformer(**{**VIT, "head_bias": False, **changes}),
    "deit": lambda **changes: VisionTransformer(**{**VIT, "distillation_token": True, **changes}),
    "siglip": lambda **changes: VisionTransformer(**{**VIT, "pool": "attention", "class_token": False, **changes}),
    "swin": lambda **changes: SwinTransformer(**{**SWIN, **changes}),
    "swin v2": lambda **changes: SwinTransformer(**{**SWIN, "version": 2, **changes}),
    "cnn": lambda **changes: ConvNet(**{"arch": "resnet18", "image_size": 32, "num_classes": 5, **changes}),
}
WIDTHS = {"swin": 16, "swin v2": 16, "cnn": 512}


@pytest.fixture(params=MAKERS)
def family(request):
    return request.param


@pytest.fixture
def model(family):
    return MAKERS[family]().eval()


def images(model, count=2):
    return torch.randn(count, 3, *model.settings.image_size)


def test_forward_is_the_head_on_the_features_to_the_bit(family, model):
    x = images(model)
    features = model.forward_features(x)
    assert torch.equal(model.forward_head(features), model(x))
    assert features.shape[0] == 2 and features.shape[-1] == model.num_features == WIDTHS.get(family, 16)
    assert model.num_classes == 5


def test_the_classifier_acts_on_what_precedes_the_logits(family, model):
    features = model.forward_features(images(model))
    before, layers = model.forward_head(features, pre_logits=True), model.get_classifier()
    assert before.shape == (2, model.num_features)
    if family == "deit":  # two tokens and two layers; their mean, as in timm
        torch.testing.assert_close(before, (features[:, 0] + features[:, 1]) / 2)
        assert [layer.out_features for layer in layers] == [5, 5]
        logits = (layers[0](features[:, 0]) + layers[1](features[:, 1])) / 2
    else:
        logits = layers(before)
    torch.testing.assert_close(logits, model.forward_head(features))


def test_another_number_of_classes(family, model):
    x = images(model)
    before = model.forward_features(x)
    model.reset_classifier(7)
    assert model(x).shape == (2, 7)
    assert model.settings.num_classes == model.num_classes == 7
    assert torch.equal(model.forward_features(x), before)
    # As it would have been built with that number, but for what was drawn.
    fresh = MAKERS[family](num_classes=7)
    assert model.settings == fresh.settings
    assert {n: t.shape for n, t in model.state_dict().items()} == {n: t.shape for n, t in fresh.state_dict().items()}
    (ours, theirs) = (each.head.output.weight.std().item() for each in (model, fresh))
    assert ours == pytest.approx(theirs, rel=0.25)


def test_no_classes_leave_the_features(family, model):
    x = images(model)
    model.reset_classifier(0)
    assert isinstance(model.get_classifier() if family != "deit" else model.get_classifier()[0], nn.Identity)
    vectors = model(x)
    assert vectors.shape == (2, model.num_features)
    if family != "vit mlp head":  # whose hidden layer is still there, and acts
        assert torch.equal(vectors, model.features(x)["pooled"])
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)


def test_a_new_classifier_is_of_the_type_of_the_model():
    model = MAKERS["vit"]().to(torch.bfloat16)
    model.reset_classifier(7)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("family", [name for name in MAKERS if name != "cnn"])
def test_checkpointing_changes_no_gradient(family):
    model = MAKERS[family](drop_path=0.0)
    x, found = images(model), {}
    for enabled in (False, True):
        model.set_grad_checkpointing(enabled)
        model.zero_grad()
        runs = 0

        def count(*_):
            nonlocal runs
            runs += 1

        hooks = [block.register_forward_pre_hook(count) for block in model.blocks]
        model(x).square().sum().backward()
        for hook in hooks:
            hook.remove()
        assert runs == len(model.blocks) * (2 if enabled else 1)
        found[enabled] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found[True].keys() == found[False].keys() != set()
    for name, gradient in found[False].items():
        assert torch.equal(gradient, found[True][name]), name


def test_a_convolutional_network_has_no_blocks_to_compute_again():
    model = MAKERS["cnn"]()
    model.set_grad_checkpointing(False)
    with pytest.raises(VitrailError, match="resnet18 has no blocks"):
        model.set_grad_checkpointing()


def test_a_masked_autoencoder_computes_both_stacks_again():
    model = MaskedAutoencoder(image_size=16, patch_size=4, width=16, depth=1, heads=2, decoder_width=16,
                              decoder_depth=1, decoder_heads=2)  # fmt: skip
    model.set_grad_checkpointing()
    assert model.gradient_checkpointing and model.encoder.gradient_checkpointing
    assert model.no_weight_decay() >= {"mask_token", "encoder.class_token", "encoder.norm.weight"}


@pytest.mark.parametrize(
    "name",
    ["vit_nano4", "deit_ti16_distilled", "swin_t", "swinv2_t", "dinov2_s14_reg4", "dinov3_s16", "siglip_b16",
     "r_vit_ti16", "hybrid_mini4", "tv:resnet18", *(f"vit_nano4:position={kind}" for kind in KINDS)],
)  # fmt: skip
def test_what_is_not_decayed_is_what_training_does_not_decay(name):
    with torch.device("meta") if not name.startswith("tv:") else torch.device("cpu"):
        model = create_model(name)
    spared = model.no_weight_decay()
    assert spared == {n for n, p in model.named_parameters() if not decays(n, p)}
    assert "head.output.bias" in spared or model.settings.num_classes == 0
    assert "head.output.weight" not in spared
