"""Where the figures of a run go: metrics.jsonl, TensorBoard's events and, if asked, Weights & Biases or MLflow."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.training.state import write_text
from vitrail.training.tensorboard import EventFile


class Log:
    """One row of figures per epoch."""

    def __init__(
        self,
        folder: Path,
        rows: list[dict[str, Any]],
        settings: dict[str, Any],
        wandb: bool = False,
        mlflow: bool = False,
    ):
        """`rows` are what a resumed run had when its state was saved; rows after that come again."""
        self.folder, self.rows = folder, list(rows)
        self._others: list[Any] = []
        self._write_rows()
        with _writing(folder):
            self._events = EventFile(folder)
        for wanted, kind in ((wandb, _WandB), (mlflow, _MLflow)):
            if wanted:
                self._others.append(kind(folder, settings))

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._write_rows()
        numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "epoch"}
        with _writing(self.folder):
            self._events.add(row["epoch"], numbers)
        for other in self._others:
            other.log(numbers, row["epoch"])

    def close(self) -> None:
        self._events.close()
        for other in self._others:
            other.close()

    def _write_rows(self) -> None:
        """All of them anew: a few kilobytes, and no reader or full disk is left with half a line."""
        write_text(self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VitrailError(
            f"The figures can't be written to {folder}: {error.strerror or error}.", code="not_written"
        ) from None


def check_packages(wandb: bool, mlflow: bool) -> None:
    """Before anything is read or written."""
    for wanted, name in ((wandb, "wandb"), (mlflow, "mlflow")):
        if wanted and find_spec(name) is None:
            raise VitrailError(
                f"--{name} needs the package {name}: pip install {name}.", code="no_package", package=name
            )


class _WandB:
    def __init__(self, folder: Path, settings: dict[str, Any]):
        import wandb

        self.run = wandb.init(project="vitrail", name=folder.name, dir=str(folder), config=settings)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()


class _MLflow:
    def __init__(self, folder: Path, settings: dict[str, Any]):
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment("vitrail")
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params(settings)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.mlflow.log_metrics(numbers, step=step)

    def close(self) -> None:
        self.mlflow.end_run()
