"""Deletion and insertion curves where the answer is known, and the comparison of methods."""

import numpy as np
import pytest
import torch

import vitrail
from tests.explain.small import SIZE, lively, swin
from tests.parity.peers import pictures
from vitrail import explain
from vitrail.explain.deletion_insertion import area, paired
from vitrail.models import VisionTransformer


def one_patch_matters():
    """A model that sees brightness alone, and pictures that are blank but for one patch: at (2, 1) and at (0, 3)."""
    model = VisionTransformer(**{**SIZE, "depth": 1, "position": "none", "class_token": False, "pool": "mean"}).eval()
    x = torch.zeros(2, 3, 64, 64)
    x[0, :, 32:48, 16:32] = x[1, :, :16, 48:] = 2
    oracle = torch.zeros(2, 4, 4)
    oracle[0, 2, 1] = oracle[1, 0, 3] = 1
    return model, x, oracle


def test_an_oracle_falls_and_rises_at_once_and_its_opposite_at_the_end():
    model, x, oracle = one_patch_matters()
    with torch.no_grad():
        full, blank = (model(y).softmax(-1)[:, 2] for y in (x, torch.zeros_like(x)))
    assert ((full - blank).abs() > 1e-3).all()
    best = explain.faithfulness(model, x, oracle, 2, steps=16)
    assert torch.allclose(best.deletion[:, 0], full) and torch.allclose(
        best.deletion[:, 1:], blank[:, None].expand(2, 16)
    )
    assert torch.allclose(best.insertion[:, 0], blank) and torch.allclose(
        best.insertion[:, 1:], full[:, None].expand(2, 16)
    )
    worst = explain.faithfulness(model, x, -oracle, 2, steps=16)
    assert torch.allclose(worst.deletion[:, :16], full[:, None].expand(2, 16), atol=1e-6)
    assert torch.allclose(worst.insertion[:, :16], blank[:, None].expand(2, 16), atol=1e-6)


def test_areas_are_trapezia():
    assert area(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist() == [0.5, 0.5]
    assert area(torch.tensor([[1.0, 0.0, 0.0]])).tolist() == [0.25]


def test_both_curves_have_their_ends_in_common_and_steps_of_equal_size():
    model, x = lively(), pictures(64, 64)
    curves = explain.faithfulness(model, x, explain.relevance(model, x), steps=5)
    assert curves.deletion.shape == curves.insertion.shape == (2, 6)
    assert torch.equal(curves.deletion[:, 0], curves.insertion[:, -1])
    assert torch.equal(curves.deletion[:, -1], curves.insertion[:, 0])
    assert torch.allclose(curves.deletion[:, 0], model(x).softmax(-1).amax(dim=-1), atol=1e-6)


def test_masked_pictures_in_small_batches_change_nothing():
    model, x = lively(), pictures(64, 40)
    saliency = explain.rollout(model, x)
    one = explain.faithfulness(model, x, saliency, batch_size=3)
    assert torch.allclose(one.deletion, explain.faithfulness(model, x, saliency).deletion, atol=1e-6)


def test_hidden_cells_are_the_patches_also_where_the_last_row_is_cut():
    """40 pixels are 2½ patches: the last column of cells is the half one."""
    model, x, _ = one_patch_matters()
    x = x[:, :, :, :40].clone()
    x[:, :, :16, 32:] = 2
    mark = torch.zeros(2, 4, 3)
    mark[:, 0, 2] = 1
    curves = explain.faithfulness(model, x, mark, 1, steps=12)
    without = x.clone()
    without[:, :, :16, 32:] = 0
    assert torch.allclose(curves.deletion[:, 1], model(without).softmax(-1)[:, 1], atol=1e-6)


def test_several_labels_are_followed_by_their_own_probability():
    model, x = lively(), pictures(64, 64)
    curves = explain.faithfulness(model, x, explain.rollout(model, x), 1, multi_label=True)
    assert torch.allclose(curves.deletion[:, 0], model(x).sigmoid()[:, 1], atol=1e-6)


def test_paired_intervals_hold_the_difference_and_shrink_with_agreement():
    noise = np.random.default_rng(0).normal(size=200)
    difference, low, high = paired(noise + 0.1, noise)
    assert difference == pytest.approx(0.1) and low == pytest.approx(0.1) and high == pytest.approx(0.1)
    other = np.random.default_rng(1).normal(size=200)
    difference, low, high = paired(noise, other)
    assert low < difference < high
    assert high - low == pytest.approx(2 * 1.96 * (noise - other).std() / 200**0.5, rel=0.1)


def test_the_comparison_streams_batches_and_ranks_an_oracle_above_random():
    model, x, oracle = one_patch_matters()
    target = int((model(x) - model(torch.zeros_like(x))).mean(dim=0).argmax())  # a class that the patch speaks for
    methods = {"oracle": lambda model, x, target: oracle[: len(x)], "random": explain.METHODS["random"]}
    found = explain.compare(model, [(x, target)] * 10 + [(x[:1], target)], methods, steps=16)
    best, chance = found.rows
    assert (found.n, best.method) == (21, "oracle")
    assert best.deletion < chance.deletion and best.insertion > chance.insertion
    (down, _, down_high), (up, up_low, _) = best.against["random"]
    assert down == pytest.approx(best.deletion - chance.deletion) and down_high <= 0
    assert up == pytest.approx(best.insertion - chance.insertion) and up_low >= 0
    assert found.as_dict()["methods"]["oracle"]["deletion_minus_random"] == down
    assert "oracle" in str(found) and f"{best.deletion:.3f}" in str(found)


def test_few_pictures_get_no_intervals():
    found = explain.compare(lively(), [pictures(32, 32)], ["rollout", "random"], steps=2)
    assert "from too few for intervals, which need 20" in str(found)
    figures = found.as_dict()["methods"]["rollout"]
    assert "deletion_minus_random" in figures and "deletion_minus_random_low" not in figures


def test_every_family_is_compared_by_what_it_allows():
    assert [*explain.methods_for(lively())] == ["relevance", "grad_cam", "rollout", "attention", "random"]
    assert [*explain.methods_for(swin())] == ["grad_cam", "attention", "random"]
    assert [*explain.methods_for(lively(num_classes=0))] == ["rollout", "attention", "random"]
    found = explain.compare(swin(), [pictures(64, 48)], steps=4)
    assert [row.method for row in found.rows] == ["grad_cam", "attention", "random"]


def test_the_same_picture_gets_the_same_random_order_in_any_batch():
    x = pictures(64, 64, batch=3)
    together = explain.METHODS["random"](lively(), x, None)
    assert torch.equal(explain.METHODS["random"](lively(), x[1:2], None)[0], together[1])
    assert not torch.equal(together[0], together[1])


def test_refusals_say_what_to_do():
    model, x = lively(), pictures(32, 32)
    with pytest.raises(vitrail.VitrailError, match="for each of 2 pictures, got shape"):
        explain.faithfulness(model, x, torch.zeros(1, 2, 2))
    with pytest.raises(vitrail.VitrailError, match="'lime' is not a method"):
        explain.compare(model, [x], ["lime"])
    with pytest.raises(vitrail.VitrailError, match="No pictures were given"):
        explain.compare(model, [])
