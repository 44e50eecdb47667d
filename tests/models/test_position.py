"""Each kind of position against a closed form, or a float64 restatement of the whole model that uses it."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.models.restatements import class_logits, image, randomised, vit_tokens
from vitrail.models.attention import rotate
from vitrail.models.grid import RULES, relative_index, resize_grid
from vitrail.models.position import (
    KINDS,
    FactorisedPosition,
    LearnedPosition,
    RelativePosition,
    RotaryPosition,
    SinCos1dPosition,
    SinCosPosition,
)
from vitrail.models.vit import VisionTransformer

TINY = {"image_size": (12, 20), "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "num_classes": 5}  # grid 3×5


def tiny(position, **changes):
    return randomised(VisionTransformer(position=position, **{**TINY, **changes}))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_only_without_positions_does_the_order_of_the_patches_not_matter(kind, prefix):
    model = tiny(kind, pool="mean", class_token=prefix)
    x = image(2, 3, 12, 20)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(3))
    cut = x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)  # B C 15 4 4
    shuffled = cut[:, :, order].unflatten(2, (3, 5)).permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 12, 20)
    difference = (model(x) - model(shuffled)).abs().max().item()
    if kind == "none":
        assert difference < 1e-5  # the class token, where there is one, is not a patch and stays in front
    else:
        assert difference > 1e-3


def test_sincos_in_two_dimensions_is_columns_then_rows_sine_then_cosine():
    table = SinCosPosition(16, (3, 5), "timm").table
    for row in range(3):
        for column in range(5):
            omega = [10000 ** (-i / 4) for i in range(4)]
            expected = [f(p * o) for p in (column, row) for f in (math.sin, math.cos) for o in omega]
            assert table[row, column].tolist() == pytest.approx(expected, abs=1e-7)


def test_sincos_in_one_dimension_counts_in_raster_order():
    table = SinCos1dPosition(8, (3, 5), "timm").table
    for row in range(3):
        for column in range(5):
            index = 5 * row + column
            expected = [f(index * 10000 ** (-i / 4)) for f in (math.sin, math.cos) for i in range(4)]
            assert table[row, column].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["sincos", "sincos1d"])
def test_a_model_adds_its_waves_to_the_patches_and_nothing_to_the_class_token(kind):
    model, x = tiny(kind), image(2, 3, 12, 20)
    expected = class_logits(model, vit_tokens(model, x, add=model.position.table.flatten(0, 1)))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-10)
    assert not any("position" in key for key in model.state_dict())  # nothing to load, nothing to train


def test_factorised_positions_are_a_row_plus_a_column():
    model, x = tiny("factorised"), image(2, 3, 12, 20)
    p = model.position
    assert p.rows.shape == (3, 16) and p.columns.shape == (5, 16)
    add = torch.stack([p.rows[r] + p.columns[c] for r in range(3) for c in range(5)])
    torch.testing.assert_close(model(x), class_logits(model, vit_tokens(model, x, add)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("grid", [(3, 3), (2, 5), (4, 1)])
def test_relative_index_names_the_offset_of_every_pair(grid):
    h, w = grid
    index = relative_index(grid, "cpu")
    for i in range(h * w):
        for j in range(h * w):
            down, across = i // w - j // w, i % w - j % w
            assert index[i, j] == (down + h - 1) * (2 * w - 1) + across + w - 1
    assert sorted(set(index.flatten().tolist())) == list(range((2 * h - 1) * (2 * w - 1)))


def relative_bias_by_hand(position, grid, prefix):
    """[H, N, N]: the table's three last rows are prefix→patch, patch→prefix, prefix→prefix (query→key)."""
    (h, w), n = grid, grid[0] * grid[1] + prefix
    bias = torch.zeros(position.table.shape[1], n, n, dtype=torch.float64)
    for query in range(n):
        for key in range(n):
            if query >= prefix and key >= prefix:
                (r0, c0), (r1, c1) = divmod(query - prefix, w), divmod(key - prefix, w)
                row = position.table[(r0 - r1 + h - 1) * (2 * w - 1) + c0 - c1 + w - 1]
            else:
                row = (
                    position.table[-3]
                    if key >= prefix
                    else position.table[-2]
                    if query >= prefix
                    else position.table[-1]
                )
            bias[:, query, key] = row
    return bias


