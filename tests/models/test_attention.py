"""Self-attention: kernels, biases, precision. `capture` has a file of its own."""

import pytest
import torch

from tests.models.restatements import image, softmax
from vitrail.models import create_model
from vitrail.models.attention import attend


def test_many_biases_repeat_along_the_batch():
    """Two images of three windows each: window m gets bias m."""
    q, k, v = (image(6, 2, 4, 8, seed=s) for s in (1, 2, 3))
    bias = image(3, 2, 4, 4, seed=4)
    out = attend(q, k, v, bias, scale=0.3, dropout=0.0)
    for sample in range(6):
        for head in range(2):
            weights = softmax(0.3 * q[sample, head] @ k[sample, head].T + bias[sample % 3, head])
            torch.testing.assert_close(out[sample, head], weights @ v[sample, head], rtol=0, atol=1e-12)


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
