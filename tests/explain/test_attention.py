"""Attention, rollout, distance and entropy against closed forms, and against the whole maps of a real forward."""

import math

import pytest
import torch

import vitrail
from tests.explain.small import identity, lively, swin, uniform, uniform_swin
from tests.parity.peers import pictures
from vitrail import explain
from vitrail.explain.attention_analysis import link
from vitrail.explain.looking import readout
from vitrail.models.dense.segmenter import Segmenter
from vitrail.models.tuning import tune


def whole_maps(model, x):
    with torch.no_grad(), vitrail.capture(model) as maps:
        model(x)
    return maps


def test_attention_is_the_class_row_of_the_chosen_layer_by_default_the_last():
    model, x = lively(), pictures(48, 32)
    maps = whole_maps(model, x)
    assert torch.allclose(explain.attention(model, x), maps[2][:, :, 0, 1:].unflatten(-1, (3, 2)), atol=1e-7)
    assert torch.allclose(explain.attention(model, x, layer=0), maps[0][:, :, 0, 1:].unflatten(-1, (3, 2)), atol=1e-7)


def test_attention_of_a_patch_is_its_row():
    model, x = lively(), pictures(48, 32)
    row = whole_maps(model, x)[1][:, :, 1 + 3, 1:].unflatten(-1, (3, 2))
    assert torch.equal(explain.attention(model, x, 1, (1, 1)), explain.attention(model, x, 1, 3))
    assert torch.allclose(explain.attention(model, x, 1, (1, 1)), row, atol=1e-7)
    first = whole_maps(model, x)[1][:, :, 1, 1:].unflatten(-1, (3, 2))
    assert torch.allclose(explain.attention(model, x, 1, 0), first, atol=1e-7)  # patch 0, not the class token
    assert torch.equal(explain.attention(model, x, 1, 0), explain.attention(model, x, 1, (0, 0)))


def test_without_a_class_token_attention_is_the_mean_over_the_patches():
    model, x = lively(class_token=False, pool="mean"), pictures(48, 32)
    expected = whole_maps(model, x)[2].mean(dim=2).unflatten(-1, (3, 2))
    assert torch.allclose(explain.attention(model, x), expected, atol=1e-6)


def test_all_layers_at_once_are_what_each_gives_alone():
    for model in (lively(), lively(class_token=False, pool="mean"), swin()):
        x = pictures(48, 64)
        layers = explain.attention_by_layer(model, x)
        assert len(layers) == len(model.blocks)
        for i, found in enumerate(layers):
            assert torch.allclose(found, explain.attention(model, x, i), atol=1e-6)


@pytest.mark.parametrize("size", [(64, 64), (52, 76)], ids=["divides", "padded"])
def test_what_swin_patches_attend_to_on_average_sums_to_what_stays_inside_the_picture(size):
    model, x = swin(mask_padding=True), pictures(*size)
    for found in explain.attention_by_layer(model, x):
        assert torch.allclose(found.sum(dim=(-2, -1)), torch.ones(()), atol=1e-5)


def test_large_batches_go_in_portions_and_change_nothing(monkeypatch):
    model, x = lively(), pictures(32, 32, batch=5)
    functions = [
        explain.attention, explain.rollout, explain.relevance, explain.attention_distance, explain.grad_cam,
    ]  # fmt: skip
    together = [function(model, x) for function in functions]
    monkeypatch.setattr("vitrail.explain.looking.MAP_BYTES", 2 * 4 * 25 * 2)  # two pictures
    for function, expected in zip(functions, together, strict=True):
        assert torch.allclose(function(model, x), expected, atol=1e-6)


def test_rollout_of_uniform_attention_is_its_closed_form():
    """Â = (U + I)/2 and U² = U, so Â³ = I/8 + 7U/8: the class token sends 7/8 out, evenly over 5 tokens."""
    assert torch.allclose(explain.rollout(uniform(), pictures(32, 32)), torch.full((2, 2, 2), 7 / 8 / 5), atol=1e-6)


def test_rollout_of_identity_attention_stays_where_it_starts():
    x = pictures(32, 32)
    assert explain.rollout(identity(), x).abs().max() < 1e-6
    averaged = explain.rollout(identity(class_token=False, pool="mean"), x)
    assert torch.allclose(averaged, torch.full((2, 2, 2), 0.25), atol=1e-6)


