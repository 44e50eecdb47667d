"""The rows of `vitrail models` are written down; here they are counted, so that none goes stale."""

import pytest

from vitrail.cli.catalog import TORCHVISION, all_names, counted, rows_like, written
from vitrail.models import list_models
from vitrail.weights.shipped import shipped_names

NAMES = all_names()
AGAIN = "catalog.json is out of date: python -m vitrail.cli.catalog writes it anew"


def test_the_rows_are_those_of_the_catalog_in_its_order():
    assert [*written()] == NAMES, AGAIN


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(TORCHVISION)])
def test_a_row_is_what_is_counted(name):
    assert written()[name] == counted(name), AGAIN


@pytest.mark.slow
def test_the_rows_of_torchvision_are_what_is_counted():
    names = list_models("tv:*")[::5]  # all of them take half a minute
    assert [written()[name] for name in names] == [counted(name) for name in names], AGAIN


def test_a_pattern_chooses_rows():
    assert [row.name for row in rows_like("*")] == [*shipped_names(), *list_models()]
    assert [row.name for row in rows_like("swin*")] == list_models("swin*")
    assert [row.name for row in rows_like("tv:resnet?8")] == ["tv:resnet18"]
