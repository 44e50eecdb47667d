"""`vitrail.train` and `vitrail.pretrain`: from DATA to a run folder."""

import os
import shlex
import time
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from vitrail.console import Console
from vitrail.data.existence import check_exists
from vitrail.data.samples import Sample, Source
from vitrail.data.split import divide
from vitrail.distributed import Processes, processes
from vitrail.environment import command_line
from vitrail.errors import VitrailError
from vitrail.inference.precision import choose_precision, fitting_threads
from vitrail.models.kernels.short_attention import can_build
from vitrail.reasons import Reason
from vitrail.tasks import registry
from vitrail.tasks.base import Measured, Task
from vitrail.tasks.context import Context, samples_digest
from vitrail.tasks.image_level import learns_matrices
from vitrail.tasks.planning import Facts, settled
from vitrail.training import messages
from vitrail.training.batches import seed_step
from vitrail.training.config import TrainConfig, made
from vitrail.training.log import check_packages
from vitrail.training.messages import Kept, show_plan
from vitrail.training.optimization import hidden
from vitrail.training.phases import REFIT, START, interpolate, probe, refit, tune
from vitrail.training.run_folder import (
    clean_up,
    continued,
    keep_model,
    load_state,
    read_record,
    remove_parts,
    spent,
    write_page,
)
from vitrail.training.setup import caches, check_compiler, read_images, would_compile
from vitrail.training.signals import Stopped
from vitrail.weights import read_checkpoint


@dataclass
class Run:
    """A finished run; `vitrail.load(run)` and `vitrail.evaluate(run, data)` take it as they take its folder."""

    folder: Path
    metrics: dict[str, Any] = field(default_factory=dict)  # of the weights that were kept, on the validation images

    def __fspath__(self) -> str:
        return str(self.folder)


def train(
    data: str | Path | None = None, config: TrainConfig | str | PathLike[str] | None = None, **options: Any
) -> Run:
    """Trains on DATA and gives the run; `options` are what the command line calls --epochs and so on, over those of
    `config`: a `TrainConfig`, or a YAML or JSON file such as the run.json of another run.

    >>> run = vitrail.train("pets/images", weights="deit_tiny.safetensors", epochs=10)
    """
    return _start(data, config, options, None)


def pretrain(
    data: str | Path | None = None, config: TrainConfig | str | PathLike[str] | None = None, **options: Any
) -> Run:
    """Trains a masked autoencoder on the images of DATA, labelled or not, and gives the run; `options` are what the
    command line calls --mask-ratio and so on.

    >>> run = vitrail.pretrain("photos", epochs=200)
    >>> vitrail.train("pets/images", weights=run)
    """
    return _start(data, config, options, "reconstruct")


def _start(data: Any, config: Any, options: dict[str, Any], task: str | None) -> Run:
    given = config if isinstance(config, TrainConfig) else None
    asked = made(task, options, given, None if config is given else config)
    check_packages(asked.wandb, asked.mlflow)
    if not asked.resume:
        check_exists(data or "", registry.expects(asked.task), registry.takes_names(asked.task))
    with processes(asked.device) as group:
        return resume(data, asked, group) if asked.resume else begin(str(data), asked, group)


# -- how a run begins --------------------------------------------------------------------------------------------------


def begin(data: str, config: TrainConfig, group: Processes) -> Run:
    task, console = registry.task(config.task), Console(group.first)
    folder = group.of_first(run_folder(config, data))
    task.check(config)
    source = task.open(data, config, console)
    learnt, gpu = images_to_learn(source), group.device.type == "cuda"
    seed_step(config.seed, 0, 0, 0)  # the initial weights
    start = task.start(config, source, learnt, gpu)
    facts = Facts(
        len(learnt), len(source.classes), start.pretrained, max(start.preprocessing.size), start.model.settings,
        "val" in source.splits, start.masked, source.multi_label,
    )  # fmt: skip
    full, why, samples = planned(task, config, source, facts)
    start = replace(task.build(start, full, why, source, learnt, gpu), checkpoint=None)  # whose memory it would keep
    dtype, why["precision"] = choose_precision(config.precision, group.device)
    ctx = Context(task, data, source, samples, start, config, full, why, dtype, folder, group, console, command_line())
    return run(ctx)


