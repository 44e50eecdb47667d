"""A class for every pixel: a backbone, maps of it, and one of three heads.

linear    one linear layer on the last map of the plain backbone: what its features alone are worth
fcn       class scores at strides 4 to 32, added from coarse to fine (Long et al., 2015)
upernet   pyramid pooling on the coarsest map, features carried down to the finest, all fused (Xiao et al., 2018)

A map of stride s covers s·h × s·w pixels, a little more than the image where s does not divide it. Maps are enlarged by
whole factors and then cut, so that the pixels of all strides lie on top of each other at any size.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.dense.backbone import build_backbone, drop_classifier, make_pyramid
from vitrail.models.dense.pyramid import STRIDES, ChannelNorm, Maps
from vitrail.models.dense.settings import SegmenterSettings
from vitrail.models.grid import Grid
from vitrail.models.layers import bilinear, init_weights
from vitrail.models.preprocessing import Preprocessing
from vitrail.models.swin import SwinTransformer
from vitrail.models.vit import VisionTransformer

POOLS = (1, 2, 3, 6)  # cells a side that the coarsest map is pooled to, as in PSPNet
FINEST = STRIDES[0]


class Segmenter(nn.Module):
    """Images [B, C, H, W] of any size to logits [B, classes, H, W].

    >>> Segmenter(vitrail.create_model("deit_ti16"), num_classes=3, head="upernet")

    The model is taken over with its weights, and loses its classifier. What of it plays no part, such as the last norm
    behind a pyramid, is frozen.
    """

    def __init__(self, model: nn.Module, num_classes: int, head: str = "upernet", **changes: Any):
        super().__init__()
        if not isinstance(model, VisionTransformer | SwinTransformer):
            raise VitrailError(f"A {type(model).__name__} gives no maps to segment from: use a ViT or a Swin.")
        s = self.settings = SegmenterSettings(model.settings, num_classes, head, **changes)
        self.body: nn.Module
        if s.head == "linear":
            self.body = model
            self.head: nn.Module = Linear(model.num_features, num_classes, s.dropout)
        else:
            self.body = make_pyramid(model, s.pyramid, s.width)
            kind = UPerHead if s.head == "upernet" else FCNHead
            self.head = kind(s.width, num_classes, s.norm, s.dropout)
        drop_classifier(model, s.backbone)
        self.head.apply(_init)
        for name in self.idle:
            self.get_parameter(name).requires_grad_(False)
        # The whole image: no border may be lost.
        pre = getattr(model, "preprocessing", None) or Preprocessing().suited(s.backbone)
        self.preprocessing = replace(pre, crop=1.0, fit="stretch")

    @classmethod
    def build(cls, settings: SegmenterSettings) -> "Segmenter":
        """The same, with fresh weights."""
        changes = {name: value for name, value in vars(settings).items() if name != "backbone"}
        return cls(build_backbone(settings.backbone), **changes)

    @property
    def backbone(self) -> VisionTransformer | SwinTransformer:
        return self.body if self.settings.head == "linear" else self.body.model  # type: ignore[return-value]

    @property
    def idle(self) -> list[str]:
        """The parameters that no logit depends on; they would keep several processes waiting for their gradients."""
        unused = ["norm_pool.", "pool_attention."] + (["norm."] if self.settings.head != "linear" else [])
        starts = tuple(self.settings.inside + name for name in unused)
        return [name for name, _ in self.named_parameters() if name.startswith(starts)]

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[-2], x.shape[-1])
        if self.settings.head != "linear":
            return enlarged(self.head(self.body(x)), (FINEST, FINEST), size)
        model = self.backbone
        features = model.features(x)
        cells, prefix = model.token_grid(*size), model.prefix_tokens
        last = features["tokens"][:, prefix:].unflatten(1, cells).permute(0, 3, 1, 2)
        return enlarged(self.head(last), model.settings.stride, size)


class Linear(nn.Module):
    """What each patch is, from its token alone."""

    def __init__(self, width: int, num_classes: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout2d(dropout)
        self.output = nn.Conv2d(width, num_classes, 1)

    def forward(self, last: Tensor) -> Tensor:  # B D h w -> B classes h w
        return self.output(self.dropout(last))


class FCNHead(nn.Module):
    """Scores at every stride; the coarse ones, enlarged, are added to the finer."""

    def __init__(self, width: int, num_classes: int, norm: str, dropout: float):
        super().__init__()
        self.convs = nn.ModuleList(conv(width, width, 3, norm) for _ in STRIDES)
        self.dropout = nn.Dropout2d(dropout)
        self.outputs = nn.ModuleList(nn.Conv2d(width, num_classes, 1) for _ in STRIDES)

    def forward(self, maps: Maps) -> Tensor:  # -> B classes ⌈H/4⌉ ⌈W/4⌉
        scores = [
            output(self.dropout(each(maps[stride])))
            for stride, each, output in zip(STRIDES, self.convs, self.outputs, strict=True)
        ]
        return carried_down(scores)[0]


class UPerHead(nn.Module):
    """Pyramid pooling, a feature pyramid, and all four strides fused at the finest."""

    def __init__(self, width: int, num_classes: int, norm: str, dropout: float):
        super().__init__()
        # Pooled to one cell, a group would be a handful of numbers: these are normed over all channels.
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(n), conv(width, width, 1, "channel")) for n in POOLS
        )
        self.bottleneck = conv(width * (1 + len(POOLS)), width, 3, norm)
        self.laterals = nn.ModuleList(conv(width, width, 1, norm) for _ in STRIDES[:-1])
        self.smooth = nn.ModuleList(conv(width, width, 3, norm) for _ in STRIDES[:-1])
        self.fuse = conv(width * len(STRIDES), width, 3, norm)
        self.dropout = nn.Dropout2d(dropout)
        self.output = nn.Conv2d(width, num_classes, 1)

    def forward(self, maps: Maps) -> Tensor:  # -> B classes ⌈H/4⌉ ⌈W/4⌉
        *fine, coarse = (maps[stride] for stride in STRIDES)
        size = (coarse.shape[-2], coarse.shape[-1])
        pooled = [bilinear(pool(coarse), size) for pool in self.pools]
        top = self.bottleneck(torch.cat([coarse, *pooled], dim=1))
        levels = carried_down([lateral(each) for lateral, each in zip(self.laterals, fine, strict=True)] + [top])
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels[:-1], strict=True)] + [levels[-1]]
        finest = (levels[0].shape[-2], levels[0].shape[-1])
        factors = [stride // FINEST for stride in STRIDES]
        levels = [enlarged(level, (f, f), finest) for level, f in zip(levels, factors, strict=True)]
        return self.output(self.dropout(self.fuse(torch.cat(levels, dim=1))))


def carried_down(maps: list[Tensor]) -> list[Tensor]:
    """To each map, finest first, the sum of all coarser ones is added."""
    sums = [maps[-1]]
    for each in reversed(maps[:-1]):
        sums.append(each + enlarged(sums[-1], (2, 2), (each.shape[-2], each.shape[-1])))
    return sums[::-1]


def enlarged(x: Tensor, factor: Grid, size: Grid) -> Tensor:
    """Each cell over `factor` pixels, bilinear, and what hangs over `size` cut off."""
    if factor != (1, 1):
        x = bilinear(x, (x.shape[-2] * factor[0], x.shape[-1] * factor[1]))
    return x[..., : size[0], : size[1]]


class GroupNorm(nn.GroupNorm):
    """PyTorch's refuses a single image of a single cell, as if it were a batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def conv(wide: int, narrow: int, kernel: int, norm: str) -> nn.Sequential:
    normed = GroupNorm(math.gcd(32, narrow // 4, narrow), narrow) if norm == "group" else ChannelNorm(narrow)
    return nn.Sequential(nn.Conv2d(wide, narrow, kernel, padding=kernel // 2, bias=False), normed, nn.ReLU())


def _init(module: nn.Module) -> None:
    init_weights(module)
    if isinstance(module, nn.Conv2d) and module.bias is None:  # inside; the classifiers stay near zero
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