@pytest.mark.parametrize("changes", [{}, {"registers": 2}, {"class_token": False, "pool": "mean"}])
def test_relative_positions_are_a_bias_on_the_scores_of_every_block(changes):
    model, x = tiny("relative", **changes), image(2, 3, 12, 20)
    prefix = model.prefix_tokens
    assert model.position.table.shape == (5 * 9 + (3 if prefix else 0), 2)
    bias = relative_bias_by_hand(model.position, (3, 5), prefix)
    tokens = vit_tokens(model, x, bias=bias)
    torch.testing.assert_close(model.features(x)["tokens/1"], tokens, rtol=0, atol=1e-10)
    plain = vit_tokens(model, x)
    assert (plain - tokens).abs().max() > 1e-2  # the bias matters


def test_conditional_positions_are_a_zero_padded_depthwise_convolution_after_the_first_block():
    model, x = tiny("conditional", registers=1), image(2, 3, 12, 20)
    conv, prefix = model.position.conv, 2

    def generator(z):  # B N D
        out = z.clone()
        for row in range(3):
            for column in range(5):
                total = conv.bias.expand(len(z), -1)
                for down in (-1, 0, 1):
                    for across in (-1, 0, 1):
                        r, c = row + down, column + across
                        if 0 <= r < 3 and 0 <= c < 5:  # outside lie zeros
                            total = total + z[:, prefix + 5 * r + c] * conv.weight[:, 0, down + 1, across + 1]
                out[:, prefix + 5 * row + column] += total
        return out

    expected = class_logits(model, vit_tokens(model, x, between=generator))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-10)


