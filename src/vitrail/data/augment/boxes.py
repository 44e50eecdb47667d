"""Images with boxes on their way to a detector: flipped, scaled up and cut or scaled down, normalised.

What happens is a function of (seed, epoch, sample), as in `augment`; images keep their aspect and their own sizes,
and the detector pads them to a common one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment.crop import Canvas, image_sizes
from vitrail.data.augment.random_keys import uniforms
from vitrail.data.cache import DiskStore, MemoryStore, Store, cache_folder, choose
from vitrail.data.image_set import ImageSet
from vitrail.data.samples import Sample
from vitrail.data.sources.boxes.outlines import rasterise
from vitrail.data.sources.boxes.samples import Boxed
from vitrail.errors import VitrailError, nearest
from vitrail.models.dense.detector import viewing_size

# The columns of the table of uniform numbers.
_FLIP, _SCALE, _TOP, _LEFT = range(4)
VISIBLE = 0.25  # of a box's area: less of it after a cut, and it is no longer asked for
SMALLEST = 1.0  # pixels of a side
FORMAT = 1  # of what a disk cache holds


@dataclass(frozen=True)
class BoxPolicy:
    flip: float = 0.5  # probability
    scale: tuple[float, float] = (0.8, 1.25)  # of the size in which an image is looked at; beyond 1 it is cut

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1:
            raise VitrailError(f"flip is {self.flip}: expected a probability from 0 to 1.")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise VitrailError(f"scale is {self.scale}: expected a smaller and a larger number above 0.")

    @classmethod
    def named(cls, name: str) -> "BoxPolicy":
        """One of the four that `--augment` offers."""
        policies = {
            "none": cls(0.0, (1.0, 1.0)),
            "light": cls(),
            "medium": cls(0.5, (0.6, 1.6)),
            "strong": cls(0.5, (0.3, 2.0)),
        }
        if name not in policies:
            raise VitrailError(f'"{name}" is not an augmentation: use {", ".join(policies)}.{nearest(name, policies)}')
        return policies[name]


@dataclass
class BoxBatch:
    """Normalised images [C, h, w], each of its own size, and what is on them: `boxes`, `labels`, perhaps `masks`."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]

    def __len__(self) -> int:
        return len(self.images)

    def split(self, size: int) -> "list[BoxBatch]":
        """In parts, as a tensor would be."""
        places = range(0, len(self), size)
        return [BoxBatch(self.images[i : i + size], self.targets[i : i + size]) for i in places]


