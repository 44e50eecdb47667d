"""Tables over a grid of patches, and how they are brought to another grid."""

from collections.abc import Sequence

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.layers import exporting

Grid = tuple[int, int]  # rows, columns

# How each ecosystem resizes a table. The rule belongs to the weights: the numbers were judged, or trained, under it.
RULES: dict[str, dict] = {
    "timm": {"mode": "bicubic", "antialias": True},
    "hf": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
    "google": {"mode": "bilinear", "align_corners": True},
}


@torch.fx.wrap
def resize_grid(table: Tensor, grid: Sequence[int], rule: str) -> Tensor:
    """[h0, w0, D] -> [h, w, D] under one of `RULES`, in fp32."""
    # An exported graph must serve every size, so it always resizes; to the same size every rule is the identity.
    if not exporting() and tuple(table.shape[:2]) == tuple(grid):
        return table
    if grid[1] == 1 and grid[0] != 1:
        # PyTorch's antialiased kernel fills a single column with its first value; a single row it does right.
        return resize_grid(table.transpose(0, 1), (1, grid[0]), rule).transpose(0, 1)
    image = table.float().permute(2, 0, 1)[None]  # 1 D h0 w0
    image = F.interpolate(image, size=tuple(grid), **RULES[rule])
    return image[0].permute(1, 2, 0).to(table.dtype)


def offsets_of(grid: Grid) -> Grid:
    """How many offsets there are between two places of a grid, down and across."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def resize_bias_table(table: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """A table of biases by offset for another grid or window: [(2h-1)(2w-1), H] -> the same for `new`."""
    return resize_grid(table.unflatten(0, offsets_of(old)), offsets_of(new), rule).flatten(0, 1)


@torch.fx.wrap
def relative_index(grid: Grid, device: torch.device | str) -> Tensor:
    """For every pair of places, the row of a (2h-1)·(2w-1) table that holds their offset: [h·w, h·w]."""
    h, w = grid
    rows = torch.arange(h, device=device)[:, None].expand(h, w).flatten()
    columns = torch.arange(w, device=device)[None].expand(h, w).flatten()
    down = rows[:, None] - rows[None] + h - 1
    across = columns[:, None] - columns[None] + w - 1
    return down * (2 * w - 1) + across
