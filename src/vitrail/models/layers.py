"""The small parts that every architecture here is made of: patches, the MLP, drop path, layer scale.

Shape letters used throughout: B batch, C channels, H×W the image, h×w the token grid, N tokens, D width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU that OpenAI's CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)


# "gelu" is x·Φ(x), exactly; the other two are the approximations that some published weights were trained with.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "relu": F.relu,
}


def pad_to_multiple(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Zero-pads the last two dimensions, right and bottom, up to a multiple of `size`."""
    # Written with // rather than as -H % P: torch.export can then tell from H > P that there are two patches or more.
    bottom = (x.shape[-2] + size[0] - 1) // size[0] * size[0] - x.shape[-2]
    right = (x.shape[-1] + size[1] - 1) // size[1] * size[1] - x.shape[-1]
    # An exported graph must serve every size, so it may not branch on this one.
    if exporting() or traced(x) or bottom or right:
        x = F.pad(x, (0, right, 0, bottom))
    return x


def exporting() -> bool:
    """Is a graph being exported? The flag itself: `torch.compiler.is_exporting()`, which reads it, is also true while
    PyTorch 2.11 compiles."""
    return torch.compiler._is_exporting_flag


def traced(value: object) -> bool:
    """Is this what `torch.fx.symbolic_trace` hands around instead of a tensor or a number?"""
    return isinstance(value, torch.fx.Proxy)


def open_size(size: tuple[int, int]) -> bool:
    """Is this the size in a graph that is being exported, or traced, for every size? Then it may not be branched on."""
    return traced(size[0]) or (exporting() and any(isinstance(side, torch.SymInt) for side in size))


class PatchEmbed(nn.Module):
    """Cuts an image into patches and projects each to D numbers: x_p E + b (eq. 1 of the ViT paper).

    `kind="conv"` is a P×P convolution of stride P, `kind="linear"` flattens each patch and multiplies. They are the
    same map, and keep their weight in the same shape, so that a checkpoint of one is a checkpoint of the other.
    """

    def __init__(self, channels: int, width: int, patch_size: tuple[int, int], kind: str = "linear", bias: bool = True):
        super().__init__()
        self.channels, self.patch_size, self.kind = channels, patch_size, kind
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # B C H W -> B h w D
        x = pad_to_multiple(x, self.patch_size)
        if self.kind == "conv":
            return F.conv2d(x, self.weight, self.bias, stride=self.patch_size).permute(0, 2, 3, 1)
        return F.linear(cut_patches(x, self.patch_size).flatten(3), self.weight.flatten(1), self.bias)


def cut_patches(x: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """[B, C, h·p, w·q] -> [B, h, w, C, p, q]."""
    b, c, height, width = x.shape
    p, q = patch_size
    return x.reshape(b, c, height // p, p, width // q, q).permute(0, 2, 4, 1, 3, 5)


def join_patches(patches: Tensor) -> Tensor:
    """The inverse of `cut_patches`: [B, h, w, C, p, q] -> [B, C, h·p, w·q]."""
    b, h, w, c, p, q = patches.shape
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(b, c, h * p, w * q)


CPU_ROWS = 3136  # tokens at a time for inference on a CPU, so that what lies between the two layers stays in the cache


class MLP(nn.Module):
    """D -> hidden -> D. With `activation="swiglu"` the first layer makes a gate and a value: silu(gate)·value."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu", dropout: float = 0.0):
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.fc1 = nn.Linear(width, 2 * hidden if activation == "swiglu" else hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:  # ... D -> ... D
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing() or traced(x)
        if not plain and x.device.type == "cpu" and x.shape[:-1].numel() > 2 * CPU_ROWS:
            return torch.cat([self.branch(rows) for rows in x.flatten(0, -2).split(CPU_ROWS)]).view_as(x)
        return self.branch(x)

    def branch(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.activation == "swiglu":
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        else:
            x = ACTIVATIONS[self.activation](x)
        if self.dropout == 0.0:
            return self.fc2(x)
        x = self.fc2(F.dropout(x, self.dropout, self.training))
        return F.dropout(x, self.dropout, self.training)


class DropPath(nn.Module):
    """Stochastic depth: in training, drops the whole branch of a sample with probability `rate`, and scales the
    branches that stay by 1/(1 - rate) so that the expectation is unchanged."""

    def __init__(self, rate: float = 0.0):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask.div_(keep) if keep > 0 else x * mask

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def drop_path_rates(highest: float, depth: int) -> list[float]:
    """Rates that rise linearly from 0 in the first block to `highest` in the last."""
    return [highest * i / max(depth - 1, 1) for i in range(depth)]


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch, small at first (CaiT, DeiT-III)."""

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def init_weights(module: nn.Module) -> None:
    """Truncated normal, σ = 0.02, for every matrix; zero for every bias. For `Module.apply`."""
    if isinstance(module, nn.Linear | nn.Conv2d | PatchEmbed):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def bilinear(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps [B, C, h, w] brought to a size. The channels of a place lie side by side meanwhile: in the usual order
    PyTorch's kernels go through them one by one, which takes several times as long."""
    if x.shape[1] >= 16:
        x = x.contiguous(memory_format=torch.channels_last)
    return F.interpolate(x, size, mode="bilinear", align_corners=False)


def ceil_div(size: tuple[int, int], by: tuple[int, int]) -> tuple[int, int]:
    """How many patches of `by` cover `size`, per axis."""
    # In whole numbers, which torch.export can reason about.
    return (size[0] + by[0] - 1) // by[0], (size[1] + by[1] - 1) // by[1]
