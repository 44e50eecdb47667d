"""A table of numbers that small images show, and a run that learnt it."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail

SMALL = {"task": "regress", "device": "cpu", "workers": 1, "cache": "memory", "seed": 1, "batch_size": 12}
SCRATCH = {**SMALL, "model": "vit_nano4", "weights": "none", "epochs": 3, "lr": 2e-3}


def make_table(root: Path, count: int = 70) -> Path:
    """`light` is how bright an image is, `warmth` how much redder than blue: on scales far from 0 and 1."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True)
    with open(root / "values.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "light", "warmth", "split"])
        for number in range(count):
            light, warmth = rng.uniform(40, 215), rng.uniform(-30, 30)
            pixels = light + rng.normal(0, 10, (16, 20, 3)) + warmth * np.array([1, 0, -1])
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{number:02d}.png")
            split = "test" if number % 5 == 0 else "train"
            table.writerow([f"{number:02d}.png", f"{2000 + light:.2f}", f"{warmth / 1000:.6f}", split])
    return root / "values.csv"


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    return make_table(tmp_path_factory.mktemp("numbers") / "data")


@pytest.fixture(scope="session")
def run(table, tmp_path_factory) -> vitrail.Run:
    return vitrail.train(table, out=tmp_path_factory.mktemp("runs") / "scratch", **SCRATCH)
