"""Who is examined: a model, its preprocessing, images to show it and, of a run, what the run has written down."""

import copy
import json
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.doctor.claims import explain_failure, file_findings
from vitrail.doctor.findings import Finding, fault, ok
from vitrail.doctor.pictures import Batch, gather
from vitrail.doctor.traces import GAIN, STILL, all_blocks, as_initialised, change_of, gain_distance
from vitrail.errors import VitrailError
from vitrail.explain.looking import seeing
from vitrail.models import Preprocessing, build
from vitrail.models.heads import classifiers
from vitrail.predict import Predictor, load
from vitrail.training.batches import seed_step
from vitrail.training.run_folder import Record, read_record
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.header import settings_from_dict, settings_of, unwrapped
from vitrail.weights.published import in_cache, published
from vitrail.weights.shipped import shipped

Subject = str | PathLike[str] | Predictor | nn.Module


@dataclass
class RunFolder:
    folder: Path
    record: Record
    rows: list[dict[str, Any]]  # of metrics.jsonl
    kept: bool  # is there a model?

    @property
    def lr(self) -> float | None:
        return self.record.recipe.get("lr")

    @cached_property
    def start(self) -> nn.Module | None:
        """What it began with, for all checks to compare with: the weights it names, if they are here, or what its seed
        draws."""
        record = self.record
        settings = settings_from_dict(record.model["settings"])
        if not record.model["pretrained"]:
            with torch.random.fork_rng(devices=[]):
                seed_step(record.recipe.get("seed", 0), 0, 0, 0)
                return build(settings)
        try:
            checkpoint = _at_hand(record.recipe.get("weights", "auto"), record.model["name"])
            return model_from(checkpoint, "new", num_classes=settings.num_classes, image_size=settings.image_size)
        except Exception:  # moved, changed, or of another machine
            return None

    @property
    def started_from(self) -> str:
        """In the words of its recipe; of weights that were chosen for it, their model."""
        source = self.record.recipe.get("weights", "auto")
        return self.record.model["name"] if source == "auto" else source


def _at_hand(weights: str, name: str) -> Checkpoint:
    """What a run names as its weights, from this machine alone: an examination downloads nothing."""
    architecture = None
    if weights == "auto":
        if inside := shipped(name):
            return read_checkpoint(inside)
        weights, architecture = published(name), name
    if not weights.startswith("hf://"):
        return read_checkpoint(weights)
    if (folder := in_cache(weights.removeprefix("hf://"))) is None:
        raise VitrailError(f"{weights} is not in the cache of this machine.")
    return read_checkpoint(folder, architecture)


@dataclass
class Patient:
    name: str
    predictor: Predictor
    batch: Batch
    run: RunFolder | None = None
    lr: float | None = None  # to be tried
    charts: dict[str, Any] = field(default_factory=dict)  # what checks leave for the drawings
    normed: bool = True  # is its last norm part of what it says? A pyramid takes the maps before it
    faulty: bool = False  # something was found already; what the model says is then no evidence against its labels

    @property
    def model(self) -> nn.Module:
        return self.predictor.model

    @property
    def preprocessing(self) -> Preprocessing:
        return self.predictor.preprocessing

    @cached_property
    def body(self) -> Any:
        """The part that sees whole images: the encoder of a masked autoencoder."""
        return seeing(self.model)

    @property
    def classes(self) -> int:
        return len(self.predictor.labels)

    @cached_property
    def stack(self) -> list[nn.Module]:
        return all_blocks(self.model)

    @cached_property
    def untrained(self) -> bool:
        """All of it is as initialised."""
        return all(map(as_initialised, self.stack))

    @cached_property
    def long_trained(self) -> bool:
        """For longer than a few epochs: what is close to its start was then left out."""
        return sum(map(gain_distance, self.stack)) > GAIN * len(self.stack)

    @cached_property
    def changes(self) -> list[float] | None:
        """How far each block has moved since the start of its run; None where that is not known."""
        if self.run is None or not self.run.kept or self.run.start is None:
            return None
        return [change_of(a, b) for a, b in zip(all_blocks(self.run.start), self.stack, strict=True)]

    @property
    def still(self) -> list[int]:
        """The blocks that have not moved in its run, as far as that is known."""
        return [number for number, value in enumerate(self.changes or ()) if value < STILL]

    @cached_property
    def answers(self) -> tuple[Tensor | None, Tensor]:
        """For all images the logits [n, classes], where there are classes, and the pooled features [n, D]."""
        return self.answers_to(self.batch.x)

    @torch.no_grad()
    def answers_to(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """In one pass: the features are what the head is given."""
        heard: list[Tensor] = []
        logits: list[Tensor] = []
        if not self.classes:
            for part in x.split(32):
                heard.append(self.body.features(part, layers=())["pooled"])
            return None, torch.cat(heard).float().cpu()
        hook = classifiers(self.model)[0].register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0]))
        try:
            for part in x.split(32):
                logits.append(self.model(part))
        finally:
            hook.remove()
        return torch.cat(logits).float().cpu(), torch.cat(heard).float().cpu()