class BoxAugmenter:
    def __init__(
        self, policy: BoxPolicy, short_side: int, long_side: int, mean: Sequence[float], std: Sequence[float],
        seed: int, masks: bool = False,
    ):  # fmt: skip
        self.policy, self.short_side, self.long_side, self.seed, self.masks = policy, short_side, long_side, seed, masks
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(
        self,
        images: Sequence[Tensor] | Canvas,
        samples: Sequence[Boxed],
        keys: np.ndarray,
        epoch: int,
        device: torch.device | str = "cpu",
    ) -> BoxBatch:
        """From uint8 [C, h, w] each; `keys` [B] is which sample each is, for what it draws."""
        drawn = uniforms(self.seed, epoch, keys, 4)
        self.mean, self.std = self.mean.to(device), self.std.to(device)  # once: a copy makes a GPU wait
        batch = BoxBatch([], [])
        pixels = images.pixels if isinstance(images, Canvas) else images
        for each, size, sample, numbers in zip(pixels, image_sizes(images).tolist(), samples, drawn, strict=True):
            plan = self._plan((size[0], size[1]), numbers)
            batch.images.append(self._image(each[:, : size[0], : size[1]], plan, device))
            batch.targets.append(self._target(sample, plan, device))
        return batch

    def _plan(self, size: tuple[int, int], drawn: np.ndarray) -> "_Plan":
        low, high = self.policy.scale
        ratio = math.exp(math.log(low) + float(drawn[_SCALE]) * math.log(high / low))
        view = viewing_size(size, self.short_side, self.long_side)
        whole = (max(1, round(view[0] * ratio)), max(1, round(view[1] * ratio)))
        cut = (min(view[0], whole[0]), min(view[1], whole[1]))
        top, left = (
            int(float(drawn[place]) * (have - want + 1))
            for place, have, want in zip((_TOP, _LEFT), whole, cut, strict=True)
        )
        return _Plan(whole, top, left, cut, bool(drawn[_FLIP] < self.policy.flip))

    def _image(self, pixels: Tensor, plan: "_Plan", device: torch.device | str) -> Tensor:
        image = pixels.to(device, torch.float32)[None]
        if tuple(image.shape[-2:]) != plan.whole:
            image = F.interpolate(image, plan.whole, mode="bilinear", antialias=True)
        image = image[0, :, plan.top : plan.top + plan.cut[0], plan.left : plan.left + plan.cut[1]]
        image = image.flip(2) if plan.flip else image
        return image.div(255).sub_(self.mean).div_(self.std)

    def _target(self, sample: Boxed, plan: "_Plan", device: torch.device | str) -> dict[str, Tensor]:
        kept = np.flatnonzero(~sample.ignored)
        whole = sample.boxes_on(plan.whole)[kept].astype(np.float64)
        boxes = whole - np.array([plan.left, plan.top] * 2)
        boxes = np.clip(boxes, 0, np.array([plan.cut[1], plan.cut[0]] * 2))
        sides, before = boxes[:, 2:] - boxes[:, :2], whole[:, 2:] - whole[:, :2]
        seen = (sides.min(axis=1, initial=np.inf) >= SMALLEST) & (sides.prod(axis=1) >= VISIBLE * before.prod(axis=1))
        kept, boxes = kept[seen], boxes[seen]
        if plan.flip:
            boxes[:, [0, 2]] = plan.cut[1] - boxes[:, [2, 0]]
        target = {
            "boxes": torch.from_numpy(boxes.astype(np.float32)).to(device),
            "labels": torch.from_numpy(sample.classes[kept]).to(device),
        }
        if self.masks:
            masks = np.zeros((len(kept), *plan.cut), np.uint8)
            for place, number in enumerate(kept):
                outline = sample.outlines[number]
                if outline is None:
                    raise VitrailError(f"{sample.name} has a box without an outline, which a Mask R-CNN learns from.")
                mask = rasterise(outline, plan.whole)
                mask = mask[plan.top : plan.top + plan.cut[0], plan.left : plan.left + plan.cut[1]]
                masks[place] = mask[:, ::-1] if plan.flip else mask
            target["masks"] = torch.from_numpy(masks).to(device)
        return target


@dataclass(frozen=True)
class _Plan:
    whole: tuple[int, int]  # what the image is resized to
    top: int
    left: int
    cut: tuple[int, int]  # what is cut out of that
    flip: bool


def viewed(
    samples: Sequence[Boxed],
    short_side: int,
    long_side: int,
    room: float | None,
    mode: str = "RGB",
    cache: str = "auto",
) -> ImageSet:
    """Whole images, kept no larger than `room` times the size in which they are looked at; None: as they are, which
    is what figures are measured on. One whose size is not what its annotation says can't be read."""

    def prepare(sample: Sample) -> np.ndarray:
        assert isinstance(sample, Boxed)
        pixels = sample.pixels(mode)
        size = (pixels.shape[0], pixels.shape[1])
        sample.check_size(size)
        view = viewing_size(size, short_side, long_side)
        if room is None or view[0] * room >= size[0]:
            return pixels
        wanted = (math.ceil(view[0] * room), math.ceil(view[1] * room))
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        smaller = F.interpolate(image, wanted, mode="bilinear", antialias=True)
        return smaller[0].permute(1, 2, 0).contiguous().numpy()

    listed: list[Sample] = [*samples]
    return ImageSet(listed, prepare, _store(samples, short_side, long_side, room, mode, cache))


def _store(
    samples: Sequence[Boxed], short_side: int, long_side: int, room: float | None, mode: str, cache: str
) -> Store | None:
    area = 1_000_000 if room is None else room**2 * short_side * long_side
    kind = choose(cache, int(len(samples) * area * len(mode)))
    if kind == "memory":
        return MemoryStore(len(samples))
    if kind == "off":
        return None
    how = f"{FORMAT} boxed {short_side} {long_side} {room} {mode}"
    return DiskStore(cache_folder([how, *(sample.identity() for sample in samples)]), len(samples))
