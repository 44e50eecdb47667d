"""The loop: steps, epochs, validation, what is kept.

A step is keyed by (seed, epoch, step): which images, how each is changed, what dropout draws. So a run that was
stopped continues exactly, and the number of processes changes neither the order nor what is done to an image by itself;
which images are mixed, drop path, and an autoencoder's masks are each process's own affair.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.data.augment.images import Augmenter
from vitrail.data.augment.mixing import draw, mix
from vitrail.data.loader import epoch_order, occurrences
from vitrail.data.subset import Subset
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.inference.precision import autocast
from vitrail.tasks.classify import Classify
from vitrail.training.batches import Batches, Numbers, Steps
from vitrail.training.checkpoint import save_state, seed_step
from vitrail.training.fast.cuda_graph import Recorded
from vitrail.training.fast.deferred import Late
from vitrail.training.optimizers import RunningAverage, make_optimizer, rate_factor, set_rates, statistics
from vitrail.training.selection import is_kept
from vitrail.training.signals import Interrupted, Leave, Stopped

SAVE_EVERY = 600.0  # seconds between saved states inside a long epoch
SAVE_REST = 5.0  # at the ends of epochs on a GPU that may be shorter than it takes to save


@dataclass(frozen=True)
class Settings:
    """The numbers that the loop runs on; `train.plan` chooses them."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float = 0.0
    layer_decay: float = 1.0
    warmup: float = 0.0  # epochs
    mixup: float = 0.0
    cutmix: float = 0.0
    calm: int = 0  # epochs at the end without either, and with crops and mirror images alone
    ema: float = 0.0
    clip: float = 0.0
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    seed: int = 0
    micro_batch: int | None = None  # None: all of a process's share of a batch at once
    compile: bool = False
    varied: bool = False  # do steps differ, as a detector's: in size, and in which weights get a gradient?
    dtype: torch.dtype = torch.float32

    @property
    def calm_from(self) -> int:
        return self.epochs - self.calm


