"""The method of fine-tuning, in four phases over one loop.

1. `probe`        A linear probe on frozen features is solved for and put into the head. Its cross-validated score sets
                  the learning rate, and it is the first model that is kept.
2. `tune`         The model is trained; validation chooses the epoch that is kept.
3. `interpolate`  Between the probe and the tuned weights validation chooses how far to go ("Robust fine-tuning of
                  zero-shot models", Wortsman et al. 2022): accuracy is mostly higher between the two than at either
                  end, and where tuning adds nothing the answer is the probe.
4. `refit`        What validation has chosen is done once more on all images, those held out included. The figures of a
                  run are those of the first training, its weights those of the second.

Training from scratch, and tasks without a linear head, go through `tune` alone: every other phase says first whether it
applies.
"""

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.models import build
from vitrail.models.interpolation import best_share, between, copies
from vitrail.reasons import Reason
from vitrail.tasks.context import Context, LinearProbe
from vitrail.tasks.image_level import ImageTask
from vitrail.tasks.linear_probe import exchange_heads, heads_of, is_bad_start
from vitrail.training import messages
from vitrail.training.run_folder import begin_folder, keep_model, load_state, read_record, write_model
from vitrail.training.setup import make_trainer, read_images
from vitrail.weights import read_checkpoint

START = "start.safetensors"  # in the run folder, until the run is finished: what tuning started from
REFIT = "again"  # in the run folder, until the run is finished: the state of the second training

Row = dict[str, Any]  # the figures of an epoch


def probe(ctx: Context) -> Row:
    """Gives the row of epoch 0, where there is a linear probe."""
    task, config = ctx.task, ctx.config
    if not isinstance(task, ImageTask) or ctx.resumed is not None:
        return {}
    if not task.solves_head(ctx):
        if config.lr is None:
            lr, _ = task.tuning_rate(config, 0.0)
            ctx.config, ctx.why["lr"] = config.replace(lr=lr), Reason("too_many_to_probe")
            ctx.console.line(f"  learning rate {lr:g}: {ctx.why['lr']}.")
        return {}
    began, figure = time.monotonic(), task.figure_of(ctx)
    ctx.console.progress("  solving for a linear probe on the frozen features")
    untrained = heads_of(ctx.model)
    features = task.head_inputs(ctx, "train as predicted")
    targets = ctx.objective.targets(task.truths_in(ctx.subsets["train as predicted"]))
    score = ctx.objective.score(task.solve_heads(ctx, features, targets), targets)
    ctx.console.settle()
    messages.show_probe(ctx, score[figure], time.monotonic() - began)
    ctx.probe = LinearProbe(score[figure], len(targets))
    if config.lr is None:
        lr, ctx.why["lr"] = task.tuning_rate(config, score[figure])
        ctx.config = config.replace(lr=lr)
        if ctx.epochs:
            ctx.console.line(f"  Tuning starts from it, with learning rate {lr:g}: {ctx.why['lr']}.")
    row: Row = {"epoch": 0, "train_loss": score["loss"]}
    if "val" in ctx.subsets:
        row |= {f"val_{name}": value for name, value in task.validate(ctx, ctx.model).items()}
    if ctx.start.masked and ctx.epochs and config.tune == "full":
        ctx.small_head = ctx.processes.of_first(is_bad_start(ctx.model, untrained, task.augment(ctx)))
    if ctx.small_head:
        ctx.probe.kept_aside, row["begins_small"] = exchange_heads(ctx.model, untrained), True
        ahead = ", and has to get ahead of the probe" if "val" in ctx.subsets else ""
        ctx.console.line(f"  On augmented images the probe fails: tuning starts from an untrained head{ahead}.")
    return row


def tune(ctx: Context, first: Row) -> tuple[list[Row], Row]:
    """Leaves the tuned weights in the model: those of the best epoch, or of the last where nothing is chosen or the
    linear probe remained ahead. Gives the rows of all epochs, and the best."""
    trainer, loop = make_trainer(ctx)
    if ctx.resumed is not None:
        trainer.load_state_dict(ctx.resumed)
        ctx.console.line(f"Resuming in epoch {trainer.epoch + 1}, after step {trainer.step} of {trainer.steps}.")
    else:
        begin(ctx, trainer, first)
    with closing(loop):
        loop.run()
    best = trainer.best or {"epoch": ctx.epochs}
    if trainer.best.get("epoch") and ctx.parent is None:
        ctx.model.load_state_dict(read_checkpoint(ctx.folder / "model.safetensors").state)
    elif trainer.average is not None:
        trainer.average.swap(ctx.model)
    return trainer.history, best


