"""What a run leaves in its folder: the model to ship, an adapter to share, the report."""

import shutil
import time
from pathlib import Path
from typing import Any

from vitrail.console import clock
from vitrail.data.samples import plural
from vitrail.environment import versions
from vitrail.models.tuning import merge
from vitrail.report.content import ReportContent
from vitrail.report.model_report import write_report
from vitrail.tasks.base import Measured, Row
from vitrail.tasks.context import Context
from vitrail.tasks.provenance import header_of
from vitrail.training import messages
from vitrail.training.config import concerning
from vitrail.training.messages import Kept
from vitrail.weights import save_weights
from vitrail.weights.adapter_file import Base, save_adapter


def keep_model(ctx: Context, row: dict[str, Any], **more: Any) -> None:
    """model.safetensors, the one file to ship; beside it the small one to share, where only a part is trained. LoRA
    goes into the weights when all is done."""
    if ctx.parent is None:
        save_model(ctx, ctx.folder / "model.safetensors", row, **more)
        ctx.task.kept(ctx, row) if not more else None


def save_model(ctx: Context, path: Path, row: dict[str, Any], **more: Any) -> None:
    tune = "head" if ctx.config.get("tune") == "probe" else ctx.config.get("tune", "full")
    if tune != "full" and ctx.start.base and ctx.processes.first:
        base, about = Base(**ctx.start.base), header_of(ctx, row, **more)
        labels, pre = ctx.source.classes, ctx.preprocessing
        save_adapter(ctx.model, ctx.folder / "adapter.safetensors", tune, base, labels, pre, ctx.start.name, about)
    if more.get("finished"):
        merge(ctx.model)
    write_model(ctx, path, row, **more)


def write_model(ctx: Context, path: Path, row: dict[str, Any], **more: Any) -> None:
    """Weights, labels, preprocessing, options, figures."""
    if ctx.processes.first:
        labels = ctx.source.classes if ctx.settings.num_classes else None
        save_weights(ctx.model, path, "vitrail", labels, ctx.preprocessing, ctx.start.name, header_of(ctx, row, **more))
    ctx.processes.wait()


def spent(ctx: Context, began: float) -> str:
    return clock(time.monotonic() - began) + (" since it was resumed" if ctx.resumed is not None else " in all")


def write_page(
    ctx: Context, measured: Measured, history: list[dict[str, Any]], best: dict[str, Any], kept: Kept, trained: str,
    chose: bool, unreadable: dict[str, str], time_spent: str,
) -> None:  # fmt: skip
    """report.html."""
    split = "nothing: no images were held out"
    if measured.figures:
        split = f"{plural(int(measured.figures['n']), 'image')} ({messages.held_out(ctx.source)})"
        split += f", {messages.CHOSE}" if chose else ""
    page = {"figures": measured.figures} | measured.page | ctx.task.page(ctx, measured)
    content = ReportContent(
        title=ctx.folder.name,
        split=split,
        classes=ctx.source.classes,
        summary=f"{ctx.start.why} Trained on {trained}, in {time_spent}.",
        curves=[row for row in history if row["epoch"]],
        best_epoch=best.get("epoch"),
        kept=str(kept) if ctx.task.figure_of(ctx) else "",
        problems=ctx.task.problems(ctx, unreadable),
        recipe=option_rows(ctx),
        command=ctx.command,
        versions=versions(ctx.device),
        is_share=ctx.task.is_share,
        scores=ctx.task.short,
        **page,
    )
    write_report(ctx.folder / "report.html", content)


def option_rows(ctx: Context) -> list[Row]:
    """For the report: model, images, device, then everything that was asked for or chosen."""
    first = [*messages.size_rows(ctx), *(row for row in ctx.task.plan_rows(ctx) if row[0] not in ctx.config)]
    shown = {"model", "device", "precision", "image_size"}
    rest = [(name, value, ctx.why.get(name, "")) for name, value in concerning(ctx.config).items()]
    return [*first, *(row for row in rest if row[0] not in shown)]


def clean_up(folder: Path, *names: str) -> None:
    """What only an unfinished run needs."""
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