def turn_by_angles(x, grid, base, prefix):
    """Rotary positions pair by pair: (x_i, x_{i+d/2}) is turned by 2π·place·base^(-4j/d); rows first, then columns."""
    (h, w), d = grid, x.shape[-1]
    out = x.clone()
    for n in range(h * w):
        places = (2 * (n // w + 0.5) / h - 1, 2 * (n % w + 0.5) / w - 1)
        for i in range(d // 2):
            axis, j = divmod(i, d // 4)
            angle = 2 * math.pi * places[axis] * base ** (-4 * j / d)
            a, b = x[..., prefix + n, i], x[..., prefix + n, i + d // 2]
            out[..., prefix + n, i] = a * math.cos(angle) - b * math.sin(angle)
            out[..., prefix + n, i + d // 2] = a * math.sin(angle) + b * math.cos(angle)
    return out


@pytest.mark.parametrize("base", [100.0, 7.0])
def test_rotary_positions_turn_queries_and_keys_of_patches(base):
    model, x = tiny("rotary", registers=2, rotary_base=base), image(2, 3, 12, 20)
    expected = class_logits(model, vit_tokens(model, x, turn=lambda t: turn_by_angles(t, (3, 5), base, prefix=3)))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)  # the angles are float32


def test_rotary_scores_depend_on_the_offset_alone_and_keep_lengths_and_prefix():
    grid, prefix = (4, 6), 2
    cos, sin = RotaryPosition(8, 100.0).rotary(grid)
    q, k = image(8, seed=5, dtype=torch.float32), image(8, seed=6, dtype=torch.float32)
    turned_q, turned_k = (rotate(t.expand(1, 1, prefix + 24, 8), cos, sin)[0, 0] for t in (q, k))

    assert torch.equal(turned_q[:prefix], q.expand(prefix, 8))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(26), rtol=1e-6, atol=0)

    scores = (turned_q[prefix:] @ turned_k[prefix:].T).reshape(4, 6, 4, 6)
    by_offset = {}
    for r0, c0, r1, c1 in np.ndindex(4, 6, 4, 6):
        by_offset.setdefault((r1 - r0, c1 - c0), []).append(scores[r0, c0, r1, c1].item())
    for values in by_offset.values():
        assert max(values) - min(values) < 1e-5
    means = [np.mean(v) for v in by_offset.values()]
    assert np.std(means) > 0.1  # and different offsets give different scores


# How each ecosystem resizes, as its own code calls torch.
DOCUMENTED = {
    "timm": {"mode": "bicubic", "antialias": True, "align_corners": False},
    "hf": {"mode": "bicubic", "antialias": False, "align_corners": False},
    "torchvision": {"mode": "bicubic", "antialias": False, "align_corners": True},
    "google": {"mode": "bilinear", "antialias": False, "align_corners": True},
}


@pytest.mark.parametrize("grid", [(7, 9), (2, 3), (4, 8)])
@pytest.mark.parametrize("rule", DOCUMENTED)
def test_a_table_is_resized_as_its_rule_says(rule, grid):
    table = image(4, 6, 8, dtype=torch.float32)
    expected = F.interpolate(table.permute(2, 0, 1)[None], size=grid, **DOCUMENTED[rule])[0].permute(1, 2, 0)
    assert torch.equal(resize_grid(table, grid, rule), expected)
    others = [resize_grid(table, grid, other) for other in DOCUMENTED if other != rule]
    assert all((expected - other).abs().max() > 1e-3 for other in others)


@pytest.mark.parametrize("rule", RULES)
def test_a_table_of_one_column_is_resized_as_one_row_is(rule):
    """PyTorch's antialiased bicubic kernel gives every row of a single column the first value."""
    column = torch.randn(5, 1, 3)
    row = resize_grid(column.transpose(0, 1), (1, 9), rule)
    resized = resize_grid(column, (9, 1), rule)
    torch.testing.assert_close(resized, row.transpose(0, 1))
    assert resized.std(dim=0).min() > 0.1


@pytest.mark.parametrize("rule", DOCUMENTED)
def test_a_table_of_the_same_grid_is_left_alone(rule):
    table = image(4, 6, 8)
    assert resize_grid(table, (4, 6), rule) is table


def test_googles_rule_is_linear_between_corners_that_stay():
    """scipy's zoom of order 1, which Google's code calls: each axis np.interp over linspace(0, n - 1, m)."""
    table = image(4, 6, 3)
    down = np.linspace(0, 3, 9)
    across = np.linspace(0, 5, 2)
    rows = np.stack(
        [[np.interp(down, np.arange(4), table[:, c, d].numpy()) for d in range(3)] for c in range(6)]
    )  # 6 3 9
    expected = np.stack([[np.interp(across, np.arange(6), rows[:, d, r]) for d in range(3)] for r in range(9)])  # 9 3 2
    resized = resize_grid(table, (9, 2), "google")
    np.testing.assert_allclose(resized.numpy(), expected.transpose(0, 2, 1), atol=1e-6)
    torch.testing.assert_close(resized[[0, 0, -1, -1], [0, -1, 0, -1]], table[[0, 0, -1, -1], [0, -1, 0, -1]])


@pytest.mark.parametrize("kind", ["learned", "factorised", "relative"])
def test_another_size_uses_the_table_as_it_is_now_and_trains_it(kind):
    model, x = tiny(kind), image(2, 3, 20, 17)
    before = model(x)
    table = model.position.rows if kind == "factorised" else model.position.table
    with torch.no_grad():
        table.mul_(-1.5)
    assert (model(x) - before).abs().max() > 1e-3
    model(x).square().sum().backward()
    assert (table.grad != 0).float().mean() > 0.9


@pytest.mark.parametrize("rule", DOCUMENTED)
def test_a_learned_table_is_resized_without_its_prefix_rows(rule):
    model, x = tiny("learned", position_rule=rule), image(2, 3, 20, 28)  # grid 5×7
    table = model.position.table[0]
    grid = table[1:].reshape(3, 5, 16).permute(2, 0, 1)[None]
    add = F.interpolate(grid, size=(5, 7), **DOCUMENTED[rule])[0].flatten(1).T
    expected = class_logits(model, vit_tokens(model, x, add, prefix_rows=table[:1]))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-4)  # resizing is in float32


@pytest.mark.parametrize("rule", DOCUMENTED)
def test_relative_and_factorised_tables_are_resized_over_their_own_axes(rule):
    relative = RelativePosition(2, (3, 5), 1, rule)
    offsets = relative.table[:45].reshape(5, 9, 2).permute(2, 0, 1)[None]
    resized = F.interpolate(offsets, size=(7, 11), **DOCUMENTED[rule])[0]  # for a grid of 4×6
    bias = relative.bias((4, 6))
    assert bias.shape == (1, 2, 25, 25)
    assert torch.equal(bias[0, :, 1, 1], resized[:, 3, 5])  # offset (0, 0)
    assert torch.equal(bias[0, :, 1, 24], resized[:, 0, 0])  # first place to last: (-3, -5)
    assert torch.equal(bias[0, :, 0, 1:], relative.table[-3][:, None].expand(2, 24))

    factorised = FactorisedPosition(8, (3, 5), rule)
    patches = factorised.add(torch.zeros(1, 6, 5, 8))
    rows = F.interpolate(factorised.rows.T[None, :, None], size=(1, 6), **DOCUMENTED[rule])[0, :, 0].T
    torch.testing.assert_close(patches[0], rows[:, None] + factorised.columns[None], rtol=0, atol=1e-7)


def test_learned_tables_start_truncated_normal():
    for p in (
        LearnedPosition(192, (14, 14), 1, "timm").table,
        FactorisedPosition(192, (60, 60), "timm").rows,
        RelativePosition(12, (14, 14), 1, "timm").table,
    ):
        assert abs(p.std().item() - 0.02) < 0.001 and abs(p.mean().item()) < 0.001
