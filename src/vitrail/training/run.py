"""`vitrail.train`: from DATA to a run folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.console import View
from vitrail.data.existence import check_exists
from vitrail.data.samples import Sample, Source, some
from vitrail.data.sources.classification import open_source
from vitrail.data.split import divide
from vitrail.distributed import Processes, processes
from vitrail.errors import VitrailError
from vitrail.inference.precision import choose_precision, fitting_threads
from vitrail.models import CNNSettings
from vitrail.training.checkpoint import load_state, remove_parts, seed_step
from vitrail.training.config import R, Recipe, made, to_dict
from vitrail.training.job import Job
from vitrail.training.log import check_packages
from vitrail.training.plan import Facts, fill
from vitrail.training.run_record import continued, digest, read_record
from vitrail.training.start import start_model
from vitrail.training.work import Work
from vitrail.weights import read_checkpoint


@dataclass
class Run:
    """A finished run; `vitrail.load(run)` and `vitrail.evaluate(run, data)` take it as they take its folder."""

    folder: Path
    metrics: dict[str, Any] = field(default_factory=dict)  # of the weights that were kept, on the validation images

    def __fspath__(self) -> str:
        return str(self.folder)


def train(data: str | Path | None = None, recipe: Recipe | None = None, **options: Any) -> Run:
    """Trains on DATA and gives the run; `options` are the fields of `Recipe`, what the command line calls --epochs.

    >>> run = vitrail.train("pets/images", weights="deit_tiny.safetensors", epochs=10)
    """
    recipe = made(Recipe, "train", options, recipe)
    check_packages(recipe.wandb, recipe.mlflow)
    if not recipe.resume:
        check_exists(data or "", recipe.task)
    with processes(recipe.device) as group:
        if recipe.resume:
            return resume(data, recipe, group, kind_of)
        return kind_of(to_dict(recipe)).begin(str(data), recipe, group)


@dataclass(frozen=True)
class Kind:
    """What a task is to training: its run, how its data is opened, how it begins."""

    work: type[Work]
    opened: Callable[[str], Source]
    begin: Callable[[str, Any, Processes], Run]


def kind_of(recipe: dict[str, Any]) -> Kind:
    """By the options of a run. Imported when asked for: torchvision's detection alone takes a second."""
    task = recipe.get("task", "classify")
    if task == "segment":
        from vitrail.training.dense.segment import Segmentation, open_masks, train_segmenter

        return Kind(Segmentation, open_masks, train_segmenter)
    if task == "detect":
        from vitrail.training.dense.detect import Detection, open_boxes, train_detector

        return Kind(Detection, open_boxes, train_detector)
    if task == "spoof":
        from vitrail.training.spoof import SpoofJob, opener

        opened = opener(recipe)
        return Kind(SpoofJob, opened, partial(_train, work=SpoofJob, opened=opened))
    return Kind(Job, open_source, _train)


def _train(
    data: str, recipe: Recipe, group: Processes, work: type[Job] = Job, opened: Callable[[str], Source] = open_source
) -> Run:
    folder = group.of_first(run_folder(recipe, data))
    source = opened(data)
    learnt = pictures_to_learn(source)
    seed_step(recipe.seed, 0, 0, 0)  # the initial weights
    start = start_model(
        recipe.model, recipe.weights, source.classes, recipe.image_size, recipe.fit, typical_side(learnt),
        group.device.type == "cuda", recipe.teacher is not None and recipe.tune == "full", recipe.tune,
    )  # fmt: skip
    settings: Any = start.model.settings
    facts = Facts(
        len(learnt), len(source.classes), start.pretrained, max(start.preprocessing.size), "val" in source.splits,
        layered=not isinstance(settings, CNNSettings), drops_paths=getattr(settings, "drops_paths", True),
        masked=start.masked, multi_label=source.multi_label,
    )  # fmt: skip
    full, why, samples = planned(partial(fill, facts=facts), recipe, source)
    dtype, why["precision"] = choose_precision(recipe.precision, group.device)
    job = work(data, source, samples, start, recipe, full, why, dtype, folder, group, View(group.first))
    with fitting_threads(start.model, group.device):
        return Run(folder, job.run())