@dataclass
class Progress:
    """What a view shows while an epoch runs."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None  # mean over the epoch so far
    images_per_second: float
    data_wait: float  # share of the time spent waiting for data
    seconds_left: float | None  # not known before the second step of a process: the first also compiles
    score: dict[str, float] = field(default_factory=dict)


class Trainer:
    def __init__(
        self,
        model: nn.Module,
        task: Classify,
        train: Subset,
        augmenter: Augmenter,
        settings: Settings,
        processes: Processes,
        validate: Callable[[nn.Module], dict[str, float]] | None = None,
        folder: Path | None = None,
        show: Callable[[Progress], None] | None = None,
        note: Callable[[str], None] = print,
        validated: int = 0,  # images that `validate` looks at
    ):
        self.model, self.task, self.train, self.augmenter, self.settings = model, task, train, augmenter, settings
        self.processes, self.validate, self.folder, self.show, self.note = processes, validate, folder, show, note
        self.device, self.validated, self.figure = processes.device, validated, f"val_{task.figure}"
        rates = settings.lr, settings.weight_decay, settings.layer_decay
        self.optimizer = make_optimizer(model, settings.optimizer, *rates, settings.betas)
        alike = self.device.type == "cuda" and processes.count == 1 and not settings.varied
        self.recorded = Recorded(self.optimizer.zero_grad, note) if alike else None
        self._suit_groups()
        self.batch_size = min(settings.batch_size, len(train.numbers))
        if self.batch_size < processes.count:
            raise VitrailError(
                f"Each of {processes.count} processes needs an image in every batch of {self.batch_size}: use a larger "
                "--batch-size, or fewer processes."
            )
        self.steps = len(train.numbers) // self.batch_size  # per epoch; the incomplete last batch is left out
        self.micro_batch = settings.micro_batch or self.batch_size
        trained: nn.Module = getattr(task, "trained", lambda model: model)(model)
        self.parallel: DistributedDataParallel | None = None
        if processes.count > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            self.parallel = DistributedDataParallel(trained, device_ids=ids, find_unused_parameters=settings.varied)
        # After DDP, so that the compiler leaves gaps in which gradients are exchanged.
        self.net: Any = torch.compile(self.parallel or trained) if settings.compile else self.parallel or trained
        self.average = RunningAverage(model, settings.ema) if settings.ema else None
        self.epoch, self.step, self.sums = 0, 0, {"loss": 0.0, "wait": 0.0, "time": 0.0}
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.warm: tuple[int, int, float] | None = None  # epoch, step and seconds of it after the first step here
        self.leave = Leave(alone=processes.count == 1)
        self._saved = time.monotonic()
        self._statistics = [*statistics(model).values()]
        self.batches = Batches(train, augmenter, task, self.device, note)

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self, after_epoch: Callable[[dict[str, Any], bool], None] | None = None) -> None:
        """Trains from where the state stands to the end. `after_epoch(row, is_best)` runs with the averaged weights in
        the model, so that it can save them."""
        with self.leave, closing(self.batches), closing(self.recorded) if self.recorded else nullcontext():
            while self.epoch < self.settings.epochs:
                self._train_epoch()
                self._check_weights()
                row = self._close_epoch()
                try:
                    with self.averaged():
                        row |= self._validate()
                        is_best = self._is_best(row)
                        if is_best:
                            self.best = row
                        if after_epoch is not None:
                            after_epoch(row, is_best)
                except Interrupted:
                    self.save()
                    raise Stopped(f"Stopped before validating epoch {self.epoch + 1}; all is saved.") from None
                self.history.append(row)
                self.epoch, self.step = self.epoch + 1, 0
                self.sums = dict.fromkeys(self.sums, 0.0)
                rested = time.monotonic() - self._saved > SAVE_REST
                if rested or not self.recorded or self.epoch == self.settings.epochs:
                    self.save()

    def _numbers(self, epoch: int, first: int = 0) -> Numbers:
        """Of this process's images in each step of an epoch, from the first on."""
        order = epoch_order(self.train.numbers, self.settings.seed, epoch, self.train.weights)
        size, steps = self.batch_size, range(first, self.steps)
        # A picture that is drawn again in an epoch, to balance the classes, looks different each time.
        repeats = occurrences(order) * len(self.train.samples)
        mine, again = ([self.processes.share(e[s * size : (s + 1) * size]) for s in steps] for e in (order, repeats))
        return mine, again

    def _train_epoch(self) -> None:
        self.model.train()
        late: Late | None = None
        started = shown = time.monotonic()
        spent = self.sums["time"]
        stop = False
        with closing(self._batches(self._numbers(self.epoch, self.step))) as batches:
            for pixels, targets in batches:
                done = self._step(pixels, targets)
                # Read one step late, so that the device is never waited for; never more, so that the wait for data,
                # which `_batches` counts, is true.
                stop, save = self._count(late) if late else (False, False)
                late = done
                self.step += 1
                now = time.monotonic()
                self.sums["time"] = spent + now - started
                self.warm = self.warm or (self.epoch, self.step, self.sums["time"])
                if self.show and (now - shown > 0.5 or self.step == self.steps):
                    shown = now
                    self.show(self._progress())
                if stop or save:
                    self._count(late)
                    late = None
                    self.save()
                if stop:
                    break
        if late:
            stop, _ = self._count(late)
            if stop:
                self.save()
        if stop:
            raise Stopped(f"Stopped after step {self.step} of {self.steps} in epoch {self.epoch + 1}; all is saved.")

    def _batches(self, numbers: Numbers) -> Steps:
        last = self.epoch + 1 == self.settings.epochs
        following = None if last else partial(self._numbers, self.epoch + 1)
        return self.batches.epoch(self.epoch, numbers, self.sums, following)

    def _step(self, pixels: Tensor, targets: Tensor) -> Late:
        """One update; gives the sum of the losses of all images, and the norm of the gradient."""
        settings = self.settings
        seed_step(settings.seed, self.epoch, self.step, self.processes.rank)
        if (settings.mixup or settings.cutmix) and self.epoch < settings.calm_from:
            drawn = draw(settings.seed, self.epoch, self.step)
            pixels, targets = mix(pixels, targets, settings.mixup, settings.cutmix, drawn)
        done = self.epoch * self.steps + self.step
        factor = rate_factor(done, settings.epochs * self.steps, round(settings.warmup * self.steps))
        set_rates(self.optimizer, settings.lr * factor)
        if self.recorded is not None:
            done_and_norm = self.recorded(self._update, pixels, targets)
        else:
            done_and_norm = self._update(pixels, targets)
        self.processes.mean(self._statistics)
        if self.average is not None:
            self.average.update(self.model)
        # Along with the loss the processes agree on when to leave and when to save, so that all do it at one step.
        save = self.processes.first and time.monotonic() - self._saved > SAVE_EVERY
        wishes = torch.tensor([self.leave.asked, save], dtype=torch.float32).to(self.device, non_blocking=True)
        return Late(self.processes.total(torch.cat([done_and_norm, wishes])), self.step + 1)

    def _update(self, pixels: Tensor, targets: Tensor) -> Tensor:
        """Of the weights; gives the sum of this process's losses and the norm of the gradient, [2]."""
        loss = self._gradients(pixels, targets)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        norm = nn.utils.clip_grad_norm_(trainable, self.settings.clip or float("inf"))
        try:
            self.optimizer.step()
        except torch.OutOfMemoryError:
            if self.recording:
                raise  # it goes on unrecorded
            raise VitrailError("Out of memory while changing the weights: use a smaller --model, or --ema 0.") from None
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack([loss, norm.float()])

    @property
    def recording(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _suit_groups(self) -> None:
        """A recorded step reads its rates on the device, others on the host. A loaded state brings the groups of the
        machine that saved it."""
        for group in self.optimizer.param_groups:
            group["capturable"], lr = self.recorded is not None, float(group["lr"])
            group["lr"] = torch.tensor(lr, device=self.device) if self.recorded else lr
        self.optimizer._warned_capturable_if_run_uncaptured = True  # the first steps are not, as they should

    def _gradients(self, pixels: Tensor, targets: Tensor) -> Tensor:
        """Of the mean loss over the global batch, accumulated over micro-batches that are halved if memory runs out."""
        while True:
            try:
                return self._accumulate(pixels, targets)
            except torch.OutOfMemoryError:
                size = min(self.micro_batch, len(pixels))
                if self.recording:
                    raise  # it goes on unrecorded
                if self.parallel and size > 1:  # others may be half-way through exchanging gradients
                    raise VitrailError(
                        f"Out of memory with {size} images per forward pass: --resume with --micro-batch {size // 2}."
                    ) from None
                if size == 1:
                    raise VitrailError(
                        "Out of memory with a single image per forward pass: use a smaller --image-size or --model."
                    ) from None
            self.optimizer.zero_grad(set_to_none=True)
            self.micro_batch = (size + 1) // 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.note(
                f"  Out of memory: {self.micro_batch} images per forward pass from here on; the batch stays "
                f"{self.batch_size}."
            )

    def _accumulate(self, pixels: Tensor, targets: Tensor) -> Tensor:
        """The sum of this process's losses."""
        loss = torch.zeros((), device=self.device)
        parts = [*zip(pixels.split(self.micro_batch), targets.split(self.micro_batch), strict=True)]
        for i, (x, y) in enumerate(parts, 1):
            with self.parallel.no_sync() if self.parallel and i < len(parts) else nullcontext():
                with autocast(self.device, self.settings.dtype):
                    outputs = self.task.outputs(self.net, x)
                each = self.task.loss(outputs, y)
                # DDP takes the mean over processes of gradients that are each a part of one sum.
                (each.sum() * (self.processes.count / self.batch_size)).backward()
            loss += each.detach().sum()
        return loss

    def _count(self, late: Late) -> tuple[bool, bool]:
        """Adds a step's loss to the epoch's; one that is no number ends the run. Gives (stop, save)."""
        loss, norm, stop, save = late.values()
        for name, value in (("loss", loss), ("gradient", norm)):
            if not isfinite(value):
                raise self._ruined(f"The {name} became {value} at step {late.step} of epoch {self.epoch + 1}")
        self.sums["loss"] += loss
        return stop > 0, save > 0

    def _validate(self) -> dict[str, float]:
        if self.validate is None:
            return {}
        with self.leave.at_once():
            figures = self.validate(self.model)
        if not isfinite(figures.get("loss", 0.0)):  # a detector has none where it predicts
            raise self._ruined(f"The validation loss became {figures['loss']} after epoch {self.epoch + 1}")
        return {f"val_{name}": value for name, value in figures.items()}

    def _is_best(self, row: dict[str, Any]) -> bool:
        return is_kept(row, self.history, self.figure, self.validated)

    def _close_epoch(self) -> dict[str, Any]:
        images = self.steps * self.batch_size
        return {
            "epoch": self.epoch + 1,
            "train_loss": self.sums["loss"] / images,
            "lr": max(float(group["lr"]) for group in self.optimizer.param_groups),
            "images": images,
            "seconds": self.sums["time"],  # of all parts, where the epoch was interrupted; without validation
            "images_per_second": images / max(self.sums["time"], 1e-9),
            "data_wait": self.sums["wait"] / max(self.sums["time"], 1e-9),
        }

    def _progress(self) -> Progress:
        spent = max(self.sums["time"], 1e-9)
        counted = (self.step - 1) * self.batch_size  # the last loss is not known yet
        left = (self.settings.epochs - self.epoch) * self.steps - self.step
        epoch, first, before = self.warm or (self.epoch, 0, 0.0)
        steps, seconds = (self.step - first, spent - before) if epoch == self.epoch else (self.step, spent)
        last = self.history[-1] if self.history else {}
        return Progress(
            self.epoch + 1, self.settings.epochs, self.step, self.steps,
            self.sums["loss"] / counted if counted else None,
            steps * self.batch_size / max(seconds, 1e-9), self.sums["wait"] / spent,
            left * seconds / steps if steps else None,
            {name: value for name, value in last.items() if name.startswith("val_")},
        )  # fmt: skip

    # -- what is kept ------------------------------------------------------------------------------------------------

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its averaged weights."""
        if self.average is None:
            yield
            return
        self.average.swap(self.model)
        try:
            yield
        finally:
            self.average.swap(self.model)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "epoch": self.epoch,
            "step": self.step,
            "sums": self.sums,
            "history": self.history,
            "best": self.best,
            "micro_batch": self.micro_batch,
            "micro_batch_asked": self.settings.micro_batch,
            "validated": self.validated,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._suit_groups()
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        for name in ("epoch", "step", "sums", "history", "best", "validated"):
            setattr(self, name, state[name])
        if self.settings.micro_batch in (None, state.get("micro_batch_asked", self.settings.micro_batch)):
            self.micro_batch = min(self.micro_batch, state["micro_batch"])  # perhaps halved: memory had run out

    def save(self) -> None:
        self._saved = time.monotonic()
        self._check_weights()
        if self.folder is not None and self.processes.first:
            save_state(self.folder / "last.pt", self.state())

    def _check_weights(self) -> None:
        """Nothing is ever kept that is no number. A finite gradient can still lead there, at a rate beyond reason."""
        kept = [*self.model.parameters(), *(self.average.average.values() if self.average else ())]
        if not torch.stack([values.isfinite().all() for values in kept]).all():
            raise self._ruined(f"The weights ceased to be finite in epoch {self.epoch + 1}, by step {self.step}")

    def _ruined(self, what: str) -> VitrailError:
        kept = "the last good weights are kept" if self.best else "no epoch was completed before it"
        return VitrailError(f"{what}; {kept}. A lower --lr, or --precision fp32, usually helps.")
