"""Features in place of images: where only the head is trained and nothing is random, the backbone runs once."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.loader import Subset
from vitrail.tasks.context import Context
from vitrail.tasks.image_level import ImageTask
from vitrail.tasks.linear_probe import Heads


class HeadObjective:
    """The same loss, of a head that is given features."""

    def __init__(self, objective: Any):
        self.objective = objective

    def module(self, model: nn.Module) -> nn.Module:
        return Heads(model)

    def outputs(self, net: nn.Module, features: Tensor) -> Tensor:
        return net(features)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(outputs, targets)


class FeatureLoader:
    """Gives rows of a table where the loop asks for images."""

    resident = None  # no images live on the device

    def __init__(self, subset: Subset, features: list[Tensor], device: torch.device):
        self.images = subset.loader.images
        self.features = torch.stack(features, dim=1).to(device)  # n k D
        self.rows = np.zeros(len(self.images.samples), dtype=np.int64)  # of each image, its row
        self.rows[subset.numbers] = np.arange(len(self.features))

    def batches(self, groups: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, Tensor]]:
        for numbers in groups:
            yield numbers, self.features[torch.from_numpy(self.rows[numbers]).to(self.features.device)]


class FeaturesWithTargets:
    """In the place of augmentation."""

    output_values = None

    def __init__(self, augment: Any):
        self.targets = augment.targets

    def __call__(self, features: Tensor, numbers: np.ndarray, *_: Any, device: Any = None, **__: Any) -> Any:
        return features, self.targets(numbers, features.device)


def cached_features(ctx: Context, task: ImageTask) -> tuple[Subset, FeaturesWithTargets, HeadObjective]:
    """What a `Trainer` takes to train the head alone."""
    features = task.head_inputs(ctx, "train as predicted")  # first: this also finds the images that can't be read
    loader: Any = FeatureLoader(ctx.subsets["train as predicted"], features, ctx.device)
    subset = Subset(loader, ctx.subsets["train as predicted"].numbers)
    subset.weights = task.draws(ctx, subset)
    return subset, FeaturesWithTargets(task.augment(ctx)), HeadObjective(ctx.objective)