def begin(ctx: Context, trainer: Any, first: Row) -> None:
    """Makes the folder, with what the run is and, from weights, what it already has to show."""
    if ctx.processes.first:
        begin_folder(ctx)
    if first:
        trainer.best = first
        trainer.history.append(first)
    # The linear probe is what is kept first, also where tuning starts from another head.
    small = exchange_heads(ctx.model, ctx.probe.kept_aside) if ctx.probe and ctx.probe.kept_aside else []
    if first or not ctx.epochs:
        keep_model(ctx, first or {"epoch": 0})
    if small:
        exchange_heads(ctx.model, small)
    if ctx.epochs and isinstance(ctx.task, ImageTask) and (first or ctx.config.refit == "on"):
        write_model(ctx, ctx.folder / START, first)
    if ctx.epochs:
        trainer.save()


def interpolate(ctx: Context, history: list[Row], best: Row) -> tuple[float, Row]:
    """How far to go from the linear probe, by validation; the model is left there. Gives the share of the way, and the
    row of what is kept."""
    probed = any(row["epoch"] == 0 for row in history)
    if "val" not in ctx.subsets or not ctx.epochs or not probed:
        return 1.0, best
    if ctx.small_head:  # tuning did not start at the probe, so that nothing lies between
        if not best["epoch"]:
            ctx.model.load_state_dict(read_checkpoint(ctx.folder / "model.safetensors").state)
        share = 1.0 if best["epoch"] else 0.0
    else:
        ctx.console.progress("  measuring how far to go from the linear probe")
        first, last = started_from(ctx), copies(ctx.model)
        share = best_share(ctx.model, first, last, lambda model: ctx.task.choosing(ctx, model))
        ctx.console.settle()
    row = best if share else next(row for row in history if row["epoch"] == 0)
    return share, {**row, "share": share}


def refit(ctx: Context, share: float) -> int | None:
    """The second training, on all images; leaves its weights in the model, at this share of the way from what it starts
    from. Gives the number of images, or None where there is no second training. One that was killed goes on where it
    was."""
    if not refits(ctx):
        return None
    samples = {"train": [*ctx.samples["train"], *ctx.samples["val"]], "val": []}
    readable = len(samples["train"]) - len(ctx.unreadable())
    ctx.subsets.clear()  # the images, before they are read again
    ctx.features.clear()
    folder = ctx.folder / REFIT
    start = replace(ctx.start, model=build(ctx.settings))
    start.model.preprocessing = ctx.preprocessing  # type: ignore[assignment]
    start.model.load_state_dict(started_from(ctx))
    config = ctx.config.replace(tune=ctx.config.tune if share else "probe")
    second = Context(
        ctx.task, ctx.data, ctx.source, samples, start, ctx.given, config, dict(ctx.why), ctx.dtype, folder,
        ctx.processes, ctx.console, ctx.command, parent=ctx, small_head=ctx.small_head and bool(share),
    )  # fmt: skip
    ctx.task.prepare_model(second)
    second.objective = ctx.task.objective(second)
    if (state := load_state(folder / "last.pt")) is not None:
        second.resumed = state
        second.left_out_before = read_record(folder).unreadable
    ctx.console.line(f"Once more, on all {readable:,} images:")
    read_images(second)
    tune(second, probe(second))
    tuned = copies(second.model)
    ctx.model.load_state_dict(between(started_from(second), tuned, share) if second.epochs else tuned)
    return readable


def refits(ctx: Context) -> bool:
    """Is there a second training in the end?"""
    return ctx.config.get("refit") == "on" and "val" in ctx.subsets and ctx.parent is None


def started_from(ctx: Context) -> dict[str, Tensor]:
    """The weights that tuning started from: mostly with the linear probe for a head."""
    return read_checkpoint(ctx.folder / START).state if ctx.epochs else copies(ctx.model)
