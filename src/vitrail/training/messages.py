"""What a run says: its plan before it starts, a word of advice, and what came of it."""

import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail.console import View, clock
from vitrail.data.cache import DiskStore
from vitrail.data.samples import Sample, Source, plural, some
from vitrail.data.subset import Subset
from vitrail.errors import VitrailError
from vitrail.training.config import Recipe
from vitrail.training.start import Start

LONG = 600.0  # seconds
CHOSE = "which also chose what was kept: expect less on new images"
NAMES = {"top1": "Accuracy", "map": "Mean average precision", "macro_f1": "Macro F1", "auc": "AUC", "eer": "EER"}
SHORT = {"top1": "accuracy", "map": "mAP", "auc": "AUC"}


def show_plan(
    view: View, data: str, source: Source, samples: dict[str, list[Sample]], start: Start, recipe: Recipe,
    why: dict[str, str], device: torch.device, dtype: torch.dtype, folder: Path,
    tuned: Sequence[tuple[str, str, str]] = (),
) -> None:  # fmt: skip
    """Everything that was asked for or chosen, with the reason."""
    view.line(start.why)
    train, val = len(samples["train"]), len(samples["val"])
    view.line(
        f"{data}: {plural(len(source.classes), 'class', 'classes')}, {plural(train, 'image')} to train on, "
        + (f"{val:,} to validate on ({held_out(source)}, seed {recipe.seed})." if val else "none to validate on.")
    )
    for note in source.notes:
        view.line(f"  note: {note}")
    rows = size_rows(start, device, dtype, why["precision"])
    rows += tuned
    if recipe.tune != "probe" and recipe.epochs:
        hidden = {"precision", "val"} | ({"flip"} if recipe.augment == "none" else set())
        hidden |= {"layer_decay"} if recipe.tune == "head" else set()
        rows += choices(recipe, why, hidden)
    elif recipe.refit == "on":
        rows.append(("refit", "on", why["refit"]))
    view.table(rows)
    view.line(f"  run folder: {folder}")


def size_rows(start: Start, device: torch.device, dtype: torch.dtype, precision: str) -> list[tuple[str, str, str]]:
    """The first rows of a plan: name, value, reason."""
    parameters, pre = sum(p.numel() for p in start.model.parameters()), start.preprocessing
    enlarged = 0 < start.pictures < min(pre.size)
    smaller = f"; the pictures are about {start.pictures} pixels a side, so they are enlarged" if enlarged else ""
    return [
        ("model", start.name, f"{parameters / 1e6:.1f} M parameters"),
        ("images", "×".join(map(str, pre.size)), f"fit {pre.fit}{smaller}"),
        ("device", str(device), f"{str(dtype).removeprefix('torch.')}: {precision}"),
    ]


def choices(recipe: Any, why: dict[str, str], hidden: set[str]) -> Iterator[tuple[str, str, str]]:
    """A row for each choice that has a reason."""
    for name in [name for name in why if name not in hidden]:
        value, words = getattr(recipe, name), name.replace("_", " ")
        if value is None:
            yield words, "later", "follows from how well frozen features do"
        else:
            yield words, f"{value:g}" if isinstance(value, float) else _near(str(value)), why[name]


def _near(place: str) -> str:
    """A path from here, where it lies below; anything else as it is."""
    return str(Path(place).relative_to(Path.cwd())) if Path(place).is_relative_to(Path.cwd()) else place


def held_out(source: Source) -> str:
    return source.held_out or ("val/" if "val" in source.splits else "held out of the training images")


def show_unreadable(view: View, bad: dict[str, str]) -> None:
    if bad:
        one = len(bad) == 1
        view.line(
            f"{plural(len(bad), 'picture')} can't be read and {'is' if one else 'are'} left out; the report lists "
            f"{'it' if one else 'them'}. {next(iter(bad.values()))}"
        )


