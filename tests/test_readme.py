"""The quick start of the README, command by command, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.cli.demo import write_digits

ROOT = Path(__file__).resolve().parents[1]


def commands(page: str) -> list[list[str]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^(vitrail .*)$", "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S)), re.M)
    return [[part.strip('"') for part in line.split("#")[0].split()[1:]] for line in lines]


def test_both_languages_have_the_same_commands():
    assert commands("README.md") == commands("README.zh.md")


@pytest.mark.slow
def test_every_command_of_the_quick_start_runs(tmp_path):
    write_digits(tmp_path / "runs" / "demo" / "digits")
    expected = {
        "data": "runs/inspection.png",
        "train": "runs/mine/report.html",
        "predict": "runs/found.csv",
        "explain": "runs/explained/explain.html",
        "embed": "runs/vectors.npz",
        "export": "runs/mine/model.timm.safetensors",
    }
    quick_start = commands("README.md")
    assert [arguments[0] for arguments in quick_start] == [
        "data", "train", "evaluate", "predict", "explain", "embed", "export", "models",
    ]  # fmt: skip
    for arguments in quick_start:
        if arguments[0] == "train":
            arguments[arguments.index("--epochs") + 1] = "3"  # the others do the same again
        done = subprocess.run(
            [sys.executable, "-m", "vitrail", *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        if arguments[0] in expected:
            assert (tmp_path / expected[arguments[0]]).stat().st_size > 1000
        if arguments[0] == "evaluate":
            assert "599 images" in done.stdout
