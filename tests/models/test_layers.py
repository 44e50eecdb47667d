import math

import pytest
import torch
from torch import nn

from tests.models.restatements import ACTIVATIONS, image
from vitrail.models.layers import (
    MLP,
    DropPath,
    LayerScale,
    PatchEmbed,
    ceil_div,
    cut_patches,
    drop_path_rates,
    init_weights,
    join_patches,
    pad_to_multiple,
)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("patch_size", [(4, 4), (3, 5), (8, 2)])
@pytest.mark.parametrize("size", [(24, 40), (25, 37)])
def test_linear_and_convolutional_patch_embedding_are_the_same_map(channels, patch_size, size):
    conv = PatchEmbed(channels, 16, patch_size, "conv").double()
    nn.init.normal_(conv.weight, std=0.02)
    nn.init.normal_(conv.bias)
    linear = PatchEmbed(channels, 16, patch_size, "linear").double()
    linear.load_state_dict(conv.state_dict())

    x = image(2, channels, *size)
    a, b = conv(x), linear(x)
    assert a.shape == b.shape == (2, math.ceil(size[0] / patch_size[0]), math.ceil(size[1] / patch_size[1]), 16)
    assert a.std() > 0.1
    assert (a - b).abs().max() <= 1e-12

    # The corner patch, cut by hand and zero-padded right and bottom.
    last = torch.zeros(2, channels, *patch_size, dtype=x.dtype)
    corner = x[:, :, (a.shape[1] - 1) * patch_size[0] :, (a.shape[2] - 1) * patch_size[1] :]
    last[:, :, : corner.shape[2], : corner.shape[3]] = corner
    by_hand = last.flatten(1) @ conv.weight.flatten(1).T + conv.bias
    torch.testing.assert_close(b[:, -1, -1], by_hand, rtol=0, atol=1e-5)


def test_patches_are_cut_in_raster_order():
    x = torch.arange(2 * 4 * 6).reshape(1, 2, 4, 6)  # two channels of 4×6 pixels, patches of 2×3
    patches = cut_patches(x, (2, 3))
    assert patches.shape == (1, 2, 2, 2, 2, 3)
    assert patches[0, 0, 0, 0].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert patches[0, 0, 1, 0].tolist() == [[3, 4, 5], [9, 10, 11]]
    assert patches[0, 1, 0, 0].tolist() == [[12, 13, 14], [18, 19, 20]]
    assert patches[0, 1, 1, 1].tolist() == [[39, 40, 41], [45, 46, 47]]


def test_joining_patches_undoes_cutting():
    x = image(2, 3, 12, 20)
    assert torch.equal(join_patches(cut_patches(x, (4, 5))), x)


def test_padding_adds_zeros_right_and_bottom_only_where_needed():
    x = image(1, 2, 5, 8)
    padded = pad_to_multiple(x, (4, 4))
    assert padded.shape == (1, 2, 8, 8)
    assert torch.equal(padded[:, :, :5], x) and padded[:, :, 5:].abs().sum() == 0
    assert pad_to_multiple(x, (5, 4)) is x


def test_a_grid_covers_the_whole_image():
    assert ceil_div((224, 224), (16, 16)) == (14, 14)
    assert ceil_div((225, 31), (16, 16)) == (15, 2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_is_two_matrices_with_the_named_activation_between(activation):
    mlp = MLP(8, 24, activation).double()
    x = 3 * image(5, 8)
    hidden = ACTIVATIONS[activation](x @ mlp.fc1.weight.T + mlp.fc1.bias)
    torch.testing.assert_close(mlp(x), hidden @ mlp.fc2.weight.T + mlp.fc2.bias, rtol=0, atol=1e-12)


def test_swiglu_gates_the_first_half_by_the_silu_of_itself():
    mlp = MLP(8, 24, "swiglu").double()
    assert mlp.fc1.weight.shape == (48, 8)
    x = image(5, 8)
    hidden = x @ mlp.fc1.weight.T + mlp.fc1.bias
    gate, value = hidden[:, :24], hidden[:, 24:]
    expected = (gate * torch.sigmoid(gate) * value) @ mlp.fc2.weight.T + mlp.fc2.bias
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-12)


def test_mlp_dropout_changes_training_only():
    mlp = MLP(16, 64, dropout=0.5)
    x = image(32, 16, dtype=torch.float32)
    assert (mlp.train()(x) == 0).float().mean() > 0.3  # the outputs themselves are dropped too
    reference = MLP(16, 64)
    reference.load_state_dict(mlp.state_dict())
    assert torch.equal(mlp.eval()(x), reference(x))


def test_drop_path_drops_whole_samples_and_keeps_the_expectation():
    drop, x = DropPath(0.3).train(), torch.ones(20_000, 3, 2)
    y = drop(x)
    kept = y[:, 0, 0] > 0
    assert torch.equal(y, kept[:, None, None] * torch.full_like(x, 1 / 0.7))
    # The mean of 20,000 draws deviates by √(0.3/0.7/20000) = 0.0046; five of those.
    assert abs(y.mean().item() - 1) < 0.023
    assert abs(kept.float().mean().item() - 0.7) < 0.017


def test_drop_path_is_off_in_eval_and_at_rate_zero():
    x = image(64, 4)
    assert torch.equal(DropPath(0.9).eval()(x), x)
    assert torch.equal(DropPath(0.0).train()(x), x)
    assert DropPath(1.0).train()(x).abs().sum() == 0


def test_drop_path_rates_rise_linearly_from_zero():
    assert drop_path_rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert drop_path_rates(0.3, 1) == [0]


def test_layer_scale_multiplies_each_channel():
    scale = LayerScale(4, 0.1)
    assert scale.gamma.tolist() == pytest.approx([0.1] * 4)
    scale.gamma.data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert scale(torch.ones(2, 4)).tolist() == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize("module", [nn.Linear(256, 512), nn.Conv2d(16, 256, 3), PatchEmbed(3, 512, (16, 16))])
def test_matrices_start_truncated_normal_with_deviation_0_02_and_biases_at_zero(module):
    nn.init.ones_(module.bias)
    module.apply(init_weights)
    weight = module.weight.detach()
    # 36,864 numbers or more: five standard errors of the deviation are 0.02·5/√(2·36864), of the mean 0.02·5/√36864.
    assert abs(weight.std().item() - 0.02) < 0.0004
    assert abs(weight.mean().item()) < 0.0006
    assert weight.abs().max() < 2  # where trunc_normal_ cuts, as in the published code
    inside = (weight.abs() < 0.02).float().mean().item()
    assert abs(inside - 0.6827) < 0.013
    assert module.bias.abs().sum() == 0
