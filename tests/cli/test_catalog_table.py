"""The rows of `vitrail models` are written down; here they are counted, so that none goes stale."""

import re

import pytest

from vitrail.cli.catalog import TORCHVISION, all_names, counted, rows_like, written
from vitrail.cli.models import models, short
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
    assert [row.name for row in rows_like("swin")] == list_models("swin*")  # a part of a name
    assert [row.name for row in rows_like("vit_b16")] == ["vit_b16"]  # a name


def test_on_a_narrow_terminal_the_weights_have_a_line_of_their_own(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    widest = {}
    for columns in (80, 100, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        models("*")
        widest[columns] = max(map(len, re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()))
        assert widest[columns] <= columns
    assert widest[80] == widest[100] < 80 < widest[140]
    monkeypatch.setenv("COLUMNS", "80")
    models("vit_ti16")
    assert re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()[2:] == [
        "vit_ti16       5.7 M          1.3 G     197  224×224  apache-2.0",
        "  timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    ]
    assert [short(count) for count in (999, 203_304, 5_717_416, 1_012_780_392)] == ["999", "203.3 k", "5.7 M", "1.0 G"]
