"""What writers of answers inside the image share: images in their own sizes, and places for files."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data import to_image
from vitrail.data.image_set import default_workers, threaded
from vitrail.errors import VitrailError
from vitrail.report.numbers import number
from vitrail.whole import whole


class DenseWriter:
    """`answer_options` are those of the predictor's answers, such as a window."""

    def __init__(self, predictor: Any, options: Mapping[str, Any], **answer_options: Any):
        self.predictor, self.options, self.answer_options = predictor, options, answer_options
        self.out: Path | None = options["out"]
        self.json, self.count = options["json"], 0
        self.places: dict[Path, Path] = {}
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise VitrailError(f"--out names a folder, and {self.out} is a file.")

    def each(self, paths: Sequence[Path], failed: Callable[[VitrailError], None]) -> Iterator[tuple[Path, Any]]:
        """Images are decoded in threads, a few ahead."""
        if self.out is not None:
            self.places = dict(zip(paths, places_in(self.out, paths), strict=True))

        def read(path: Path) -> Any:
            try:
                return to_image(path)
            except VitrailError as error:
                return error

        def readable() -> Iterator[tuple[Path, Any]]:
            images = threaded(min(4, default_workers()), read, paths, ahead=2)
            for path, image in zip(paths, images, strict=True):
                if isinstance(image, VitrailError):
                    failed(image)
                else:
                    yield path, image

        shown, kept = tee(readable())
        images = (image for _, image in shown)
        answers = self.predictor.kind.answers(
            self.predictor, images, batch_size=self.options["batch_size"], **self.answer_options
        )
        for answer, (path, _) in zip(answers, kept, strict=True):
            self.count += 1
            yield path, answer


class MapWriter(DenseWriter):
    """Of maps of numbers: their range, and with --out the map of each image as STEM.npy."""

    def __init__(self, predictor: Any, options: Mapping[str, Any], **answer_options: Any):
        super().__init__(predictor, options, **answer_options)
        self.rows: list[dict[str, Any]] = []

    def write(self, path: Path, answer: np.ndarray) -> None:
        low, middle, high = np.quantile(answer, (0, 0.5, 1)).tolist()
        print(
            f"{path}  {answer.shape[-1]}×{answer.shape[-2]}  {number(low)} to {number(high)}, median {number(middle)}"
        )
        if path in self.places:
            with whole(self.places[path].with_suffix(".npy")) as part, open(part, "wb") as file:
                np.save(file, answer)
        self.rows.append({"path": str(path), "least": low, "median": middle, "greatest": high})

    def close(self) -> None:
        if self.json:
            json.dump(self.rows, self.json, indent=2, ensure_ascii=False)


def places_in(out: Path, paths: Sequence[Path]) -> list[Path]:
    """For each image a path in `out` without a suffix, in the folders that it lies in below what all share; with a
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
