"""The loss, the scale of targets, and ridge regression beside scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from vitrail.tasks.regress.objective import Regress, Scale
from vitrail.tasks.ridge import PENALTIES, solve_ridge

VALUES = np.array([[10.0, -1.0], [20.0, -3.0], [60.0, -2.0]])


def test_targets_have_mean_0_and_deviation_1_and_come_back_in_units():
    task = Regress(["a", "b"], Scale.of(VALUES))
    targets = task.targets([tuple(row) for row in VALUES])
    np.testing.assert_allclose(targets.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(targets.std(0, correction=0), 1, rtol=1e-6)
    np.testing.assert_allclose(task.in_units(targets), VALUES, rtol=1e-6)


def test_a_scale_comes_back_from_a_header():
    scale = Scale.of(VALUES)
    assert Scale.read({"scale": scale.written()}) == scale
    assert (scale.low, scale.high) == ((10, -3), (60, -1))


@pytest.mark.parametrize(("kind", "expected"), [("mse", (0.25 + 4) / 2), ("smooth_l1", (0.125 + 1.5) / 2)])
def test_loss_is_a_mean_over_columns(kind, expected):
    task = Regress(["a", "b"], Scale.of(VALUES), kind)
    assert task.loss(torch.tensor([[0.5, -2.0]]), torch.zeros(1, 2)).tolist() == pytest.approx([expected])


@pytest.fixture(scope="module")
def features():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, generator=generator) * torch.linspace(0.1, 5, 30) + 3
    noise = torch.tensor([0.5, 20.0])
    return x, x @ torch.randn(30, 2, generator=generator) + noise * torch.randn(60, 2, generator=generator)


def test_ridge_regression_is_that_of_scikit_learn_for_each_column(features):
    x, y = features
    probe = solve_ridge(x, y)
    standard = ((x - x.mean(0)) / x.std(0)).double().numpy()
    for c, penalty in enumerate(probe.penalties.tolist()):
        peer = Ridge(alpha=penalty * len(x)).fit(standard, y[:, c].double().numpy())
        np.testing.assert_allclose(probe(x)[:, c], peer.predict(standard), rtol=1e-4, atol=1e-3)
    assert probe.penalties[1] > probe.penalties[0]  # what is noise has to be held back


def test_the_penalty_is_the_one_with_the_least_held_out_error(features):
    x, y = features
    standard = ((x - x.mean(0)) / x.std(0)).double().numpy()
    fold = np.random.default_rng(0).permutation(60) % 4
    errors, held_out = [], []
    for penalty in PENALTIES:
        said = np.empty(60)
        for k in range(4):
            seen = fold != k
            peer = Ridge(alpha=penalty * seen.sum()).fit(standard[seen], y[seen, 1].double().numpy())
            said[~seen] = peer.predict(standard[~seen])
        errors.append(np.square(said - y[:, 1].double().numpy()).mean())
        held_out.append(said)
    probe, best = solve_ridge(x, y), int(np.argmin(errors))
    assert probe.penalties[1].item() == pytest.approx(PENALTIES[best])
    np.testing.assert_allclose(probe.held_out[:, 1], held_out[best], rtol=1e-4, atol=1e-3)


def test_two_images_are_enough_to_solve():
    probe = solve_ridge(torch.randn(2, 5), torch.tensor([[1.0], [3.0]]))
    assert probe.weight.isfinite().all() and probe.held_out.flatten().tolist() == [3.0, 1.0]
