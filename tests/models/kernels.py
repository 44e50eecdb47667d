"""Triton's kernels in a process of their own: whether they are compiled or interpreted is settled at its import."""

import json
import os
import subprocess
import sys

import torch


def errors_of(program: str, shapes: list) -> list[list[float]]:
    """What the program prints: for each shape, the largest relative error of each result. It gets the device and the
    shapes as arguments: compiled on a GPU, elsewhere by Triton's interpreter."""
    gpu = torch.cuda.is_available()
    done = subprocess.run(
        [sys.executable, "-c", program, "cuda" if gpu else "cpu", json.dumps(shapes)],
        env=os.environ | ({} if gpu else {"TRITON_INTERPRET": "1"}), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
