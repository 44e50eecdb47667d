"""Where the figures of a run go: metrics.jsonl, TensorBoard's events and, if asked, Weights & Biases or MLflow."""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.training.run_folder import write_text


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


_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


class EventFile:
    """`runs/x/events.out.tfevents…`: what `tensorboard --logdir runs` reads."""

    def __init__(self, folder: Path):
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / name).open("wb", buffering=0)  # an event is written when it is written
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, values: dict[str, float]) -> None:
        summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._write(_double(1, time.time()) + _varint(2 << 3) + _varint(step) + _bytes(5, summary))

    def close(self) -> None:
        self.file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self.file.write(length + _checksum(length) + event + _checksum(event))


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
