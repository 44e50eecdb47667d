"""torch.compile without a graph break, and torch.export with sizes left open, equal to the model itself."""

import pytest
import torch
from torch.export import Dim

from tests.models.restatements import image, randomised
from vitrail.models import MaskedAutoencoder, SwinTransformer, VisionTransformer, capture
from vitrail.models.grid import RULES
from vitrail.models.layers import exporting
from vitrail.models.position import KINDS

VIT = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 1, "heads": 2, "num_classes": 5}
SWIN = {"image_size": 16, "patch_size": 2, "width": 8, "depths": (2, 1), "heads": (2, 4), "window": 3, "num_classes": 5}
CONFIGURATIONS = {
    **{kind: {"position": kind} for kind in KINDS},
    "swiglu": {"activation": "swiglu"},
    "quick_gelu": {"activation": "quick_gelu"},
    "qk_norm": {"qk_norm": True},
    "qv_bias": {"qkv_bias": "qv"},
    "layer_scale": {"layer_scale": 1e-5},
    "local": {"local": True},
    "post_norm": {"norm_first": False},
    "norms": {"norm_before": True, "norm_after_pool": True, "pool": "mean"},
    "distilled": {"distillation_token": True, "registers": 2},
    "map": {"pool": "attention", "class_token": False},
    "convolved_patches": {"patch_embed": "conv", "head": "mlp"},
    "hybrid": {"stem": (1, 1), "patch_size": 1, "image_size": 32},
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def vit(**changes):
    return randomised(VisionTransformer(**{**VIT, **changes})).float()


def swin(**changes):
    return randomised(SwinTransformer(**{**SWIN, **changes})).float()


def mae():
    settings = {**VIT, "num_classes": 0, "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
    return randomised(MaskedAutoencoder(**settings)).float()


def assert_same(compiled, model, x, **arguments):
    with torch.no_grad():
        expected, actual = model(x, **arguments), compiled(x, **arguments)
    for a, b in zip(*((out if isinstance(out, tuple) else (out,)) for out in (actual, expected)), strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def whole_graph(model):
    return torch.compile(model, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_vit_block_compiles_without_a_graph_break(name):
    model = vit(**CONFIGURATIONS[name])
    size = (32, 40) if name == "hybrid" else (16, 18)  # a multiple, and a width that is padded
    assert_same(whole_graph(model), model, image(2, 3, *size, dtype=torch.float32))


def test_what_is_exported_is_told_from_what_is_compiled():
    """Strictly, an export is traced by the compiler; and up to PyTorch 2.11 the compiler says that it exports."""

    class Told(torch.nn.Module):
        def forward(self, x):
            return x + 1 if exporting() else x - 1

    zero = torch.zeros(2)
    assert torch.compile(Told(), backend="eager")(zero).sum() == -2
    for strict in (False, True):
        assert torch.export.export(Told(), (zero,), strict=strict).module()(zero).sum() == 2


@pytest.mark.parametrize("padding", ["torchvision", "timm"])
@pytest.mark.parametrize("version", [1, 2])
def test_every_swin_block_compiles_without_a_graph_break(version, padding):
    model = swin(version=version, padding=padding, mask_padding=version == 2)
    assert_same(whole_graph(model), model, image(2, 3, 16, 22, dtype=torch.float32))


def test_mae_compiles_without_a_graph_break():
    model = mae()
    assert_same(whole_graph(model), model, image(2, 3, 16, 18, dtype=torch.float32), noise=torch.rand(2, 20))


def test_training_compiles_without_a_graph_break_and_gives_the_same_gradients():
    model, x = vit(position="relative").train(), image(2, 3, 16, 16, dtype=torch.float32)
    gradients = []
    for forward in (model, whole_graph(model)):
        model.zero_grad()
        forward(x).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["learned", "relative"])
def test_a_compiled_model_serves_other_sizes_and_newly_trained_tables(kind):
    model = vit(position=kind)
    compiled = whole_graph(model)
    for size in ((16, 16), (16, 24), (18, 27)):
        assert_same(compiled, model, image(2, 3, *size, dtype=torch.float32))
    with torch.no_grad():
        model.position.table.mul_(-2)
    assert_same(compiled, model, image(2, 3, 18, 27, dtype=torch.float32))


def test_capture_sees_the_attention_of_a_compiled_model():
    model, x = vit(position="relative"), image(2, 3, 16, 16, dtype=torch.float32)
    compiled = whole_graph(model)
    compiled(x)
    with capture(compiled) as maps:
        compiled(x)
    with capture(model) as expected:
        model(x)
    assert list(maps) == [0] and torch.equal(maps[0], expected[0])
    assert_same(compiled, model, x)


@pytest.mark.parametrize("family", ["vit", "swin"])
def test_inductor_gives_the_same_answer(family):
    model = vit() if family == "vit" else swin(depths=(2,), heads=(2,))  # Swin: a plain and a shifted block
    compiled = torch.compile(model, fullgraph=True)
    assert_same(compiled, model, image(2, 3, 16, 22, dtype=torch.float32))


def exported_with_open_sizes(model, x, smallest):
    sizes = {0: Dim("batch", max=64), 2: Dim("height", min=smallest, max=512), 3: Dim("width", min=smallest, max=512)}
    return torch.export.export(model, (x,), dynamic_shapes=(sizes,)).module()


@pytest.mark.parametrize(
    "changes",
    [
        *({"position": kind} for kind in KINDS),
        *({"position_rule": rule} for rule in RULES if rule != "timm"),
        {"pool": "attention", "class_token": False, "patch_embed": "conv"},
        {"distillation_token": True, "registers": 2, "position": "relative"},
        {"local": True},
    ],
    ids=lambda c: ",".join(str(v) for v in c.values()),
)
def test_an_exported_vit_takes_any_batch_height_and_width(changes):
    model = vit(**changes)
    exported = exported_with_open_sizes(model, image(2, 3, 16, 16, dtype=torch.float32), smallest=5)  # two patches
    # The size at construction, one that is not square, one that is no multiple of the patch, and the smallest.
    for shape in ((2, 3, 16, 16), (3, 3, 12, 40), (1, 3, 13, 18), (1, 3, 5, 5)):
        assert_same(exported, model, image(*shape, dtype=torch.float32))


def test_an_exported_vit_may_start_from_a_size_that_is_padded():
    model = vit()
    exported = exported_with_open_sizes(model, image(2, 3, 18, 27, dtype=torch.float32), smallest=5)
    for shape in ((2, 3, 16, 16), (3, 3, 33, 20)):
        assert_same(exported, model, image(*shape, dtype=torch.float32))


def test_an_exported_hybrid_takes_any_batch_height_and_width():
    model = vit(**CONFIGURATIONS["hybrid"])
    exported = exported_with_open_sizes(model, image(2, 3, 32, 32, dtype=torch.float32), smallest=9)
    for shape in ((2, 3, 32, 32), (3, 3, 24, 40), (1, 3, 37, 18)):
        assert_same(exported, model, image(*shape, dtype=torch.float32))


@pytest.mark.parametrize("size", [(16, 16), (14, 22)])
@pytest.mark.parametrize("version", [1, 2])
def test_an_exported_swin_takes_any_batch(version, size):
    model = swin(version=version)
    x = image(2, 3, *size, dtype=torch.float32)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch", max=64)},)).module()
    for batch in (1, 2, 5):
        assert_same(exported, model, image(batch, 3, *size, dtype=torch.float32))


def test_an_exported_mae_takes_any_batch():
    model, batch = mae(), Dim("batch", max=64)
    x, noise = image(2, 3, 16, 16, dtype=torch.float32), torch.rand(2, 16)
    shapes = {"x": {0: batch}, "noise": {0: batch}}
    exported = torch.export.export(model, (x,), {"noise": noise}, dynamic_shapes=shapes).module()
    assert_same(exported, model, image(3, 3, 16, 16, dtype=torch.float32), noise=torch.rand(3, 16))
