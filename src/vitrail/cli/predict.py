"""`vitrail predict`: classes, masks or boxes for pictures and folders of pictures."""

import csv as csv_format
import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


def predict(
    images: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES ...", help_behavior_hint="")],
    model: str | None = None,
    top: int | None = None,
    csv: Path | None = None,
    json: Path | None = None,
    out: Path | None = None,
    window: int | None = None,
    threshold: float | None = None,
    flip: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    crops: Literal[1, 5, 9] = 1,
    fit: Literal["crop", "pad", "stretch", "native"] | None = None,
    architecture: str | None = None,
    image_size: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> int:
    """Classifies pictures or, with a run that was trained to, finds the class of every pixel, or boxes around objects.

    Pictures that can't be used are named and skipped, and the exit code is then 1.

    Args:
        images: Pictures, or folders of pictures.
        model: A run folder, a checkpoint, an ONNX file, hf://org/name, or a catalog name; by default the model that
            ships inside.
        top: How many classes to show for each picture; 5, or in a model of several labels those above their threshold.
        csv: Also write path,label,index,probability, one row per picture; several labels as a|b.
        json: Also write all the classes shown, as JSON; of boxes, COCO's.
        out: Of a run that segments or detects, the folder for its pictures and files: masks, overlays and JSON, or
            drawn boxes and COCO's JSON.
        window: Of a run that segments: look at pictures in their own size, through overlapping windows of this side.
        threshold: Of a run that detects: the probability from which on; by default the one that suited validation.
        flip: Also show the model the mirror image, and take the mean of the probabilities.
        crops: Views of each picture to take the mean of: the centre, or 5 with the corners, or 9 with the edges too.
        fit: How a picture is brought to the model's size; as the model was trained by default.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        image_size: Side to which pictures are brought; the model's own by default.
        batch_size: Pictures per forward pass.
        device: cpu or cuda; the GPU where there is one.
    """
    from vitrail.cli.pictures import collect, needed, progress, report_skipped, to_the_end, writing
    from vitrail.cli.predict_dense import predict_dense
    from vitrail.errors import VitrailError

    for option, value in (("--top", top), ("--window", window), ("--batch-size", batch_size)):
        if value is not None and value < 1:
            raise VitrailError(f"{option} must be at least 1, got {value}.")
    if threshold is not None and not 0 <= threshold <= 1:
        raise VitrailError(f"--threshold is a probability, from 0 to 1, got {threshold:g}.")
    paths = collect(images)
    from vitrail.predict import load  # brings torch

    good: list[Path] = []
    bad: list[str] = []
    as_json: list[dict[str, Any]] = []
    # Opened first: that a table can't be written is better known now than after an hour of pictures.
    with (
        to_the_end(any((csv, json, out))),
        writing(csv, rows=good) as csv_file,
        writing(json, rows=good) as json_file,
    ):
        predictor = load(needed(model), architecture, image_size, device, fit)
        given: dict[str, Any] = {"top": top, "csv": csv, "flip": flip or None, "crops": None if crops == 1 else crops}
        given |= {"out": out, "window": window, "threshold": threshold}
        _refuse_foreign(predictor.task, given)
        if predictor.task != "classify":
            predict_dense(predictor, paths, out, json_file, window, threshold, batch_size, good, bad)
            return report_skipped(bad, len(paths), json)
        rows = csv_format.writer(csv_file) if csv_file else None
        if rows:
            rows.writerow(["path", "label", "index", "probability"])
        try:
            with progress(len(paths), batch_size) as advance:
                for path, one in zip(
                    paths, predictor.stream(paths, batch_size=batch_size, flip=flip, crops=crops), strict=True
                ):
                    advance()
                    if one.values is None:
                        bad.append(str(one.error))
                        continue
                    shown = predictor.ranked(one.values, top)
                    show(path, shown)
                    if rows:
                        best = predictor.ranked(one.values, None if predictor.multi_label else 1)
                        rows.writerow([path, *as_cells(best)])
                    if json_file:
                        as_json.append({"path": str(path), "predictions": [asdict(p) for p in shown]})
                    good.append(path)
        finally:  # also of whoever interrupts
            if json_file:
                json_format.dump(as_json, json_file, indent=2, ensure_ascii=False)
        return report_skipped(bad, len(paths), csv or json)


# What only makes sense for some runs.
FOREIGN = {
    "classify": ("out", "window", "threshold"),
    "segment": ("top", "csv", "flip", "crops", "threshold"),
    "detect": ("top", "csv", "flip", "crops", "window"),
}


def _refuse_foreign(task: str, given: dict[str, Any]) -> None:
    from vitrail.errors import VitrailError

    instead = "--csv and --json" if task == "classify" else "--out and --json"
    for name in FOREIGN[task]:
        if given[name] is not None:
            raise VitrailError(f"--{name} is of no use to a run that was made to {task}; files come with {instead}.")


def show(path: Path, predictions: list) -> None:
    print(path)
    for p in predictions:
        print(f"  {p.probability:6.1%}  {'█' * round(20 * p.probability):<20}  {p.label}")
    if not predictions:
        print("  no class reaches its threshold")


def as_cells(predictions: list) -> list[str]:
    """label, index, probability; several of each with a bar between, as in a table to train from."""
    return [
        "|".join(p.label for p in predictions),
        "|".join(str(p.index) for p in predictions),
        "|".join(f"{p.probability:.6f}" for p in predictions),
    ]
