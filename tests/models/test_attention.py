"""`capture`: the true attention of the chosen layers, without touching any output."""

import pytest
import torch

from tests.models.restatements import attention, block, image, norm, randomised, softmax
from vitrail.errors import VitrailError
from vitrail.models import MaskedAutoencoder, SwinTransformer, VisionTransformer, capture, create_model
from vitrail.models.attention import Attention, attend

VIT = {"image_size": 12, "patch_size": 4, "width": 16, "depth": 3, "heads": 2, "num_classes": 5}
SWIN = {"image_size": 32, "patch_size": 2, "width": 8, "depths": (2, 2), "heads": (2, 4), "window": 3, "num_classes": 5}


def test_many_biases_repeat_along_the_batch():
    """Two images of three windows each: window m gets bias m."""
    q, k, v = (image(6, 2, 4, 8, seed=s) for s in (1, 2, 3))
    bias = image(3, 2, 4, 4, seed=4)
    out = attend(q, k, v, bias, scale=0.3, dropout=0.0)
    for sample in range(6):
        for head in range(2):
            weights = softmax(0.3 * q[sample, head] @ k[sample, head].T + bias[sample % 3, head])
            torch.testing.assert_close(out[sample, head], weights @ v[sample, head], rtol=0, atol=1e-12)


