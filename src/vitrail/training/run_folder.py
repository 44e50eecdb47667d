"""The run folder: run.json, which says what a run is; last.pt, to resume from; the model, an adapter, the report."""

import io
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.console import clock
from vitrail.data.samples import plural
from vitrail.environment import versions
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing, build
from vitrail.models.tuning import merge
from vitrail.reasons import Reason
from vitrail.report.content import ReportContent
from vitrail.report.model_report import write_report
from vitrail.tasks.backbones import Start
from vitrail.tasks.base import Measured, Row
from vitrail.tasks.context import Context, header_of, samples_digest
from vitrail.training import messages
from vitrail.training.config import TrainConfig, concerning, from_dict, machine_options
from vitrail.training.messages import Kept
from vitrail.weights import save_weights
from vitrail.weights.adapter_file import Base, save_adapter
from vitrail.weights.header import settings_from_dict, settings_to_dict
from vitrail.whole import whole


@dataclass
class Record:
    """Values that JSON can hold."""

    data: str
    given: dict[str, Any]  # the options as they were asked for
    recipe: dict[str, Any]  # with nothing left open
    why: dict[str, str]  # the reason of each choice
    model: dict[str, Any]  # architecture, preprocessing, where its weights came from
    samples: dict[str, str]  # split → digest of the images in it and their labels
    unreadable: dict[str, str] = field(default_factory=dict)  # name → reason, of the images left out from the start
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    verb: str = "train"  # of the command that began it
    facts: dict[str, Any] = field(default_factory=dict)  # what the task adds, such as the teacher or the protocol

    @classmethod
    def of(cls, ctx: Context) -> "Record":
        path = Path(ctx.data).expanduser()
        return cls(
            data=str(path.absolute()) if path.exists() else ctx.data,
            given=ctx.given.to_dict(),
            recipe=ctx.config.to_dict(),
            why={name: str(reason) for name, reason in ctx.why.items()},
            model=described(ctx.start, ctx.model),
            samples={split: samples_digest(samples) for split, samples in ctx.samples.items()},
            unreadable=ctx.left_out,
            command=ctx.command,
            versions=versions(ctx.device),
            verb=ctx.task.verb,
            facts=ctx.task.record_facts(ctx),
        )

    def write(self, folder: Path, first: bool = False) -> None:
        """`first`: only where there is none, else FileExistsError."""
        path, text = folder / "run.json", json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        if not first:
            write_text(path, text)
            return
        draft = folder / f".run.json.{os.getpid()}.part"
        try:
            draft.write_text(text, encoding="utf-8")
            os.link(draft, path)  # which takes no other's place, as a renaming would
        except FileExistsError:
            raise
        except OSError:  # a file system without links, or another reason, which is told
            write_text(path, text)
        finally:
            draft.unlink(missing_ok=True)

    @property
    def task(self) -> str:
        return self.recipe.get("task", "reconstruct" if self.verb == "pretrain" else "classify")

    def start(self) -> Start:
        """The model that the run began with, but for its weights, which the saved state has."""
        values = dict(self.model)
        model = build(settings_from_dict(values["settings"]))
        stored: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values["preprocessing"].items()}
        pre = Preprocessing(**stored)
        model.preprocessing = pre  # type: ignore[assignment]
        why = [Reason("recorded", text=values["why"])]
        side = values.get("image_side", values.get("pictures", 0))  # as version 0.2.1 called it
        return Start(
            model, pre, values["name"], values["pretrained"], why, values.get("masked", False), values.get("base"), side
        )

    def reasons(self) -> dict[str, Reason]:
        return {name: Reason("recorded", text=text) for name, text in self.why.items()}


def described(start: Start, model: nn.Module) -> dict[str, Any]:
    """What `Record.start` reads back."""
    return {
        "name": start.name,
        "pretrained": start.pretrained,
        "why": start.why,
        "masked": start.masked,
        "base": start.base,
        "image_side": start.image_side,
        "settings": settings_to_dict(model.settings),  # type: ignore[arg-type]
        "preprocessing": asdict(start.preprocessing),
    }


