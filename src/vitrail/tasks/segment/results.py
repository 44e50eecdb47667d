"""Images through a segmenter: the class of each of their pixels, at their own sizes, in bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitrail.data.image_set import as_pixels, default_workers, threaded
from vitrail.data.maps import fitted_part
from vitrail.data.preprocess import fit_image
from vitrail.inference.size_batches import LARGEST, alike
from vitrail.models.preprocessing import Preprocessing
from vitrail.models.windows import window_labels
from vitrail.report.drawing import png
from vitrail.tasks.segment.drawing import mask_image, overlay, save_segmentation, shares

ENLARGED = 2**24  # logits at the image's size that are held at once: 64 MB
WINDOW = 1024  # the side of windows, by which images larger than `LARGEST` go through a model as they are


@dataclass(frozen=True, eq=False)
class Segmentation:
    """What a segmenter says of one image. A notebook draws it."""

    image: Image.Image  # upright
    mask: np.ndarray  # uint8 [h, w]: the class of every pixel
    labels: Sequence[str]
    colours: np.ndarray  # uint8 [256, 3]

    @property
    def shares(self) -> list[dict[str, Any]]:
        """label, index, pixels and share of each class that is there, the largest first."""
        return shares(self.mask, self.labels)

    def mask_image(self) -> Image.Image:
        """An indexed image: its values are the classes, and a palette makes them seen."""
        return mask_image(self.mask, self.colours)

    def overlay(self) -> Image.Image:
        """The image under the colours of its classes, with a legend."""
        return overlay(self.image, self.mask, self.labels, self.colours)

    def save(self, folder: str | Path, stem: str = "picture", name: str = "") -> list[Path]:
        """STEM_mask.png, STEM_overlay.png and STEM.json, which calls the image by its `name`; gives their paths."""
        return save_segmentation(Path(folder), stem, self.image, self.mask, self.labels, self.colours, name)

    def _repr_png_(self) -> bytes:
        return png(self.overlay())


@torch.inference_mode()
def pixel_classes(
    model: nn.Module,
    images: Sequence[Image.Image],
    pre: Preprocessing,
    device: torch.device | str = "cpu",
    window: int | None = None,
    overlap: float = 0.25,
) -> list[np.ndarray]:
    """uint8 [h, w] for each upright image: the likeliest class of every pixel.

    An image is brought to the model's size and the answer back to its own; with a `window`, it is looked at in its own
    size, through overlapping windows of that side. Those that come to one size go through the model together.
    """
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (pre.mean, pre.std))

    def prepare(pixels: Tensor) -> Tensor:
        return pixels.to(device).float().div_(255).sub_(mean).div_(std)

    def fitted(image: Image.Image) -> Tensor:
        pixels = as_pixels(fit_image(image, pre if window is None else replace(pre, fit="native")))
        return torch.from_numpy(pixels).permute(2, 0, 1)

    inputs = [*threaded(min(default_workers(), len(images) - 1), fitted, images)]  # a single one without a thread
    classes: dict[int, np.ndarray] = {}
    for numbers in alike([(each.shape[1], each.shape[2]) for each in inputs], device):
        pixels = torch.stack([inputs[number] for number in numbers])
        side = WINDOW if window is None and pre.fit == "native" and pixels[0, 0].numel() > LARGEST else window
        if side is not None:
            classes |= zip(numbers, window_labels(model, pixels, side, overlap, prepare).numpy(), strict=True)
            continue
        for number, logits in zip(numbers, model(prepare(pixels)).float(), strict=True):
            size = (images[number].height, images[number].width)
            classes[number] = enlarged_classes(fitted_part(logits, size, pre), size)
    return [classes[number] for number in range(len(images))]


def enlarged_classes(logits: Tensor, size: tuple[int, int]) -> np.ndarray:
    """The likeliest class of every pixel, uint8 `size`, from logits [C, h, w] enlarged bilinearly: as many rows at a
    time as `ENLARGED` allows, for those of all classes at the size of a photograph are gigabytes."""
    height, width = size
    if logits.shape[1:] == size:
        return logits.argmax(dim=0).to(torch.uint8).cpu().numpy()
    have, step = logits.shape[1], max(1, ENLARGED // (len(logits) * width))
    classes = np.empty(size, np.uint8)
    for top in range(0, height, step):
        rows = torch.arange(top, min(top + step, height), device=logits.device, dtype=torch.float32)
        place = ((rows + 0.5) * (have / height) - 0.5).clamp(0, have - 1)
        above = place.floor().long()
        below, weight = (above + 1).clamp(max=have - 1), (place - above)[:, None]
        band = logits[:, above] * (1 - weight) + logits[:, below] * weight  # C rows w
        band = F.interpolate(band[None], (len(rows), width), mode="bilinear", align_corners=False)[0]
        classes[top : top + len(rows)] = band.argmax(dim=0).to(torch.uint8).cpu().numpy()
    return classes
