"""`PictureModel`: a model and its preprocessing on a device. Images of any kind in, a row of numbers out for each."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data import several
from vitrail.errors import VitrailError
from vitrail.inference.decoding import CROPS, Picture, decoded, named
from vitrail.inference.precision import has_bf16
from vitrail.models import Preprocessing

FAR = 2.0  # times the side that a model was trained on, or that part of it
Function = Callable[[Tensor], Tensor]  # normalised pixels [n, C, H, W] to [n, …]


@dataclass(frozen=True)
class Outcome:
    """What became of one image: its numbers, or the reason why there are none."""

    image: Any  # as it was given
    values: Tensor | None  # [classes] or [D]
    error: VitrailError | None = None


class ImageModel:
    """What a `Predictor` is before it knows any classes: images are decoded ahead, shown, and answered one by one."""

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, device: str | torch.device | None = None):
        try:
            self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            self.model = model.to(self.device).eval()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise VitrailError(f"The device {device!r} can't be used: {reason}; use cpu, or cuda with a GPU.") from None
        self.preprocessing = preprocessing
        self.trained_on: tuple[int, int] | None = None  # what images in their own sizes are compared with

    def _outcomes(self, images: Any, function: Function, batch_size: int, flip: bool, crops: int) -> Iterator[Outcome]:
        """One per image, in order and as they come: what the function makes of it, or its error."""
        empty = True
        for batch in decoded(several(images), self.preprocessing, batch_size, crops):
            empty = False
            yield from self._of_batch(batch, function, flip)
        if empty:
            raise VitrailError("No images were given: pass at least one.")

    def _of_batch(self, batch: list[Picture], function: Function, flip: bool) -> list[Outcome]:
        outcomes = [Outcome(picture.source, None, picture.error) for picture in batch]
        groups: dict[tuple[int, ...], list[int]] = {}  # by size, for images that are taken as they are
        for number, picture in enumerate(batch):
            if picture.views is not None:
                groups.setdefault(picture.views.shape, []).append(number)
        for numbers in groups.values():
            try:
                rows = self._mean(np.stack([batch[i].views for i in numbers]), function, flip)  # type: ignore[misc]
            except VitrailError as error:  # of this size, such as an image smaller than a patch
                rows = [named(batch[i].source, error) for i in numbers]  # type: ignore[assignment]
            for i, row in zip(numbers, rows, strict=True):
                failed = isinstance(row, VitrailError)
                outcomes[i] = Outcome(batch[i].source, None if failed else row, row if failed else None)
        return outcomes

    def _mean(self, pixels: np.ndarray, function: Function, flip: bool) -> Tensor:
        """Over the views, and their mirror images: [n, V, H, W, C] -> [n, …]. One view at a time, so that a batch of
        images stays a batch."""
        results = []
        with self.precision():
            for view in torch.from_numpy(pixels).unbind(1):
                x = self.normalised(view)
                results += [function(y).float() for y in ([x, x.flip(-1)] if flip else [x])]
        return torch.stack(results).mean(dim=0).cpu() if len(results) > 1 else results[0].cpu()

    def normalised(self, pixels: Tensor) -> Tensor:
        """uint8 [n, H, W, C] -> [n, C, H, W] on the device, as `to_tensor` does it for one image."""
        size = (pixels.shape[1], pixels.shape[2])
        if self.trained_on is not None and (note := far_note("The model", self.trained_on, size)):
            self.trained_on = None  # once is enough
            warnings.warn(note, stacklevel=2)
        like = next(self.model.parameters(), None)
        x = pixels.to(self.device).permute(0, 3, 1, 2).contiguous().float().div_(255)
        mean, std = (
            torch.tensor(values, device=self.device).view(-1, 1, 1)
            for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        x = x.sub_(mean).div_(std)
        return x if like is None else x.to(like.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """bf16 on a GPU that has it, where it is several times faster; a CPU computes in fp32."""
        return torch.bfloat16 if self.device.type == "cuda" and has_bf16() else torch.float32

    def precision(self) -> AbstractContextManager:
        """In which the model is called: autocast on such a GPU."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast("cuda", self.dtype)


def far_note(name: str, trained: tuple[int, int], size: tuple[int, int]) -> str | None:
    """What to know of images whose sides are half of those of training, or twice as long, or further away."""
    if all(max(a / b, b / a) < FAR for a, b in zip(size, trained, strict=True)):
        return None
    own, other = ("×".join(map(str, each)) for each in (trained, size))
    return f"{name} was trained on {own} pixels; {other} is far from that, expect less of it."


def check_views(batch_size: int, crops: int) -> None:
    if batch_size < 1:
        raise VitrailError(f"batch_size must be at least 1, got {batch_size}.")
    if crops not in CROPS:
        raise VitrailError(f"crops={crops} is not known: use 1 (the centre), 5 (and corners) or 9 (and edges).")


def collected(outcomes: Iterable[Outcome], on_error: str) -> list[Outcome]:
    """All of them; the first error is raised or, with `on_error="skip"`, each is a warning."""
    if on_error not in ("raise", "skip"):
        raise VitrailError(f'on_error={on_error!r} is not known: use "raise" or "skip".')
    found = []
    for one in outcomes:
        if one.error and on_error == "raise":
            raise one.error
        if one.error:
            warnings.warn(f"skipped: {one.error}", stacklevel=3)
        found.append(replace(one, image=None))  # a list of results does not keep the images in memory
    return found


def rows(outcomes: list[Outcome]) -> Tensor:
    """One for each, NaN where there are no numbers."""
    found = [one.values for one in outcomes if one.values is not None]
    if not found:
        raise VitrailError(f"None of the {len(outcomes)} images can be read, for instance: {outcomes[0].error}")
    missing = torch.full_like(found[0], float("nan"))
    return torch.stack([missing if one.values is None else one.values for one in outcomes])
