"""One run of training, as an explicit value that its phases and its task's functions are handed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail.console import Console
from vitrail.data.samples import Sample, Source
from vitrail.data.subset import Subset, all_bad
from vitrail.distributed import Processes
from vitrail.models import Preprocessing
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.backbones import Start

if TYPE_CHECKING:
    from vitrail.tasks.base import Task


@dataclass
class LinearProbe:
    """What the probe phase leaves to the phases after it."""

    score: float  # the figure that chooses, cross-validated on the training images
    images: int
    kept_aside: list[dict[str, Tensor]] = field(default_factory=list)  # its heads, where tuning starts from others


@dataclass
class Context:
    task: "Task"
    data: str
    source: Source
    samples: dict[str, list[Sample]]  # "train", "val"
    start: Start
    given: Config  # as it was asked for
    config: Config  # with nothing left open, but perhaps the learning rate
    why: dict[str, Reason]
    dtype: torch.dtype
    folder: Path
    processes: Processes
    console: Console
    command: str = ""  # that began the run
    parent: "Context | None" = None  # of the second training, on all images: the first one
    left_out_before: dict[str, str] | None = None  # of a run that is resumed: name → reason
    resumed: dict[str, Any] | None = None  # its state
    record: dict[str, Any] = field(default_factory=dict)  # what the task wrote into the record of a resumed run

    objective: Any = None  # outputs and loss; what a task keeps for the length of a run
    model: nn.Module = field(init=False)
    subsets: dict[str, Subset] = field(default_factory=dict)  # "train", "val", "train as predicted"
    left_out: dict[str, str] = field(default_factory=dict)  # unreadable from the start: name → reason
    features: dict[str, list[Tensor]] = field(default_factory=dict)  # "train", "val": where the head learns from them
    probe: LinearProbe | None = None
    plan_rows: list[tuple[str, str, object]] = field(default_factory=list)  # that the task added to the plan
    small_head: bool = False  # does tuning start from an untrained head, and not from the linear probe?
    epoch: int = 0  # that is being trained, counted from 0
    cache: str = "off"  # where decoded images are kept
    workers: int = 0  # threads that decode

    def __post_init__(self) -> None:
        self.model = self.start.model.to(self.processes.device)

    @property
    def preprocessing(self) -> Preprocessing:
        return self.start.preprocessing

    @property
    def device(self) -> torch.device:
        return self.processes.device

    @property
    def is_new(self) -> bool:
        """Neither resumed, nor the second training of a run."""
        return self.resumed is None and self.parent is None

    @property
    def epochs(self) -> int:
        return 0 if self.config.get("tune") == "probe" else self.config.epochs or 0

    @property
    def settings(self) -> Any:
        return self.model.settings

    def unreadable(self) -> dict[str, str]:
        """All images that are known by now, to all processes together, to be unreadable: name → reason."""
        return (self.left_out_before or {}) | all_bad(self.processes, [*self.subsets.values()])

    def validated(self) -> list[Sample]:
        """The validation images that can be read."""
        subset = self.subsets["val"]
        return [subset.samples[number] for number in subset.numbers]
