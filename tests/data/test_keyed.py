"""Numbers that belong to a sample: the same in any batch, and as good as random."""

import numpy as np
import pytest

from vitrail.data.augment.random_keys import _GOLDEN, ORDER, STEPS, _hash, permutation, uniforms

SAMPLES = np.arange(20_000)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def test_a_sample_has_the_same_numbers_in_any_batch_and_however_many_are_asked_for() -> None:
    table = uniforms(3, 5, np.arange(100), 8)
    shuffled = np.array([42, 7, 99, 7])
    np.testing.assert_array_equal(uniforms(3, 5, shuffled, 8), table[shuffled])
    np.testing.assert_array_equal(uniforms(3, 5, np.array([42]), 3)[0], table[42, :3])


def test_the_numbers_are_those_that_were_once_recorded() -> None:
    """A run must resume alike under another NumPy, on another machine."""
    expected = [[0.13384558307049976, 0.43972924784687073], [0.9841482911064345, 0.05307553779353069]]
    np.testing.assert_array_equal(uniforms(0, 1, np.array([0, 10**12]), 2), expected)
    assert permutation(0, 1, 8).tolist() == [7, 6, 3, 2, 0, 5, 1, 4]


def test_the_hash_is_splitmix64() -> None:
    """The first three outputs of the published generator for the seed 1234567."""
    counters = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GOLDEN
    assert _hash(counters).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_they_are_uniform() -> None:
    values = uniforms(0, 0, SAMPLES, 16)  # 320,000: the mean's standard error is 0.0005
    assert values.shape == (20_000, 16) and values.dtype == np.float64
    assert values.min() >= 0 and values.max() < 1
    assert values.mean() == pytest.approx(1 / 2, abs=0.002)
    assert values.var() == pytest.approx(1 / 12, abs=0.0006)
    counts, _ = np.histogram(values, bins=64, range=(0, 1))
    chi_squared = ((counts - values.size / 64) ** 2 / (values.size / 64)).sum()
    assert 30 < chi_squared < 110  # 63 degrees of freedom: 63 ± 11
    # Each column by itself too, for each decides something else.
    np.testing.assert_allclose(values.mean(0), 1 / 2, atol=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2**63, -1])
def test_neighbours_have_nothing_in_common(seed: int) -> None:
    values = uniforms(seed, 0, SAMPLES, 8)
    assert abs(correlation(values[:-1], values[1:])) < 0.01, "samples"
    assert abs(correlation(values[:, :-1], values[:, 1:])) < 0.01, "columns"
    assert abs(correlation(values, uniforms(seed, 1, SAMPLES, 8))) < 0.01, "epochs"
    assert abs(correlation(values, uniforms(seed + 1, 0, SAMPLES, 8))) < 0.01, "seeds"
    assert abs(correlation(values[:-1, 1:], values[1:, :-1])) < 0.01, "samples and columns"
    for stream in (STEPS, ORDER):
        assert abs(correlation(values, uniforms(seed, 0, SAMPLES, 8, stream))) < 0.01, "streams"


def test_seed_and_epoch_are_not_interchangeable() -> None:
    assert abs(correlation(uniforms(1, 2, SAMPLES, 4), uniforms(2, 1, SAMPLES, 4))) < 0.02


def test_a_permutation_holds_each_number_once_and_changes_with_seed_and_epoch() -> None:
    order = permutation(0, 0, 10_000)
    np.testing.assert_array_equal(np.sort(order), np.arange(10_000))
    np.testing.assert_array_equal(order, permutation(0, 0, 10_000))
    for other in (permutation(0, 1, 10_000), permutation(1, 0, 10_000), np.arange(10_000)):
        assert abs(correlation(order, other)) < 0.04
        assert (order == other).sum() < 8  # one is expected
    assert permutation(0, 0, 0).shape == (0,) and permutation(0, 0, 1).tolist() == [0]


def test_the_order_says_nothing_about_what_the_samples_draw() -> None:
    position = np.argsort(permutation(0, 3, 20_000))
    assert abs(correlation(position, uniforms(0, 3, SAMPLES, 1))) < 0.02
