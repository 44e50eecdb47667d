"""`vitrail predict`: classes, masks or boxes for images and folders of images."""

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
    """Classifies images or, with a run that was trained to, finds the class of every pixel, boxes around objects, or
    numbers.

    Images that can't be used are named and skipped, and the exit code is then 1.

    Args:
        images: Images, or folders of images.
        model: A run folder, a checkpoint, an ONNX file, hf://org/name, or a catalog name; by default the model that
            ships inside.
        top: How many classes to show for each image; 5, or in a model of several labels those above their threshold.
        csv: Also write path,label,index,probability, one row per image; several labels as a|b; of numbers path and
            their columns.
        json: Also write all the classes shown, as JSON; of boxes, COCO's.
        out: Of a run that segments or detects, the folder for its images and files: masks, overlays and JSON, or
            drawn boxes and COCO's JSON.
        window: Of a run that segments: look at images in their own size, through overlapping windows of this side.
        threshold: Of a run that detects: the probability from which on; by default the one that suited validation.
        flip: Also show the model the mirror image, and take the mean of the probabilities.
        crops: Views of each image to take the mean of: the centre, or 5 with the corners, or 9 with the edges too.
        fit: How an image is brought to the model's size; as the model was trained by default.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        image_size: Side to which images are brought; the model's own by default.
        batch_size: Images per forward pass.
        device: cpu or cuda; the GPU where there is one.
    """
    from vitrail.cli.pictures import collect, needed, progress, report_skipped, to_the_end, writing
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
    # Opened first: that a table can't be written is better known now than after an hour of images.
    with (
        to_the_end(any((csv, json, out))),
        writing(csv, rows=good) as csv_file,
        writing(json, rows=good) as json_file,
    ):
        predictor = load(needed(model), architecture, image_size, device, fit)
        given: dict[str, Any] = {"top": top, "csv": csv, "flip": flip or None, "crops": None if crops == 1 else crops}
        _refuse_foreign(predictor, given | {"out": out, "window": window, "threshold": threshold})
        options = {
            "top": top, "csv": csv_file, "json": json_file, "out": out, "window": window, "threshold": threshold,
            "flip": flip, "crops": crops, "batch_size": batch_size,
        }  # fmt: skip
        writer = predictor.kind.writer(predictor, options)
        try:
            with progress(len(paths), batch_size) as advance:

                def failed(error: Exception) -> None:
                    bad.append(str(error))
                    advance()

                for path, answer in writer.each(paths, failed):
                    writer.write(path, answer)
                    good.append(path)
                    advance()
        finally:  # also of whoever interrupts
            writer.close()
        if out is not None and good:
            print(f"Images and files of {len(good):,} in {out}")
        return report_skipped(bad, len(paths), csv or json)


def _refuse_foreign(predictor: Any, given: dict[str, Any]) -> None:
    """Options that say nothing of the answers of this model."""
    from vitrail.errors import VitrailError

    known = predictor.kind.predict_options
    files = [f"--{name}" for name in ("csv", "out") if name in known]
    for name, value in given.items():
        if value is not None and name not in known:
            raise VitrailError(
                f"--{name} does not apply to a run that was trained to {predictor.task}; files come with "
                f"{' and '.join([*files, '--json'])}.",
                code="option_of_another_task", option=name, task=predictor.task,
            )  # fmt: skip
