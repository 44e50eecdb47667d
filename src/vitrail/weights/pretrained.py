"""A model by name, with fresh weights or with public ones."""

from typing import Any

from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import registry
from vitrail.weights.load import model_from
from vitrail.weights.published import published
from vitrail.weights.reading import read_checkpoint
from vitrail.weights.shipped import shipped


def create_model(architecture: str, pretrained: bool = False, **changes: Any) -> nn.Module:
    """A model by the name of its architecture: ours, timm's, torchvision's or the paper's.

    >>> model = vitrail.create_model("vit_b16", pretrained=True, num_classes=10)

    With `pretrained` it holds the public weights that the catalog records for this very model, from the hub or its
    cache, or those of a model that ships inside ("vitrail_tiny"); a head for another number of classes is fresh.
    Without, all weights are.

    `changes` are fields of the model's settings (`ViTSettings`, `SwinSettings`, `MAESettings`); sizes may be a number.
    `model.preprocessing` is what the weights expect of an image, and `vitrail.transforms(model)` does it.
    """
    inside = shipped(architecture)
    if pretrained:
        source = str(inside) if inside is not None else published(architecture)
        checkpoint = read_checkpoint(source, None if inside is not None else architecture)
        return model_from(checkpoint, **changes).train()
    if inside is not None:
        raise VitrailError(f"{architecture} is a trained model and no architecture: add pretrained=True.")
    return registry.create_model(architecture, **changes)
