"""What follows a run: its state is kept, its figures are logged, its progress is shown, and it can be stopped."""

import time
from collections.abc import Callable

from vitrail.tasks.context import Context
from vitrail.training import messages
from vitrail.training.log import Log
from vitrail.training.run_folder import save_state
from vitrail.training.selection import early_best
from vitrail.training.signals import StopSignals
from vitrail.training.trainer import Listener, Row, Trainer

SAVE_EVERY = 600.0  # seconds between saved states inside a long epoch
SAVE_REST = 5.0  # at the ends of epochs on a GPU that may be shorter than it takes to save
SHOWN_EVERY = 0.5  # seconds
MEASURED = 4  # steps that an estimate of the time needs; the first of them is slower


class KeepState(Listener):
    """last.pt: the state to resume from, after every epoch and every ten minutes inside a long one."""

    def __init__(self, ctx: Context, rests: bool):
        """`rests`: epochs may be shorter than it takes to save."""
        self.ctx, self.rest, self.saved = ctx, SAVE_REST if rests else 0.0, time.monotonic()

    def wants(self) -> tuple[bool, bool]:
        return False, self.ctx.processes.first and time.monotonic() - self.saved > SAVE_EVERY

    def on_epoch(self, trainer: Trainer) -> None:
        last = trainer.epoch == trainer.hyper.epochs
        if last or not self.rest or time.monotonic() - self.saved > self.rest:
            trainer.save()

    def on_save(self, trainer: Trainer) -> None:
        self.saved = time.monotonic()
        if self.ctx.processes.first:
            save_state(self.ctx.folder / "last.pt", trainer.state_dict())


class KeepBest(Listener):
    """model.safetensors: the best weights so far."""

    def __init__(self, keep: Callable[[Row], None]):
        self.keep = keep

    def on_validated(self, trainer: Trainer, row: Row, is_best: bool) -> None:
        if is_best:
            self.keep(row)


class WriteLog(Listener):
    """metrics.jsonl, TensorBoard's events, and what was asked for besides."""

    def __init__(self, log: Log):
        self.log = log

    def on_validated(self, trainer: Trainer, row: Row, is_best: bool) -> None:
        self.log.add(row)


class Stop(Listener):
    """Ctrl-C and SIGTERM end a run after the step that it is in."""

    def __init__(self, signals: StopSignals):
        self.signals = signals

    def wants(self) -> tuple[bool, bool]:
        return self.signals.asked, False


class Show(Listener):
    """A live line while an epoch runs, and a line for each epoch."""

    def __init__(self, ctx: Context, extra_images: int = 0, estimated: bool = False):
        """`extra_images` are those of an epoch of the second training, which is part of what is left."""
        self.ctx, self.extra_images, self.estimated = ctx, extra_images, estimated
        self.shown, self.beside = time.monotonic(), ctx.task.log_beside(ctx)

    def on_step(self, trainer: Trainer) -> None:
        now, left = time.monotonic(), self.seconds_left(trainer)
        if not self.estimated and left is not None and trainer.step >= MEASURED:
            self.estimated = True
            messages.advise_shorter(self.ctx.console, left, self.ctx.probe is not None)
        if now - self.shown <= SHOWN_EVERY and trainer.step < trainer.steps:
            return
        self.shown, spent = now, max(trainer.sums["time"], 1e-9)
        counted = (trainer.step - 1) * trainer.batch_size  # the last loss is not known yet
        last = trainer.history[-1] if trainer.history else {}
        messages.show_step(
            self.ctx.console, trainer.epoch + 1, trainer.hyper.epochs, trainer.step, trainer.steps,
            trainer.sums["loss"] / counted if counted else None, self.beside, self.rate(trainer),
            trainer.sums["wait"] / spent, left, {k: v for k, v in last.items() if k.startswith("val_")},
        )  # fmt: skip

    def rate(self, trainer: Trainer) -> float:
        steps, seconds = self._warm_steps(trainer)
        return steps * trainer.batch_size / max(seconds, 1e-9)

    def seconds_left(self, trainer: Trainer) -> float | None:
        """Of all epochs, those of the second training included. Not known before the second step of a process: the
        first one also compiles."""
        steps, seconds = self._warm_steps(trainer)
        if not steps:
            return None
        left = (trainer.hyper.epochs - trainer.epoch) * trainer.steps - trainer.step
        return left * seconds / steps + trainer.hyper.epochs * self.extra_images / max(self.rate(trainer), 1e-9)

    def _warm_steps(self, trainer: Trainer) -> tuple[int, float]:
        """Steps of this epoch and their seconds, without the first step of this process."""
        spent = max(trainer.sums["time"], 1e-9)
        epoch, first, before = trainer.warm or (trainer.epoch, 0, 0.0)
        return (trainer.step - first, spent - before) if epoch == trainer.epoch else (trainer.step, spent)

    def on_validated(self, trainer: Trainer, row: Row, is_best: bool) -> None:
        ahead = early_best(row, trainer.history, trainer.figure)
        messages.show_epoch(self.ctx.console, row, trainer.hyper.epochs, self.beside, is_best, ahead)
        messages.advise_on_data(self.ctx.console, row, self.ctx.subsets["train"].loader.images.store)

    def on_smaller(self, trainer: Trainer) -> None:
        self.ctx.console.line(
            f"  Out of memory: {trainer.micro_batch} images per forward pass from here on; the batch stays "
            f"{trainer.batch_size}."
        )


class CountEpochs(Listener):
    """Tells the context which epoch it is, for tasks that look closer in some epochs."""

    def __init__(self, ctx: Context):
        self.ctx = ctx

    def on_load(self, trainer: Trainer) -> None:
        self.ctx.epoch = trainer.epoch

    def on_epoch(self, trainer: Trainer) -> None:
        self.ctx.epoch = trainer.epoch
