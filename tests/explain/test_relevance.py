"""Relevance and Grad-CAM against hand-made numbers, an unfused restatement with plain autograd, and captum."""

import pytest
import torch
from torch import nn

import vitrail
from tests.explain.small import identity, lively, swin, uniform
from tests.models.test_capture import Sizes
from tests.parity.peers import pictures
from vitrail import explain
from vitrail.explain.gradient_maps import follow


def test_one_layer_of_two_tokens_by_hand():
    """A = [.6 .4; .3 .7] in one head, gradient [1 2; -1 1]: Ā = [.6 .8; 0 .7]."""
    attention = torch.tensor([[[[0.6, 0.4], [0.3, 0.7]]]])
    gradient = torch.tensor([[[[1.0, 2.0], [-1.0, 1.0]]]])
    # It works in the place of the map, which is then used up.
    assert torch.allclose(follow(torch.tensor([[1.0, 0.0]]), attention.clone(), gradient), torch.tensor([[1.6, 0.8]]))
    assert torch.allclose(follow(torch.tensor([[0.0, 1.0]]), attention.clone(), gradient), torch.tensor([[0.0, 1.7]]))


def test_heads_are_averaged_after_what_speaks_against_the_class_is_dropped():
    attention = torch.full((1, 2, 2, 2), 0.5)
    gradient = torch.stack([torch.full((2, 2), 2.0), torch.full((2, 2), -4.0)])[None]
    assert torch.allclose(follow(torch.tensor([[1.0, 0.0]]), attention, gradient), torch.tensor([[1.5, 0.5]]))


def restated(model, x, target):
    """R ← R + Ā·R with whole N×N matrices in float64, attention unfused and differentiated by autograd."""
    model = model.double()
    tokens, _ = model.embed(x.double())
    maps = []
    for block in model.blocks:
        z = block.norm1(tokens)
        qkv = block.attention.qkv(z).unflatten(-1, (3, block.attention.heads, -1)).permute(2, 0, 3, 1, 4)
        attention = (qkv[0] @ qkv[1].transpose(-2, -1) * qkv.shape[-1] ** -0.5).softmax(dim=-1)
        attention.retain_grad()
        maps.append(attention)
        tokens = tokens + block.attention.proj((attention @ qkv[2]).transpose(1, 2).flatten(2))
        tokens = tokens + block.mlp(block.norm2(tokens))
    pooled = model.pool(model.norm(tokens))
    model.head(pooled)[torch.arange(len(x)), target].sum().backward()
    result = torch.eye(tokens.shape[1], dtype=torch.float64)
    for attention in maps:
        step = (attention.grad * attention).clamp(min=0).mean(dim=1).detach()
        result = result + step @ result
    model.zero_grad()
    model.float()
    return result


@pytest.mark.parametrize("target", [[0, 3], [2, 2]])
def test_relevance_equals_the_unfused_restatement(target):
    model, x = lively(), pictures(48, 32)
    expected = restated(model, x, torch.tensor(target))[:, 0, 1:].unflatten(1, (3, 2)).float()
    found = explain.relevance(model, x, target)
    assert expected.max() > 1e-4
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-6 * float(expected.max()))


def test_relevance_of_averaged_patches_is_the_mean_row_without_the_identity():
    model, x = lively(class_token=False, pool="mean"), pictures(32, 32)
    result = restated(model, x, torch.tensor([1, 1])) - torch.eye(4)
    expected = result.mean(dim=1).unflatten(1, (2, 2)).float()
    assert torch.allclose(explain.relevance(model, x, 1), expected, rtol=1e-3, atol=1e-6 * float(expected.max()))


def test_relevance_through_identity_attention_never_leaves_the_class_token():
    """Though the gradient would have it elsewhere, and though there is something to follow."""
    model, x = identity(), pictures(32, 32)
    columns = []
    for target in range(4):
        with vitrail.capture(model, gradients=True) as maps:
            model(x)[:, target].sum().backward()
        model.zero_grad()
        assert min(gradient[:, :, 0, 1:].abs().max() for gradient in maps.gradients.values()) > 1e-4
        assert explain.relevance(model, x, target).abs().max() < 1e-9
        rows = torch.eye(5)[:1].expand(2, 5)
        for layer in (2, 1, 0):
            rows = follow(rows, maps[layer].clone(), maps.gradients[layer])
        assert rows[:, 1:].abs().max() < 1e-9
        class_column = rows[:, 0] - 1
        expected = restated(model, x, torch.tensor([target, target]))[:, 0, 0] - 1
        assert torch.allclose(class_column, expected.float(), rtol=1e-3, atol=1e-7)
        columns.append(class_column.min())
    assert max(columns) > 1e-4
    averaged = identity(class_token=False, pool="mean")
    assert max(explain.relevance(averaged, x, target).min() for target in range(4)) >= 0
    assert max(explain.relevance(averaged, x, target).max() for target in range(4)) > 1e-4


