"""The convolutional stems of the hybrid: the paper's ResNet with weight-standardised convolutions and group norm, and
a light one for small images.

Padding is TensorFlow's "SAME" (computed from the size at hand, the odd pixel right and bottom), which is what the
published hybrid weights were trained with.
"""

import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 32


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pads so that a convolution (kernel ≥ stride) gives ceil(size / stride) outputs per axis."""
    amounts: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        total = ((size + stride - 1) // stride - 1) * stride + kernel - size
        amounts += [total // 2, total - total // 2]
    return F.pad(x, amounts, value=value)


class StdConv(nn.Conv2d):
    """A convolution whose filters are brought to mean 0 and variance 1 on every call (weight standardisation)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(inputs, outputs, kernel, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        filters = self.weight.flatten(1)
        filters = F.layer_norm(filters, filters.shape[1:], eps=1e-8).view_as(self.weight)
        kernel, stride = self.kernel_size[0], self.stride[0]
        if kernel == 1:
            # Skipping by a slice, so that torch.export sees the same ceil(size / stride) as in the other branch.
            return F.conv2d(x[..., ::stride, ::stride], filters)
        return F.conv2d(pad_same(x, kernel, stride), filters, stride=stride)


class Bottleneck(nn.Module):
    """1×1 → 3×3 → 1×1 with a shortcut, each convolution followed by group norm."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        middle = outputs // 4
        self.conv1, self.norm1 = StdConv(inputs, middle, 1), nn.GroupNorm(GROUPS, middle)
        self.conv2, self.norm2 = StdConv(middle, middle, 3, stride), nn.GroupNorm(GROUPS, middle)
        self.conv3, self.norm3 = StdConv(middle, outputs, 1), nn.GroupNorm(GROUPS, outputs)
        changes = stride != 1 or inputs != outputs
        self.conv_shortcut = StdConv(inputs, outputs, 1, stride) if changes else None
        self.norm_shortcut = nn.GroupNorm(GROUPS, outputs) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.conv_shortcut is not None and self.norm_shortcut is not None:
            x = self.norm_shortcut(self.conv_shortcut(x))
        return F.relu(x + y)


class ResNetStem(nn.Module):
    """Root (7×7 convolution and max-pooling, stride 4), then a stage per entry of `blocks`, each halving but the first.

    `blocks=()` leaves the root alone (R+Ti/16), (2, 2, 2, 2) is R26, (3, 4, 9) the R50 of R50+B/16.
    """

    def __init__(self, channels: int, blocks: tuple[int, ...], width: int = 64):
        super().__init__()
        self.conv, self.norm = StdConv(channels, width, 7, stride=2), nn.GroupNorm(GROUPS, width)
        self.stages = nn.ModuleList()
        inputs = width
        for i, count in enumerate(blocks):
            outputs = 4 * width * 2**i
            strides = [1 if i == 0 else 2] + [1] * (count - 1)
            stage = [Bottleneck(inputs if j == 0 else outputs, outputs, stride) for j, stride in enumerate(strides)]
            self.stages.append(nn.Sequential(*stage))
            inputs = outputs
        self.out_channels = inputs
        self.stride = stem_stride(blocks)

    def forward(self, x: Tensor) -> Tensor:  # B C H W -> B C' ⌈H/stride⌉ ⌈W/stride⌉
        x = F.relu(self.norm(self.conv(x)))
        x = F.max_pool2d(pad_same(x, 3, 2, value=float("-inf")), 3, 2)
        for stage in self.stages:
            x = stage(x)
        return x


class Basic(nn.Module):
    """3×3 → 3×3 with a shortcut, each convolution followed by group norm."""

    def __init__(self, width: int):
        super().__init__()
        self.conv1, self.norm1 = StdConv(width, width, 3), nn.GroupNorm(GROUPS, width)
        self.conv2, self.norm2 = StdConv(width, width, 3), nn.GroupNorm(GROUPS, width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ConvStem(nn.Module):
    """3×3 convolutions of stride 2, each with group norm and twice the channels of the one before, and perhaps with
    residual blocks after it. "Early convolutions help transformers see better" (Xiao et al. 2021); here they leave the
    last halving, or more, to the patches."""

    def __init__(self, channels: int, stride: int, blocks: int, width: int = 64):
        super().__init__()
        self.conv, self.norm = StdConv(channels, width, 3, stride=2), nn.GroupNorm(GROUPS, width)
        outputs = [width * 2**i for i in range(stride.bit_length() - 1)]
        self.convs = nn.ModuleList(StdConv(c // 2, c, 3, stride=2) for c in outputs[1:])
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, c) for c in outputs[1:])
        self.blocks = nn.ModuleList(nn.Sequential(*(Basic(c) for _ in range(blocks))) for c in outputs)
        self.out_channels, self.stride = outputs[-1], stride

    def forward(self, x: Tensor) -> Tensor:  # B C H W -> B C' ⌈H/stride⌉ ⌈W/stride⌉
        x = self.blocks[0](F.relu(self.norm(self.conv(x))))
        for conv, norm, blocks in zip(self.convs, self.norms, self.blocks[1:], strict=True):  # type: ignore[call-overload]
            x = blocks(F.relu(norm(conv(x))))
        return x


Stem = tuple[int, ...] | str  # blocks per stage of a ResNet, or one of the light ones
# By stride, and by residual blocks after each halving.
LIGHT = {"conv2": (2, 0), "conv4": (4, 0), "conv8": (8, 0), "res2": (2, 2), "res4": (4, 2), "res8": (8, 2)}


def make_stem(channels: int, stem: Stem) -> ResNetStem | ConvStem:
    return ConvStem(channels, *LIGHT[stem]) if isinstance(stem, str) else ResNetStem(channels, stem)


def stem_stride(stem: Stem) -> int:
    return LIGHT[stem][0] if isinstance(stem, str) else 4 * 2 ** max(len(stem) - 1, 0)