def test_rollout_of_two_tokens_by_hand():
    first, second = torch.tensor([[[0.5, 0.5], [0.2, 0.8]]]), torch.tensor([[[0.6, 0.4], [1.0, 0.0]]])
    # (A + I)/2: [.75 .25; .1 .9] and [.8 .2; .5 .5]; their product, the second on the left:
    expected = torch.tensor([[[0.62, 0.38], [0.425, 0.575]]])
    assert torch.allclose(link(second, 0.0) @ link(first, 0.0), expected)


def test_rows_are_made_to_sum_to_one_along_the_row():
    """After max or min fusion they don't; dividing along the wrong axis would leave columns that do."""
    step = link(torch.tensor([[[0.9, 0.9], [0.1, 0.3]]]), 0.0)
    assert torch.allclose(step, torch.tensor([[[0.75, 0.25], [0.125, 0.875]]]))


def test_discard_drops_the_weakest_of_each_row():
    attention = torch.tensor(
        [[[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.3, 0.25, 0.2], [0.1, 0.1, 0.2, 0.6]]]
    )
    step = 2 * link(attention, 0.5) - torch.eye(4)
    assert (step > 0).sum(dim=-1).tolist() == [[2, 2, 2, 2]]
    assert torch.allclose(step.sum(dim=-1), torch.ones(1, 4))
    assert torch.allclose(step[0, 0], torch.tensor([0.625, 0.375, 0, 0]))


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.4])
def test_rollout_equals_the_product_of_the_whole_maps(fusion, discard):
    model, x = lively(), pictures(48, 32)
    product = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    for attention in whole_maps(model, x).values():
        fused = attention.double()
        fused = fused.mean(1) if fusion == "mean" else fused.amax(1) if fusion == "max" else fused.amin(1)
        kept = fused >= fused.sort(dim=-1).values[..., [int(discard * 7)]]
        fused = fused * kept
        product = (fused / fused.sum(-1, keepdim=True) + torch.eye(7)) / 2 @ product
    found = explain.rollout(model, x, fusion, discard)
    assert torch.allclose(found, product[:, 0, 1:].unflatten(-1, (3, 2)).float(), atol=1e-6)


def test_rollout_starts_from_what_the_head_reads():
    x = pictures(32, 32)
    both = lively(distillation_token=True)
    product = torch.eye(6).expand(2, 6, 6)
    for attention in whole_maps(both, x).values():
        product = (attention.mean(1) + torch.eye(6)) / 2 @ product
    expected = product[:, :2, 2:].mean(dim=1).unflatten(-1, (2, 2))
    assert torch.allclose(explain.rollout(both, x), expected, atol=1e-6)
    asked = lively(class_token=False, pool="attention")
    assert torch.allclose(explain.rollout(asked, x).sum(dim=(1, 2)), torch.ones(2), atol=1e-6)


