"""What is exported of a model, and how a written file is checked: the graph, images to try it on, and the limit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from vitrail.errors import VitrailError
from vitrail.models import ConvNet, Preprocessing, SwinTransformer
from vitrail.models.dense.segmenter import Segmenter
from vitrail.weights.header import settings_of

LIMIT = 1e-3  # beyond rounding in fp32, whose differences are near 1e-6
Shape = tuple[int, int, int]  # images, height, width


@dataclass(frozen=True)
class Graph:
    """What a graph computes, as a module with the `names` of its outputs, an example of its input, and which sizes of
    that stay open. `rows` is what the outputs have one row each of."""

    module: Any
    example: Tensor
    sizes: dict[int, Any]
    rows: str = "batch"


class Logits(nn.Module):
    """Those of every pixel."""

    names = ("logits",)

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.model(images),)


class LogitsAndFeatures(nn.Module):
    """Both of what a predictor can be asked for, from one forward; the features cost nothing more."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model
        self.names = ["logits", "features"] if settings_of(model).num_classes else ["features"]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        found = self.model.features(images, layers=())
        pooled = found["pooled"]
        if "logits" not in self.names:
            return (pooled,)
        logits = self.model.head(pooled)
        if getattr(self.model, "head_distillation", None) is not None:
            logits = (logits + self.model.head_distillation(found["tokens"][:, 1])) / 2
        return logits, pooled


def open_sizes(model: Any) -> dict[int, Dim]:
    """Height and width stay open in a ViT, from two patches on."""
    if one_size(model):
        return {}
    down, across = model.settings.stride
    return {2: Dim("height", min=down + 1), 3: Dim("width", min=across + 1)}


def one_size(model: nn.Module) -> bool:
    """Swin's windows and masks are cut for one size; of torchvision's networks most can't be exported for any; and a
    segmenter pools its maps to a few cells, which ONNX does for a known size only."""
    return isinstance(model, SwinTransformer | ConvNet | Segmenter)


def shapes_to_try(model: nn.Module, size: tuple[int, int]) -> list[Shape]:
    """Two batch sizes and, for a model that takes any size, a taller image and a narrow one that must be padded."""
    height, width = size
    own = [(2, height, width), (1, height, width)]
    if one_size(model):
        return own
    settings: Any = settings_of(model)
    down, across = settings.stride
    return [*own, (1, height + 2 * down, width), (1, height, max(width // 2, across) + across // 2 + 1)]


@torch.no_grad()
def difference(model: nn.Module, other: nn.Module, shapes: list[Shape], pre: Preprocessing) -> float:
    """The largest absolute difference of the logits, or of the features where there are no classes."""
    largest = 0.0
    for seed, (count, height, width) in enumerate(shapes):
        x = test_images(count, (height, width), pre, seed)
        largest = max(largest, (model(x) - other(x)).abs().max().item())
    return largest


def test_images(count: int, size: tuple[int, int], pre: Preprocessing, seed: int) -> Tensor:
    """Soft blots with some grain, normalised: nearer to photographs than plain noise, which has no contrast left after
    the patches are averaged."""
    generator = torch.Generator().manual_seed(seed)
    channels = len(pre.mean)
    blots = F.interpolate(torch.rand(count, channels, 6, 6, generator=generator), size=size, mode="bicubic")
    grain = 0.1 * torch.randn(count, channels, *size, generator=generator)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (pre.mean, pre.std))
    return ((blots + grain).clamp(0, 1) - mean) / std


def check_difference(path: Path, found: float) -> None:
    if not found <= LIMIT:  # NaN fails here too
        raise VitrailError(
            f"{path.name} was not kept: its answers differ from the model's by up to {found:.2g}, and {LIMIT:g} is the"
            " limit; please report this, with the model's name."
        )
