"""Where a patch lies: none · learned · sin-cos · factorised · relative · rotary · conditional.

A kind acts in one of three places: on the patch embeddings (`add`), inside attention (`bias`, `rotary`), or between
the blocks (`between`). `VisionTransformer` asks for all of them; each kind overrides the one it is about.

A table is made for one token grid and resized, in 2-D, to the grid of the image at hand, on every call: a resized copy
that is kept would go stale as soon as the table is trained.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.attention import Rotary
from vitrail.models.layers import exporting

Grid = tuple[int, int]

# How each ecosystem resizes a table. The rule belongs to the weights: the numbers were judged, or trained, under it.
RULES: dict[str, dict] = {
    "timm": {"mode": "bicubic", "antialias": True},
    "hf": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
    "google": {"mode": "bilinear", "align_corners": True},
}


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


class Position(nn.Module):
    """No position information; also the interface of every other kind."""

    prefix_rows = 0  # rows that the table holds for the tokens in front of the patches

    def __init__(self, rule: str = "timm"):
        super().__init__()
        self.rule = rule

    def add(self, patches: Tensor) -> Tensor:  # B h w D
        return patches

    def prefix(self) -> Tensor | None:  # prefix_rows × D, added to the tokens in front
        return None

    def bias(self, grid: Grid) -> Tensor | None:  # 1 H N N, added to the attention scores
        return None

    def rotary(self, grid: Grid) -> Rotary | None:
        return None

    def between(self, patches: Tensor) -> Tensor:  # B h w D, after the first block
        return patches

    def reset_buffers(self, device: torch.device | str) -> None:
        """Fills the buffers that no checkpoint holds, after the model was built without memory."""


class LearnedPosition(Position):
    """A free vector per patch, in raster order (the paper's default), after one for each prefix token if asked."""

    def __init__(self, width: int, grid: Grid, prefix_rows: int, rule: str):
        super().__init__(rule)
        self.grid, self.prefix_rows = grid, prefix_rows
        self.table = nn.Parameter(torch.empty(1, prefix_rows + grid[0] * grid[1], width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def add(self, patches: Tensor) -> Tensor:
        table = self.table[0, self.prefix_rows :].unflatten(0, self.grid)
        return patches + resize_grid(table, patches.shape[1:3], self.rule)

    def prefix(self) -> Tensor | None:
        return self.table[0, : self.prefix_rows] if self.prefix_rows else None


class SinCosPosition(Position):
    """Fixed waves. In 2-D half of the channels encode the column and half the row; in 1-D all encode the raster index.
    The tokens in front of the patches get nothing."""

    table: Tensor  # h w D

    def __init__(self, width: int, grid: Grid, rule: str, two_dimensional: bool = True):
        super().__init__(rule)
        self.width, self.grid, self.two_dimensional = width, grid, two_dimensional
        self.reset_buffers(torch.get_default_device())

    def reset_buffers(self, device: torch.device | str) -> None:
        h, w = self.grid
        rows = torch.arange(h, dtype=torch.float64, device=device)
        columns = torch.arange(w, dtype=torch.float64, device=device)
        if self.two_dimensional:
            across = waves(columns, self.width // 2).expand(h, w, -1)
            down = waves(rows, self.width // 2)[:, None].expand(h, w, -1)
            table = torch.cat([across, down], dim=-1)
        else:
            table = waves(rows[:, None] * w + columns, self.width)
        self.register_buffer("table", table.float(), persistent=False)  # h w D

    def add(self, patches: Tensor) -> Tensor:
        return patches + resize_grid(self.table, patches.shape[1:3], self.rule).to(patches.dtype)


def waves(position: Tensor, width: int) -> Tensor:
    """sin(p·ω_i), then cos(p·ω_i), with ω_i = 10000^(-2i/width): [...] -> [..., width]."""
    half = width // 2
    omega = 10000.0 ** (-torch.arange(half, dtype=position.dtype, device=position.device) / half)
    angle = position[..., None] * omega
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class FactorisedPosition(Position):
    """A learned vector per row plus a learned vector per column: h + w vectors instead of h·w."""

    def __init__(self, width: int, grid: Grid, rule: str):
        super().__init__(rule)
        self.rows = nn.Parameter(torch.empty(grid[0], width))
        self.columns = nn.Parameter(torch.empty(grid[1], width))
        nn.init.trunc_normal_(self.rows, std=0.02)
        nn.init.trunc_normal_(self.columns, std=0.02)

    def add(self, patches: Tensor) -> Tensor:
        h, w = patches.shape[1:3]
        rows = resize_grid(self.rows[:, None], (h, 1), self.rule)
        columns = resize_grid(self.columns[None], (1, w), self.rule)
        return patches + rows + columns


class RelativePosition(Position):
    """A learned bias per head and per offset (Δrow, Δcolumn), shared by all blocks and added to the scores.

    Tokens in front have no place in the image: three further rows serve prefix→patch, patch→prefix, prefix→prefix.
    """

    def __init__(self, heads: int, grid: Grid, prefix_tokens: int, rule: str):
        super().__init__(rule)
        self.grid, self.prefix_tokens = grid, prefix_tokens
        offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
        self.table = nn.Parameter(torch.empty(offsets + (3 if prefix_tokens else 0), heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def bias(self, grid: Grid) -> Tensor:
        shape = (2 * self.grid[0] - 1, 2 * self.grid[1] - 1)
        offsets = self.table[: shape[0] * shape[1]].unflatten(0, shape)
        offsets = resize_grid(offsets, (2 * grid[0] - 1, 2 * grid[1] - 1), self.rule)
        bias = offsets.flatten(0, 1)[relative_index(grid, self.table.device)].permute(2, 0, 1)  # H hw hw
        if p := self.prefix_tokens:
            heads, n = bias.shape[:2]
            to_patch, from_patch, among = self.table[-3:, :, None, None]  # H 1 1 each
            left = torch.cat([among.expand(heads, p, p), from_patch.expand(heads, n, p)], dim=1)
            bias = torch.cat([left, torch.cat([to_patch.expand(heads, p, n), bias], dim=1)], dim=2)
        return bias[None]


def relative_index(grid: Grid, device: torch.device | str) -> Tensor:
    """For every pair of places, the row of a (2h-1)·(2w-1) table that holds their offset: [h·w, h·w]."""
    h, w = grid
    rows = torch.arange(h, device=device)[:, None].expand(h, w).flatten()
    columns = torch.arange(w, device=device)[None].expand(h, w).flatten()
    down = rows[:, None] - rows[None] + h - 1
    across = columns[:, None] - columns[None] + w - 1
    return down * (2 * w - 1) + across


class RotaryPosition(Position):
    """Queries and keys are turned by angles that grow with their row and column, so that a score depends on the offset.

    Coordinates are patch centres scaled to [-1, 1] on each axis, and the base is 100, as in DINOv3: any grid spans the
    same angles, so there is no table to resize.
    """

    frequencies: Tensor  # d/4

    def __init__(self, head_width: int, base: float):
        super().__init__()
        if head_width % 4:
            raise VitrailError(f"Rotary positions need a head width that is a multiple of 4, got {head_width}.")
        self.head_width, self.base = head_width, base
        self.reset_buffers(torch.get_default_device())

    def reset_buffers(self, device: torch.device | str) -> None:
        quarter = torch.arange(0, 1, 4 / self.head_width, dtype=torch.float32, device=device)
        self.register_buffer("frequencies", 1 / self.base**quarter, persistent=False)

    def rotary(self, grid: Grid) -> Rotary:
        h, w = grid
        device = self.frequencies.device
        rows = 2 * (torch.arange(h, dtype=torch.float32, device=device) + 0.5) / h - 1
        columns = 2 * (torch.arange(w, dtype=torch.float32, device=device) + 0.5) / w - 1
        place = torch.stack([rows[:, None].expand(h, w), columns[None].expand(h, w)], dim=-1)  # h w 2
        angle = 2 * math.pi * place[..., None] * self.frequencies  # h w 2 d/4
        angle = angle.flatten(2).flatten(0, 1).tile(2)  # hw d
        return angle.cos(), angle.sin()


class ConditionalPosition(Position):
    """CPVT's positional encoding generator: after the first block a zero-padded depth-wise 3×3 convolution, added to
    the patches. The zeros at the border are what tells the tokens where they are; any grid works."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width)

    def between(self, patches: Tensor) -> Tensor:
        return patches + self.conv(patches.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


KINDS = ("none", "learned", "sincos", "sincos1d", "factorised", "relative", "rotary", "conditional")


def make_position(
    kind: str,
    *,
    width: int,
    heads: int,
    grid: Grid,
    prefix_tokens: int,
    prefix_rows: int,
    rule: str,
    rotary_base: float,
) -> Position:
    if kind == "none":
        return Position(rule)
    if kind == "learned":
        return LearnedPosition(width, grid, prefix_rows, rule)
    if kind in ("sincos", "sincos1d"):
        return SinCosPosition(width, grid, rule, two_dimensional=kind == "sincos")
    if kind == "factorised":
        return FactorisedPosition(width, grid, rule)
    if kind == "relative":
        return RelativePosition(heads, grid, prefix_tokens, rule)
    if kind == "rotary":
        return RotaryPosition(width // heads, rotary_base)
    if kind == "conditional":
        return ConditionalPosition(width)
    raise VitrailError(f"Unknown position kind {kind!r}; choose one of {', '.join(KINDS)}.")
