"""The hybrid's stem, against the same ResNet written with places counted by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.restatements import image, patches, randomised, vit_tokens
from vitrail.models.resnet import Bottleneck, ResNetStem, StdConv, make_stem, pad_same, stem_stride
from vitrail.models.vit import VisionTransformer


def standardised(weight):
    """Each filter to mean 0 and variance 1."""
    flat = weight.flatten(1)
    centred = flat - flat.sum(1, keepdim=True) / flat.shape[1]
    variance = (centred**2).sum(1, keepdim=True) / flat.shape[1]
    return (centred / torch.sqrt(variance + 1e-8)).view_as(weight)


def same(x, weight, stride):
    """A convolution with TensorFlow's padding, output by output: what sticks out of the image counts as zero."""
    (h, w), k = x.shape[2:], weight.shape[-1]
    rows, columns = math.ceil(h / stride), math.ceil(w / stride)
    top, left = (max((n - 1) * stride + k - size, 0) // 2 for n, size in ((rows, h), (columns, w)))
    out = torch.zeros(len(x), len(weight), rows, columns, dtype=x.dtype)
    for r in range(rows):
        for c in range(columns):
            for i in range(k):
                for j in range(k):
                    y, z = r * stride - top + i, c * stride - left + j
                    if 0 <= y < h and 0 <= z < w:
                        out[:, :, r, c] += x[:, :, y, z] @ weight[:, :, i, j].T
    return out


def group_norm(x, m):
    groups = x.unflatten(1, (32, -1))
    centred = groups - groups.mean((2, 3, 4), keepdim=True)
    normal = centred / torch.sqrt((centred**2).mean((2, 3, 4), keepdim=True) + m.eps)
    return normal.flatten(1, 2) * m.weight[:, None, None] + m.bias[:, None, None]


def restated_stem(x, stem):
    x = torch.relu(group_norm(same(x, standardised(stem.conv.weight), 2), stem.norm))
    (h, w) = x.shape[2:]
    pooled = []
    for r in range(math.ceil(h / 2)):  # 3×3 windows of stride 2; the odd pixel of padding lies right and bottom
        top = 2 * r - max((math.ceil(h / 2) - 1) * 2 + 3 - h, 0) // 2
        for c in range(math.ceil(w / 2)):
            left = 2 * c - max((math.ceil(w / 2) - 1) * 2 + 3 - w, 0) // 2
            pooled.append(x[:, :, max(top, 0) : top + 3, max(left, 0) : left + 3].amax((2, 3)))
    x = torch.stack(pooled, -1).unflatten(-1, (math.ceil(h / 2), -1))
    for stage in stem.stages:
        for m in stage:
            x = restated_bottleneck(x, m)
    return x


def restated_bottleneck(x, m):
    y = torch.relu(group_norm(same(x, standardised(m.conv1.weight), 1), m.norm1))
    y = torch.relu(group_norm(same(y, standardised(m.conv2.weight), m.conv2.stride[0]), m.norm2))
    y = group_norm(same(y, standardised(m.conv3.weight), 1), m.norm3)
    if m.conv_shortcut is not None:
        x = group_norm(same(x, standardised(m.conv_shortcut.weight), m.conv_shortcut.stride[0]), m.norm_shortcut)
    return torch.relu(x + y)


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize("size", [(8, 11), (9, 6), (7, 7)])
def test_a_standardised_convolution_pads_like_tensorflow(size, kernel, stride):
    conv = randomised(StdConv(3, 5, kernel, stride))
    x = image(2, 3, *size)
    torch.testing.assert_close(conv(x), same(x, standardised(conv.weight), stride), rtol=0, atol=1e-10)


def test_the_odd_pixel_of_padding_lies_right_and_bottom():
    padded = pad_same(torch.ones(1, 1, 4, 5), kernel=3, stride=2, value=-7.0)
    assert padded[0, 0].tolist() == [
        *([[-7.0, 1, 1, 1, 1, 1, -7.0]] * 4),  # 5 wide: one left, one right
        [-7.0] * 7,  # 4 high: the one row that is missing lies below
    ]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_bottleneck_adds_its_shortcut(stride):
    m = randomised(Bottleneck(128, 128, stride))
    assert (m.conv_shortcut is None) == (stride == 1)
    x = image(1, 128, 5, 4)
    torch.testing.assert_close(m(x), restated_bottleneck(x, m), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("blocks", "size"), [((), (19, 22)), ((1, 2), (27, 18))])
def test_the_stem_is_root_and_stages(blocks, size):
    stem = randomised(ResNetStem(3, blocks))
    x = image(1, 3, *size)
    out = stem(x)
    assert stem.stride == stem_stride(blocks) == (4 if not blocks else 8)
    assert out.shape == (1, stem.out_channels, math.ceil(size[0] / stem.stride), math.ceil(size[1] / stem.stride))
    assert out.std() > 0.1
    torch.testing.assert_close(out, restated_stem(x, stem), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "channels", "residual"), [("conv2", 64, 0), ("conv4", 128, 0), ("res4", 128, 2)])
def test_a_light_stem_is_halvings_with_or_without_residual_blocks(name, channels, residual):
    stem = randomised(make_stem(3, name))
    x = image(1, 3, 11, 6)
    by_hand, convs, norms = x, [stem.conv, *stem.convs], [stem.norm, *stem.norms]
    for conv, norm, blocks in zip(convs, norms, stem.blocks, strict=True):
        by_hand = torch.relu(group_norm(same(by_hand, standardised(conv.weight), 2), norm))
        assert len(blocks) == residual
        for m in blocks:
            y = torch.relu(group_norm(same(by_hand, standardised(m.conv1.weight), 1), m.norm1))
            by_hand = torch.relu(by_hand + group_norm(same(y, standardised(m.conv2.weight), 1), m.norm2))
    assert by_hand.shape == (1, channels, math.ceil(11 / stem_stride(name)), math.ceil(6 / stem_stride(name)))
    torch.testing.assert_close(stem(x), by_hand, rtol=0, atol=1e-9)


def test_a_hybrid_cuts_its_patches_from_the_feature_map():
    settings = {"image_size": (32, 48), "patch_size": 2, "width": 16, "depth": 1, "heads": 2, "num_classes": 5}
    model = randomised(VisionTransformer(stem=(1,), **settings))
    assert model.token_grid(32, 48) == (4, 6) and model.token_grid(33, 41) == (5, 6)
    x = image(1, 3, 32, 48)
    table = model.position.table[0]
    tokens = vit_tokens(model, model.stem(x), add=table[1:], prefix_rows=table[:1])  # the map in place of the image
    torch.testing.assert_close(model.features(x)["tokens/0"], tokens, rtol=0, atol=1e-10)
    odd = image(1, 3, 33, 41)  # a map of 9×11, padded to 10×12
    by_hand = patches(F.pad(model.stem(odd), (0, 1, 0, 1)), model.patch)
    torch.testing.assert_close(model.patch(model.stem(odd)).flatten(1, 2), by_hand, rtol=0, atol=1e-10)
