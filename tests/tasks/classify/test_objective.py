"""Targets, losses and weights of classes, against their formulas and PyTorch's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail.tasks.classify.objective import Classify, balancing_weights, sampling_weights

NAMES = ["a", "b", "c"]


def test_targets_are_ones_where_the_labels_are():
    task = Classify(NAMES, multi_label=True)
    assert task.targets([(0,), (2, 1), (), (0, 1, 2)]).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert task.targets([]).shape == (0, 3)
    assert task.targets([(), ()]).tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_cross_entropy_with_smoothing(smoothing):
    task = Classify(NAMES, smoothing=smoothing)
    logits, labels = torch.randn(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    targets = task.smoothed(task.targets([(int(label),) for label in labels]))
    wanted = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(task.loss(logits, targets), wanted)


def test_several_labels_have_binary_cross_entropy_summed():
    task = Classify(NAMES, multi_label=True)
    logits, targets = torch.randn(8, 3), (torch.rand(8, 3) > 0.5).float()
    wanted = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)
    torch.testing.assert_close(task.loss(logits, targets), wanted)
    weights = torch.tensor([2.0, 0.5, 1.0])
    wanted = F.binary_cross_entropy_with_logits(logits, targets, reduction="none", pos_weight=weights).sum(dim=1)
    weighted = Classify(NAMES, multi_label=True, class_weights=weights)
    torch.testing.assert_close(weighted.loss(logits, targets), wanted)
    assert Classify(NAMES, multi_label=True, smoothing=0.2).smoothed(torch.tensor([[1.0, 0.0, 1.0]])).tolist() == [
        pytest.approx([0.9, 0.1, 0.9])
    ]


def test_class_weights_make_each_class_count_alike_and_keep_the_scale():
    labels = [(0,)] * 60 + [(1,)] * 30 + [(2,)] * 10
    weights = balancing_weights(labels, 3)
    np.testing.assert_allclose(weights, [100 / 180, 100 / 90, 100 / 30])
    assert np.mean([weights[label] for (label,) in labels]) == pytest.approx(1.0)
    sums = [weights[c] * n for c, n in enumerate((60, 30, 10))]
    assert sums == pytest.approx([100 / 3] * 3)
    task = Classify(NAMES, class_weights=torch.tensor(weights).float())
    logits, index = torch.randn(100, 3), torch.tensor([label for (label,) in labels])
    wanted = F.cross_entropy(logits, index, weight=torch.tensor(weights).float(), reduction="none")
    torch.testing.assert_close(task.loss(logits, task.targets(labels)), wanted)


def test_weights_of_several_labels_are_negatives_over_positives_at_most_a_hundred():
    labels = [(0,)] * 50 + [(0, 1)] * 25 + [()] * 925
    assert balancing_weights(labels, 3, multi_label=True) == pytest.approx([925 / 75, 975 / 25, 100])


def test_sampling_weights_are_one_over_the_size_of_the_rarest_class():
    assert sampling_weights([(0,)] * 4 + [(1,)], 3) == pytest.approx([0.25] * 4 + [1.0])
    # Several labels: the rarest counts; without any, such images are a class of their own.
    assert sampling_weights([(0, 1), (0,), (0,), (), ()], 3) == pytest.approx([1, 1 / 3, 1 / 3, 0.5, 0.5])


def test_the_figures_of_an_epoch():
    task = Classify(NAMES)
    logits = torch.tensor([[2.0, 0, 0], [0, 2.0, 0], [0, 2.0, 0], [0, 0, 2.0]])
    targets = task.targets([(0,), (1,), (2,), (2,)])
    found = task.score(logits, targets)
    assert found["top1"] == 0.75
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, targets).item())
    several = Classify(NAMES, multi_label=True)
    # Precision at each recall: 1; ½ of the two that are said alike; 1 and then 2 of 4.
    assert several.score(logits, targets)["map"] == pytest.approx((1 + 1 / 2 + (1 + 2 / 4) / 2) / 3)
    assert several.figure == "map" and task.figure == "top1"
