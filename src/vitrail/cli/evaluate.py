"""`vitrail evaluate`: figures of a model on labelled images."""

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


def evaluate(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    model: str | None = None,
    split: str | None = None,
    knn: bool = False,
    probe: bool = False,
    flip: bool = False,
    crops: Literal[1, 5, 9] = 1,
    json: Path | None = None,
    report: Path | None = None,
    fit: Literal["crop", "pad", "stretch", "native"] | None = None,
    image_size: int | None = None,
    boxes: Path | None = None,
    architecture: str | None = None,
    batch_size: int = 64,
    device: str | None = None,
) -> int:
    """Measures a model on labelled images: test/, else val/, else all of them. Exit code 1 if some can't be read.

    Args:
        data: Class folders, a CSV or Parquet table, tar shards, a torchvision name, or hf:NAME; for a run of another
            task, the like of what it was trained on.
        model: A run folder, a checkpoint, an ONNX file, hf://org/name, or a catalog name; by default the model that
            ships inside.
        split: Which part to score.
        knn: Also k-NN accuracy on the model's features, learned from train/.
        probe: Also the accuracy of a linear probe on the model's features, learned from train/.
        flip: Average with the mirror image.
        crops: Average over 1, 5 or 9 windows of each image.
        json: Also write the figures, as fractions from 0 to 1.
        report: Also write a page with the per-class table, the confusion matrix and the mistakes.
        fit: How an image is brought to the model's size; as the model was trained by default.
        image_size: Side to which images are brought; the model's own by default.
        boxes: A table of face boxes, for a model that tells live faces from attacks: path,left,top,width,height.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        batch_size: Images per forward pass.
        device: cpu or cuda; the GPU where there is one.
    """
    import vitrail
    from vitrail.cli.pictures import needed, report_skipped, writing
    from vitrail.data.existence import check_exists
    from vitrail.data.kinds import ANY

    check_exists(data, ANY)
    from vitrail.console import Console
    from vitrail.predict import load  # brings torch

    view = Console()
    shows: dict[str, Any] = {}

    def progress(what: str, done: int, total: int) -> None:
        shows.setdefault(what, view.reading(f"computing {what}"))(done, total)

    with writing(json) as file:  # opened first: better known now than after an hour of images
        predictor = load(needed(model), architecture, image_size, device, fit)
        figures = vitrail.evaluate(
            predictor, data, split, knn, probe, flip, crops, report, batch_size, progress=progress, boxes=boxes
        )
        problems, notes = figures.pop("problems"), figures.pop("notes")
        if file is not None:
            jsonlib.dump(figures, file, indent=2)
    view.settle()
    print(f"{data}, {figures['split']}: {figures.get('n', 0):,} images")
    show(predictor.kind, figures)
    for note in notes:
        print(f"note: {note}")
    for name, path in (("Report", report), ("Figures", json)):
        if path is not None:
            print(f"{name}: {path}")
    bad = [reason if name in reason else f"{name}: {reason}" for name, reason in problems]
    return report_skipped(bad, figures.get("n", 0) + len(bad))


def show(task: Any, figures: dict[str, Any]) -> None:
    """The figures that the task lists, then those of single classes."""
    from vitrail.report.numbers import number

    def row(name: str, title: str) -> None:
        share, value = task.is_share(name), figures[name]
        low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
        interval = ""
        if low is not None and high is not None:
            ends = f"{100 * low:.1f} to {100 * high:.1f}" if share else f"{number(low)} to {number(high)}"
            interval = f"   {ends}"
        print(f"  {title:<28} {f'{100 * value:5.1f} %' if share else f'{number(value):>7}'}{interval}")

    for name, title in task.listed.items():
        if name in figures:
            row(name, title)
    for name in figures:
        kind, _, label = name.partition("/")
        if label and kind in task.kinds:
            row(name, f"{task.kinds[kind]} of {label}")
    if any(name.endswith("_low") for name in figures):
        print("  (ranges: 95 % intervals)")
    for note in task.after_evaluation(figures):
        print(f"  {note}")