def check_classes(view: View, samples: Sequence[Sample], bad: Container[str], classes: Sequence[str]) -> None:
    """Those without a readable picture are told of; there must be two others to tell apart."""
    had = {label for sample in samples for label in sample.labels}
    has = {label for sample in samples if sample.name not in bad for label in sample.labels}
    if not had - has:
        return
    lost = f"No picture of {some([classes[label] for label in sorted(had - has)])} can be read"
    if len(has) < 2:
        raise VitrailError(f"{lost}, so there is nothing to tell apart: mend the files, or name other data.")
    view.line(f"  note: {lost}: the model will not know it. Mend the files, or take the class out.")


def show_uncompiled(view: View, can_build: bool) -> None:
    """Where --compile auto would have compiled the model: one line where this machine can't."""
    if not can_build:
        view.line(
            "  note: it runs uncompiled, which is slower, for this machine has no C compiler or no headers of Python: "
            "install gcc and python3-dev."
        )


def advise(view: View, row: dict[str, Any], train: Subset) -> None:
    """When the device waits for data, one line says so."""
    if row["epoch"] == 1 and row.get("data_wait", 0) > 0.25:
        store = train.loader.pictures.store
        what = "use --cache disk, or more --workers" if store is None else "use more --workers, or a faster disk"
        if not isinstance(store, DiskStore | None):
            what = "the images are in memory already, so the device is faster than this processor"
        view.line(f"  The device waited for data {row['data_wait']:.0%} of the time: {what}.")


def advise_shorter(view: View, seconds: float, solved: bool) -> None:
    """Of a run that takes long: how long, and what is sooner done. `solved`: it began with a linear classifier."""
    if seconds >= LONG:
        probe = "--tune probe would stop at the linear classifier, and " if solved else ""
        view.line(f"  This takes about {clock(seconds)}; {probe}fewer --epochs are sooner done.")


def kept(best: dict[str, Any], solved: bool) -> str:
    """`solved`: it began with a linear classifier on frozen features."""
    if "share" not in best and not best["epoch"]:
        return "the linear classifier on frozen features" if solved else "what it began with"
    share = best.get("share", 1.0)
    if not share:
        return "the linear classifier on frozen features: on the validation images tuning was no better"
    end = f"epoch {best['epoch']}" if best["epoch"] else "the last epoch"
    return end if share == 1 else f"{share:.0%} of the way from the linear classifier to {end}"


def surer(score: float, count: int, figure: str) -> str:
    """Where few images were validated on, and chose: a figure of more of them, which chose nothing."""
    return (
        f"(They are few. On the {count:,} training images, cross-validated, the linear classifier on frozen features "
        f"has {SHORT[figure]} {score:.1%}.)"
    )


def show_nameless(view: View, classes: Sequence[str]) -> None:
    """Where masks or boxes bring numbers alone: how to call them by names."""
    if all(re.fullmatch(r"class \d+", name) for name in classes):
        view.line("Its classes are numbers: put a classes.txt (a name a line, from 0 on) beside the data for names.")


def show_outcome(
    view: View, named: dict[str, str], figures: dict[str, Any], chosen: str, spent: str, folder: Path, remark: str = "",
    chose: bool = True,
) -> None:  # fmt: skip
    """The figures that `named` gives a name to, which weights were kept, and where all is. `chose`: did the images of
    these figures choose anything?"""
    view.line()
    for name, words in named.items():
        if name in figures:
            low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
            interval = f" (95 % interval {low:.1%} to {high:.1%})" if low is not None else ""
            view.line(f"{words}: {figures[name]:.1%}{interval}, on {int(figures['n']):,} validation images")
    if figures and chose:
        view.line(f"(Those images {CHOSE.removeprefix('which ')}, and measure on some with `vitrail evaluate`.)")
    if remark:
        view.line(remark)
    view.line(f"Kept: {chosen}, after {spent}.")
    view.line(f"Model:  {folder / 'model.safetensors'}")
    if (small := folder / "adapter.safetensors").exists():
        alone = "; its head alone has learned" if chosen.startswith("the linear classifier") else ""
        view.line(f"Adapter: {small} ({small.stat().st_size / 1e6:.2f} MB, the part to share beside its base{alone})")
    view.line(f"Report: {folder / 'report.html'}")
