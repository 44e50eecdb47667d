"""`vitrail predict` with a run that segments or detects: pictures to look at and files for programs."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.predict import Predictor

Answered = tuple[Path, Path | None, Any]  # a picture, where its files begin, and what the model says of it
LISTED = 12  # boxes of a picture that are printed; the files have all


def predict_dense(
    predictor: "Predictor",
    paths: list[Path],
    out: Path | None,
    json_file: IO[str] | None,
    window: int | None,
    threshold: float | None,
    batch_size: int,
    good: list[Path],
    bad: list[str],
) -> None:
    """Goes through the pictures, to be found among the good or, with a sentence each, among the bad."""
    from vitrail.errors import VitrailError

    if out is not None and out.exists() and not out.is_dir():
        raise VitrailError(f"--out names a folder, and {out} is a file.")
    if predictor.task == "segment":
        masks = partial(predictor.segmentations, window=window, batch_size=batch_size)
        _segment(predictor.labels, _answered(paths, out, masks, batch_size, good, bad), json_file)
    else:
        boxes = partial(predictor.detections, threshold=threshold, batch_size=batch_size)
        _detect(predictor, _answered(paths, out, boxes, batch_size, good, bad), out, json_file)
    if out is not None and good:
        print(f"Pictures and files of {len(good):,} in {out}")


def _segment(labels: list[str], answers: Iterator[Answered], file: IO[str] | None) -> None:
    from vitrail.tasks.segment.drawing import summary

    rows = []
    try:
        for path, place, found in answers:
            print(f"{path}  {found.image.width}×{found.image.height}")
            for one in found.shares:
                print(f"  {one['share']:6.1%}  {'█' * round(20 * one['share']):<20}  {one['label']}")
            if place is not None:
                found.save(place.parent, place.name, str(path))
            if file:
                rows.append(summary(found.mask, labels, str(path)))
    finally:  # also of whoever interrupts
        if file:
            json.dump(rows, file, indent=2, ensure_ascii=False)


def _detect(predictor: "Predictor", every: Iterator[Answered], out: Path | None, file: IO[str] | None) -> None:
    from vitrail.tasks.detect.drawing import Answer, coco_results, write_coco

    answers, ids = [], predictor.about.get("category_ids")
    try:
        for path, place, found in every:
            print(f"{path}  {found.image.width}×{found.image.height}")
            for one in found[:LISTED]:
                box = ", ".join(f"{side:.0f}" for side in one.box)
                print(f"  {one.probability:6.1%}  {one.label}  [{box}]")
            if len(found) > LISTED:
                print(f"  and {len(found) - LISTED} more")
            elif not len(found):
                print("  nothing found")
            if place is not None:
                found.save(place.with_name(f"{place.name}_boxes.png"))
            answers.append(Answer(str(path), (found.image.height, found.image.width), found.found))
    finally:  # also of whoever interrupts
        if file:
            json.dump(coco_results(answers, predictor.labels, ids), file, ensure_ascii=False)
    if out is not None and answers:
        write_coco(out / "predictions.json", answers, predictor.labels, ids)


def _answered(
    paths: list[Path],
    out: Path | None,
    said: Callable[[Iterator[Any]], Iterator[Any]],
    batch_size: int,
    good: list[Path],
    bad: list[str],
) -> Iterator[Answered]:
    """Of the pictures that can be read, in order; they are decoded in threads a few ahead."""
    from vitrail.cli.pictures import progress
    from vitrail.data import to_image
    from vitrail.data.image_set import default_workers, threaded
    from vitrail.errors import VitrailError

    def read(path: Path) -> Any:
        try:
            return to_image(path)
        except VitrailError as error:
            return error

    def readable() -> Iterator[tuple[Path, Path | None, Any]]:
        images = threaded(min(4, default_workers()), read, paths, ahead=2)
        for path, place, image in zip(paths, places, images, strict=True):
            if isinstance(image, VitrailError):
                bad.append(str(image))
                advance()
            else:
                yield path, place, image

    places = [None] * len(paths) if out is None else places_in(out, paths)
    with progress(len(paths), batch_size) as advance:
        shown, kept = tee(readable())
        for found, (path, place, _) in zip(said(image for _, _, image in shown), kept, strict=True):
            yield path, place, found
            good.append(path)
            advance()


def places_in(out: Path, paths: list[Path]) -> list[Path]:
    """For each picture a path in `out` without a suffix, in the folders that it lies in below what all share; with a
    number where another has the name already."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    root = os.path.commonpath([path.parent for path in whole])
    places: list[Path] = []
    taken: set[str] = set()
    for path in whole:
        plain = out / path.relative_to(root).with_suffix("")
        place, number = plain, 2
        while str(place).lower() in taken:
            place, number = plain.with_name(f"{plain.name}_{number}"), number + 1
        taken.add(str(place).lower())
        places.append(place)
    return places
