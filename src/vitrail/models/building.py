"""From settings of any family to the model that they describe."""

from torch import nn

from vitrail.models import dense
from vitrail.models.cnn import CNNSettings, ConvNet
from vitrail.models.dense.settings import DetectorSettings, SegmenterSettings
from vitrail.models.mae import MAESettings, MaskedAutoencoder
from vitrail.models.swin import SwinSettings, SwinTransformer
from vitrail.models.vit import VisionTransformer, ViTSettings

ModelSettings = ViTSettings | SwinSettings | MAESettings | CNNSettings | SegmenterSettings | DetectorSettings
Settings = ModelSettings  # its name in version 0.2

# What stored settings call each kind.
FAMILIES: dict[str, type[ModelSettings]] = {
    "vit": ViTSettings,
    "mae": MAESettings,
    "swin": SwinSettings,
    "swinv2": SwinSettings,
    "cnn": CNNSettings,
    "segmenter": SegmenterSettings,
    "detector": DetectorSettings,
}


def build(settings: ModelSettings) -> nn.Module:
    """The model that these settings describe, with freshly initialised weights."""
    if isinstance(settings, MAESettings):
        return MaskedAutoencoder(settings)
    if isinstance(settings, CNNSettings):
        return ConvNet(settings)
    if isinstance(settings, SegmenterSettings):
        return dense.Segmenter.build(settings)
    if isinstance(settings, DetectorSettings):
        return dense.Detector.from_settings(settings)
    return SwinTransformer(settings) if isinstance(settings, SwinSettings) else VisionTransformer(settings)
