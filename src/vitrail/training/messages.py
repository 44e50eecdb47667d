"""What a run says: its plan, its progress, advice, and the outcome. All sentences of a run are made here."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.console import Console, clock, fitting, pace
from vitrail.data.cache import DiskStore
from vitrail.data.samples import Source, plural
from vitrail.reasons import Reason
from vitrail.report.numbers import number
from vitrail.tasks.base import Row, Task
from vitrail.tasks.context import Context

LONG = 600.0  # seconds
FEW = 100  # images to validate on: figures of fewer say little
CHOSE = "which also chose what was kept: expect less on new images"


@dataclass(frozen=True)
class Kept:
    """Which weights a run kept: `code` is start | probe | epoch | last | between."""

    code: str
    epoch: int = 0
    share: float = 1.0  # of the way from the linear probe to the tuned weights
    tuned: bool = False  # was there tuning that was no better?

    @classmethod
    def of(cls, best: dict[str, Any], probed: bool) -> "Kept":
        """By the row of the best epoch. `probed`: the run began with a linear probe."""
        if "share" not in best and not best["epoch"]:
            return cls("probe" if probed else "start")
        share = best.get("share", 1.0)
        if not share:
            return cls("probe", tuned=True)
        code = "epoch" if best["epoch"] else "last"
        return cls(code if share == 1 else "between", best["epoch"], share)

    def __str__(self) -> str:
        end = f"epoch {self.epoch}" if self.epoch else "the last epoch"
        return {
            "start": "the weights it began with",
            "probe": "the linear probe on frozen features"
            + ("; on the validation images tuning was no better" if self.tuned else ""),
            "between": f"{self.share:.0%} of the way from the linear probe to {end}",
        }.get(self.code, end)


# -- the plan ----------------------------------------------------------------------------------------------------------


def show_plan(ctx: Context) -> None:
    """Everything that was asked for or chosen, with the reason."""
    console, config = ctx.console, ctx.config
    train, val = len(ctx.samples["train"]), len(ctx.samples["val"])
    held = f"{val:,} to validate on ({held_out(ctx.source)}, seed {config.seed})" if val else "none to validate on"
    console.line(ctx.start.why)
    console.line(f"{ctx.data}: {ctx.task.targets_of(ctx.source)}, {plural(train, 'image')} to train on, {held}.")
    for note in ctx.source.notes:
        console.line(f"  note: {note}")
    ctx.plan_rows = ctx.task.plan_rows(ctx)  # measured once, for the report as well
    rows = [*size_rows(ctx), *ctx.plan_rows]
    if ctx.epochs:
        rows += choices(ctx, ctx.task.hidden_choices(ctx))
    elif config.get("refit") == "on":
        rows.append(("refit", "on", ctx.why["refit"]))
    console.table(rows)
    console.line(f"  run folder: {ctx.folder}")


def size_rows(ctx: Context) -> list[Row]:
    """The first rows of a plan: model, images, device."""
    parameters, start = sum(p.numel() for p in ctx.model.parameters()), ctx.start
    name, value, fit = ctx.task.size_row(ctx)
    if 0 < start.image_side < min(start.preprocessing.size):
        fit = f"{fit}; the images are about {start.image_side} pixels a side, so they are enlarged"
    dtype = str(ctx.dtype).removeprefix("torch.")
    return [
        ("model", start.name, f"{parameters / 1e6:.1f} M parameters"),
        (name, value, fit),
        ("device", str(ctx.device), f"{dtype}: {ctx.why['precision']}"),
    ]


def choices(ctx: Context, hidden: set[str]) -> Iterator[Row]:
    """A row for each choice that has a reason."""
    for name in [name for name in ctx.why if name not in hidden]:
        value, words = ctx.config.get(name), name.replace("_", " ")
        if value is None:
            yield words, "later", Reason("later")
        else:
            yield words, f"{value:g}" if isinstance(value, float) else _near(str(value)), ctx.why[name]


def _near(place: str) -> str:
    """A path from here, where it lies below; anything else as it is."""
    return str(Path(place).relative_to(Path.cwd())) if Path(place).is_relative_to(Path.cwd()) else place


def held_out(source: Source) -> str:
    return source.held_out or ("val/" if "val" in source.splits else "held out of the training images")


# -- on the way --------------------------------------------------------------------------------------------------------


def show_unreadable(console: Console, bad: dict[str, str]) -> None:
    if bad:
        one = len(bad) == 1
        console.line(
            f"{plural(len(bad), 'image')} can't be read and {'is' if one else 'are'} left out; the report lists "
            f"{'it' if one else 'them'}. {next(iter(bad.values()))}"
        )


def show_uncompiled(console: Console) -> None:
    """Where --compile auto would have compiled the model, and this machine can't."""
    console.line(
        "  note: the model runs uncompiled, which is slower, because this machine has no C compiler or no Python "
        "headers: install gcc and python3-dev."
    )