def resume(data: str | Path | None, asked: TrainConfig, group: Processes) -> Run:
    """Goes on from the saved state; a run that was killed before there was one begins anew, in the same folder."""
    folder: Path | None = asked.out
    if folder is None:
        raise VitrailError("--resume continues the run in --out: name its folder.", code="no_folder")
    record, console = read_record(folder), Console(group.first)
    task = registry.task(record.task)
    if record.verb != registry.task(asked.task).verb:
        raise VitrailError(
            f"The run in {folder} was begun by `vitrail {record.verb}`: --resume it with that.", code="other_verb"
        )
    if asked.task not in (record.task, "classify"):  # the latter is what --task left out comes to
        raise VitrailError(
            f"The run in {folder} has task {record.task}; --resume continues it exactly, so leave --task {asked.task} "
            "out, or start a new run.",
            code="not_the_same_run", option="task",
        )  # fmt: skip
    given, full = continued(record, asked)
    data, state = str(data or record.data), load_state(folder / "last.pt")
    if group.first:
        remove_parts(folder)
    if state is None:
        return begin(data, given, group)
    source = task.open(data, full, None)
    samples = splits(source, full.val or 0.0, full.seed)
    for split, before in record.samples.items():
        if (now := samples_digest(samples[split])) != before:
            raise VitrailError(
                f"{data} has changed since the run in {folder} began ({split}: {before} then, {now} now), so it can't "
                "be continued exactly: start a new run.",
                code="data_changed", split=split,
            )  # fmt: skip
    about = read_checkpoint(folder / "model.safetensors").about if (folder / "model.safetensors").exists() else {}
    if about.get("finished"):
        console.line(f"The run in {folder} is finished already.")
        return Run(folder, about.get("figures", about.get("metrics", {})))
    dtype, _ = choose_precision(full.precision, group.device)
    ctx = Context(
        task, data, source, samples, record.start(), given, full, record.reasons(), dtype, folder, group, console,
        record.command, left_out_before=record.unreadable, resumed=state, record=record.facts,
    )  # fmt: skip
    ctx.small_head = any(row.get("begins_small", False) for row in state["history"])
    return run(ctx)


def images_to_learn(source: Source) -> list[Sample]:
    learnt = source.splits.get("train") or source.splits.get("all")
    if not learnt:
        raise VitrailError(
            f"{source.name} has no training images: put them into train/, or give class folders alone.",
            code="no_training_images",
        )
    return learnt


def splits(source: Source, fraction: float, seed: int) -> dict[str, list[Sample]]:
    """What to train on and what to choose by: val/ where there is one, else a part of the training images; never
    test/."""
    learnt = images_to_learn(source)
    if "val" in source.splits:
        return {"train": learnt, "val": source.splits["val"]}
    rest, part = divide(learnt, fraction, seed)
    return {"train": rest, "val": part}


def planned(
    task: Task, config: TrainConfig, source: Source, facts: Facts
) -> tuple[TrainConfig, dict[str, Reason], dict[str, list[Sample]]]:
    """The configuration with nothing left open, the reasons, and the splits: what depends on how many images are left
    to train on is known only then."""
    if config.val is not None and "val" in source.splits and not task.divides_itself:
        raise VitrailError(
            f"{source.name} has a val/ of its own, so nothing is held out: leave --val out.", code="own_val"
        )
    full, why = plan(task, config, facts)
    samples = splits(source, full.val or 0.0, config.seed)
    if full.batch_size > (all_images := len(samples["train"])):
        full, why = plan(task, config.replace(batch_size=all_images), facts)
        why["batch_size"] = Reason("whole_batch")
    if not samples["val"] and full.get("refit") == "on":
        full, why["refit"] = full.replace(refit="off"), Reason("nothing_held_out")
    return full, why, samples


