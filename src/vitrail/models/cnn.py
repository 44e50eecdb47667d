"""torchvision's convolutional classifiers, as baselines and as teachers: `tv:resnet18`, `tv:convnext_tiny`, …

The network is torchvision's own, built without weights; its last linear layer becomes a head like that of our models,
so that training, figures, embedding and export see no difference. Nothing is ever downloaded.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitrail.errors import VitrailError, nearest
from vitrail.models.checks import check_image, check_settings, pair
from vitrail.models.classifier import Classifier
from vitrail.models.heads import Head

PREFIX = "tv:"
SMALL = 64  # pixels; up to here a stem that halves the image twice leaves too little of it
# Transformers have their own place in the catalog, and SqueezeNet's classifier is a convolution.
LEFT_OUT = ("vit_", "swin_", "maxvit", "squeezenet")
# The side of the smallest image that passes, where it is not one pixel: with torchvision's stem, and with the small.
SMALLEST = {"alexnet": (63, 63), "convnext": (32, 8), "densenet": (29, 8), "googlenet": (15, 15),
            "inception": (75, 75), "vgg": (32, 32)}  # fmt: skip
OWN_STEM = ("alexnet", "googlenet", "inception", "vgg")  # no small one: they halve the image all along
DROPS_PATHS = ("convnext", "efficientnet")


@dataclass(frozen=True)
class CNNSettings:
    """Which of torchvision's networks, and what of it is ours to choose."""

    arch: str = "resnet18"
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000  # 0: no head, the model gives the pooled features
    # small: a first convolution of 3×3 without a stride and no max-pooling after it, as ResNets for CIFAR have it.
    stem: str = "auto"  # usual | small; auto: small for images of at most 64 pixels
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        if self.arch not in architectures():
            raise VitrailError(_unknown(self.arch))
        check_settings(self, {"stem": ["auto", "usual", "small"]}, {"channels": 1, "num_classes": 0}, ["drop_path"])
        if self.stem == "small" and self.arch.startswith(OWN_STEM):
            raise VitrailError(f'torchvision\'s {self.arch} has no stem to replace: use stem="usual".')
        if self.drop_path and not self.drops_paths:
            raise VitrailError(f"torchvision's {self.arch} has no paths to drop: leave --drop-path out.")

    @property
    def small_stem(self) -> bool:
        fits = max(self.image_size) <= SMALL and not self.arch.startswith(OWN_STEM)
        return fits if self.stem == "auto" else self.stem == "small"

    @property
    def drops_paths(self) -> bool:
        return self.arch.startswith(DROPS_PATHS)

    @property
    def patch_size(self) -> tuple[int, int]:
        """The smallest image that passes; in other models that is a patch."""
        usual, small = next((sides for name, sides in SMALLEST.items() if self.arch.startswith(name)), (1, 1))
        side = small if self.small_stem else usual
        return side, side

    @property
    def stride(self) -> tuple[int, int]:
        """How many pixels a place of the last map spans, down and across."""
        return (8, 8) if self.small_stem else (32, 32)


class ConvNet(Classifier):
    """Images [B, C, H, W] to logits [B, classes], or to features [B, D] when `num_classes` is 0."""

    blocks = ()  # nothing for layer-wise decay to count: all of it learns at one rate

    def __init__(self, settings: CNNSettings | None = None, **changes):
        super().__init__()
        s = replace(settings or CNNSettings(), **changes)
        # Settled here, so that the model keeps its stem when its images change their size.
        self.settings = s = replace(s, stem="small" if s.small_stem else "usual")
        self.body, width = _body(s)
        self.batch_norm = any(isinstance(module, _BatchNorm) for module in self.body.modules())
        self.head = Head(width, s.num_classes)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        if enable:
            raise VitrailError(
                f"torchvision's {self.settings.arch} has no blocks to compute again: use a ViT or a Swin."
            )

    def init_output(self, layer: nn.Linear) -> None:
        """As torchvision and PyTorch leave it."""

    def pool(self, features: Tensor) -> Tensor:
        return features

    def forward_features(self, x: Tensor) -> Tensor:
        """What the head is given, [B, D]: torchvision's networks pool inside."""
        check_image(x, self.settings.channels, (1, 1))
        least = self.settings.patch_size[0]
        if min(x.shape[2:]) < least:
            raise VitrailError(
                f"An image of {x.shape[2]}×{x.shape[3]} pixels is too small for torchvision's {self.settings.arch},"
                f" which needs {least}: enlarge the image, or use another model."
            )
        if self.batch_norm and self.training and len(x) == 1 and self.body.training:
            raise VitrailError(
                "Batch norm learns from two images at a time or more: use a larger batch (or micro-batch)."
            )
        return self.body(x)

    def features(self, x: Tensor, layers: Iterable[int] | int = ()) -> dict[str, Tensor]:
        """`pooled` [B, D], as in our other models."""
        if isinstance(layers, int) or tuple(layers):
            raise VitrailError(f"torchvision's {self.settings.arch} has no layers of tokens; it gives pooled features.")
        return {"pooled": self.forward_features(x)}

    def train(self, mode: bool = True) -> "ConvNet":
        """The running statistics of a body that is frozen stay as they are."""
        super().train(mode)
        if mode and not any(p.requires_grad for p in self.body.parameters()):
            self.body.eval()
        return self


@cache
def architectures() -> list[str]:
    """The names that may stand after `tv:`."""
    from torchvision import models

    return [name for name in models.list_models(module=models) if not name.startswith(LEFT_OUT)]


def _unknown(name: str) -> str:
    if name.startswith(("vit_", "swin_")):
        return f"tv: names convolutional baselines of torchvision; {name} is in the catalog, without the tv:."
    hint = nearest(name, architectures())
    return f"torchvision has no convolutional classifier named {name!r} that can be used here.{hint}"


def _body(s: CNNSettings) -> tuple[nn.Module, int]:
    """torchvision's network without its last layer, and the width of what that layer was given."""
    from torchvision import models

    options: dict[str, object] = {"stochastic_depth_prob": s.drop_path} if s.drops_paths else {}
    if s.arch in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    body = models.get_model(s.arch, weights=None, **options)
    name, last = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Linear)][-1]
    _put(body, name, nn.Identity())
    if s.small_stem or s.channels != 3:
        _adapt_stem(body, s)
    return body, last.in_features


def _adapt_stem(body: nn.Module, s: CNNSettings) -> None:
    name, conv = next((n, m) for n, m in body.named_modules() if isinstance(m, nn.Conv2d))
    kernel, stride, padding = conv.kernel_size, conv.stride, conv.padding
    if s.small_stem:
        kernel, stride, padding = (3, 3), (1, 1), (1, 1)
        for pool in ("maxpool", "features.pool0"):
            if pool in dict(body.named_modules()):
                _put(body, pool, nn.Identity())
    first = nn.Conv2d(s.channels, conv.out_channels, kernel, stride, padding, bias=conv.bias is not None)  # type: ignore
    with torch.no_grad():
        if first.weight.shape == conv.weight.shape:
            first.load_state_dict(conv.state_dict())
        else:
            nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    _put(body, name, first)


def _put(body: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(body.get_submodule(parent), last, module)
