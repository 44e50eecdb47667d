"""A ViT or a Swin as the backbone of a dense model: built, without a classifier, and behind a pyramid of maps."""

from torch import nn

from vitrail.errors import VitrailError, nearest
from vitrail.models.dense.adapter import ViTAdapter
from vitrail.models.dense.pyramid import Pyramid, SimplePyramid, SwinPyramid
from vitrail.models.heads import Head
from vitrail.models.swin import SwinSettings, SwinTransformer
from vitrail.models.vit import VisionTransformer, ViTSettings


def build_backbone(settings: ViTSettings | SwinSettings) -> VisionTransformer | SwinTransformer:
    """With fresh weights."""
    return SwinTransformer(settings) if isinstance(settings, SwinSettings) else VisionTransformer(settings)


def drop_classifier(model: nn.Module, bare: ViTSettings | SwinSettings) -> None:
    """In place, so that the model has the settings `bare`: nothing in a dense model would ever train a classifier."""
    for name in ("head", "head_distillation"):
        if (head := getattr(model, name, None)) is not None:
            setattr(model, name, Head(head.width, 0))  # nothing
    model.settings = bare  # type: ignore[assignment]


def make_pyramid(model: nn.Module, kind: str = "auto", channels: int = 256) -> Pyramid:
    """`kind` is adapter or simple for a ViT, own for a Swin; auto: adapter, or own."""
    kinds = ["own"] if isinstance(model, SwinTransformer) else ["adapter", "simple"]
    if not isinstance(model, SwinTransformer | VisionTransformer):
        raise VitrailError(f"A {type(model).__name__} gives no pyramid of maps: use a ViT or a Swin.")
    if kind == "auto":
        kind = kinds[0]
    if kind not in kinds:
        raise VitrailError(
            f"A {type(model).__name__} has no pyramid {kind!r}: use {' or '.join(kinds)}.{nearest(kind, kinds)}"
        )
    if isinstance(model, SwinTransformer):
        return SwinPyramid(model, channels)
    return ViTAdapter(model, channels) if kind == "adapter" else SimplePyramid(model, channels)
