"""Architectures: modules from tensors to tensors. This room imports no other."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy

if TYPE_CHECKING:
    from vitrail.models.attention_maps import capture
    from vitrail.models.building import ModelSettings, Settings, build
    from vitrail.models.cnn import CNNSettings, ConvNet
    from vitrail.models.dense.detector import Detector
    from vitrail.models.dense.segmenter import Segmenter
    from vitrail.models.dense.settings import DetectorSettings, SegmenterSettings
    from vitrail.models.entries import Entry, catalog
    from vitrail.models.mae import MAESettings, MaskedAutoencoder
    from vitrail.models.plain import plain_attention
    from vitrail.models.preprocessing import Preprocessing
    from vitrail.models.registry import create_model, list_models, resolve
    from vitrail.models.swin import SwinSettings, SwinTransformer
    from vitrail.models.tuning import Tuning, merge, tune, untune
    from vitrail.models.vit import VisionTransformer, ViTSettings
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.models.attention_maps": ("capture",),
            "vitrail.models.building": ("ModelSettings", "Settings", "build"),
            "vitrail.models.cnn": ("CNNSettings", "ConvNet"),
            "vitrail.models.dense.detector": ("Detector",),
            "vitrail.models.dense.segmenter": ("Segmenter",),
            "vitrail.models.dense.settings": ("DetectorSettings", "SegmenterSettings"),
            "vitrail.models.entries": ("Entry", "catalog"),
            "vitrail.models.mae": ("MAESettings", "MaskedAutoencoder"),
            "vitrail.models.plain": ("plain_attention",),
            "vitrail.models.preprocessing": ("Preprocessing",),
            "vitrail.models.registry": ("create_model", "list_models", "resolve"),
            "vitrail.models.swin": ("SwinSettings", "SwinTransformer"),
            "vitrail.models.tuning": ("Tuning", "merge", "tune", "untune"),
            "vitrail.models.vit": ("VisionTransformer", "ViTSettings"),
        },
    )

__all__ = [
    "CNNSettings",
    "ConvNet",
    "Detector",
    "DetectorSettings",
    "Entry",
    "MAESettings",
    "MaskedAutoencoder",
    "ModelSettings",
    "Preprocessing",
    "Segmenter",
    "SegmenterSettings",
    "Settings",
    "SwinSettings",
    "SwinTransformer",
    "Tuning",
    "ViTSettings",
    "VisionTransformer",
    "build",
    "capture",
    "catalog",
    "create_model",
    "list_models",
    "merge",
    "plain_attention",
    "resolve",
    "tune",
    "untune",
]
