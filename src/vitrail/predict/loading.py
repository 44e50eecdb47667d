"""`load`: from a run folder, a file or a name to the `Predictor` that every user-facing verb works with."""

import warnings
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitrail.data import fit_image
from vitrail.errors import VitrailError
from vitrail.inference.image_model import far_note
from vitrail.models import Preprocessing
from vitrail.models.checks import pair
from vitrail.predict.predictor import Predictor
from vitrail.tasks import registry
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.onnx import OnnxModel
from vitrail.weights.published import published
from vitrail.weights.shipped import default_model, shipped


def load(
    source: str | PathLike[str] | None = None,
    architecture: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    device: str | torch.device | None = None,
    fit: str | None = None,
    base: str | PathLike[str] | None = None,
) -> Predictor:
    """A predictor from a run folder, a bundle, a checkpoint of any dialect, an ONNX file that `vitrail export` wrote,
    `hf://org/name`, or a catalog name; without any, the model that ships inside.

    `architecture` names the one of a bare checkpoint that could be of several. `image_size` changes the size that
    images are brought to (the model takes any), and `fit` how: crop, pad, stretch or native. `base` is what an
    adapter.safetensors stands on, where that is not found by itself.
    """
    source = default_model() if source is None else fspath(source)
    if not source.startswith("hf://") and not Path(source).expanduser().exists():
        source = str(shipped(source) or published(source))
    if source.endswith(".onnx") and not Path(source).expanduser().is_dir():
        return _load_onnx(source, image_size, device, fit)
    checkpoint = read_checkpoint(source, architecture, base)
    net, pre = model_from(checkpoint), checkpoint.preprocessing
    if registry.task_of(checkpoint.about, checkpoint.settings).sizes_itself:
        pre = _looking(net, pre, image_size, fit)
    else:
        pre = _changed(pre, image_size, fit)
        _check_side(pre, getattr(checkpoint.settings, "patch_size", (1, 1)))
    predictor = Predictor(net, pre, checkpoint.labels, checkpoint.name, device, checkpoint.about, source)
    own = checkpoint.preprocessing
    if own.fit == "native":
        return predictor
    if pre.fit == "native":
        predictor.trained_on = own.size  # how far the images are from it, is seen when they come
    elif note := far_note(checkpoint.name or source, own.size, pre.size):
        warnings.warn(note, stacklevel=2)
    return predictor


def _looking(net: Any, pre: Preprocessing, image_size: int | tuple[int, int] | None, fit: str | None) -> Preprocessing:
    """A detector takes images whole and sizes them itself, by their short side."""
    if fit not in (None, "native") or not isinstance(image_size, int | None):
        raise VitrailError("A detector looks at whole pictures: give the short side as image_size, and no fit.")
    if image_size is not None:
        net.look_at(image_size)
    return replace(pre, size=net.settings.image_size)


def _load_onnx(
    path: str, image_size: int | tuple[int, int] | None, device: str | torch.device | None, fit: str | None
) -> Predictor:
    try:
        model = OnnxModel(path, device)
    except RuntimeError as error:  # a device that torch does not know
        raise VitrailError(f"The device {device!r} can't be used: {str(error).splitlines()[0]}") from None
    if registry.task_of(model.about, model.settings).sizes_itself:
        pre = _looking(model, model.preprocessing, image_size, fit)
    else:
        pre = _changed(model.preprocessing, image_size, fit)
    if model.fixed_size not in (None, pre.size) or (model.fixed_size and pre.fit == "native"):
        size = "×".join(map(str, model.fixed_size or ()))
        raise VitrailError(f"{path} takes images of {size} only; export the run again with --image-size.")
    place = "cuda" if model.provider == "CUDAExecutionProvider" and torch.cuda.is_available() else "cpu"
    return Predictor(model, pre, model.labels, model.name, place, model.about, path)


def _check_side(pre: Preprocessing, patch: tuple[int, int]) -> None:
    """Better refused now than once for every image."""
    if pre.size[0] < patch[0] or pre.size[1] < patch[1]:
        size, least = ("×".join(map(str, side)) for side in (pre.size, patch))
        raise VitrailError(f"image_size {size} is smaller than one patch of {least}.")


def _changed(pre: Preprocessing, image_size: int | tuple[int, int] | None, fit: str | None) -> Preprocessing:
    if image_size is not None:
        pre = replace(pre, size=pair(image_size, "image_size"))
    if fit is not None:
        pre = replace(pre, fit=fit)
        fit_image(Image.new("RGB", (8, 8)), pre)  # better refused now than with the first image
    return pre
