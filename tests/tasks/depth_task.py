"""A task from outside of Vitrail: the depth of every pixel, from images with a map of distances beside them.

DATA/images/NAME.png    DATA/depths/NAME.npy, .tif: metres, NaN (or 0, in whole numbers) where nothing was measured
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.augment.options import AugmentOptions
from vitrail.data.maps import MapKind
from vitrail.data.samples import Sample, Source
from vitrail.errors import VitrailError
from vitrail.options import Config
from vitrail.tasks.base import Objective
from vitrail.tasks.bootstrap import percentiles, resampled
from vitrail.tasks.dense.options import DenseOptions
from vitrail.tasks.dense.task import MapTask


def read_depth(sample: Sample) -> np.ndarray:
    """float32 [h, w] in metres; a whole number counts millimetres."""
    assert isinstance(sample.where, Path)
    stem = sample.where.parent.parent / "depths" / sample.where.stem
    file = next((each for each in (stem.with_suffix(".npy"), stem.with_suffix(".tif")) if each.exists()), None)
    if file is None:
        raise VitrailError(f"{sample.name} has no map {stem}.npy or .tif.", code="no_map")
    values = np.load(file) if file.suffix == ".npy" else np.asarray(Image.open(file))
    if values.dtype.kind in "iu":
        values = np.where(values == 0, np.nan, values / 1000)
    return values.astype(np.float32)


class Depth(Objective):
    """The mean absolute error of the pixels that were measured."""

    width = 2  # of a row: the sum of the errors of an image, and of how many pixels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        total, count = self.rows(outputs, targets).unbind(1)
        return (total / count.clamp(min=1)).float()

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known = targets.isfinite()
        predicted = outputs.float()[:, 0] if outputs.ndim == 4 else outputs
        error = (predicted - targets.nan_to_num()).abs() * known
        return torch.stack([error.flatten(1).sum(1), known.flatten(1).sum(1)], dim=1).double()

    def figures(self, rows: Tensor, seed: int = 0, rounds: int = 1000) -> dict[str, float]:
        table = rows.numpy()

        def mae(drawn: Any = slice(None)) -> float:
            total, count = table[drawn].sum(axis=0)
            return float(total / max(count, 1))

        low, high = percentiles(resampled(mae, len(table), seed, rounds))
        return {"mae": mae(), "mae_low": low, "mae_high": high, "score": -mae(), "n": len(table)}


class DepthTask(MapTask):
    name = "depth"
    figure = "score"  # the error below zero: higher is better
    titles = listed = {"mae": "mean absolute error"}
    options = (DenseOptions, AugmentOptions)
    expects = "a folder with images/ and depths/"
    map_kind = MapKind("depths", read_depth, np.float32, fill=float("nan"))

    def open(self, data: str, config: Config, console: Any = None) -> Source:
        files = sorted(Path(data).glob("images/*.png"))
        return Source(data, ["depth"], {"all": [Sample(file.name, file, ()) for file in files]})

    def scorer(self, labels: list[str]) -> Depth:
        return Depth()

    def targets_of(self, source: Source) -> str:
        return "a map of depth per image"

    def is_share(self, figure: str) -> bool:
        return False