def resume(data: str | Path | None, recipe: R, group: Processes, kinds: Callable[[dict[str, Any]], Kind]) -> Run:
    """Goes on from the saved state; a run that was killed before there was one begins anew, in the same folder."""
    folder: Path | None = recipe.out  # type: ignore[attr-defined]
    if folder is None:
        raise VitrailError("--resume continues the run in --out: name its folder.")
    record = read_record(folder)
    kind = kinds(record.recipe)
    if record.verb != kind.work.verb:
        raise VitrailError(f"The run in {folder} was begun by `vitrail {record.verb}`: --resume it with that.")
    given, full = continued(record, recipe)
    data, state = str(data or record.data), load_state(folder / "last.pt")
    if group.first:
        remove_parts(folder)
    if state is None:
        return kind.begin(data, given, group)
    source, asked = kind.opened(data), to_dict(full)
    samples = splits(source, asked["val"] or 0.0, asked["seed"])
    for split, before in record.samples.items():
        if digest(samples[split]) != before:
            raise VitrailError(
                f"{data} has changed since the run in {folder} began ({split}: {before} then, "
                f"{digest(samples[split])} now), so it can't be continued exactly: start a new run."
            )
    about = read_checkpoint(folder / "model.safetensors").about if (folder / "model.safetensors").exists() else {}
    if about.get("finished"):
        View(group.first).line(f"The run in {folder} is finished already.")
        return Run(folder, about.get("figures", about.get("metrics", {})))
    dtype, _ = choose_precision(asked["precision"], group.device)
    job = kind.work(
        data, source, samples, record.start(), given, full, record.why, dtype, folder, group, View(group.first),
        (record, state),
    )  # fmt: skip
    with fitting_threads(job.model, group.device):
        return Run(folder, job.run())


def pictures_to_learn(source: Source) -> list[Sample]:
    learnt = source.splits.get("train") or source.splits.get("all")
    if not learnt:
        raise VitrailError(f"{source.name} has no training images: put them into train/, or give class folders alone.")
    return learnt


def splits(source: Source, fraction: float, seed: int) -> dict[str, list[Sample]]:
    """What to learn from and what to choose by: val/ where there is one, else a part of the training images; never
    test/."""
    learnt = pictures_to_learn(source)
    if "val" in source.splits:
        return {"train": learnt, "val": source.splits["val"]}
    rest, part = divide(learnt, fraction, seed)
    return {"train": rest, "val": part}


def planned(
    plan: Callable[[Any], tuple[Any, dict[str, str]]], recipe: Any, source: Source
) -> tuple[Any, dict[str, str], dict[str, list[Sample]]]:
    """The recipe with nothing left open, the reasons, and the splits: what depends on how many images are left to learn
    from is known only then."""
    if recipe.val is not None and "val" in source.splits and getattr(recipe, "task", "") != "spoof":  # which divides
        raise VitrailError(f"{source.name} has a val/ of its own, so nothing is held out: leave --val out.")
    full, why = plan(recipe)
    samples = splits(source, full.val or 0.0, recipe.seed)
    if full.batch_size > (all_images := len(samples["train"])):
        full, why = plan(replace(recipe, batch_size=all_images))
        why["batch_size"] = "all images at once: there are no more"
    if not samples["val"] and getattr(full, "refit", "off") == "on":
        full, why["refit"] = replace(full, refit="off"), "nothing is held out"
    return full, why, samples


def typical_side(samples: list[Sample], side: Callable[[tuple[int, int]], int] = max) -> int:
    """The larger side of the median of a few pictures; or the smaller, with `side=min`."""
    sides = []
    for sample in samples[:: max(1, len(samples) // 16)]:
        try:
            sides.append(side(sample.decode().size))
        except VitrailError:
            continue
    if not sides:
        raise VitrailError(f"None of these pictures can be read: {some(sample.name for sample in samples)}.")
    return sorted(sides)[len(sides) // 2]


def run_folder(recipe: Any, data: str) -> Path:
    """--out, or runs/NAME, with a number where that exists. A folder with a run in it is never written over, and what
    can't be written is said before an hour is spent on reading pictures."""
    folder = recipe.out or _free_folder(data)
    if (folder / "run.json").exists() and not recipe.resume:
        raise VitrailError(
            f"{folder} holds a run already: add --resume to continue it, or name another folder with --out."
        )
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise VitrailError(f"The run folder {folder} can't be made: {there} is a file; name a folder with --out.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise VitrailError(f"The run folder {folder} can't be written: {there} allows it to others only; use --out.")
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
