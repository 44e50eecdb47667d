"""The training loop: epochs, steps, loss, optimizer, schedule, running average.

A step is keyed by (seed, epoch, step): which images, how each is augmented, what dropout draws. So a run that was
stopped continues exactly, and the number of processes changes neither the order nor what is done to an image by itself;
which images are mixed, drop path, and an autoencoder's masks are drawn by each process for itself.

The loop knows nothing of files, printing, signals or CUDA graphs: whatever is kept, logged, shown or stopped is a
`Listener`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.inference.precision import autocast
from vitrail.tasks.base import Objective
from vitrail.training.batches import Batches, seed_step
from vitrail.training.fast.deferred import Deferred
from vitrail.training.optimization import RunningAverage, make_optimizer, rate_factor, set_rates, statistics
from vitrail.training.selection import is_kept
from vitrail.training.signals import Stopped

Row = dict[str, Any]  # the figures of an epoch


@dataclass(frozen=True)
class Hyperparameters:
    """The numbers that the loop runs on."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float = 0.0
    layer_decay: float = 1.0
    warmup: float = 0.0  # epochs
    schedule: str = "cosine"
    ema: float = 0.0
    clip: float = 0.0
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    seed: int = 0
    micro_batch: int | None = None  # None: all of a process's share of a batch at once
    compile: bool = False
    varied: bool = False  # do steps differ, as a detector's: in size, and in which weights get a gradient?
    validate_every: int = 1  # epochs; and after the last
    dtype: torch.dtype = torch.float32


class Listener:
    """What follows a run. Every method may be left out."""

    def on_step(self, trainer: "Trainer") -> None:
        """A step is under way; its loss is not known yet."""

    def on_validated(self, trainer: "Trainer", row: Row, is_best: bool) -> None:
        """An epoch was validated; the averaged weights are in the model."""

    def on_epoch(self, trainer: "Trainer") -> None:
        """An epoch is over, and the state is that of the start of the next one."""

    def on_save(self, trainer: "Trainer") -> None:
        """The state is to be kept now."""

    def on_load(self, trainer: "Trainer") -> None:
        """A kept state was loaded."""

    def on_smaller(self, trainer: "Trainer") -> None:
        """Memory ran out: from here on there are fewer images per forward pass."""

    def wants(self) -> tuple[bool, bool]:
        """To stop; to keep the state."""
        return False, False


