"""Outlines to masks and back, as pycocotools has them."""

import numpy as np
import pytest
from pycocotools import mask as tool

from vitrail import VitrailError
from vitrail.data.sources.boxes.outlines import from_runs, rasterise, to_runs


def masks():
    random = np.random.default_rng(0)
    yield np.zeros((5, 7), bool)
    yield np.ones((5, 7), bool)
    yield np.eye(6, dtype=bool)
    yield random.random((37, 53)) < 0.5
    large = np.zeros((700, 900), bool)
    large[100:650, 20:870] = True  # runs of hundreds, whose differences are 0
    large[300, 400] = False
    yield large


@pytest.mark.parametrize("mask", masks(), ids=lambda mask: f"{mask.shape} {mask.sum()}")
def test_run_lengths_are_those_of_pycocotools_both_ways(mask):
    runs = to_runs(mask)
    assert runs["counts"].encode() == tool.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    assert np.array_equal(from_runs(runs), mask)
    assert np.array_equal(tool.decode({**runs, "counts": runs["counts"].encode()}).astype(bool), mask)


def test_plain_lists_of_runs_are_read():
    assert np.array_equal(from_runs({"size": [2, 2], "counts": [1, 3]}), [[False, True], [True, True]])


def test_runs_that_do_not_add_up_are_refused():
    for runs in ({"size": [2, 2], "counts": [1, 2]}, {"size": [2, 2], "counts": "~~"}, {"size": [2], "counts": [2]}):
        with pytest.raises(VitrailError, match="do not add up"):
            from_runs(runs)


def test_polygons_fill_what_they_enclose_at_any_size():
    square = [np.array([[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]], np.float32)]
    for side in (40, 80):
        mask = rasterise(square, (side, side))
        assert mask.sum() == pytest.approx((side / 2) ** 2, rel=0.06)
        assert mask[side // 2, side // 2] and not mask[side // 5, side // 5]
    runs = to_runs(rasterise(square, (40, 40)))
    assert rasterise(runs, (80, 80)).sum() == 4 * rasterise(runs, (40, 40)).sum()
