"""A task that a package outside of Vitrail brings, through the public commands."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tasks.commands import vitrail as command
from tests.tasks.depth_task import Depth, read_depth
from vitrail.data.samples import Sample
from vitrail.training.selection import early_best, is_kept

HERE = Path(__file__).parent


def make_maps(root: Path, count: int = 14) -> Path:
    """Ramps that are brighter the farther they are, some without a measure in the first rows; .npy and .tif in turn."""
    rng = np.random.default_rng(0)
    for folder in ("images", "depths"):
        (root / folder).mkdir(parents=True)
    for number in range(count):
        depth = np.linspace(1, 2 + number / 8, 20, dtype=np.float32)[:, None].repeat(24, axis=1)
        pixels = (40 + 50 * depth + rng.normal(0, 5, depth.shape))[..., None].repeat(3, axis=2)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / "images" / f"{number:02d}.png")
        depth[: number % 3] = np.nan
        if number % 2:
            np.save(root / "depths" / f"{number:02d}.npy", depth)
        else:
            millimetres = (np.nan_to_num(depth) * 1000).round().astype(np.uint16)
            Image.fromarray(millimetres).save(root / "depths" / f"{number:02d}.tif")
    return root


def make_package(root: Path) -> Path:
    """What `pip install` leaves of a package with an entry point."""
    folder = root / "depth-0.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: depth\nVersion: 0.1\n")
    (folder / "entry_points.txt").write_text("[vitrail.tasks]\ndepth = depth_task:DepthTask\n")
    return root


def test_the_task_is_short():
    assert len((HERE / "depth_task.py").read_text().splitlines()) < 150


@pytest.mark.slow
def test_a_task_from_outside_trains_resumes_evaluates_predicts_reports_and_exports(tmp_path):
    data, run = make_maps(tmp_path / "data"), tmp_path / "run"
    places = {"cwd": tmp_path, "path": (make_package(tmp_path / "site"), HERE)}
    small = ("--model", "vit_nano4", "--weights", "none", "--device", "cpu", "--workers", "1", "--pyramid", "simple")
    options = ("--epochs", "3", "--batch-size", "4", "--image-size", "16", "--val", "0.3", "--lr", "1e-3")
    begun = ("train", data, "--task", "depth", "--out", run, *small, *options)
    assert command(*begun, kill_at=5, **places) == -signal.SIGKILL
    assert command(*begun, "--resume", **places) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row["val_score"] == -row["val_mae"] for row in rows) and rows[2]["val_mae"] < rows[0]["val_mae"]
    assert "mae" in (run / "report.html").read_text()

    assert command("evaluate", data, "--model", run, "--json", tmp_path / "figures.json", **places) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["n"] == 4 and figures["mae_low"] < figures["mae"] < figures["mae_high"]

    image, answers = data / "images" / "01.png", tmp_path / "answers"
    assert command("predict", image, "--model", run, "--out", answers, **places) == 0
    depth = np.load(answers / "01.npy")
    assert depth.shape == (20, 24) and depth.dtype == np.float32

    pytest.importorskip("onnxruntime")
    assert command("export", run, "--to", "onnx", **places) == 0
    files = ("--model", run / "model.onnx", "--out", tmp_path / "again")
    assert command("predict", image, *files, **places) == 0
    np.testing.assert_allclose(np.load(tmp_path / "again" / "01.npy"), depth, atol=1e-4)


def test_maps_of_whole_numbers_and_of_fractions_read_alike(tmp_path):
    data = make_maps(tmp_path / "data", 4)
    whole, fractions = (read_depth(Sample("", data / "images" / f"{number:02d}.png", ())) for number in (2, 1))
    assert whole.dtype == fractions.dtype == np.float32
    assert np.isnan(whole[:2]).all() and whole[2:].min() > 1 and np.isnan(fractions[0]).all()


def test_only_measured_pixels_count():
    truth = torch.tensor([[[1.0, float("nan")], [3.0, 4.0]]])
    outputs = torch.tensor([[[[2.0, 9.0], [3.0, 2.0]]]])
    assert Depth().loss(outputs, truth).tolist() == [1.0]
    assert Depth().rows(outputs, truth).tolist() == [[3.0, 3.0]]
    assert Depth().loss(outputs, torch.full_like(truth, float("nan"))).tolist() == [0.0]


def test_a_figure_below_zero_chooses_between_epochs():
    before = [{"epoch": 1, "val_score": -2.0}, {"epoch": 2, "val_score": -1.0}]
    assert is_kept({"epoch": 3, "val_score": -0.5}, before, "val_score", 10)
    assert not is_kept({"epoch": 3, "val_score": -1.5}, before, "val_score", 10)
    errors = [{**row, "val_score_error": 0.6} for row in before]
    assert is_kept({"epoch": 3, "val_score": -1.5}, errors, "val_score", 10)
    assert early_best({"epoch": 3, "val_score": -1.5}, before, "val_score") == -1.0
    assert not is_kept({"epoch": 1, "val_score": -1.5}, [{"epoch": 0, "val_score": -1.0}], "val_score", 10)
