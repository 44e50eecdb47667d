"""Multi-scale deformable attention (Zhu et al., 2021) in plain PyTorch: each query looks at a few points of each map.

The reference is a compiled CUDA operator that many people can't build. Here every level is one `grid_sample`, so it
runs anywhere, compiles and exports.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.grid import Grid


def sample_levels(value: Tensor, grids: Sequence[Grid], locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted means of values at given places: -> [B, Q, H·d].

    value [B, S, H, d] holds the levels one after the other, S the sum of h·w; locations [B, Q, H, L, P, 2] are (x, y)
    from 0 to 1, what lies outside counts as zero; weights [B, Q, H, L, P].
    """
    b, _, heads, d = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    total = value.new_zeros(())
    with torch.autocast(value.device.type, enabled=False):  # in half precision a place would be off by whole pixels
        levels = value.split([h * w for h, w in grids], dim=1)
        for level, ((h, w), part) in enumerate(zip(grids, levels, strict=True)):
            wide = torch.promote_types(part.dtype, torch.float32)
            part = part.permute(0, 2, 3, 1).reshape(b * heads, d, h, w).to(wide)
            places = (2 * locations[:, :, :, level] - 1).transpose(1, 2).reshape(b * heads, queries, points, 2)
            found = F.grid_sample(part, places.to(wide), padding_mode="zeros", align_corners=False)  # B·H d Q P
            share = weights[:, :, :, level].transpose(1, 2).reshape(b * heads, 1, queries, points)
            total = total + (found * share.to(wide)).sum(dim=-1)
    return total.view(b, heads * d, queries).transpose(1, 2).to(value.dtype)


class DeformableAttention(nn.Module):
    """Each query chooses `points` places per head and level around its own, and how much each counts."""

    def __init__(self, width: int, heads: int, levels: int, points: int = 4, ratio: float = 1.0):
        """`ratio` is the width of the values relative to that of the tokens."""
        super().__init__()
        inner = round(width * ratio)
        if inner % heads:
            raise VitrailError(f"A width of {inner} can't be divided among {heads} heads.")
        self.heads, self.levels, self.points = heads, levels, points
        self.value = nn.Linear(width, inner)
        self.offsets = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.proj = nn.Linear(inner, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """At first each head looks in a direction of its own, point by point farther, and all points count alike."""
        nn.init.zeros_(self.offsets.weight)
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)  # onto the edge of a square
        steps = torch.arange(1, self.points + 1, dtype=torch.float32)
        first = directions[:, None, None] * steps[:, None]  # H 1 P 2
        with torch.no_grad():
            self.offsets.bias.copy_(first.expand(-1, self.levels, -1, -1).flatten())
        nn.init.zeros_(self.weights.weight)
        nn.init.zeros_(self.weights.bias)
        for layer in (self.value, self.proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, query: Tensor, places: Tensor, features: Tensor, grids: Sequence[Grid]) -> Tensor:
        """query [B, Q, D], its places [Q, L, 2] in each level from 0 to 1, features [B, S, D] -> [B, Q, D]."""
        b, q, _ = query.shape
        shape = (b, q, self.heads, self.levels, self.points)
        value = self.value(features).unflatten(-1, (self.heads, -1))
        offsets = self.offsets(query).view(*shape, 2).float() / extents(grids, query.device)[:, None]
        locations = places[:, None, :, None].float() + offsets
        weights = self.weights(query).view(b, q, self.heads, -1).float().softmax(dim=-1).view(shape)
        return self.proj(sample_levels(value, grids, locations, weights))


def extents(grids: Sequence[Grid], device: torch.device) -> Tensor:
    """Width and height of each level, [L, 2]; filled in there, for a copy from the host can't be recorded as part of a
    CUDA graph."""
    # Not as float(n), which would fix the size in an export.
    sides = [torch.full((), n, dtype=torch.float32, device=device) for h, w in grids for n in (w, h)]
    return torch.stack(sides).view(-1, 2)


def centres(grid: Grid, stride: tuple[float, float], frame: tuple[float, float], device: torch.device) -> Tensor:
    """Where the middles of a grid's cells lie in a frame of so many pixels: [h·w, 2] as (x, y) from 0 to 1."""
    y = (torch.arange(grid[0], device=device) + 0.5) * (stride[0] / frame[0])
    x = (torch.arange(grid[1], device=device) + 0.5) * (stride[1] / frame[1])
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)
