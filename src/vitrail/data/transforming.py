"""One image at a time to the tensor that a model takes, as a callable for other people's datasets and loaders."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.images import Augmenter, Policy
from vitrail.data.decode import to_image
from vitrail.data.preprocess import prepare
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing, resolve
from vitrail.models.registry import model_settings
from vitrail.weights import read_checkpoint
from vitrail.weights.files import FILES
from vitrail.weights.shipped import shipped


class Transform:
    """An image, as a path, bytes, a PIL image, an array or a tensor, to a normalised tensor [C, H, W]."""

    def __init__(self, preprocessing: Preprocessing, train: bool = False, seed: int | None = None):
        self.preprocessing, self.train, self.seed = preprocessing, train, seed
        self.count = 0  # of the images so far, with a seed
        pre = preprocessing
        self._augmenter = Augmenter(Policy.named("light"), pre.size, pre.mean, pre.std, seed or 0) if train else None

    def __call__(self, image: Any) -> Tensor:
        if self._augmenter is None:
            return prepare([image], self.preprocessing)[0]
        mode = "L" if len(self.preprocessing.mean) == 1 else "RGB"
        pixels = np.array(to_image(image).convert(mode))
        channels_first = torch.from_numpy(pixels).view(*pixels.shape[:2], -1).permute(2, 0, 1)  # C h w
        return self._augmenter([channels_first], np.array([self._number()]), 0, "cpu")[0]

    def _number(self) -> int:
        """Which draw this is: with a seed one after the other, else from PyTorch's generator, which differs between the
        workers of a loader."""
        if self.seed is None:
            return int(torch.randint(2**62, ()))
        self.count += 1
        return self.count - 1

    def __repr__(self) -> str:
        what = "light augmentation" if self.train else "as at evaluation"
        return f"Transform({self.preprocessing}, {what})"


def transforms(model_or_run: Any, train: bool = False, seed: int | None = None) -> Transform:
    """What a model expects to be done to an image: a callable from one image to a tensor [C, H, W].

    >>> transform = vitrail.transforms(model)
    >>> model(transform("cat.jpg")[None])

    `model_or_run` is a model, a `Predictor`, a run or its folder, a checkpoint, `hf://org/name`, or a name of the
    catalog. Without `train` it is what `predict` and `evaluate` do. With `train`, random crops and mirror images, the
    policy "light" of training; two transforms of one `seed` give the same images, and without a seed
    `torch.manual_seed` decides.
    """
    return Transform(_preprocessing(model_or_run), train, seed)


def _preprocessing(source: Any) -> Preprocessing:
    if isinstance(source, Preprocessing):
        return source
    if isinstance(found := getattr(source, "preprocessing", None), Preprocessing):
        return found
    if not isinstance(source, str | os.PathLike):
        raise VitrailError(
            f"A {type(source).__name__} does not say how its images are prepared: pass a model of vitrail, a Predictor,"
            " a run, or the name of one."
        )
    name = os.fspath(source)
    there = name.startswith("hf://") or name.endswith(FILES) or shipped(name) or Path(name).expanduser().exists()
    if there or isinstance(source, os.PathLike):
        return read_checkpoint(name).preprocessing
    return resolve(name)[0].preprocessing.suited(model_settings(name))
