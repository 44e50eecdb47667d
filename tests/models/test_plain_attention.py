"""Attention without kernels: second derivatives, forward-mode derivatives and traced graphs, of every family."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import vitrail
from vitrail.models import Segmenter, SwinTransformer, VisionTransformer
from vitrail.models.plain import is_plain
from vitrail.models.position import KINDS

VIT = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "num_classes": 3}
SWIN = {"image_size": 16, "patch_size": 2, "width": 8, "depths": (2, 2), "heads": (2, 2), "window": 4, "num_classes": 3}
MAKERS = {
    **{kind: lambda kind=kind: VisionTransformer(**VIT, position=kind) for kind in KINDS},
    "attention pool": lambda: VisionTransformer(**VIT, pool="attention", class_token=False),
    "stem": lambda: VisionTransformer(**{**VIT, "patch_size": 2}, stem="conv2"),
    "neighbours": lambda: VisionTransformer(**VIT, local=True),
    "distilled": lambda: VisionTransformer(**VIT, distillation_token=True, qkv_bias="qv", qk_norm=True),
    "swin": lambda: SwinTransformer(**SWIN),
    "swin, padded as timm": lambda: SwinTransformer(**SWIN, padding="timm", mask_padding=True),
    "swin v2": lambda: SwinTransformer(**SWIN, version=2),
}


def randomised(model):
    """Far enough from the start that attention is not even and curvature is not lost in rounding."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


@pytest.fixture(params=MAKERS)
def model(request):
    return randomised(MAKERS[request.param]())


def batch(height=16, width=16):
    return torch.randn(2, 3, height, width, dtype=torch.float64)


def loss_of(model):
    return lambda x: model(x).square().sum()


def test_it_computes_the_same(model):
    x = batch(20, 16)
    fused = model(x)
    with vitrail.plain_attention():
        torch.testing.assert_close(model(x), fused, rtol=1e-10, atol=1e-10)


def test_second_derivatives(model):
    """The Hessian times a vector, against the difference of two gradients."""
    x, v = batch(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with vitrail.plain_attention():
        value, product = torch.autograd.functional.hvp(loss_of(model), x, v)
        gradients = [torch.autograd.functional.vjp(loss_of(model), x + step * v)[1] for step in (1e-5, -1e-5)]
    assert product.abs().max() > 1e-6
    torch.testing.assert_close(
        product, (gradients[0] - gradients[1]) / 2e-5, rtol=1e-4, atol=1e-4 * product.abs().max()
    )
    torch.testing.assert_close(value, loss_of(model)(x))


def test_a_gradient_of_a_gradient_reaches_the_weights(model):
    x = batch().requires_grad_()
    with vitrail.plain_attention():
        (slope,) = torch.autograd.grad(loss_of(model)(x), x, create_graph=True)
        slope.square().sum().backward()
    for name, parameter in model.named_parameters():
        if "attention.qkv.weight" in name:
            assert parameter.grad.abs().max() > 0, name


def test_forward_mode_derivatives(model):
    """jvp against vjp: uᵀ(J v) = (uᵀJ) v."""
    x, v = batch(), batch()
    with vitrail.plain_attention():
        out, pushed = torch.func.jvp(model, (x,), (v,))
        u = torch.randn_like(out)
        _, pull = torch.func.vjp(model, x)
    torch.testing.assert_close((u * pushed).sum(), (pull(u)[0] * v).sum())
    assert pushed.abs().max() > 1e-6


def test_a_symbolic_trace_serves_every_size(model):
    with vitrail.plain_attention():
        graph = torch.fx.symbolic_trace(model)
    called = {str(node.target) for node in graph.graph.nodes}
    assert "softmax" in called and not any("scaled_dot_product" in name for name in called)
    for size in ((16, 16), (21, 16), (16, 40)):
        x = batch(*size)
        torch.testing.assert_close(graph(x), model(x), rtol=1e-10, atol=1e-10)


def test_a_graph_of_elementary_operations(model):
    x, other = batch(), batch()
    with vitrail.plain_attention():
        graph = make_fx(model)(x)
    assert not any("scaled_dot_product" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(graph(other), model(other), rtol=1e-10, atol=1e-10)


def test_without_it_a_fused_kernel_runs_that_has_no_second_derivative():
    model = randomised(MAKERS["learned"]())
    graph = make_fx(model)(batch())
    assert any("scaled_dot_product" in str(node.target) for node in graph.graph.nodes)
    with pytest.raises(RuntimeError, match="derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward"):
        torch.autograd.functional.hvp(loss_of(model), batch(), batch())


def test_it_ends_with_its_block_whatever_happens():
    assert not is_plain()
    with pytest.raises(ZeroDivisionError), vitrail.plain_attention():
        with vitrail.plain_attention():
            assert is_plain()
        assert is_plain()
        1 / 0  # noqa: B018
    assert not is_plain()


def test_a_capture_sees_the_same_maps():
    model, x = randomised(MAKERS["learned"]()), batch()
    with vitrail.capture(model) as fused:
        model(x)
    with vitrail.plain_attention(), vitrail.capture(model) as plain:
        model(x)
    torch.testing.assert_close(plain[1], fused[1])


def test_dropout_of_attention_acts_in_training():
    model = VisionTransformer(**VIT, attention_dropout=0.5).train()
    x = torch.randn(1, 3, 16, 16)
    with vitrail.plain_attention():
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_a_segmenter_has_second_derivatives_too():
    model = randomised(Segmenter(VisionTransformer(**VIT), num_classes=2, head="linear"))
    x, v = batch(), batch()
    with vitrail.plain_attention():
        _, product = torch.autograd.functional.hvp(loss_of(model), x, v)
    assert product.abs().max() > 0
