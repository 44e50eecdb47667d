"""Detection: what a detector minimises, and how it is measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.augment.boxes import BoxBatch
from vitrail.data.image_set import ImageSet, Unreadable
from vitrail.data.sources.boxes.outlines import to_runs
from vitrail.data.sources.boxes.samples import Boxed
from vitrail.errors import VitrailError
from vitrail.inference.size_batches import alike
from vitrail.models.dense.detector import frame_size, paste
from vitrail.models.preprocessing import Preprocessing
from vitrail.tasks.detect.metrics import Objects, Score, there


@dataclass(frozen=True)
class Detect:
    """As `Classify`: outputs of the net, one loss per image, and the figure by which one model is better."""

    classes: list[str]
    masks: bool = False

    figure: ClassVar[str] = "map"

    def module(self, model: nn.Module) -> nn.Module:
        """The module whose forward the loss is made of."""
        return model

    def outputs(self, net: nn.Module, batch: BoxBatch) -> dict[str, Tensor]:
        """The head's losses, by name. They are made inside, where regions are drawn and compared."""
        return net(batch.images, batch.targets)

    def loss(self, losses: dict[str, Tensor], batch: BoxBatch) -> Tensor:
        """One number per image, [B]: the sum of the head's losses. The heads average over a batch's regions, not over
        its images, so that all images of one have the same."""
        return torch.stack([each.float() for each in losses.values()]).sum().expand(len(batch))

    def score(
        self, model: nn.Module, pictures: ImageSet, numbers: Sequence[int], pre: Preprocessing,
        dtype: torch.dtype = torch.float32, batch: int = 4,
    ) -> Score:  # fmt: skip
        """The model over images as they are; `Score.figures` says how good it is. Those that can't be read are left
        out, and known to `pictures.bad`."""
        score = Score(self.classes, self.masks)
        for _, truth, found in self.answers(model, pictures, numbers, pre, dtype, batch):
            score.add(truth, found)
        return score

    def answers(
        self, model: nn.Module, pictures: ImageSet, numbers: Sequence[int], pre: Preprocessing,
        dtype: torch.dtype = torch.float32, batch: int = 4,
    ) -> Iterator[tuple[int, Objects, Objects]]:  # fmt: skip
        """(number, what is there, what was found) of each image that can be read, a few at a time."""
        numbers = [int(number) for number in numbers]
        for start in range(0, len(numbers), batch):
            read: list[tuple[int, Tensor]] = []
            for number in numbers[start : start + batch]:
                try:
                    read.append((number, pictures[number]))
                except Unreadable:
                    continue
            found = find(model, [image for _, image in read], pre, dtype)
            for (number, image), objects in zip(read, found, strict=True):
                sample = pictures.samples[number]
                assert isinstance(sample, Boxed)
                yield number, there(sample, (image.shape[1], image.shape[2]), self.masks), objects


@torch.inference_mode()
def find(
    model: nn.Module, images: Sequence[Tensor], pre: Preprocessing, dtype: torch.dtype = torch.float32
) -> list[Objects]:
    """What a detector finds on images, uint8 [C, h, w] each: in their own pixels, best first."""
    if not hasattr(getattr(model, "settings", None), "background"):  # as a Detector's have, or an ONNX file's of one
        raise VitrailError(f"A {type(model).__name__} finds no boxes: pass a Detector.")
    if not len(images):
        return []
    like = next(model.parameters(), None)
    device = torch.device("cpu") if like is None else like.device  # an ONNX file takes pixels from there
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (pre.mean, pre.std))
    inputs = [image.to(device).float().div_(255).sub_(mean).div_(std) for image in images]
    was_training = model.training
    model.eval()
    try:
        with torch.autocast(device.type, dtype, enabled=like is not None and dtype != torch.float32):
            found = model(inputs)
    finally:
        model.train(was_training)
    made = []
    for each, image in zip(found, images, strict=True):
        assert isinstance(each, dict)
        masks = None
        if "masks" in each:
            masks = [to_runs(mask.cpu().numpy()) for mask in paste(each, (image.shape[1], image.shape[2]))]
        boxes, classes, scores = (each[key].cpu().numpy() for key in ("boxes", "labels", "scores"))
        made.append(
            Objects(boxes.astype(np.float64), classes, scores.astype(np.float64), np.zeros(len(boxes), bool), masks)
        )
    return made


def find_alike(
    model: nn.Module, images: Sequence[Tensor], pre: Preprocessing, dtype: torch.dtype = torch.float32
) -> list[Objects]:
    """The same, of each image as by itself: those that fill one frame go together, so that none is padded to the size
    of another, which a transformer would see."""
    settings: Any = model.settings
    sizes = [frame_size((image.shape[1], image.shape[2]), *settings.image_size) for image in images]
    like = next(model.parameters(), None)
    found: dict[int, Objects] = {}
    for numbers in alike(sizes, "cpu" if like is None else like.device):
        found |= zip(numbers, find(model, [images[number] for number in numbers], pre, dtype), strict=True)
    return [found[number] for number in range(len(images))]
