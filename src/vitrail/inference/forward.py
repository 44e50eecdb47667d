"""A model over all the images of a split: its logits, or what its head is given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.augment.crop import Canvas
from vitrail.data.image_set import WithMaps
from vitrail.data.loader import Subset
from vitrail.data.preprocess import normalized
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.inference.precision import autocast
from vitrail.models.heads import classifiers
from vitrail.models.preprocessing import Preprocessing

Outputs = Callable[..., list[Tensor]]  # of images, and of their maps where there are any


class Forward:
    """Runs on `fitted` images, which are exactly what the model will see when it predicts. Those that turn out not to
    be readable leave `images.numbers`."""

    def __init__(
        self, images: Subset, pre: Preprocessing, processes: Processes, dtype: torch.dtype, batch: int | None = None
    ):
        self.images, self.processes, self.dtype = images, processes, dtype
        self.batch = batch or (256 if processes.device.type == "cuda" else 32)
        self.preprocessing = pre

    def logits(self, model: nn.Module) -> Tensor:
        """[n, C] in the order of `images.numbers`, on the host; all processes get all of them."""
        widths = [classifiers(model)[0].out_features]
        return self.run(model, lambda x: [model(x)], widths)[0]

    def head_inputs(self, model: nn.Module) -> list[Tensor]:
        """For each layer that gives logits, the features [n, D] that it is given."""
        layers = classifiers(model)
        with _listening(layers) as heard:

            def outputs(x: Tensor) -> list[Tensor]:
                model(x)
                return list(heard)

            return self.run(model, outputs, [layer.in_features for layer in layers])

    @torch.no_grad()
    def run(self, model: nn.Module, outputs: Outputs, widths: list[int]) -> list[Tensor]:
        """Whatever `outputs` makes of a batch, and of its maps where the images have some: for each width, a tensor
        [n, width]."""
        numbers, device = self.images.numbers, self.processes.device
        mine = self.processes.share(numbers)
        groups = [mine[i : i + self.batch] for i in range(0, len(mine), self.batch)]
        rows = [[torch.empty(0, width)] for width in widths]  # a process may have no images at all
        real = [np.empty(0, dtype=bool)]
        was_training = model.training
        model.eval()
        try:
            for group, (shown, images) in zip(groups, self.images.loader.batches(groups), strict=True):
                images, maps = images if isinstance(images, WithMaps) else (images, None)
                pixels = images.pixels if isinstance(images, Canvas) else torch.stack(images)
                given = [normalized(pixels, self.preprocessing, device)]
                if maps is not None:
                    given.append((maps if isinstance(maps, Tensor) else torch.stack(maps)).to(device))
                for kept, part in zip(rows, self._fitting(given, outputs), strict=True):
                    kept.append(part.float().cpu())
                real.append(shown == group)
        finally:
            model.train(was_training)
        readable = self._gather(torch.from_numpy(np.concatenate(real)).byte(), len(numbers)).bool()
        self.images.numbers = numbers[readable.numpy()]
        return [self._gather(torch.cat(parts), len(numbers))[readable] for parts in rows]

    def _fitting(self, given: list[Tensor], outputs: Outputs) -> list[Tensor]:
        """In parts that memory has room for."""
        while True:
            try:
                with autocast(self.processes.device, self.dtype):
                    parts = [outputs(*part) for part in zip(*(each.split(self.batch) for each in given), strict=True)]
                return [torch.cat(each) for each in zip(*parts, strict=True)]
            except torch.OutOfMemoryError:
                if self.batch == 1:
                    raise VitrailError("Out of memory with one image: use a smaller --image-size or --model.") from None
            self.batch = (self.batch + 1) // 2
            torch.cuda.empty_cache()

    def _gather(self, part: Tensor, total: int) -> Tensor:
        return self.processes.gather(part.to(self.processes.device), total).cpu()


@contextmanager
def _listening(layers: list[nn.Linear]) -> Iterator[list[Tensor]]:
    """What each of the layers was given last."""
    heard: list[Tensor] = [torch.empty(0)] * len(layers)

    def hook(place: int) -> Callable:
        def hear(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            heard[place] = inputs[0]

        return hear

    hooks = [layer.register_forward_pre_hook(hook(place)) for place, layer in enumerate(layers)]
    try:
        yield heard
    finally:
        for each in hooks:
            each.remove()
