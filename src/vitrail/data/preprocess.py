"""From an image to the tensor that a model was trained on: `prepare` = `to_image`, `fit_image`, `to_tensor`, stack.

A model's accuracy is that of its exact preprocessing: with bilinear for bicubic, or a crop one pixel off, a published
number is not reached. So `crop` repeats timm's arithmetic to the bit, in Pillow alone.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.decode import PIXEL_LIMIT, to_image
from vitrail.errors import VitrailError, nearest
from vitrail.models.preprocessing import Preprocessing

_INTERPOLATIONS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
}


def fit_image(image: Image.Image, pre: Preprocessing) -> Image.Image:
    """The image in the model's size and colours (RGB, or grey for a model with one mean), as `pre.fit` says:

    crop     cover the size and keep the centre: what nearly every classifier was evaluated with; loses the borders
    pad      the whole image inside the size, the rest in the mean colour, which normalisation takes to zero
    stretch  the whole image over the whole size, aspect lost
    native   the image as it is
    """
    if not image.width or not image.height:
        raise VitrailError(f"An image of {_size(image)} (height×width) has no pixels: pass one of at least 1×1.")
    image = _in_model_colours(image, pre)
    if pre.fit == "native":
        return image
    fits = {"crop": _crop, "pad": pad_image, "stretch": lambda image, pre: resize_image(image, pre.size, pre)}
    if pre.fit not in fits:
        hint = nearest(pre.fit, [*fits, "native"])
        raise VitrailError(f'"{pre.fit}" is not a way to fit an image: use crop, pad, stretch or native.{hint}')
    return fits[pre.fit](image, pre)


def to_tensor(image: Image.Image, pre: Preprocessing) -> Tensor:
    """[C, H, W] float32, (pixel/255 − mean) / std; the size is left alone, so that augmentation may come before."""
    pixels = np.array(_in_model_colours(image, pre))  # a copy: Pillow's own memory is read-only
    return normalized(torch.from_numpy(pixels).view(image.height, image.width, -1).permute(2, 0, 1).contiguous(), pre)


def normalized(pixels: Tensor, pre: Preprocessing, device: torch.device | str = "cpu") -> Tensor:
    """uint8 [..., C, H, W] -> float32 on the device, (pixel/255 − mean) / std: the one place that does it outside of
    augmentation."""
    mean, std = _constants(pre.mean, pre.std, str(device))
    return pixels.to(device).float().div_(255).sub_(mean).div_(std)


@lru_cache(maxsize=64)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: str) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        one, other = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (mean, std))
    return one, other


def prepare(values: Any, pre: Preprocessing) -> Tensor:
    """[B, C, H, W] from one image or several, each what `to_image` takes; an array or tensor may be a batch."""
    images = [fit_image(to_image(value), pre) for value in several(values)]
    if not images:
        raise VitrailError("No images were given: pass at least one.")
    for index, image in enumerate(images):
        if image.size != images[0].size:
            raise VitrailError(
                f"Image 0 is {_size(images[0])} and image {index} is {_size(image)} (height×width), and a batch "
                'needs one size: pass them one at a time, or use the fit "crop", "pad" or "stretch".'
            )
    return torch.stack([to_tensor(image, pre) for image in images])


def several(values: Any) -> Iterable[Any]:
    """One image as a list of one; many as they are."""
    if isinstance(values, np.ndarray | Tensor):
        return values if values.ndim == 4 else [values]
    one = isinstance(values, str | bytes | bytearray | memoryview | Path | Image.Image) or hasattr(values, "read")
    return [values] if one or not isinstance(values, Iterable) else values


def _size(image: Image.Image) -> str:
    return f"{image.height}×{image.width}"


def _in_model_colours(image: Image.Image, pre: Preprocessing) -> Image.Image:
    modes = {1: "L", 3: "RGB"}
    if len(pre.mean) not in modes or len(pre.std) != len(pre.mean):
        raise VitrailError(
            f"The preprocessing has {len(pre.mean)} means and {len(pre.std)} standard deviations: "
            "expected 3 of each (RGB), or 1 of each (grey)."
        )
    mode = modes[len(pre.mean)]
    return image if image.mode == mode else image.convert(mode)


def resize_image(image: Image.Image, size: tuple[int, int], pre: Preprocessing) -> Image.Image:
    if pre.interpolation not in _INTERPOLATIONS:
        hint = nearest(pre.interpolation, _INTERPOLATIONS)
        raise VitrailError(f'"{pre.interpolation}" is not an interpolation: use {", ".join(_INTERPOLATIONS)}.{hint}')
    height, width = size
    return image.resize((width, height), _INTERPOLATIONS[pre.interpolation])


def _crop(image: Image.Image, pre: Preprocessing) -> Image.Image:
    if not 0 < pre.crop <= 1:
        raise VitrailError(f"The crop is {pre.crop}: expected the kept fraction of the short side, above 0, at most 1.")
    height, width = image.height, image.width
    cover_height, cover_width = (math.floor(side / pre.crop) for side in pre.size)
    # Two roundings, for timm has two: torchvision's Resize truncates the long side, timm's own ResizeKeepRatio rounds.
    if cover_height == cover_width:
        short = min(height, width)
        resized = (int(cover_height * height / short), int(cover_height * width / short))
    else:
        ratio = min(height / cover_height, width / cover_width)
        resized = (round(height / ratio), round(width / ratio))
    if resized[0] * resized[1] > PIXEL_LIMIT:
        raise VitrailError(
            f"An image of {_size(image)} (height×width) would need {resized[0]}×{resized[1]} to cover "
            f'{pre.size[0]}×{pre.size[1]}: use the fit "pad" or "stretch" for one so long.'
        )
    image = resize_image(image, resized, pre)
    # torchvision's CenterCrop: round() takes a half to the even neighbour
    top, left = (round((have - want) / 2) for have, want in zip(resized, pre.size, strict=True))
    return image.crop((left, top, left + pre.size[1], top + pre.size[0]))


def pad_image(image: Image.Image, pre: Preprocessing, fill: float | None = None) -> Image.Image:
    """The whole image inside the size; around it the mean colour, or the fill value."""
    height, width = pre.size
    ratio = max(image.height / height, image.width / width)
    inside = (max(1, round(image.height / ratio)), max(1, round(image.width / ratio)))
    mean_colour = tuple(round(255 * mean) for mean in pre.mean)
    colour: Any = fill if fill is not None else mean_colour if len(mean_colour) > 1 else mean_colour[0]
    canvas = Image.new(image.mode, (width, height), colour)
    canvas.paste(resize_image(image, inside, pre), ((width - inside[1]) // 2, (height - inside[0]) // 2))
    return canvas
