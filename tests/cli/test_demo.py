"""The demo as a new user runs it: the whole of it, since its figure is a promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from vitrail.cli import demo, main
from vitrail.training.signals import Stopped

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_recognises_98_percent_of_digits_it_has_not_seen(tmp_path):
    done = subprocess.run([sys.executable, "-m", "vitrail", "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"On the 599 pictures of test/.*: ([\d.]+)% are recognised", done.stdout)
    assert accuracy and float(accuracy[1]) >= 98.0
    demo = tmp_path / "runs" / "demo"
    assert Image.open(demo / "how_it_sees.png").size[0] > 800
    assert (demo / "run" / "report.html").stat().st_size > 20_000
    assert len(list(demo.glob("digits/train/*/*.png"))) == 1198
    arguments = ["predict", "runs/demo/digits/test/7", "--model", "runs/demo/run", "--top", "1"]
    predicted = subprocess.run(
        [sys.executable, "-m", "vitrail", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert predicted.returncode == 0, predicted.stderr
    answers = re.findall(r"%\s+█*\s+(\d)$", predicted.stdout, re.M)
    assert answers.count("7") >= 0.9 * len(answers) > 40


def test_whoever_stops_the_training_of_the_demo_is_told_that_it_begins_anew(monkeypatch, tmp_path, capsys):
    def stopped(*_, **__):
        raise Stopped(0, 1, 10, "vitrail train")

    monkeypatch.setattr(vitrail, "train", stopped)
    monkeypatch.setattr(demo, "photographs", lambda folder: [])
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", str(tmp_path)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "vitrail: Stopped; `vitrail demo` begins anew.\n"
