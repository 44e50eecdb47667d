"""Between two sets of weights: the share of the way that scores best."""

import pytest
import torch
from torch import nn

from vitrail.models.interpolation import best_share, between


def one_weight(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([[value]])}


@pytest.mark.parametrize(("place", "share"), [(0.5, 0.5), (0.2, 0.25), (9.0, 1.0), (-9.0, 0.0)])
def test_the_share_with_the_best_score_is_taken(place, share):
    model = nn.Linear(1, 1, bias=False)
    found = best_share(model, one_weight(0.0), one_weight(1.0), lambda m: -abs(m.weight.item() - place))
    assert (found, model.weight.item()) == (share, share)


def test_of_equals_the_one_nearest_to_the_start_is_taken():
    model = nn.Linear(1, 1, bias=False)
    assert best_share(model, one_weight(0.0), one_weight(1.0), lambda m: min(m.weight.item(), 0.5)) == 0.5
    assert best_share(model, one_weight(0.0), one_weight(1.0), lambda m: 0.9) == 0.0


def test_whole_numbers_are_not_interpolated():
    first, last = {"a": torch.zeros(1), "n": torch.tensor(1)}, {"a": torch.ones(1), "n": torch.tensor(4)}
    assert between(first, last, 0.25)["a"].item() == 0.25
    assert between(first, last, 0.25)["n"].item() == 4
