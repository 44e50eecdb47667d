"""Swin's windows, masks, biases and merging, each against a brute-force statement."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.restatements import attention, image, linear, mlp, norm, randomised
from vitrail.models import capture
from vitrail.models.grid import resize_bias_table, resize_grid
from vitrail.models.shifted_windows import ShiftedWindows, partition, unpartition
from vitrail.models.swin import (
    ContinuousBias,
    PatchMerging,
    RelativeBias,
    SwinBlock,
    SwinSettings,
    SwinTransformer,
)

TINY = {"image_size": 24, "patch_size": 2, "width": 8, "depths": (2, 2), "heads": (2, 4), "window": 3, "num_classes": 5}


def block_of(window, shift, heads=2, **changes):
    settings = SwinSettings(width=8, depths=(2,), heads=(heads,), window=window, **changes)
    return randomised(SwinBlock(settings, 8, heads, settings.window, settings.window, shift, 0.0))


def restated_block(x, m):
    """Every token by itself: who shares its window, after the roll and the padding that the block's rule asks for, and
    who of those may be seen. Nothing is rolled, padded or cut: places are followed one by one."""
    b, h, w, d = x.shape
    tall, wide = math.ceil(h / m.window[0]) * m.window[0], math.ceil(w / m.window[1]) * m.window[1]
    shift = m.shift
    if m.padding == "torchvision":
        shift = (0 if m.window[0] >= tall else shift[0], 0 if m.window[1] >= wide else shift[1])
    z = norm(x, m.norm1) if m.version == 1 else x

    def origin(r, c):
        """Which token stands at this place of the rolled and padded map; None is padding."""
        if m.padding == "torchvision":
            r, c = (r + shift[0]) % tall, (c + shift[1]) % wide
            return (r, c) if r < h and c < w else None
        return ((r + shift[0]) % h, (c + shift[1]) % w) if r < h and c < w else None

    attended = torch.zeros_like(x)
    for top in range(0, tall, m.window[0]):
        for left in range(0, wide, m.window[1]):
            places = [(r, c) for r in range(top, top + m.window[0]) for c in range(left, left + m.window[1])]
            tokens = [origin(r, c) for r, c in places]
            label = [(r >= tall - shift[0], c >= wide - shift[1]) for r, c in places]
            mask = torch.zeros(len(places), len(places), dtype=torch.float64)
            for i in range(len(places)):
                for j in range(len(places)):
                    mask[i, j] = 0.0 if label[i] == label[j] else -100.0
                    if m.mask_padding and tokens[j] is None:
                        mask[i, j] = -math.inf
            zeros = torch.zeros(b, d, dtype=x.dtype)
            stacked = torch.stack([zeros if t is None else z[:, t[0], t[1]] for t in tokens], 1)
            out = attention(stacked, m.attention, m.bias() + mask)[0]
            for i, t in enumerate(tokens):
                if t is not None:
                    attended[:, t[0], t[1]] = out[:, i]
    if m.version == 2:
        x = x + norm(attended, m.norm1)
        return x + norm(mlp(x, m.mlp), m.norm2)
    x = x + attended
    return x + mlp(norm(x, m.norm2), m.mlp)


def test_unpartition_undoes_partition_and_windows_are_read_row_by_row():
    x = image(2, 6, 8, 5)
    windows = partition(x, (3, 4))
    assert windows.shape == (2 * 4, 12, 5)
    assert torch.equal(windows[1], x[0, :3, 4:].flatten(0, 1))  # first image, first row of windows, second window
    assert torch.equal(windows[6], x[1, 3:, :4].flatten(0, 1))
    assert torch.equal(unpartition(windows, (3, 4), (6, 8)), x)


@pytest.mark.parametrize("padding", ["torchvision", "timm"])
@pytest.mark.parametrize("shift", [(0, 0), (1, 2)])
def test_a_map_that_is_cut_and_joined_is_itself_and_places_say_what_went_where(padding, shift):
    x = torch.randn(2, 7, 10, 5)
    windows = ShiftedWindows((7, 10), (3, 4), shift, padding, mask_padding=False)
    cut, places = windows.cut(x), windows.places(x.device)
    assert torch.equal(windows.join(cut), x) and cut.shape == (2 * windows.count, 12, 5) and windows.count == 9
    expected = F.pad(x.flatten(1, 2), (0, 0, 0, 1))[:, places]  # -1 is the last row: padding
    assert torch.equal(cut.view(2, 9, 12, 5), expected) and (windows.mask(x.device) is None) == (shift == (0, 0))


@pytest.mark.parametrize("mask_padding", [False, True])
@pytest.mark.parametrize("padding", ["torchvision", "timm"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("window", "shift", "grid"),
    [
        ((3, 3), (0, 0), (6, 6)),
        ((3, 3), (1, 1), (6, 9)),
        ((3, 3), (1, 1), (7, 8)),  # padded
        ((2, 4), (1, 2), (6, 8)),  # rectangular
        ((2, 4), (1, 2), (5, 9)),
        ((4, 4), (2, 2), (3, 9)),  # one window high: torchvision does not shift that way
    ],
)
def test_a_block_is_attention_within_windows_as_its_rule_pads_them(window, shift, grid, version, padding, mask_padding):
    m = block_of(window, shift, version=version, padding=padding, mask_padding=mask_padding)
    x = image(2, *grid, 8)
    torch.testing.assert_close(m(x), restated_block(x, m), rtol=0, atol=1e-10)


@pytest.mark.parametrize("padding", ["torchvision", "timm"])
@pytest.mark.parametrize("shift", [(0, 0), (1, 1)])
@pytest.mark.parametrize("version", [1, 2])
def test_tokens_give_padding_no_weight_only_when_it_is_masked(version, shift, padding):
    weight = {}
    for mask_padding in (False, True):
        m = block_of((3, 3), shift, version=version, padding=padding, mask_padding=mask_padding)
        with capture(m) as maps:
            m(image(2, 5, 7, 8))  # padded to 6×9, 2×3 windows
        real = torch.zeros(6, 9)
        real[:5, :7] = 1
        if padding == "torchvision":
            real = real.roll((-shift[0], -shift[1]), (0, 1))
        real = partition(real[None, :, :, None], (3, 3))[..., 0]  # windows n
        on_padding = (maps[0] * (1 - real)[None, :, None, None]).sum(-1)  # B windows H n
        weight[mask_padding] = (on_padding * real[None, :, None]).max().item()
    assert weight[False] > 0.1 and weight[True] < 1e-30


def test_continuous_bias_is_an_mlp_of_log_spaced_offsets():
    bias = randomised(ContinuousBias(3, (4, 2), (4, 2)))
    out = bias()
    assert out.shape == (3, 8, 8)
    for i in range(8):
        for j in range(8):
            offset = []
            for delta, size in ((i // 2 - j // 2, 4), (i % 2 - j % 2, 2)):
                scaled = 8 * delta / (size - 1)
                offset.append(math.copysign(math.log2(abs(scaled) + 1) / 3, scaled))
            hidden = torch.relu(linear(torch.tensor(offset, dtype=torch.float64), bias.fc1))
            expected = 16 / (1 + torch.exp(-(bias.fc2.weight @ hidden)))
            torch.testing.assert_close(out[:, i, j], expected, rtol=0, atol=1e-5)  # offsets are float32


def test_continuous_offsets_are_scaled_by_the_window_of_training():
    same = ContinuousBias(3, (4, 4), (4, 4)).offsets
    assert same.abs().max().item() == pytest.approx(math.log2(9) / 3)
    larger = ContinuousBias(3, (7, 7), (4, 4)).offsets.reshape(13, 13, 2)
    torch.testing.assert_close(larger[3:10, 3:10].flatten(0, 1), same)  # an offset keeps its number in another window
    assert larger.max().item() == pytest.approx(math.log2(8 * 6 / 3 + 1) / 3)
    model = SwinTransformer(**TINY | {"version": 2, "pretrained_window": (6, 0)})
    assert [b.bias.trained_window for b in model.blocks] == [(6, 6)] * 2 + [(3, 3)] * 2


def test_relative_bias_reads_the_row_of_each_offset():
    bias = randomised(RelativeBias(2, (2, 3)))
    out = bias()
    for i in range(6):
        for j in range(6):
            row = (i // 3 - j // 3 + 1) * 5 + i % 3 - j % 3 + 2
            assert torch.equal(out[:, i, j], bias.table[row])


def test_cosine_attention_caps_its_temperature_at_100():
    m = block_of((3, 3), (0, 0), version=2)
    x = image(1, 3, 3, 8)
    with torch.no_grad():
        m.attention.logit_scale.fill_(math.log(100.0))
        capped = m(x)
        m.attention.logit_scale.fill_(9.0)
        assert torch.equal(m(x), capped)
        m.attention.logit_scale.fill_(math.log(50.0))
        assert (m(x) - capped).abs().max() > 1e-3


@pytest.mark.parametrize("version", [1, 2])
def test_merging_reads_four_neighbours_down_first_and_pads_odd_maps(version):
    m = randomised(PatchMerging(2, version, 1e-5))
    x = image(1, 5, 4, 2)
    padded = F.pad(x, (0, 0, 0, 0, 0, 1))
    out = m(x)
    assert out.shape == (1, 3, 2, 4)
    for r in range(3):
        for c in range(2):
            corners = [(0, 0), (1, 0), (0, 1), (1, 1)]  # (down, across), in the order of the published weights
            four = torch.cat([padded[:, 2 * r + down, 2 * c + across] for down, across in corners], -1)
            expected = (
                linear(norm(four, m.norm), m.reduction) if version == 1 else norm(linear(four, m.reduction), m.norm)
            )
            torch.testing.assert_close(out[:, r, c], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["timm", "hf", "torchvision", "google"])
def test_a_bias_table_for_the_same_window_is_itself_and_for_another_is_resized_in_two_dimensions(rule):
    table = image(5 * 9, 4, dtype=torch.float32)  # window 3×5
    assert torch.equal(resize_bias_table(table, (3, 5), (3, 5), rule), table)
    resized = resize_bias_table(table, (3, 5), (6, 7), rule)
    assert resized.shape == (11 * 13, 4)
    assert torch.equal(resized.reshape(11, 13, 4), resize_grid(table.reshape(5, 9, 4), (11, 13), rule))
    myself = resized.reshape(11, 13, 4)[5, 6]  # the offset (0, 0) stays in the middle, under every rule
    torch.testing.assert_close(myself, table.reshape(5, 9, 4)[2, 4], rtol=0, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("padding", ["torchvision", "timm"])
def test_the_whole_model_is_patches_blocks_merging_and_a_mean(version, padding):
    model = randomised(SwinTransformer(**TINY | {"version": version, "padding": padding, "window": (2, 3)}))
    x = image(2, 3, 13, 22)  # 7×11 tokens, then 4×6
    z = F.conv2d(F.pad(x, (0, 0, 0, 1)), model.patch.weight, model.patch.bias, stride=2).permute(0, 2, 3, 1)
    z = norm(z, model.norm_before)
    for i, stage in enumerate(model.stages):
        z = model.merges[0](z) if i else z
        for m in stage:
            z = restated_block(z, m)
    z = norm(z, model.norm)
    torch.testing.assert_close(model(x), linear(z.mean((1, 2)), model.head.output), rtol=0, atol=1e-10)
    assert model.token_grid(13, 22) == (4, 6) and model.prefix_tokens == 0

    out = model.features(x, layers=[1, -1])
    assert out["map/1"].shape == (2, 8, 7, 11) and out["map/3"].shape == (2, 16, 4, 6)
    assert torch.equal(out["map/3"][:, :, 2, 5], out["tokens/3"][:, 6 * 2 + 5])
    assert torch.equal(model.head(out["pooled"]), model(x))


def test_every_second_block_shifts_by_half_a_window():
    model = SwinTransformer(**TINY | {"window": (4, 7), "image_size": 64})
    assert [b.shift for b in model.blocks] == [(0, 0), (2, 3), (0, 0), (2, 3)]
    assert [b.window for b in model.blocks] == [(4, 7)] * 4


def test_under_timms_rule_window_and_shift_follow_the_size_at_construction():
    model = SwinTransformer(**TINY | {"padding": "timm", "window": 8, "image_size": (20, 40)})  # 10×20, then 5×10
    assert [b.window for b in model.blocks] == [(8, 8)] * 2 + [(5, 8)] * 2
    assert [b.shift for b in model.blocks] == [(0, 0), (4, 4), (0, 0), (0, 4)]


@pytest.mark.parametrize("padding", ["torchvision", "timm"])
def test_an_image_of_a_few_tokens_still_passes_all_stages(padding):
    model = randomised(SwinTransformer(**TINY | {"padding": padding, "image_size": 2, "window": 7}))
    assert model(image(1, 3, 2, 2)).shape == (1, 5)
    assert model(image(1, 3, 9, 3)).isfinite().all()


def test_version_two_starts_from_the_identity():
    model = SwinTransformer(**TINY | {"version": 2}).eval()
    x = image(1, 6, 6, 8, dtype=torch.float32)
    assert torch.equal(model.blocks[1](x), x)


@pytest.mark.parametrize("padding", ["torchvision", "timm"])
def test_gradients_are_finite_where_padding_has_keys_of_length_zero(padding):
    model = randomised(SwinTransformer(**TINY | {"version": 2, "padding": padding})).float().train()
    model(image(2, 3, 14, 22, dtype=torch.float32)).square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.blocks[0].attention.qkv.weight.grad.abs().max() > 0


def test_drop_path_rises_over_all_stages_and_checkpointing_keeps_the_gradients():
    model = randomised(SwinTransformer(**TINY | {"drop_path": 0.3})).train()
    assert [b.drop_path.rate for b in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3])
    x, results = image(4, 3, 13, 22), []
    for checkpointing in (False, True):
        model.gradient_checkpointing = checkpointing
        torch.manual_seed(3)
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
