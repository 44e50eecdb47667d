"""Where the real images lie, if they are there."""

import os
from pathlib import Path

import pytest
import torch

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real images: `VITRAIL_DATA`, or `../shared/data` beside the checkout."""
    folder = Path(os.environ.get("VITRAIL_DATA", BESIDE))
    if not (folder / "deit_tiny_in1k").is_dir():
        pytest.skip(f"needs the real images, which are not at {folder} (set VITRAIL_DATA)")
    return folder


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)
