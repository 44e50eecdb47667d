"""From a context to its images and to a trainer with everything that listens to it."""

from contextlib import ExitStack
from typing import Any

import torch

from vitrail.data.image_set import cache_mode, default_workers, fitted
from vitrail.data.loader import read_subset
from vitrail.errors import VitrailError
from vitrail.models.kernels.short_attention import can_build
from vitrail.tasks.context import Context
from vitrail.tasks.image_level import ImageTask
from vitrail.training import messages
from vitrail.training.batches import Batches, Mixing
from vitrail.training.cached_features import cached_features
from vitrail.training.fast.cuda_graph import RecordedSteps
from vitrail.training.listeners import CountEpochs, KeepBest, KeepState, Show, Stop, WriteLog
from vitrail.training.log import Log
from vitrail.training.run_folder import keep_model
from vitrail.training.signals import Interrupted, Stopped, StopSignals
from vitrail.training.trainer import Hyperparameters, Listener, Trainer

COMPILE_FROM = 2_000  # steps; fewer do not repay the minute that compiling takes


def read_images(ctx: Context) -> None:
    """Decodes the images once, as far as they are kept, and finds those that can't be read."""
    config, task, train, val = ctx.config, ctx.task, ctx.samples["train"], ctx.samples["val"]
    ctx.workers = default_workers() if config.workers is None else config.workers
    left_out = None if ctx.left_out_before is None else [*ctx.left_out_before]
    ctx.cache = ctx.processes.of_first(
        cache_mode(len(train) + len(val), ctx.preprocessing, config.cache, ctx.processes.count)
    )
    # Only one pass, or none, over the training images needs no cache.
    images = task.train_images(ctx, train, ctx.cache if ctx.epochs else "off")
    progress = ctx.console.reading("reading the training images")
    ctx.subsets["train"] = read_subset(images, ctx.processes, ctx.workers, progress, left_out)
    if val:
        images = task.val_images(ctx, val, task.val_cache(ctx, val, ctx.cache))
        progress = ctx.console.reading("reading the validation images")
        ctx.subsets["val"] = read_subset(images, ctx.processes, ctx.workers, progress, left_out)
    if isinstance(task, ImageTask) and (task.solves_head(ctx) or task.caches_features(ctx)):
        images = fitted(train, ctx.preprocessing, "off")
        known = [*ctx.subsets["train"].bad]
        ctx.subsets["train as predicted"] = read_subset(images, ctx.processes, ctx.workers, None, known)
    ctx.console.settle()
    ctx.left_out = ctx.unreadable()
    messages.show_unreadable(ctx.console, ctx.left_out)
    ctx.objective = task.informed(ctx)