def test_rollout_under_autocast_multiplies_in_full_precision():
    model, x = lively(), pictures(32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found = explain.rollout(model, x)
    assert found.dtype == torch.float32
    assert (found - explain.rollout(model, x)).abs().max() < 0.02
    assert not torch.equal(found, found.bfloat16().float())


def test_distance_of_uniform_attention_is_the_mean_distance_of_two_patches():
    """On 2×3 patches of 16 pixels."""
    points = [(r, c) for r in range(2) for c in range(3)]
    mean = sum(math.dist(a, b) for a in points for b in points) / 36 * 16
    table = explain.attention_distance(uniform(), pictures(32, 48))
    assert table.shape == (3, 2)
    assert torch.allclose(table, torch.full((3, 2), mean), atol=1e-4)


def test_distance_and_entropy_of_identity_attention_are_zero():
    x = pictures(32, 32)
    assert explain.attention_distance(identity(), x).abs().max() < 1e-4
    assert explain.attention_entropy(identity(), x).abs().max() < 1e-4


def test_entropy_of_uniform_attention_is_log_n():
    table = explain.attention_entropy(uniform(registers=2), pictures(32, 32))
    assert torch.allclose(table, torch.full((3, 2), math.log(7)), atol=1e-5)


def test_distance_is_in_pixels_of_the_picture_also_for_a_stem():
    model = lively(stem=(1, 1), patch_size=2, image_size=32)  # each patch spans 2 · 8 pixels
    maps = whole_maps(model, x := pictures(32, 48))[0][..., 1:, 1:]
    points = torch.tensor([[r, c] for r in range(2) for c in range(3)]).float() * 16
    rows = maps / maps.sum(-1, keepdim=True)
    expected = (rows * torch.cdist(points, points)).sum(-1).mean(dim=(0, 2))
    assert torch.allclose(explain.attention_distance(model, x)[0], expected, atol=1e-4)


def test_swin_distance_and_entropy_are_those_of_its_windows():
    """Uniform in 4×4 windows: 4 pixels a token in the first stage, 8 in the second. Shifted ones are cut up: less."""
    distance = explain.attention_distance(model := uniform_swin(), x := pictures(64, 64))
    entropy = explain.attention_entropy(model, x)
    points = [(r, c) for r in range(4) for c in range(4)]
    mean = sum(math.dist(a, b) for a in points for b in points) / 256
    assert distance.shape == entropy.shape == (4, 3)
    assert torch.allclose(distance[0, :2], torch.full((2,), 4 * mean), atol=1e-3)
    assert torch.allclose(distance[2], torch.full((3,), 8 * mean), atol=1e-3)
    assert torch.allclose(entropy[0, :2], torch.full((2,), math.log(16)), atol=1e-4)
    assert distance[:2, 2].isnan().all() and not distance[2:].isnan().any()
    assert (distance[1, :2] < distance[0, :2]).all() and (entropy[1, :2] < entropy[0, :2]).all()


def test_swin_padding_is_neither_a_start_nor_a_goal():
    """13×19 tokens in windows of 4: with the padding masked, no distance exceeds the diagonal of a window."""
    distance = explain.attention_distance(uniform_swin(mask_padding=True), pictures(52, 76))
    unmasked = explain.attention_distance(uniform_swin(), pictures(52, 76))
    # Rows are taken over real patches alone, so padding that can be seen changes nothing in uniform windows.
    assert torch.allclose(distance[0, :2], unmasked[0, :2], atol=1e-3)
    real = [(r, c) for r in range(13) for c in range(19)]
    near = [[math.dist(a, b) for b in real if a[0] // 4 == b[0] // 4 and a[1] // 4 == b[1] // 4] for a in real]
    mean = sum(sum(one) / len(one) for one in near) / len(real)
    assert torch.allclose(distance[0, :2], torch.full((2,), 4 * mean), atol=1e-3)
    diagonal = math.dist((0, 0), (3, 3))
    assert distance[:2, :2].max() < 4 * diagonal and distance[2:].max() < 8 * diagonal


def test_entropy_beside_prompts_is_that_of_what_the_other_tokens_get():
    """Uniform over 5 tokens, whatever share the prompts take."""
    model = tune(uniform(), "prompt", tokens=3)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.prompts.mul_(50)
    x = pictures(32, 32)
    assert whole_maps(model, x)[1].sum(dim=-1).max() < 0.7
    assert torch.allclose(explain.attention_entropy(model, x), torch.full((3, 2), math.log(5)), atol=1e-5)


def test_what_a_learned_query_reads_is_weighed_in_full_precision_under_autocast():
    model, x = lively(class_token=False, pool="attention"), pictures(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        read = readout(model, x)
    assert read.dtype == torch.float32 and not torch.equal(read, read.bfloat16().float())
    assert torch.allclose(read.sum(dim=-1), torch.ones(2), atol=1e-6)


def test_a_model_in_training_mode_is_looked_at_without_dropout_and_left_in_training_mode():
    model = lively(dropout=0.5, drop_path=0.5)
    expected = explain.rollout(model, x := pictures(32, 32))
    model.train()
    model.blocks[1].eval()
    assert torch.equal(explain.rollout(model, x), expected)
    assert model.training and model.blocks[0].training and not model.blocks[1].training


def test_refusals_say_what_to_do():
    model, x = lively(), pictures(32, 32)
    with pytest.raises(vitrail.VitrailError, match="use mean, max, min"):
        explain.rollout(model, x, fusion="sum")
    with pytest.raises(vitrail.VitrailError, match=r"below 1, got 1\.0"):
        explain.rollout(model, x, discard=1.0)
    with pytest.raises(vitrail.VitrailError, match="in windows only; use grad_cam"):
        explain.rollout(swin(), pictures(64, 64))
    with pytest.raises(vitrail.VitrailError, match="layers 0 to 2; there is no layer 7"):
        explain.attention(model, x, layer=7)
    with pytest.raises(vitrail.VitrailError, match="Linear shows no layers to look into"):
        explain.attention(torch.nn.Linear(2, 2), x)
    with pytest.raises(vitrail.VitrailError, match=r"Segmenter shows .* look into ViT, Swin and MAE"):
        explain.attention(Segmenter(lively(), 3, "linear"), x)
    with pytest.raises(vitrail.VitrailError, match="tv:resnet18 is a convolutional network, without patches"):
        explain.attention(vitrail.create_model("tv:resnet18", num_classes=2), x)
