"""Maps at strides 4, 8, 16 and 32 for segmentation and detection, from any backbone, behind one method.

    pyramid(x) -> {4: [B, C, ⌈H/4⌉, ⌈W/4⌉], 8: …, 16: …, 32: …}

Swin has such maps by itself, `SwinPyramid`. A plain ViT has one map: `SimplePyramid` makes the others out of it, as
ViTDet does (Li et al., 2022), and `models.dense.adapter.ViTAdapter` brings in detail that the patches have lost.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.dense.deformable import centres
from vitrail.models.grid import Grid
from vitrail.models.layers import bilinear, ceil_div, init_weights
from vitrail.models.swin import SwinTransformer
from vitrail.models.vit import VisionTransformer

STRIDES = (4, 8, 16, 32)

Maps = dict[int, Tensor]


class Pyramid(nn.Module, ABC):
    """What heads ask of a backbone."""

    channels: int  # of every map
    model: nn.Module  # whose weights were there before

    @abstractmethod
    def pyramid(self, x: Tensor) -> Maps: ...

    def forward(self, x: Tensor) -> Maps:
        return self.pyramid(x)


class SwinPyramid(Pyramid):
    """The map that each stage ends with, brought to one width by a norm and a projection."""

    model: SwinTransformer

    def __init__(self, model: SwinTransformer, channels: int = 256):
        super().__init__()
        settings = model.settings
        if len(settings.depths) != 4 or settings.patch_size != (4, 4):
            raise VitrailError("A pyramid of strides 4 to 32 takes a Swin of four stages and patches of 4×4.")
        self.model, self.channels = model, channels
        widths = [settings.width * 2**i for i in range(4)]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.laterals = nn.ModuleList(nn.Linear(width, channels) for width in widths)
        self.norms.apply(init_weights)
        self.laterals.apply(init_weights)

    def pyramid(self, x: Tensor) -> Maps:
        depths = self.model.settings.depths
        last = [sum(depths[: i + 1]) - 1 for i in range(4)]
        keep: dict[int, Tensor] = dict.fromkeys(last, x)
        self.model.encode(self.model.embed(x), keep)
        maps = {}
        for stride, layer, norm, lateral in zip(STRIDES, last, self.norms, self.laterals, strict=True):
            maps[stride] = lateral(norm(keep[layer])).permute(0, 3, 1, 2)
        return maps


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of a map [B, C, h, w]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SimplePyramid(Pyramid):
    """ViTDet's: the last map of a ViT, made larger by transposed convolutions and smaller by pooling."""

    model: VisionTransformer

    def __init__(self, model: VisionTransformer, channels: int = 256):
        super().__init__()
        self.model, self.channels = model, channels
        width = model.settings.width
        half, quarter = max(width // 2, 16), max(width // 4, 16)

        def up(wide: int, narrow: int) -> nn.Module:
            return nn.ConvTranspose2d(wide, narrow, kernel_size=2, stride=2)

        scales = {
            4: (nn.Sequential(up(width, half), ChannelNorm(half), nn.GELU(), up(half, quarter)), quarter),
            8: (up(width, half), half),
            16: (nn.Identity(), width),
            32: (nn.MaxPool2d(2, ceil_mode=True), width),
        }
        self.scales = nn.ModuleDict({str(stride): scale for stride, (scale, _) in scales.items()})
        self.outputs = nn.ModuleDict(
            {
                str(stride): nn.Sequential(
                    nn.Conv2d(wide, channels, 1, bias=False), ChannelNorm(channels),
                    nn.Conv2d(channels, channels, 3, padding=1, bias=False), ChannelNorm(channels),
                )
                for stride, (_, wide) in scales.items()
            }
        )  # fmt: skip

    def pyramid(self, x: Tensor) -> Maps:
        features = self.model.features(x)
        last = features[f"map/{len(self.model.blocks) - 1}"]
        size = (x.shape[-2], x.shape[-1])
        maps = {}
        for stride in STRIDES:
            scaled = self.scales[str(stride)](last)
            maps[stride] = self.outputs[str(stride)](to_stride(scaled, size, stride, self.model.settings.stride))
        return maps


def to_stride(scaled: Tensor, size: Grid, stride: int, patch: tuple[int, int]) -> Tensor:
    """A map made for patches of 16, whatever the patches are, as one of this stride: cut where it covers padding,
    resampled where the patches are not of 16."""
    wanted = ceil_div(size, (stride, stride))
    if patch == (16, 16):
        return scaled[..., : wanted[0], : wanted[1]]
    covered = (scaled.shape[-2] * patch[0] * stride / 16, scaled.shape[-1] * patch[1] * stride / 16)
    return resample(scaled, covered, (wanted[0] * stride, wanted[1] * stride), wanted)


def resample(x: Tensor, frame: tuple[float, float], other: tuple[float, float], size: Grid) -> Tensor:
    """A map that covers `frame` pixels, as one of `size` that covers `other`."""
    if frame == other:
        return bilinear(x, size)
    # Only a part, or more than it: by places, for the two grids do not line up. In half precision a place would be off.
    wide = torch.promote_types(x.dtype, torch.float32)
    places = 2 * centres(size, (other[0] / size[0], other[1] / size[1]), frame, x.device) - 1
    places = places.to(wide).view(1, *size, 2).expand(x.shape[0], -1, -1, -1)  # `len` would fix the batch in an export
    return F.grid_sample(x.to(wide), places, padding_mode="border", align_corners=False).to(x.dtype)
