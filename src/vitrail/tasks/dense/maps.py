"""Maps, one number per pixel or more, out of a model: over a split in training, and for images in their own sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitrail.data.image_set import as_pixels
from vitrail.data.maps import fitted_part
from vitrail.data.preprocess import fit_image
from vitrail.inference.forward import Forward
from vitrail.inference.size_batches import alike
from vitrail.tasks.context import Context


def rows_over(ctx: Context, model: nn.Module, rows: Callable[[Tensor, Tensor], Tensor], width: int) -> Tensor:
    """[n, width]: what `rows` makes of the outputs and the maps of the validation images, in the size that the model
    sees."""
    batch = 32 if ctx.device.type == "cuda" else 8
    forward = Forward(ctx.subsets["val"], ctx.preprocessing, ctx.processes, ctx.dtype, batch)
    return forward.run(model, lambda pixels, maps: [rows(ctx.objective.outputs(model, pixels), maps)], [width])[0]


@torch.inference_mode()
def answered_maps(predictor: Any, images: Sequence[Image.Image]) -> list[np.ndarray]:
    """float32 [C, h, w] for each upright image: the outputs of the model, enlarged to the image's own size."""
    pre, found = predictor.preprocessing, {}
    inputs = [torch.from_numpy(as_pixels(fit_image(image, pre))) for image in images]  # h w C
    for numbers in alike([(each.shape[0], each.shape[1]) for each in inputs], predictor.device):
        with predictor.precision():
            outputs = predictor.model(predictor.normalised(torch.stack([inputs[number] for number in numbers])))
        for number, output in zip(numbers, outputs.float(), strict=True):
            size = (images[number].height, images[number].width)
            own = fitted_part(output, size, pre)
            found[number] = F.interpolate(own[None], size, mode="bilinear", align_corners=False)[0].cpu().numpy()
    return [found[number] for number in range(len(images))]
