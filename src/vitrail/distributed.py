"""Several processes under `torchrun`, one without it: the same code asks here which one it is."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.errors import VitrailError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """The one that prints and writes."""
        return self.rank == 0

    def share(self, numbers: np.ndarray) -> np.ndarray:
        """This process's part: contiguous, and as large as any other's or one smaller."""
        return np.array_split(numbers, self.count)[self.rank]

    def gather(self, part: Tensor, total: int) -> Tensor:
        """The rows of all processes, each of which brings its share of `total`, in order."""
        if self.count == 1:
            return part
        counts = [len(share) for share in np.array_split(np.arange(total), self.count)]
        padded = part.new_zeros(max(counts), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([rows[:count] for rows, count in zip(parts, counts, strict=True)])

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def mean(self, tensors: list[Tensor]) -> None:
        """Makes each the mean over all processes, in place."""
        if self.count > 1 and tensors:
            joined = self.total(torch.cat([tensor.flatten() for tensor in tensors])) / self.count
            for tensor, part in zip(tensors, joined.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def of_first(self, value: T) -> T:
        """What the first process has, in all of them."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def of_all(self, value: T) -> list[T]:
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes(device: str | None) -> Iterator[Processes]:
    """Joins the others if `torchrun` started this process, and leaves them at the end."""
    where = _device(device)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        with torch.cuda.device(where) if where.type == "cuda" else nullcontext():  # streams and graphs are of this one
            yield Processes(device=where)
        return
    if where.type == "cuda":
        if where.index is not None:
            raise VitrailError(f"--device {device} names one GPU, and torchrun gives each process its own: use cuda.")
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if where.index >= (gpus := torch.cuda.device_count()):
            there = int(os.environ.get("LOCAL_WORLD_SIZE", count))
            raise VitrailError(f"{there} processes were started here for {gpus} GPUs: give torchrun as many of both.")
        torch.cuda.set_device(where)
    ours = not dist.is_initialized()
    if ours:
        # Its functions keep the group that there is when it is imported, as the value of an argument, beyond the end of
        # the group; whose threads may then outlive Python, and abort the process. PyTorch's compiler imports it later.
        importlib.import_module("torch.distributed.nn.functional")
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), where)
    except RuntimeError as error:
        if "Connection closed by peer" in str(error) or "Connection reset by peer" in str(error):
            raise VitrailError("Another process of this run has ended; its own message says why.") from None
        raise
    # Not after an error: to leave properly is to wait for the others, who may wait for this one.
    if ours:
        dist.destroy_process_group()


def _device(device: str | None) -> torch.device:
    try:
        where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        where = torch.device("meta")
    if where.type not in ("cpu", "cuda"):
        raise VitrailError(f"--device {device} can't be trained on: use cpu, or cuda with a GPU.")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise VitrailError(f"--device {device} can't be used: PyTorch sees no GPU here; use --device cpu.")
    if where.type == "cuda" and (where.index or 0) >= (count := torch.cuda.device_count()):
        raise VitrailError(f"--device {device} can't be used: the last GPU that PyTorch sees here is cuda:{count - 1}.")
    return where
