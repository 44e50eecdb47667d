"""What a run decides about its machine: whether the model is compiled, and how long it will take."""

import subprocess
import sys

import pytest
import torch

from tests.training.support import SMALL, make_folder
from vitrail.training.setup import COMPILE_FROM, worth_compiling


@pytest.mark.parametrize(
    ("asked", "device", "steps", "worth"),
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


def test_a_model_that_can_not_be_compiled_is_refused_before_a_folder_is_made(tmp_path):
    """Without a compiler on the path, in a process of its own: this one may have found one already."""
    data = make_folder(tmp_path / "data", count=12)
    words = [sys.executable, "-m", "vitrail", "train", str(data), *SMALL, "--compile", "on", "--out", "run"]
    place = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    done = subprocess.run(words, cwd=tmp_path, env=place, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--compile on" in done.stderr and "C++ compiler" in done.stderr
    assert not (tmp_path / "run").exists()
