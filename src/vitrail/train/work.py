"""What every run does, whatever it learns: read the pictures, run the loop, log and keep, be stopped and resumed."""

import shlex
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from vitrail.data.pictures import Pictures, cache_mode, default_workers, fitted, shrunk
from vitrail.data.samples import Sample, Source
from vitrail.data.split import write_split
from vitrail.errors import VitrailError
from vitrail.models.kernels.short_attention import can_build
from vitrail.train.choose import ahead
from vitrail.train.distributed import Processes
from vitrail.train.images import Images, all_bad, read
from vitrail.train.leave import Stopped
from vitrail.train.log import Log
from vitrail.train.loop import Progress, Settings, Trainer
from vitrail.train.recipe import concerning, shared, to_dict
from vitrail.train.record import Record, command_line, described, digest, versions
from vitrail.train.start import Start
from vitrail.train.view import View, clock
from vitrail.train.words import advise, show_uncompiled, show_unreadable, size_rows
from vitrail.weights import read_checkpoint, save_weights

COMPILE_FROM = 2_000  # steps; fewer do not repay the minute that compiling takes


def worth_compiling(asked: str, device: torch.device, steps: int) -> bool:
    """What --compile auto decides."""
    return asked == "auto" and device.type == "cuda" and steps >= COMPILE_FROM


def check_compiler(device: torch.device) -> None:
    """What was asked for is tried, before pictures are read and a folder is made."""
    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except Exception as error:  # a missing compiler or header: each stage of the compiler raises its own
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise VitrailError(
            f"--compile on can't be had here ({why}): install a C++ compiler and Python's headers, or leave it out."
        ) from None