def admit(
    subject: Subject,
    data: Any = None,
    image_size: int | None = None,
    images: int = 64,
    architecture: str | None = None,
    device: str | None = None,
    lr: float | None = None,
) -> tuple[Patient | None, list[Finding]]:
    """Whoever can be examined, and what the file alone has told: where that ends in a fault, there may be no model."""
    if images < 2:
        raise VitrailError(f"--images must be at least 2, got {images}.")
    if lr is not None and not lr > 0:
        raise VitrailError(f"--lr must be above 0, got {lr}.")
    if isinstance(subject, nn.Module | Predictor):
        predictor = subject if isinstance(subject, Predictor) else _wrapped(subject)
        seeing(predictor.model)
        if image_size:
            predictor = resized(predictor, image_size)
        name = predictor.name or type(predictor.model).__name__
        return Patient(name, predictor, gather(data, predictor, predictor, images), None, lr), []
    source = fspath(subject)
    run = _run_folder(Path(source).expanduser())
    found: list[Finding] = []
    normed = True
    if run is not None and not run.kept:
        predictor, found = _start(run, image_size, device)
    else:
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                predictor = load(source, architecture, image_size, device)
        except VitrailError as error:
            return None, explain_failure(source, architecture, error)
        found = file_findings(source, architecture, predictor, [str(one.message) for one in said])
        if predictor.backbone is not predictor:  # of a segmenter or a detector, whose labels are no image's
            found.append(ok(f"the backbone of a model made to {predictor.task} is examined, without its data"))
            normed = getattr(predictor.model.settings, "head", "") == "linear"
            predictor, run = predictor.backbone, None
        seeing(predictor.model)
    if data is None and run is not None and Path(run.record.data).exists():
        data = run.record.data
    batch = gather(data, predictor, source if run is None or run.kept else predictor, images)
    rate = lr if lr is not None else run.lr if run is not None else None
    return Patient(source, predictor, batch, run, rate, normed=normed), found


def _wrapped(model: nn.Module) -> Predictor:
    """A model as it is, where it is; one in half precision as a copy in full."""
    model = unwrapped(model)
    seeing(model)  # refuses what has no layers to look into
    settings = settings_of(model)
    pre = getattr(model, "preprocessing", None) or Preprocessing().suited(settings)
    parameter = next(model.parameters())
    model = model if parameter.dtype == torch.float32 else copy.deepcopy(model).float()
    return Predictor(model, pre, device=parameter.device)


def resized(predictor: Predictor, image_size: int) -> Predictor:
    pre = replace(predictor.preprocessing, size=(image_size, image_size))
    labels = predictor.labels or None
    return Predictor(predictor.model, pre, labels, predictor.name, predictor.device, predictor.about)


def _run_folder(path: Path) -> RunFolder | None:
    folder = path if path.is_dir() else path.parent
    if not (folder / "run.json").is_file() or (path.is_file() and path.name != "model.safetensors"):
        return None
    try:
        record = read_record(folder)
    except VitrailError:  # of another version, or damaged: the model can be examined all the same
        return None
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        rows = []
    return RunFolder(folder, record, rows, (folder / "model.safetensors").is_file())


def _start(run: RunFolder, image_size: int | None, device: str | None) -> tuple[Predictor, list[Finding]]:
    """A run that kept no model: what it began with can still be examined."""
    start = run.record.start()
    predictor = Predictor(start.model, start.preprocessing, None, start.name, device)
    if image_size:
        predictor = resized(predictor, image_size)
    done = len([row for row in run.rows if row.get("epoch")])
    return predictor, [
        fault(
            "no_model",
            f"the run {run.folder} has kept no model ({done} epochs done); what it started from is examined instead",
            "it was stopped, or its loss ceased to be a number, before the first epoch was over",
            "see what the lines below say of its learning rate, then train again",
        )
    ]