def read_record(folder: Path) -> Record:
    path = folder / "run.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        old = {name: saved[name] for name in ("teacher", "protocol") if saved.get(name)}  # of versions before 0.3
        saved = {"verb": "train", "facts": old, **saved}
        return Record(**{name: saved[name] for name in (field.name for field in fields(Record))})
    except FileNotFoundError:
        raise VitrailError(
            f"There is nothing to resume in {folder}: it holds no run.json. Start without --resume.", code="no_run"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VitrailError(
            f"{path} can't be read ({error}): start again without --resume.", code="bad_record"
        ) from None


def continued(record: Record, asked: TrainConfig) -> tuple[TrainConfig, TrainConfig]:
    """The options of the run that is continued, as they were given and in full. What a machine does may change; what
    the run is may not."""
    given, full = from_dict(record.given, record.task), from_dict(record.recipe, record.task)
    if full.optimizer == "auto":  # the record of a version whose `pretrain` had AdamW alone
        full = full.replace(optimizer="adamw")
    wanted, default, machine = asked.to_dict(), asked.defaults, machine_options(given)
    for name in [name for name in wanted if name in default and wanted[name] != default[name] and name not in machine]:
        planned = full.get(name)
        if name not in given or wanted[name] not in (given.get(name), planned):
            raise VitrailError(
                f"The run in {wanted['out']} has {name} {planned}; --resume continues it exactly, so leave "
                f"--{name.replace('_', '-')} {wanted[name]} out, or start a new run.",
                code="not_the_same_run", option=name,
            )  # fmt: skip
    changes = {name: asked.get(name) for name in machine if name in asked and asked.get(name) != default[name]}
    return given.replace(**changes), full.replace(**changes)


def begin_folder(ctx: Context) -> None:
    """Makes the run folder, with run.json and split.csv: what makes the run repeatable."""
    folder, first, written = ctx.folder, ctx.is_new, False
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VitrailError(f"The run folder {folder} can't be made: {error.strerror}.", code="no_folder") from None
    try:
        Record.of(ctx).write(folder, first and not ctx.given.resume)
        written = True
        samples = ctx.samples | {"test": ctx.source.splits.get("test", [])}
        ctx.task.write_split(ctx, folder / "split.csv", samples)
    except FileExistsError:  # it was free before the images were read, which may have been an hour ago
        raise VitrailError(
            f"{folder} was taken by another run while this one read its images: start it again, or name a folder of "
            "its own with --out.",
            code="folder_taken",
        ) from None
    except BaseException:
        with suppress(OSError):
            if first and written:
                (folder / "run.json").unlink()
            if new:
                folder.rmdir()  # unless something is in it
        raise


def save_state(path: Path, state: dict[str, Any]) -> None:
    with whole(path, RuntimeError) as part, _File(io.FileIO(part, "w")) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            raise file.error or error from None


def write_text(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def remove_parts(folder: Path) -> None:
    """What a run that was killed while it wrote has left behind."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


class _File(io.BufferedWriter):
    """Remembers why it could not be written; of a full disk torch.save itself says "unexpected pos"."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def load_state(path: Path) -> dict[str, Any] | None:
    """None where there is none yet: the run was killed before it had anything to save."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise VitrailError(
            f"{path} can't be read ({reason}): start again without --resume.", code="bad_state"
        ) from None


def keep_model(ctx: Context, row: dict[str, Any], **more: Any) -> None:
    """model.safetensors, the one file to ship; beside it the small one to share, where only a part is trained. LoRA
    goes into the weights when all is done."""
    if ctx.parent is None:
        save_model(ctx, ctx.folder / "model.safetensors", row, **more)
        if not more:
            ctx.task.kept(ctx, row)


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
        is_share=ctx.task.is_share,
        scores=ctx.task.short,
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
        **page,
    )
    write_report(ctx.folder / "report.html", content)


def option_rows(ctx: Context) -> list[Row]:
    """For the report: model, images, device, then everything that was asked for or chosen."""
    first = [*messages.size_rows(ctx), *(row for row in ctx.plan_rows if row[0] not in ctx.config)]
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