@dataclass
class Work(ABC):
    """Everything is checked and read before the folder is made. `Job` learns from labels, `Pretraining` without."""

    data: str
    source: Source
    samples: dict[str, list[Sample]]  # "train", "val"
    start: Start
    given: Any  # the recipe as it was asked for
    recipe: Any  # with nothing left open, but perhaps the learning rate
    why: dict[str, str]
    dtype: torch.dtype
    folder: Path
    group: Processes
    view: View
    resumed: tuple[Record, dict[str, Any]] | None = None  # what is continued, and its state
    again: bool = False  # the second time, on all images: nothing is chosen, kept or logged
    views: dict[str, Images] = field(default_factory=dict)  # "train", "val", "train as predicted"
    left_out: dict[str, str] = field(default_factory=dict)  # name → reason, from the start

    verb: ClassVar[str] = "train"  # of the command
    looping: ClassVar[type[Trainer]] = Trainer
    task: Any = field(init=False)  # targets, outputs, loss
    model: nn.Module = field(init=False)
    epochs: int = field(init=False)

    @property
    def caches(self) -> bool:
        """Does it learn from features that are made once, and not from the model?"""
        return False

    # -- what each kind of run says for itself -----------------------------------------------------------------------

    @abstractmethod
    def show_plan(self) -> None: ...

    def prepare(self) -> dict[str, Any]:
        """Between reading and training; gives the row of epoch 0, if there is one."""
        return {}

    def keep_first(self, first: dict[str, Any]) -> None:
        """What it begins with; the file to ship, where that has something to show or nothing will be trained."""
        if first or not self.epochs:
            self.keep(first or {"epoch": 0})

    @abstractmethod
    def settings(self) -> Settings:
        """Of the loop."""

    @abstractmethod
    def augmenter(self) -> Any:
        """From bytes to what the model is given."""

    def to_learn_from(self, samples: list[Sample], cache: str) -> Pictures:
        return shrunk(samples, self.start.preprocessing, cache)

    def to_measure_on(self, samples: list[Sample], cache: str) -> Pictures:
        return fitted(samples, self.start.preprocessing, cache)

    @abstractmethod
    def validate(self, model: nn.Module) -> dict[str, float]: ...

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the file to ship says of itself, besides recipe, data and figures."""

    def facts(self) -> dict[str, Any]:
        """What the record of the run says besides."""
        return {}

    @abstractmethod
    def finish(self, history: list[dict[str, Any]], best: dict[str, Any], began: float) -> dict[str, Any]: ...

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        self.show_plan()
        if self.recipe.compile == "on" and self.epochs and not self.caches:
            check_compiler(self.group.device)
        if self.would_compile(len(self.samples["train"])):
            show_uncompiled(self.view, can_build())
        try:
            history, best = self.fit()
            return self.finish(history, best, began)
        except Stopped as stopped:
            again = shlex.join(["vitrail", self.verb, self.data, "--out", str(self.folder), "--resume"])
            raise Stopped(f"{stopped} To go on: {again}") from None

    def fit(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Leaves the tuned weights in the model: those of the best epoch, or of the last where nothing is chosen or the
        linear classifier remained ahead. Gives the rows of all epochs, and the best."""
        view = self.view
        self.read()
        first = {} if self.resumed else self.prepare()
        trainer = self.trainer()
        if self.resumed:
            trainer.load_state(self.resumed[1])
            view.line(f"Resuming in epoch {trainer.epoch + 1}, after step {trainer.step} of {trainer.steps}.")
        else:
            self.begin(trainer, first)
        log: Log | None = None
        if self.group.first and not self.again:
            log = Log(self.folder, trainer.history, to_dict(self.recipe), self.recipe.wandb, self.recipe.mlflow)

        def after_epoch(row: dict[str, Any], is_best: bool) -> None:
            if is_best:
                self.keep(row)
            if log:
                log.add(row)
            view.epoch(row, self.epochs, is_best, ahead(row, trainer.history, trainer.figure))
            advise(view, row, self.views["train"])

        if self.compiles and trainer.epoch < self.epochs:
            view.line("  Compiling the model: the first step takes up to a minute.")
        try:
            trainer.run(after_epoch)
        finally:
            view.settle()
            if log:
                log.close()
        if trainer.best.get("epoch") and not self.again:
            self.model.load_state_dict(read_checkpoint(self.folder / "model.safetensors").state)
        elif trainer.average is not None:
            trainer.average.swap(self.model)
        return trainer.history, trainer.best or {"epoch": self.epochs}

    def begin(self, trainer: Trainer, first: dict[str, Any]) -> None:
        """Makes the folder, with what the run is and, from weights, what it already has to show."""
        if self.group.first:
            self.write_facts()
        if first:
            trainer.best = first
            trainer.history.append(first)
        self.keep_first(first)
        if self.epochs:
            trainer.save()

    def trainer(self) -> Trainer:
        return self.trainer_on(self.views["train"], self.augmenter(), self.task)

    def trainer_on(self, images: Images, augmenter: Any, task: Any) -> Trainer:
        validated = len(self.views["val"].numbers) if "val" in self.views else 0
        return self.looping(
            self.model, task, images, augmenter, self.settings(), self.group, self.validate if validated else None,
            self.folder, self.show_step, self.view.line, validated,
        )  # fmt: skip

    def show_step(self, now: Progress) -> None:
        self.view.step(now)

    def would_compile(self, images: int) -> bool:
        """Unasked, where the machine can."""
        steps = self.epochs * (images // (self.recipe.batch_size or 64))
        return not self.caches and worth_compiling(self.recipe.compile, self.group.device, steps)

    @property
    def compiles(self) -> bool:
        asked = self.recipe.compile == "on" and not self.caches
        return asked or (self.would_compile(len(self.views["train"].numbers)) and can_build())

    # -- data --------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Decodes the pictures once, as far as they are kept, and finds those that can't be read."""
        recipe, pre = self.recipe, self.start.preprocessing
        workers = default_workers() if recipe.workers is None else recipe.workers
        left_out = [*self.resumed[0].unreadable] if self.resumed else None
        train, val = self.samples["train"], self.samples["val"]
        # Only one pass, or none, over the training images needs no cache.
        cache = self.group.of_first(cache_mode(len(train) + len(val), pre, recipe.cache, self.group.count))
        pictures = self.to_learn_from(train, cache if self.epochs else "off")
        progress = self.view.reading("reading the training images")
        self.views["train"] = read(pictures, self.group, workers, progress, left_out)
        if val:
            pictures = self.to_measure_on(val, cache)
            progress = self.view.reading("reading the validation images")
            self.views["val"] = read(pictures, self.group, workers, progress, left_out)
        self.read_more(workers, cache)
        self.view.settle()
        self.left_out = self.unreadable()
        show_unreadable(self.view, self.left_out)

    def read_more(self, workers: int, cache: str) -> None:  # noqa: B027 - most runs have none
        """Other views of the training images, where a run needs them."""

    def unreadable(self) -> dict[str, str]:
        """All that is known by now to all processes together, name → reason."""
        before = self.resumed[0].unreadable if self.resumed else {}
        return before | all_bad(self.group, [*self.views.values()])

    def spent(self, seconds: float) -> str:
        return clock(seconds) + (" since it was resumed" if self.resumed else " in all")

    # -- the folder --------------------------------------------------------------------------------------------------

    def keep(self, row: dict[str, Any], **more: Any) -> None:
        """The one file to ship."""
        if not self.again:
            self.save(self.folder / "model.safetensors", row, **more)

    def save(self, path: Path, row: dict[str, Any], **more: Any) -> None:
        """Weights, labels, preprocessing, recipe, figures."""
        if self.group.first:
            labels = self.source.classes if self.model.settings.num_classes else None  # type: ignore[union-attr]
            about = self.all_about(row, **more)
            save_weights(self.model, path, "vitrail", labels, self.start.preprocessing, self.start.name, about)
        self.group.wait()

    def all_about(self, row: dict[str, Any], **more: Any) -> dict[str, Any]:
        found = self.about() | {"recipe": shared(self.recipe), "data": Path(self.data).name, "metrics": row, **more}
        return found | ({"held_out": digest(self.samples["val"])} if self.samples.get("val") else {})

    def write_facts(self) -> None:
        """run.json and split.csv: what makes the run repeatable."""
        new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VitrailError(f"The run folder {self.folder} can't be made: {error.strerror}.") from None
        path = Path(self.data).expanduser()
        record = Record(
            data=str(path.absolute()) if path.exists() else self.data,
            given=to_dict(self.given),
            recipe=to_dict(self.recipe),
            why=self.why,
            model=described(replace(self.start, model=self.model)),
            samples={split: digest(samples) for split, samples in self.samples.items()},
            unreadable=self.left_out,
            command=command_line(),
            versions=versions(self.group.device),
            verb=self.verb,
            **self.facts(),
        )
        first = not (self.again or self.given.resume)
        written = False
        try:
            record.write(self.folder, first)
            written = True
            self.write_split(self.folder / "split.csv", self.samples | {"test": self.source.splits.get("test", [])})
        except FileExistsError:  # it was free before the pictures were read, which may have been an hour ago
            raise VitrailError(
                f"{self.folder} was taken by another run while this one read its pictures: start it again, or name a "
                "folder of its own with --out."
            ) from None
        except BaseException:
            with suppress(OSError):
                if first and written:
                    (self.folder / "run.json").unlink()
                if new:
                    self.folder.rmdir()  # unless something is in it
            raise

    def write_split(self, path: Path, samples: dict[str, list[Sample]]) -> None:
        """Who went where."""
        write_split(path, samples["train"], samples["val"], samples["test"], self.source.classes)

    def sizes(self) -> list[tuple[str, str, str]]:
        """The first rows of a plan and of a report: model, images, device."""
        return size_rows(self.start, self.group.device, self.dtype, self.why["precision"])

    def chosen(self) -> list[tuple[str, Any, str]]:
        """For the report: these, then all that was asked for or chosen."""
        rest = [(name, value, self.why.get(name, "")) for name, value in concerning(self.recipe).items()]
        return [*self.sizes(), *(row for row in rest if row[0] not in ("model", "device", "precision", "image_size"))]

    def told(self) -> dict[str, Any]:
        """What every report says of how the run was made."""
        return {
            "title": self.folder.name,
            "recipe": self.chosen(),
            "command": self.resumed[0].command if self.resumed else command_line(),
            "versions": versions(self.group.device),
        }