def test_no_more_than_the_map_and_its_gradient_live_at_once_and_for_entropy_the_map_alone():
    model = lively(patch_size=4, depth=2, width=8, num_classes=3)
    x = pictures(80, 80)  # 401 tokens, two heads
    size = 2 * 2 * 401 * 401
    with Sizes(least=size) as sizes:
        explain.relevance(model, x, 1)
    assert sizes.largest == size and sizes.most == 2
    with Sizes(least=size) as sizes:
        explain.attention_entropy(model, x)
    assert sizes.largest == size and sizes.most == 1


def test_relevance_through_uniform_attention_and_equal_patches_is_equal():
    """Nothing tells the patches apart, so nothing can speak for one of them more."""
    found = explain.relevance(uniform(position="none"), torch.zeros(1, 3, 32, 32), 2)
    assert torch.allclose(found, found.mean().expand(1, 2, 2), rtol=1e-4)


def test_the_predicted_class_is_explained_unless_another_is_asked_for():
    model, x = lively(), pictures(32, 32)
    best = model(x).argmax(dim=-1)
    other = (best + 1) % 4
    for method in (explain.relevance, explain.grad_cam):
        assert torch.equal(method(model, x), method(model, x, best))
        assert not torch.allclose(method(model, x), method(model, x, other))


class Parted(nn.Module):
    """The ViT with what the attention of a block reads laid out as captum's LayerGradCam wants it: [B, D, h, w]."""

    def __init__(self, model, layer):
        super().__init__()
        self.model, self.layer, self.map = model, layer, nn.Identity()

    def forward(self, x):
        tokens, grid = self.model.embed(x)
        front = self.model.prefix_tokens
        for i, block in enumerate(self.model.blocks):
            read = block.norm1(tokens)
            if i == self.layer:
                patches = self.map(read[:, front:].unflatten(1, grid).permute(0, 3, 1, 2))
                read = torch.cat([read[:, :front], patches.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
            tokens = tokens + block.attention(read)
            tokens = tokens + block.mlp(block.norm2(tokens))
        return self.model.head(self.model.pool(self.model.norm(tokens)))


@pytest.mark.parametrize("layer", [1, 2])
def test_grad_cam_is_captums(layer):
    from captum.attr import LayerGradCam

    model, x = lively(), pictures(48, 32)
    parted = Parted(model, layer)
    theirs = LayerGradCam(parted, parted.map).attribute(x, target=3, relu_attributions=True)[:, 0]
    ours = explain.grad_cam(model, x, 3, layer)
    assert theirs.max() > 0
    assert torch.allclose(ours, theirs.detach(), atol=1e-6)
    if layer == 2:  # the last, where a class token reads the patches
        assert torch.equal(explain.grad_cam(model, x, 3), ours)


@pytest.mark.parametrize("version", [1, 2])
def test_grad_cam_of_averaged_patches_is_the_class_weight_times_the_patch(version):
    """logit = w·mean(z) + b, so the gradient is w/n at every patch: the class activation map of old."""
    model, x = swin(version=version), pictures(64, 48)
    z = model.encode(model.embed(x))  # B h w D
    weight = model.head.output.weight[2] / (z.shape[1] * z.shape[2])
    expected = (z @ weight).relu().detach()
    assert expected.max() > 0
    assert torch.allclose(explain.grad_cam(model, x, 2), expected, atol=1e-6)
    assert explain.grad_cam(model, x, 2, layer=2).shape == (2, 8, 6)


def test_grad_cam_of_a_swin_block_is_captums():
    from captum.attr import LayerGradCam

    class Whole(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.map = model, nn.Identity()

        def forward(self, x):
            x = self.model.embed(x)
            *before, last = self.model.blocks
            for i, block in enumerate(before):
                x = self.model.merges[0](x) if i == 2 else x
                x = block(x)
            read = self.map(last.norm1(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            x = x + last.attend(read)
            x = x + last.mlp(last.norm2(x))
            return self.model.head(self.model.pool(self.model.norm(x)))

    model, x = swin(), pictures(64, 48)
    parted = Whole(model)
    theirs = LayerGradCam(parted, parted.map).attribute(x, target=1, relu_attributions=True)[:, 0]
    assert theirs.max() > 0
    assert torch.allclose(explain.grad_cam(model, x, 1, layer=-1), theirs.detach(), atol=1e-6)


def test_nothing_is_left_behind():
    model, x = lively(), pictures(32, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        first = explain.relevance(model, x), explain.grad_cam(model, x)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch.equal(first[0], explain.relevance(model, x)) and torch.equal(first[1], explain.grad_cam(model, x))


def test_frozen_models_are_explained_alike():
    model, x = lively(), pictures(32, 32)
    expected = explain.relevance(model, x)
    assert torch.equal(explain.relevance(model.requires_grad_(False), x), expected)


def test_refusals_say_what_to_do():
    x = pictures(64, 64)
    with pytest.raises(vitrail.VitrailError, match="windows only; use grad_cam"):
        explain.relevance(swin(), x)
    with pytest.raises(vitrail.VitrailError, match="has no classes to explain"):
        explain.grad_cam(lively(num_classes=0), x)
    with pytest.raises(vitrail.VitrailError, match="classes 0 to 3; there is no class 9"):
        explain.relevance(lively(), x, 9)
    with pytest.raises(vitrail.VitrailError, match="one for each of 2 pictures"):
        explain.relevance(lively(), x, [1, 2, 3])
