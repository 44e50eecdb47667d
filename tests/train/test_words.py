"""What a run says before it begins."""

import pytest
import torch

from vitrail.train.view import View
from vitrail.train.words import show_uncompiled
from vitrail.train.work import COMPILE_FROM, worth_compiling


@pytest.mark.parametrize(
    "asked, device, steps, worth",
    [
        ("auto", "cuda", COMPILE_FROM, True),
        ("auto", "cuda", COMPILE_FROM - 1, False),
        ("auto", "cpu", COMPILE_FROM, False),
        ("off", "cuda", COMPILE_FROM, False),
        ("on", "cuda", COMPILE_FROM, False),  # asked for: nothing to decide
    ],
)
def test_a_long_run_on_a_gpu_is_worth_compiling(asked, device, steps, worth):
    assert worth_compiling(asked, torch.device(device), steps) == worth


def test_where_nothing_can_be_built_one_line_says_what_to_install(capsys):
    show_uncompiled(View(), can_build=True)
    assert capsys.readouterr().out == ""
    show_uncompiled(View(), can_build=False)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "uncompiled" in said and "install gcc and python3-dev" in said