def test_captured_vit_maps_are_the_unfused_attention():
    model, x = randomised(VisionTransformer(**VIT)), image(2, 3, 12, 12)
    with capture(model) as maps:
        model(x)
    assert list(maps) == [0, 1, 2]
    z, _ = model.embed(x)
    for layer, m in enumerate(model.blocks):
        expected = attention(norm(z, m.norm1), m.attention)[1]
        assert maps[layer].shape == expected.shape == (2, 2, 10, 10)
        torch.testing.assert_close(maps[layer].double(), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(maps[layer].sum(-1), torch.ones(2, 2, 10), rtol=0, atol=1e-5)
        z = block(z, m)


@pytest.mark.parametrize("position", ["relative", "rotary"])
def test_captured_maps_know_the_positions(position):
    """softmax(QKᵀ/√d + bias)·V put together from the captured map gives the output of the layer."""
    model, x = randomised(VisionTransformer(position=position, qk_norm=True, **VIT)), image(2, 3, 12, 12)
    seen = {}
    layer = model.blocks[1].attention
    hook = layer.register_forward_hook(lambda _, args, output: seen.update(input=args[0], output=output))
    with capture(model, [1]) as maps:
        model(x)
    hook.remove()
    v = (seen["input"] @ layer.qkv.weight[32:].T + layer.qkv.bias[32:]).unflatten(-1, (2, 8)).transpose(1, 2)
    joined = (maps[1].double() @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.proj(joined), seen["output"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("padding", ["torchvision", "timm"])
def test_captured_swin_maps_are_the_unfused_attention_of_every_window(version, padding):
    model = randomised(SwinTransformer(version=version, padding=padding, **SWIN))
    x = image(2, 3, 20, 28)  # 10×14 tokens: padded to 12×15, 4×5 windows of 3×3
    with capture(model, [1]) as maps:
        model(x)
    assert maps[1].shape == (2, 20, 2, 9, 9)
    torch.testing.assert_close(maps[1].sum(-1), torch.ones(2, 20, 2, 9), rtol=0, atol=1e-5)

    first, m = model.blocks[:2]
    z = first(model.embed(x))
    z = norm(z, m.norm1) if version == 1 else z
    windows, labels = shifted_windows(z, padding)
    for w in range(20):
        mask = torch.tensor([[0.0 if a == b else -100.0 for b in labels[w]] for a in labels[w]], dtype=torch.float64)
        expected = attention(windows[w], m.attention, m.bias() + mask)[1]
        torch.testing.assert_close(maps[1][:, w].double(), expected, rtol=0, atol=1e-5)


def shifted_windows(z, padding):
    """The second block's windows of 3×3, shifted by 1, read place by place; and where each token was rolled from."""
    h, w = z.shape[1:3]
    windows, labels = [], []
    for top in range(0, 12, 3):
        for left in range(0, 15, 3):
            tokens, label = [], []
            for r in range(top, top + 3):
                for c in range(left, left + 3):
                    if padding == "torchvision":  # pad to 12×15, then roll
                        row, column = (r + 1) % 12, (c + 1) % 15
                        real = row < h and column < w
                    else:  # roll the 10×14 tokens, then pad
                        row, column = (r + 1) % h, (c + 1) % w
                        real = r < h and c < w
                    tokens.append(z[:, row, column] if real else torch.zeros_like(z[:, 0, 0]))
                    label.append((r >= 12 - 1, c >= 15 - 1))
            windows.append(torch.stack(tokens, 1))
            labels.append(label)
    return windows, labels


def as_tuple(output):
    return output if isinstance(output, tuple) else (output,)


@pytest.mark.parametrize(
    "model",
    [
        VisionTransformer(**VIT),
        SwinTransformer(**SWIN),
        MaskedAutoencoder(**VIT | {"num_classes": 0}, decoder_width=8, decoder_depth=1, decoder_heads=2),
    ],
    ids=["vit", "swin", "mae"],
)
def test_capturing_changes_no_output_and_leaves_nothing_behind(model):
    model = randomised(model).float()
    x, noise = image(2, 3, 16, 20, dtype=torch.float32), torch.rand(2, 20)
    arguments = {"noise": noise} if isinstance(model, MaskedAutoencoder) else {}
    before = model(x, **arguments)
    with capture(model) as maps:
        during = model(x, **arguments)
    layers = [m for m in model.modules() if isinstance(m, Attention)]
    assert sorted(maps) == list(range(len(layers)))
    for a, b, c in zip(*map(as_tuple, (before, during, model(x, **arguments))), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert all(layer.sink is None for layer in layers)


def test_only_the_chosen_layers_are_captured_and_may_be_counted_from_the_end():
    model, x = randomised(VisionTransformer(**VIT)), image(1, 3, 12, 12)
    with capture(model) as everything:
        model(x)
    with capture(model, layers=[-1, 0]) as maps:
        model(x)
    assert sorted(maps) == [0, 2]
    assert torch.equal(maps[2], everything[2]) and not maps[2].requires_grad


def test_capture_ends_even_when_something_fails_inside():
    model = randomised(VisionTransformer(**VIT))
    with pytest.raises(VitrailError, match="Expected 3 channels"), capture(model) as maps:
        model(image(1, 3, 12, 12))
        assert all(b.attention.sink is not None for b in model.blocks)
        model(image(1, 4, 12, 12))
    assert sorted(maps) == [0, 1, 2]
    assert all(b.attention.sink is None for b in model.blocks)


def test_an_inner_capture_leaves_the_outer_one_in_place():
    model, x, other = randomised(VisionTransformer(**VIT)), image(1, 3, 12, 12), image(1, 3, 12, 12, seed=2)
    with capture(model) as outer:
        with capture(model, [1]) as inner:
            model(x)
        model(other)
    assert sorted(outer) == [0, 1, 2] and list(inner) == [1]
    assert (outer[1] - inner[1]).abs().max() > 1e-3
    assert model.blocks[1].attention.sink is None


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(VitrailError, match="has layers 0 to 2; there is no layer 3"):
        capture(randomised(VisionTransformer(**VIT)), [3]).__enter__()


def test_capture_around_checkpointed_blocks_leaves_the_gradients_as_they_are():
    model = create_model("vit_ti16", depth=3, num_classes=4).train()
    images = torch.randn(2, 3, 64, 48)
    model(images).square().sum().backward()
    expected = model.patch.weight.grad.clone()
    model.zero_grad()
    model.gradient_checkpointing = True
    with capture(model) as maps:
        loss = model(images).square().sum()
    loss.backward()  # runs the blocks again, after the capture has ended
    assert torch.allclose(model.patch.weight.grad, expected, atol=1e-6)
    assert maps[-1] is maps[2]


def test_the_qkv_layer_is_called_so_that_wrappers_of_it_work():
    model = create_model("vit_ti16", depth=1, num_classes=4).eval()
    images = torch.randn(1, 3, 32, 32)
    before = model(images)
    model.blocks[0].attention.qkv.register_forward_hook(lambda module, inputs, output: 2 * output)
    assert not torch.allclose(model(images), before)


def test_cosine_attention_in_half_precision_survives_padded_tokens():
    model = create_model("swinv2_t", depths=(2, 2), heads=(3, 6), num_classes=4).eval()
    images = torch.randn(1, 3, 100, 140)
    expected = model(images)
    assert torch.allclose(model.half()(images.half()).float(), expected, atol=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the kernels that take a bias there")
@pytest.mark.parametrize(
    ("name", "changes"), [("swin_t", {}), ("swinv2_t", {}), ("vit_ti16", {"position": "relative"})]
)
def test_a_bias_gives_the_same_on_the_gpu(name, changes):
    depth = {"depths": (2, 2), "heads": (3, 6)} if "swin" in name else {"depth": 2}
    model = create_model(name, num_classes=4, **depth, **changes).eval()
    images = torch.randn(2, 3, 100, 140)
    expected = model(images)
    expected.square().sum().backward()
    gradient = model.patch.weight.grad.clone()
    model.zero_grad()
    found = model.cuda()(images.cuda())
    found.square().sum().backward()
    assert torch.allclose(found.cpu(), expected, atol=1e-4)
    assert torch.allclose(model.patch.weight.grad.cpu(), gradient, rtol=1e-2, atol=1e-4)
