"""What a run says before it begins, and when it is over."""

import re
import subprocess
import sys

import pytest
import torch

import vitrail
from tests.training.support import SMALL, make_folder, small_options
from vitrail import VitrailError
from vitrail.serve.views import View
from vitrail.training.config import Recipe, concerning
from vitrail.training.messages import kept, show_uncompiled
from vitrail.training.run_folder import read_record
from vitrail.training.setup import COMPILE_FROM, worth_compiling


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


def test_a_class_without_a_readable_picture_is_told_of_or_refused(tmp_path, capsys):
    data = make_folder(tmp_path / "data", count=18)
    for path in (data / "class 1").iterdir():
        path.write_bytes(b"no picture")
    run = vitrail.train(data, **small_options(epochs=1, batch_size=4), out=tmp_path / "run")
    assert (
        run.metrics
        and "note: No picture of class 1 can be read: the model will not know it." in capsys.readouterr().out
    )
    for path in (data / "class 0").iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(
        VitrailError, match="No picture of class 0, class 1 can be read, so there is nothing to tell apart"
    ):
        vitrail.train(data, **small_options(epochs=1, batch_size=4), out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_plan_tells_of_pictures_that_are_enlarged_and_a_resumed_run_as_well(tmp_path, capsys):
    data = make_folder(tmp_path / "data", count=18)  # of 12×15
    run = vitrail.train(data, **small_options(epochs=1, image_size=16), out=tmp_path / "run")
    assert re.search(r"  images +16×16  fit crop; the pictures are about 15 pixels a side,", capsys.readouterr().out)
    assert read_record(run.folder).start().pictures == 15
    vitrail.train(data, **small_options(epochs=0, image_size=8), out=tmp_path / "own")
    assert re.search(r"  images +8×8  fit crop\n", capsys.readouterr().out)


def test_what_can_not_be_compiled_is_said_before_a_folder_is_made(tmp_path):
    """Without a compiler on the path, in a process of its own: this one may have found one already."""
    data = make_folder(tmp_path / "data", count=12)
    words = [sys.executable, "-m", "vitrail", "train", str(data), *SMALL, "--compile", "on", "--out", "run"]
    place = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    done = subprocess.run(words, cwd=tmp_path, env=place, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--compile on can't be had here (" in done.stderr and "install a C++ compiler" in done.stderr
    assert not (tmp_path / "run").exists()


def test_where_nothing_can_be_built_one_line_says_what_to_install(capsys):
    show_uncompiled(View(), can_build=True)
    assert capsys.readouterr().out == ""
    show_uncompiled(View(), can_build=False)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "uncompiled" in said and "install gcc and python3-dev" in said


@pytest.mark.parametrize(
    ("best", "solved", "words"),
    [
        ({"epoch": 7}, False, "epoch 7"),
        ({"epoch": 7, "share": 1.0}, True, "epoch 7"),
        ({"epoch": 7, "share": 0.5}, True, "50% of the way from the linear classifier to epoch 7"),
        ({"epoch": 0, "share": 0.25}, True, "25% of the way from the linear classifier to the last epoch"),
        ({"epoch": 0, "share": 0.0}, True, "the linear classifier on frozen features: on the validation images tuning"),
        ({"epoch": 0}, True, "the linear classifier on frozen features"),
        ({"epoch": 0}, False, "what it began with"),
    ],
)
def test_what_is_kept_is_called_what_it_is(best, solved, words):
    assert kept(best, solved).startswith(words)


@pytest.mark.parametrize(
    ("options", "there", "absent"),
    [
        (
            {},
            {"tune", "clip", "seed", "cache"},
            {"adapter_width", "lora_rank", "prompt_tokens", "margin", "wandb", "lr"},
        ),
        ({"tune": "lora", "lr": 1e-3}, {"lora_rank", "lora_targets", "lr"}, {"adapter_width", "protocol"}),
        ({"task": "spoof"}, {"protocol", "margin"}, {"fold", "lora_rank"}),
        ({"lora_rank": 4, "wandb": True}, {"lora_rank", "wandb"}, {"lora_targets", "mlflow"}),
    ],
)
def test_a_recipe_is_told_without_what_is_of_other_runs(options, there, absent):
    told = concerning(Recipe(**options)).keys()
    assert there <= told and not absent & told