def hyperparameters(ctx: Context) -> Hyperparameters:
    config, images = ctx.config, len(ctx.subsets["train"].numbers)
    looks = ctx.task.validations
    values: dict[str, Any] = {
        "epochs": ctx.epochs, "batch_size": config.batch_size or 64, "lr": config.lr or 0.0,
        "optimizer": config.optimizer, "weight_decay": config.weight_decay or 0.0, "warmup": config.warmup or 0.0,
        "schedule": config.schedule, "layer_decay": 1.0 if config.layer_decay is None else config.layer_decay,
        "ema": config.ema or 0.0, "clip": config.clip or 0.0, "seed": config.seed, "micro_batch": config.micro_batch,
        "compile": compiles(ctx, images), "dtype": ctx.dtype,
        "validate_every": max(1, -(-ctx.epochs // looks)) if looks else 1,
    }  # fmt: skip
    return Hyperparameters(**(values | ctx.task.hyperparameters(ctx)))


def make_trainer(ctx: Context) -> tuple[Trainer, "Loop"]:
    """The trainer, and the loop that runs it with its listeners."""
    task, config, train = ctx.task, ctx.config, ctx.subsets["train"]
    augment: Any
    objective: Any = ctx.objective
    if isinstance(task, ImageTask):
        task.freeze(ctx)
    if caches(ctx):
        if ctx.resumed is not None:  # features are those of its weights
            ctx.model.load_state_dict(ctx.resumed["model"])
        train, augment, objective = cached_features(ctx, task)  # type: ignore[arg-type]
    else:
        augment = task.augment(ctx)
    hyper = hyperparameters(ctx)
    if hyper.compile and getattr(objective, "teacher", None) is not None:
        objective.teacher.net.compile()
    mixing = Mixing(
        config.get("mixup") or 0.0, config.get("cutmix") or 0.0, config.seed, ctx.epochs - config.get("calm", 0)
    )
    batches = Batches(train, augment, hyper.batch_size, config.seed, ctx.processes, mixing, ctx.console.line)
    validated = len(ctx.subsets["val"].numbers) if "val" in ctx.subsets else 0
    signals = StopSignals(alone=ctx.processes.count == 1)
    validate = signals.interruptible(lambda model: task.validate(ctx, model)) if validated else None
    trainer = Trainer(
        ctx.model, objective, batches, hyper, ctx.processes, validate, task.figure_of(ctx), validated
    )  # fmt: skip
    return trainer, Loop(ctx, trainer, signals)


class Loop:
    """A trainer, run with what listens to it."""

    def __init__(self, ctx: Context, trainer: Trainer, signals: StopSignals):
        self.ctx, self.trainer, self.signals = ctx, trainer, signals
        alike = ctx.device.type == "cuda" and ctx.processes.count == 1 and not trainer.hyper.varied
        self.recorded = RecordedSteps(trainer, ctx.console.line) if alike else None
        refits = ctx.config.get("refit") == "on" and "val" in ctx.subsets and ctx.parent is None
        extra = sum(map(len, ctx.samples.values())) if refits else 0
        listeners: list[Listener] = [
            CountEpochs(ctx), KeepBest(lambda row: keep_model(ctx, row)), KeepState(ctx, rests=alike),
            Show(ctx, extra, estimated=ctx.parent is not None), Stop(signals),
        ]  # fmt: skip
        trainer.listeners += listeners

    def run(self) -> None:
        ctx, trainer = self.ctx, self.trainer
        with ExitStack() as stack:
            if ctx.processes.first and ctx.parent is None:
                log = Log(ctx.folder, trainer.history, ctx.config.to_dict(), ctx.config.wandb, ctx.config.mlflow)
                stack.callback(log.close)
                trainer.listeners.insert(3, WriteLog(log))
            stack.callback(ctx.console.settle)
            if trainer.hyper.compile and trainer.epoch < ctx.epochs:
                ctx.console.line("  Compiling the model: the first step takes up to a minute.")
            stack.enter_context(self.signals)
            try:
                trainer.run()
            except Interrupted:
                trainer.save()
                raise Stopped(trainer.epoch) from None

    def close(self) -> None:
        self.trainer.batches.close()
        if self.recorded:
            self.recorded.close()


# -- compiling ---------------------------------------------------------------------------------------------------------


def caches(ctx: Context) -> bool:
    return isinstance(ctx.task, ImageTask) and ctx.task.caches_features(ctx)


def would_compile(ctx: Context, images: int) -> bool:
    """Unasked, where the machine can."""
    steps = ctx.epochs * (images // (ctx.config.batch_size or 64))
    return not caches(ctx) and worth_compiling(ctx.config.compile, ctx.device, steps)


def compiles(ctx: Context, images: int) -> bool:
    asked = ctx.config.compile == "on" and not caches(ctx)
    return asked or (would_compile(ctx, images) and can_build())


def worth_compiling(asked: str, device: torch.device, steps: int) -> bool:
    """What --compile auto decides."""
    return asked == "auto" and device.type == "cuda" and steps >= COMPILE_FROM


def check_compiler(device: torch.device) -> None:
    """What was asked for is tried, before images are read and a folder is made."""
    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except Exception as error:  # a missing compiler or header: each stage of the compiler raises its own
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise VitrailError(
            f"--compile on can't be had here ({why}): install a C++ compiler and Python's headers, or leave it out.",
            code="no_compiler",
        ) from None