def plan(task: Task, config: TrainConfig, facts: Facts) -> tuple[TrainConfig, dict[str, Reason]]:
    full, why = settled(config, task.plan(config, facts))
    if full.clip is None:
        full = full.replace(clip=1.0)
    return task.settle(full, why, facts), why  # type: ignore[return-value]


def run_folder(config: Any, data: str) -> Path:
    """--out, or runs/NAME, with a number where that exists. A folder with a run in it is never written over, and what
    can't be written is said before an hour is spent on reading images."""
    folder = config.out or _free_folder(data)
    if (folder / "run.json").exists() and not config.resume:
        raise VitrailError(
            f"{folder} holds a run already: add --resume to continue it, or name another folder with --out.",
            code="folder_taken",
        )
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise VitrailError(
            f"The run folder {folder} can't be made: {there} is a file; name a folder with --out.", code="no_folder"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise VitrailError(
            f"The run folder {folder} can't be written: {there} allows it to others only; use --out.", code="no_folder"
        )
    return folder


def _free_folder(data: str) -> Path:
    path = Path(data.rstrip("/")).expanduser()
    words = [part for part in (path.resolve().parent.name, path.stem) if part not in ("", "/", ".")]
    name = path.stem if path.stem not in ("images", "data", "train") else "-".join(words)
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "run"
    number = 1
    while (folder := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


# -- the run -----------------------------------------------------------------------------------------------------------


def run(ctx: Context) -> Run:
    """The four phases of `phases`, and the figures and the report at their end."""
    with fitting_threads(ctx.start.model, ctx.device):
        try:
            return Run(ctx.folder, _phases(ctx))
        except Stopped as stopped:
            again = ["vitrail", ctx.task.verb, ctx.data, "--out", str(ctx.folder), "--resume"]
            raise stopped.with_command(shlex.join(again)) from None


def _phases(ctx: Context) -> dict[str, Any]:
    began = time.monotonic()
    prepare(ctx)
    read_images(ctx)
    history, best = tune(ctx, probe(ctx))
    share, best = interpolate(ctx, history, best)
    measured = ctx.task.measure(ctx) if "val" in ctx.subsets else Measured()
    unreadable, count = ctx.unreadable(), len(ctx.subsets["train"].numbers)
    new = {name: why for name, why in unreadable.items() if name not in ctx.left_out}
    messages.show_unreadable(ctx.console, new)
    trained = f"{count:,} image{'s' * (count != 1)}"
    if (everything := refit(ctx, share)) is not None:
        trained += f", then on all {everything:,} with what validation had chosen"
    kept = Kept.of(best, probed=any(row["epoch"] == 0 for row in history))
    chose = bool(ctx.task.figure_of(ctx)) and bool(ctx.epochs or measured.header)  # an epoch, or thresholds
    if ctx.processes.first:
        write_page(ctx, measured, history, best, kept, trained, chose, unreadable, spent(ctx, began))
    keep_model(ctx, {**best, **measured.figures}, finished=True, figures=measured.figures, **measured.header)
    if ctx.processes.first:
        clean_up(ctx.folder, START, REFIT)
        notes = ctx.task.closing_notes(ctx, measured)
        messages.show_outcome(ctx, measured.figures, kept, spent(ctx, began), notes, chose)
    return measured.figures


def prepare(ctx: Context) -> None:
    """The model with what is added to it, the objective, and the plan: everything is checked before images are read."""
    ctx.task.prepare_model(ctx)
    if ctx.config.optimizer == "muon" and not learns_matrices(ctx, hidden):
        raise VitrailError(
            "--optimizer muon is for matrices inside of a transformer, and none of them is trained here: leave it out.",
            code="muon_without_matrices",
        )
    ctx.objective = ctx.task.objective(ctx)
    show_plan(ctx)
    if ctx.config.compile == "on" and ctx.epochs and not caches(ctx):
        check_compiler(ctx.device)
    if would_compile(ctx, len(ctx.samples["train"])) and not can_build():
        messages.show_uncompiled(ctx.console)
