"""Architectures: modules from tensors to tensors. This room imports no other."""

from vitrail.models.capture import capture
from vitrail.models.catalog import Entry, Preprocessing, Settings, build, catalog, create_model, list_models, resolve
from vitrail.models.cnn import CNNSettings, ConvNet
from vitrail.models.mae import MAESettings, MaskedAutoencoder
from vitrail.models.swin import SwinSettings, SwinTransformer
from vitrail.models.tuning import Tuning, merge, tune, untune
from vitrail.models.vit import VisionTransformer, ViTSettings

__all__ = [
    "CNNSettings",
    "ConvNet",
    "Entry",
    "MAESettings",
    "MaskedAutoencoder",
    "Preprocessing",
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
    "resolve",
    "tune",
    "untune",
]
