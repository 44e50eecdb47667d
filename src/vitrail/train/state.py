"""The resumable state of a run: everything that the next step depends on, written so that half a file is never seen."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from vitrail.errors import VitrailError


def save_state(path: Path, state: dict[str, Any]) -> None:
    _write(path, lambda file: torch.save(state, file))


def write_text(path: Path, text: str) -> None:
    _write(path, lambda file: file.write(text.encode()))


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Under another name first, then renamed: whoever is killed while writing keeps the last one."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise VitrailError(f"{path} could not be written: {reason}.") from None
    finally:
        with suppress(OSError):
            part.unlink()


def load_state(path: Path) -> dict[str, Any] | None:
    """None where there is none yet: the run was killed before it had anything to save."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise VitrailError(f"{path} can't be read ({reason}): start again without --resume.") from None


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Dropout and drop path draw from torch's generators. Keyed to the step, they need not be saved, and a run that is
    resumed anywhere draws what it would have drawn."""
    torch.manual_seed(int(np.random.SeedSequence((seed, epoch, step, rank)).generate_state(1, np.uint64)[0] >> 1))
