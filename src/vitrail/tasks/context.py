"""One run of training, as an explicit value that its phases and its task are handed; and what its model says of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.console import Console
from vitrail.data.loader import Subset, all_bad
from vitrail.data.samples import Sample, Source
from vitrail.distributed import Processes
from vitrail.models import Preprocessing
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.backbones import Start


@dataclass
class LinearProbe:
    """What the probe phase leaves to the phases after it."""

    score: float  # the figure that chooses, cross-validated on the training images
    images: int
    kept_aside: list[dict[str, Tensor]] = field(default_factory=list)  # its heads, where tuning starts from others


@dataclass
class Context:
    task: Any  # a `Task`
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


def header_of(ctx: Context, row: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What the model of a run says of itself: task, options, data, figures, and which images were held out."""
    about = {"task": ctx.task.name, **ctx.task.header(ctx), "recipe": ctx.config.shared()}
    about |= {"data": Path(ctx.data).name, "metrics": dict(row), **more}
    return about | ({"held_out": samples_digest(ctx.samples["val"])} if ctx.samples.get("val") else {})


def samples_digest(samples: list[Sample]) -> str:
    """Of the names and labels, in order: what a number means in a saved state."""
    text = json.dumps([[sample.name, sample.target] for sample in samples])
    return f"{len(samples)} images, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_refitted(about: Mapping[str, Any]) -> bool:
    """By the header of its model: was a run trained, in the end, on the images it had been validated on?"""
    return bool(about.get("finished")) and (about.get("recipe") or {}).get("refit") == "on"


def is_same_split(about: Mapping[str, Any], other: Mapping[str, Any], own_val: bool) -> bool:
    """By the headers of their models: did two runs hold out the same images? `own_val`: the data comes with them. Older
    headers have no digest of these, but the name of the data, and how they were drawn."""
    if "held_out" in about and "held_out" in other:
        return about["held_out"] == other["held_out"]
    one, two = (each.get("recipe") or {} for each in (about, other))
    alike = own_val or all(name in one and one[name] == two.get(name) for name in ("seed", "val"))
    return alike and about.get("data") == other.get("data")
