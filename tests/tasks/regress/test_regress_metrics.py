"""Figures of predicted numbers beside those of SciPy and scikit-learn."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

from vitrail.tasks.regress import metrics


@pytest.fixture(scope="module")
def both():
    rng = np.random.default_rng(0)
    true = rng.normal(50, 10, (80, 2))
    true[:, 1] = true[:, 1].round(-1)  # with ties
    return true + rng.normal(0, 5, true.shape), true


def test_errors_and_r2_are_those_of_scikit_learn(both):
    predicted, true = both
    pairs = [(metrics.mae, sklearn.mean_absolute_error), (metrics.rmse, sklearn.root_mean_squared_error)]
    for ours, theirs in [*pairs, (metrics.r2, sklearn.r2_score)]:
        np.testing.assert_allclose(ours(predicted, true), theirs(true, predicted, multioutput="raw_values"))


def test_spearman_is_that_of_scipy_also_with_equal_values(both):
    predicted, true = both
    expected = [stats.spearmanr(predicted[:, c], true[:, c]).statistic for c in range(2)]
    np.testing.assert_allclose(metrics.spearman(predicted, true), expected)
    np.testing.assert_allclose(metrics.ranks(true)[:, 1], stats.rankdata(true[:, 1]))


def test_means_over_columns_have_intervals_around_them(both):
    figures = metrics.regression_figures(*both, ["a", "b"])
    for name in ("r2", "mae", "rmse", "spearman"):
        assert figures[name] == pytest.approx((figures[f"{name}/a"] + figures[f"{name}/b"]) / 2)
        assert figures[f"{name}_low"] < figures[name] < figures[f"{name}_high"]
    assert figures["n"] == 80
    # The standard error of a mean, from its own formula.
    each = np.abs(both[0] - both[1]).mean(axis=1)
    width = 2 * 1.96 * each.std() / 80**0.5
    assert figures["mae_high"] - figures["mae_low"] == pytest.approx(width, rel=0.1)


def test_what_a_column_of_equal_values_can_not_tell_is_left_out():
    true, predicted = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]), np.array([[1.0, 5.0], [2.0, 6.0], [4.0, 4.0]])
    figures = metrics.regression_figures(predicted, true, ["a", "b"])
    assert figures["r2"] == figures["r2/a"] == pytest.approx(0.5)
    assert "r2/b" not in figures and figures["mae/b"] == pytest.approx(2 / 3)


def test_one_image_has_errors_and_nothing_more():
    figures = metrics.regression_figures(np.array([[3.0]]), np.array([[1.0]]), ["a"])
    assert figures["mae"] == figures["rmse"] == 2 and "r2" not in figures and "spearman" not in figures
