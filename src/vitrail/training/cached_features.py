"""Features instead of pictures: where the head alone learns and nothing is drawn at random, the model runs once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.subset import Subset
from vitrail.models.heads import classifiers
from vitrail.tasks.classify import Classify


class Heads(nn.Module):
    """The layers that give a model's logits, by themselves: the mean of them, as the model does it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(classifiers(model))

    def forward(self, features: Tensor) -> Tensor:  # B k D: what each of the k layers is given
        logits = [layer(x) for layer, x in zip(self.layers, features.unbind(1), strict=True)]
        return logits[0] if len(logits) == 1 else torch.stack(logits).mean(dim=0)


@dataclass(frozen=True)
class FromFeatures(Classify):
    """The same task, of features."""

    chosen_by: str = "top1"

    @property
    def figure(self) -> str:
        return self.chosen_by

    @classmethod
    def of(cls, task: Classify) -> "FromFeatures":
        return cls(**{field.name: getattr(task, field.name) for field in fields(Classify)}, chosen_by=task.figure)

    def trained(self, model: nn.Module) -> nn.Module:
        return Heads(model)


class FeatureLoader:
    """Gives rows of a table where the loop asks for pictures."""

    resident = None  # no pictures live on the device

    def __init__(self, images: Subset, features: list[Tensor], device: torch.device):
        self.pictures = images.loader.pictures
        self.features = torch.stack(features, dim=1).to(device)  # n k D
        self.rows = np.zeros(len(self.pictures.samples), dtype=np.int64)  # of each picture, its row
        self.rows[images.numbers] = np.arange(len(self.features))

    def batches(self, groups: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, Tensor]]:
        for numbers in groups:
            yield numbers, self.features[torch.from_numpy(self.rows[numbers]).to(self.features.device)]


def as_images(images: Subset, features: list[Tensor], device: torch.device) -> Subset:
    """The features of `images`, in the order of their numbers, for the loop to learn from."""
    loader: Any = FeatureLoader(images, features, device)
    return Subset(loader, images.numbers)


def as_they_are(features: Tensor, *_: Any, out: Tensor | None = None) -> Tensor:
    """In the place of an augmenter."""
    return features
