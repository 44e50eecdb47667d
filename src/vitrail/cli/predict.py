"""`vitrail predict`: classes for pictures and folders of pictures."""

import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO, cast

import tyro

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif", ".jfif"}


def predict(
    images: Annotated[list[Path], tyro.conf.Positional],
    model: str,
    top: int = 5,
    csv: Path | None = None,
    json: Path | None = None,
    architecture: str | None = None,
    image_size: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> int:
    """Classifies pictures.

    Args:
        images: Pictures, or folders of pictures.
        model: A checkpoint, a folder, hf://org/name, or a catalog name.
        top: How many classes to show for each picture.
        csv: Also write path,label,index,probability, one row per picture.
        json: Also write all the classes shown, as JSON.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        image_size: Side to which pictures are brought; the model's own by default.
        batch_size: Pictures per forward pass.
        device: cpu or cuda; the GPU where there is one.
    """
    from vitrail.errors import VitrailError
    from vitrail.predict import Prediction, load

    if not images:
        raise VitrailError("No pictures were given: name some, or a folder of them.")
    for option, value in (("--top", top), ("--batch-size", batch_size)):
        if value < 1:
            raise VitrailError(f"{option} must be at least 1, got {value}.")
    for table in (csv, json):
        if table:
            open_for_writing(table, "a").close()  # better known now than after an hour of pictures
    paths = collect(images)
    predictor = load(model, architecture, image_size, device)
    results: list[tuple[Path, list[Prediction]]] = []
    bad: list[str] = []
    for start in range(0, len(paths), batch_size):
        batch = paths[start : start + batch_size]
        try:
            found = list(zip(batch, predictor.predict(batch, top, batch_size), strict=True))
        except VitrailError:  # one of them is bad: find out which
            found = []
            for path in batch:
                try:
                    found.append((path, predictor.predict(path, top)[0]))
                except VitrailError as error:
                    bad.append(str(error) if path.name in str(error) else f"{path}: {error}")
        for path, predictions in found:
            show(path, predictions)
        results += found
    if csv:
        write_csv(csv, results)
    if json:
        write_json(json, results)
    for line in bad:
        print(f"vitrail: skipped: {line}", file=sys.stderr)
    return 1 if bad else 0


def collect(given: list[Path]) -> list[Path]:
    """Files as they are given, folders as the pictures inside them."""
    from vitrail.errors import VitrailError

    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not inside:
                raise VitrailError(f"The folder {path} holds no pictures ({', '.join(sorted(SUFFIXES))}).")
            paths += inside
        elif path.exists():
            paths.append(path)
        else:
            raise VitrailError(f"There is no picture or folder {path}.")
    return paths


def show(path: Path, predictions: list) -> None:
    print(path)
    for p in predictions:
        print(f"  {p.probability:6.1%}  {'█' * round(20 * p.probability):<20}  {p.label}")


def write_csv(path: Path, results: list[tuple[Path, list]]) -> None:
    with open_for_writing(path) as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "index", "probability"])
        for picture, (best, *_) in results:
            writer.writerow([picture, best.label, best.index, f"{best.probability:.6f}"])


def write_json(path: Path, results: list[tuple[Path, list]]) -> None:
    content = [{"path": str(picture), "predictions": [asdict(p) for p in found]} for picture, found in results]
    with open_for_writing(path) as file:
        json.dump(content, file, indent=2, ensure_ascii=False)


def open_for_writing(path: Path, mode: str = "w") -> TextIO:
    from vitrail.errors import VitrailError

    try:
        return cast(TextIO, path.open(mode, newline="", encoding="utf-8"))
    except OSError as error:
        raise VitrailError(f"{path} can't be written: {error.strerror}.") from None