def show_step(
    console: Console, epoch: int, epochs: int, step: int, steps: int, loss: float | None, beside: str,
    rate: float, wait: float, seconds_left: float | None, score: dict[str, float],
) -> None:  # fmt: skip
    share = step / steps
    told = "  ".join(f"{name} {value:.3f}" for name, value in score.items() if name != "val_loss" and _told(name))
    waits = f"  waits for data {wait:.0%}" if wait >= 0.05 else ""
    left = None if seconds_left is None else f"{clock(seconds_left)} left"
    bar = "█" * round(20 * share) + "·" * (20 - round(20 * share))
    console.progress(
        fitting(
            (0, f"epoch {epoch}/{epochs}"),
            (8, bar if console.columns else None),
            (3, f"step {step}/{steps}"),
            (2, left),
            (1, None if loss is None else f"loss {loss:.3f}"),
            (5, None if loss is None else beside.strip()),
            (6, told),
            (4, None if left is None else f"{pace(rate)}{waits}"),
            (7, memory()),
            width=console.columns,
        )
    )


def show_epoch(
    console: Console, row: dict[str, Any], epochs: int, beside: str, is_best: bool, ahead: float | None
) -> None:
    """`ahead` is what an earlier epoch validated at, if better: then "kept" needs a reason."""
    console.settle()
    if epochs > 40 and row["epoch"] % (epochs // 20) and row["epoch"] != epochs:
        return  # metrics.jsonl has them all
    score = "".join(
        f"  {name.replace('_', ' ')} {value:.4f}"
        for name, value in row.items()
        if name.startswith("val_") and _told(name)
    )
    why = "" if ahead is None else f" (the best so far, {ahead:.4f}, is within a standard error)"
    star = f"  kept{why}" if is_best and score and not beside else ""
    loss = f"train loss {row['train_loss']:.4f}{beside}"
    rate = pace(row["images_per_second"])
    console.line(f"  epoch {row['epoch']:>{len(str(epochs))}}/{epochs}  {loss}{score}  {rate}{star}")


def _told(name: str) -> bool:
    return not name.endswith("_error")


def memory() -> str:
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if torch.cuda.is_initialized() else ""


def advise_on_data(console: Console, row: dict[str, Any], store: Any) -> None:
    """When the device waits for data, one line says so."""
    if row["epoch"] == 1 and row.get("data_wait", 0) > 0.25:
        what = "use --cache disk, or more --workers" if store is None else "use more --workers, or a faster disk"
        if not isinstance(store, DiskStore | None):
            what = "the images are in memory already, so the device is faster than this processor"
        console.line(f"  The device waited for data {row['data_wait']:.0%} of the time: {what}.")


def advise_shorter(console: Console, seconds: float, probed: bool) -> None:
    """Of a run that takes long: how long, and what would take less time."""
    if seconds >= LONG:
        probe = "--tune probe would stop at the linear probe, and " if probed else ""
        console.line(f"  This takes about {clock(seconds)}; {probe}fewer --epochs would take less time.")


def show_probe(ctx: Context, score: float, seconds: float) -> None:
    ctx.console.line(
        f"Linear probe on frozen features: {_score(ctx, score)}, cross-validated on the training images "
        f"({clock(seconds)})."
    )


def written(task: Task, figure: str, value: float) -> str:
    """A figure in a sentence: a share as a percentage, anything else as a number."""
    if task.is_share(figure):
        return f"{value:.1%}"
    return f"{value:.4f}" if figure == "loss" else number(value)


def _score(ctx: Context, value: float) -> str:
    """The figure that chooses, by its short name."""
    figure = ctx.task.figure_of(ctx)
    return f"{ctx.task.short[figure]} {written(ctx.task, figure, value)}"


# -- the outcome -------------------------------------------------------------------------------------------------------


def show_outcome(ctx: Context, figures: dict[str, Any], kept: Kept, spent: str, notes: list[str], chose: bool) -> None:
    """The figures that have a title, which weights were kept, and where everything is. `chose`: did the images of these
    figures choose anything?"""
    console, folder = ctx.console, ctx.folder
    console.line()
    for name, title in ctx.task.titles.items():
        if name in figures:
            low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
            interval = ""
            if low is not None and high is not None:
                low, high = (written(ctx.task, name, end) for end in (low, high))
                interval = f" (95 % interval {low} to {high})"
            value = written(ctx.task, name, figures[name]) + (ctx.task.log_beside(ctx) if name == "loss" else "")
            console.line(f"{title}: {value}{interval}, on {int(figures['n']):,} validation images")
    if figures and chose:
        console.line(
            "(Those images also chose what was kept: expect less on new images, and measure on some with "
            "`vitrail evaluate`.)"
        )
    for note in notes:
        console.line(f"({note})")
    if ctx.probe is not None and 0 < figures.get("n", 0) < FEW:
        console.line(
            f"(With so few validation images the figure is uncertain. The linear probe, cross-validated on the "
            f"{ctx.probe.images:,} training images, has {_score(ctx, ctx.probe.score)}.)"
        )
    console.line(f"Kept: {kept}, after {spent}.")
    console.line(f"Model:  {folder / 'model.safetensors'}")
    if (small := folder / "adapter.safetensors").exists():
        alone = "; only its head was trained" if kept.code == "probe" else ""
        console.line(
            f"Adapter: {small} ({small.stat().st_size / 1e6:.2f} MB, the part to share beside its base{alone})"
        )
    console.line(f"Report: {folder / 'report.html'}")
