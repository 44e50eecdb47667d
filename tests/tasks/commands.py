"""`python -m vitrail …` in a process of its own, killed at an exact step if asked."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
ARMED = """
import itertools, os, signal, sys
from vitrail.training.trainer import Trainer
step, calls, nth = Trainer.train_step, itertools.count(1), int(sys.argv.pop(1))
def armed(*args, **kwargs):
    if next(calls) == nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*args, **kwargs)
Trainer.train_step = armed
from vitrail.cli import main
main()
"""


def vitrail(*arguments: Any, cwd: Path, kill_at: int | None = None, path: tuple[Path, ...] = ()) -> int:
    """The exit code. `kill_at`: SIGKILL at this step of training; `path` is searched for packages first."""
    program = ["-m", "vitrail"] if kill_at is None else ["-c", ARMED, str(kill_at)]
    places = os.pathsep.join(map(str, (*path, SOURCE)))
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *program, *map(str, arguments)], cwd=cwd, env=environment).returncode