class Trainer:
    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        hyper: Hyperparameters,
        processes: Processes,
        validate: Callable[[nn.Module], dict[str, float]] | None = None,
        figure: str = "",  # that chooses; without one the last epoch is kept
        validated: int = 0,  # images that `validate` looks at
        listeners: Sequence[Listener] = (),
    ):
        self.model, self.objective, self.batches, self.hyper, self.processes = (
            model,
            objective,
            batches,
            hyper,
            processes,
        )
        self.validate, self.figure, self.validated = validate, f"val_{figure}", validated
        self.listeners, self.device = [*listeners], processes.device
        rates = hyper.lr, hyper.weight_decay, hyper.layer_decay
        self.optimizer = make_optimizer(model, hyper.optimizer, *rates, hyper.betas)
        self.batch_size, self.steps = batches.batch_size, batches.steps
        self.micro_batch, self.shrinks = hyper.micro_batch or self.batch_size, True
        module = objective.module(model)
        self.parallel: DistributedDataParallel | None = None
        if processes.count > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            self.parallel = DistributedDataParallel(module, device_ids=ids, find_unused_parameters=hyper.varied)
        # After DDP, so that the compiler leaves gaps in which gradients are exchanged.
        self.net: Any = torch.compile(self.parallel or module) if hyper.compile else self.parallel or module
        self.average = RunningAverage(model, hyper.ema) if hyper.ema else None
        self.recorded: Callable[[Trainer, Any, Any], Tensor] | None = None  # from `fast`, in the place of `update`
        self._statistics = [*statistics(model).values()]
        self.epoch, self.step, self.sums = 0, 0, {"loss": 0.0, "wait": 0.0, "time": 0.0}
        self.history: list[Row] = []
        self.best: Row = {}
        self.warm: tuple[int, int, float] | None = None  # epoch, step and seconds after the first step of this process

    # -- epochs ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Trains from where the state stands to the end."""
        while self.epoch < self.hyper.epochs:
            self.train_epoch()
            self.check_weights()
            row = self.close_epoch()
            with self.averaged():
                row |= self.validation()
                is_best = self.is_best(row)
                if is_best:
                    self.best = row
                self.tell("on_validated", row, is_best)
            self.history.append(row)
            self.epoch, self.step = self.epoch + 1, 0
            self.sums = dict.fromkeys(self.sums, 0.0)
            self.tell("on_epoch")

    def train_epoch(self) -> None:
        self.model.train()
        pending: Deferred | None = None
        stop = save = False
        started, spent = time.monotonic(), self.sums["time"]
        for inputs, targets in self.batches.epoch(
            self.epoch, self.step, self.epoch + 1 == self.hyper.epochs, self.sums
        ):
            done = self.train_step(inputs, targets)
            # Read one step late, so that the device is never waited for; never more, so that the wait for data is true.
            stop, save = self.count(pending)
            pending, self.step = done, self.step + 1
            self.sums["time"] = spent + time.monotonic() - started
            self.warm = self.warm or (self.epoch, self.step, self.sums["time"])
            self.tell("on_step")
            if stop or save:
                self.count(pending)
                pending = None
                self.save()
            if stop:
                break
        if pending:
            stop, _ = self.count(pending)
            if stop:
                self.save()
        if stop:
            raise Stopped(self.epoch, self.step, self.steps)

    def train_step(self, inputs: Any, targets: Any) -> Deferred:
        """One update of the weights; the sum of the losses of all images and the norm of the gradient arrive later."""
        hyper = self.hyper
        seed_step(hyper.seed, self.epoch, self.step, self.processes.rank)
        done = self.epoch * self.steps + self.step
        warmup = round(hyper.warmup * self.steps)
        set_rates(self.optimizer, hyper.lr * rate_factor(done, hyper.epochs * self.steps, warmup, hyper.schedule))
        loss_and_norm = self.recorded(self, inputs, targets) if self.recorded else self.update(inputs, targets)
        self.processes.mean(self._statistics)
        if self.average is not None:
            self.average.update(self.model)
        # Along with the loss the processes agree on when to stop and when to save, so that all do it at one step.
        wishes = [max(each) for each in zip((False, False), *(each.wants() for each in self.listeners), strict=True)]
        wished = torch.tensor(wishes, dtype=torch.float32).to(self.device, non_blocking=True)
        return Deferred(self.processes.total(torch.cat([loss_and_norm, wished])), self.step + 1)

    def update(self, inputs: Any, targets: Any) -> Tensor:
        """Gives the sum of this process's losses and the norm of the gradient, [2]."""
        loss = self.gradients(inputs, targets)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        norm = nn.utils.clip_grad_norm_(trainable, self.hyper.clip or float("inf"))
        try:
            self.optimizer.step()
        except torch.OutOfMemoryError:
            if not self.shrinks:
                raise
            raise VitrailError(
                "Out of memory while changing the weights: use a smaller --model, or --ema 0.", code="out_of_memory"
            ) from None
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack([loss, norm.float()])

    def gradients(self, inputs: Any, targets: Any) -> Tensor:
        """Of the mean loss over the global batch, accumulated over micro-batches that are halved if memory runs out."""
        while True:
            try:
                return self.accumulate(inputs, targets)
            except torch.OutOfMemoryError:
                size = min(self.micro_batch, len(inputs))
                if not self.shrinks:
                    raise
                # With several processes, others may be half-way through exchanging gradients.
                if self.parallel or size == 1:
                    raise out_of_memory(size) from None
            self.optimizer.zero_grad(set_to_none=True)
            self.micro_batch = (size + 1) // 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.tell("on_smaller")

    def accumulate(self, inputs: Any, targets: Any) -> Tensor:
        """The sum of this process's losses."""
        loss = torch.zeros((), device=self.device)
        parts = [*zip(inputs.split(self.micro_batch), targets.split(self.micro_batch), strict=True)]
        for i, (x, y) in enumerate(parts, 1):
            with self.parallel.no_sync() if self.parallel and i < len(parts) else nullcontext():
                with autocast(self.device, self.hyper.dtype):
                    outputs = self.objective.outputs(self.net, x)
                each = self.objective.loss(outputs, y)
                # DDP takes the mean over processes of gradients that are each a part of one sum.
                (each.sum() * (self.processes.count / self.batch_size)).backward()
            loss += each.detach().sum()
        return loss

    def count(self, pending: Deferred | None) -> tuple[bool, bool]:
        """Adds a step's loss to the epoch's; NaN or infinity ends the run. Gives (stop, save)."""
        if pending is None:
            return False, False
        loss, norm, stop, save = pending.values()
        for name, value in (("loss", loss), ("gradient", norm)):
            if not isfinite(value):
                raise self.diverged(f"The {name} became {value} at step {pending.step} of epoch {self.epoch + 1}", name)
        self.sums["loss"] += loss
        return stop > 0, save > 0

    # -- the end of an epoch -----------------------------------------------------------------------------------------

    @property
    def validates(self) -> bool:
        """Is this epoch to be validated?"""
        epoch, epochs = self.epoch + 1, self.hyper.epochs
        return self.validate is not None and (epoch % self.hyper.validate_every == 0 or epoch == epochs)

    def validation(self) -> dict[str, float]:
        if not self.validates:
            return {}
        figures = self.validate(self.model)  # type: ignore[misc]
        if not isfinite(figures.get("loss", 0.0)):  # a detector has none where it predicts
            what = f"The validation loss became {figures['loss']} after epoch {self.epoch + 1}"
            raise self.diverged(what, "validation loss")
        return {f"val_{name}": value for name, value in figures.items()}

    def is_best(self, row: Row) -> bool:
        if self.validate is not None and not self.validates:
            return not self.best
        return is_kept(row, self.history, self.figure, self.validated)

    def close_epoch(self) -> Row:
        images, seconds = self.steps * self.batch_size, max(self.sums["time"], 1e-9)
        return {
            "epoch": self.epoch + 1,
            "train_loss": self.sums["loss"] / images,
            "lr": max(float(group["lr"]) for group in self.optimizer.param_groups),
            "images": images,
            "seconds": self.sums["time"],  # of all parts, where the epoch was interrupted; without validation
            "images_per_second": images / seconds,
            "data_wait": self.sums["wait"] / seconds,
        }

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

    def check_weights(self) -> None:
        """NaN and infinity are never kept. A finite gradient can still lead there, at an absurd learning rate."""
        kept = [*self.model.parameters(), *(self.average.average.values() if self.average else ())]
        if not torch.stack([values.isfinite().all() for values in kept]).all():
            what = f"The weights ceased to be finite in epoch {self.epoch + 1}, by step {self.step}"
            raise self.diverged(what, "weights")

    def diverged(self, what: str, of: str) -> VitrailError:
        kept = "the last good weights are kept" if self.best else "no epoch was completed before it"
        return VitrailError(
            f"{what}; {kept}. A lower --lr, or --precision fp32, usually helps.",
            code="diverged", of=of, epoch=self.epoch + 1, kept=bool(self.best),
        )  # fmt: skip

    # -- listeners and state -----------------------------------------------------------------------------------------

    def tell(self, event: str, *values: Any) -> None:
        for listener in self.listeners:
            getattr(listener, event)(self, *values)

    def save(self) -> None:
        self.check_weights()
        self.tell("on_save")

    def state_dict(self) -> dict[str, Any]:
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
            "micro_batch_asked": self.hyper.micro_batch,
            "validated": self.validated,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # a step that was recorded on a GPU read its rate there
            group["capturable"], group["lr"] = False, float(group["lr"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        for name in ("epoch", "step", "sums", "history", "best", "validated"):
            setattr(self, name, state[name])
        if self.hyper.micro_batch in (None, state.get("micro_batch_asked", self.hyper.micro_batch)):
            self.micro_batch = min(self.micro_batch, state["micro_batch"])  # perhaps halved: memory had run out
        self.tell("on_load")


def out_of_memory(size: int) -> VitrailError:
    if size > 1:
        advice = f"Out of memory with {size} images per forward pass: --resume with --micro-batch {size // 2}."
    else:
        advice = "Out of memory with a single image per forward pass: use a smaller --image-size or --model."
    return VitrailError(advice, code="out_of_memory", images=size)
