"""Where a patch lies: none · learned · sin-cos · factorised · relative · rotary · conditional.

A kind is one class. As a module it does its part of a forward; as a class it answers what other modules have to know
of it: how it is recognised in a checkpoint, whether its table is resized, what a page says of it. So a new kind is a
class here, with a place in `KINDS`, and nothing else; `position_kind.Position` says what there is to answer.

A table is made for one token grid and resized, in 2-D, to the grid of the image at hand, on every call: a resized copy
that is kept would go stale as soon as the table is trained.
"""

import math
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.attention import Rotary
from vitrail.models.grid import RULES, Grid, offsets_of, relative_index, resize_bias_table, resize_grid
from vitrail.models.position_kind import Position, Shape, Stored

# To `torch.fx.symbolic_trace` one step each: what they do depends on sizes, which it does not know.
torch.fx.wrap("resize_grid")
torch.fx.wrap("relative_index")

__all__ = ["KINDS", "RULES", "Grid", "Position", "make_position", "recognise_position", "resize_grid"]


class LearnedPosition(Position):
    """A free vector per patch, in raster order (the paper's default), after one for each prefix token if asked."""

    kind, summary, acts = "learned", "a learned vector per patch", "patches"
    learned = tabular = resized = may_have_prefix_rows = True

    def __init__(self, width: int, grid: Grid, prefix_rows: int, rule: str):
        super().__init__(rule)
        self.grid, self.prefix_rows = grid, prefix_rows
        self.table = nn.Parameter(torch.empty(1, prefix_rows + grid[0] * grid[1], width))
        nn.init.trunc_normal_(self.table, std=0.02)

    @classmethod
    def build(cls, shape: Shape) -> Position:
        return cls(shape.width, shape.grid, shape.prefix_rows, shape.rule)

    def add(self, patches: Tensor) -> Tensor:
        table = self.table[0, self.prefix_rows :].unflatten(0, self.grid)
        return patches + resize_grid(table, patches.shape[1:3], self.rule)

    def prefix(self) -> Tensor | None:
        return self.table[0, : self.prefix_rows] if self.prefix_rows else None

    @classmethod
    def recognised(cls, stored: Stored) -> dict[str, Any] | None:
        table = stored.state.get("table")
        if table is None or table.ndim != 3:
            return None
        rows = table.shape[1]
        counts = [rows - stored.tokens, rows, rows - stored.tokens - stored.registers]
        sides = (math.isqrt(max(count, 0)) for count in counts)
        size, count = stored.image_size(counts, sides, lambda grid: grid[0] * grid[1])
        return {"position_prefix": count < rows or not stored.tokens, "image_size": size}

    def as_table(self) -> tuple[Tensor, Tensor]:
        rows, patches = self.table[0].split([self.prefix_rows, self.grid[0] * self.grid[1]])
        return rows, patches

    def noise(self) -> Tensor:
        return self.table


class SinCosPosition(Position):
    """Fixed waves: half of the channels encode the column and half the row. The tokens in front get nothing."""

    kind, summary, acts = "sincos", "fixed waves over rows and columns", "patches"
    tabular = resized = outweighs_patches = True

    table: Tensor  # h w D

    def __init__(self, width: int, grid: Grid, rule: str):
        super().__init__(rule)
        self.width, self.grid = width, grid
        self.reset_buffers(torch.get_default_device())

    @classmethod
    def build(cls, shape: Shape) -> Position:
        return cls(shape.width, shape.grid, shape.rule)

    @classmethod
    def check(cls, width: int) -> None:
        if width % 4:
            raise VitrailError(f"Sine-cosine positions need a width that is a multiple of 4, got {width}.")

    def reset_buffers(self, device: torch.device | str) -> None:
        self.register_buffer("table", self.formula(self.width, self.grid, device), persistent=False)

    @classmethod
    def formula(cls, width: int, grid: Grid, device: torch.device | str | None = None) -> Tensor:
        h, w = grid
        rows = torch.arange(h, dtype=torch.float64, device=device)
        columns = torch.arange(w, dtype=torch.float64, device=device)
        across = waves(columns, width // 2).expand(h, w, -1)
        down = waves(rows, width // 2)[:, None].expand(h, w, -1)
        return torch.cat([across, down], dim=-1).float()

    def add(self, patches: Tensor) -> Tensor:
        return patches + resize_grid(self.table, patches.shape[1:3], self.rule).to(patches.dtype)

    def as_table(self) -> tuple[Tensor, Tensor]:
        patches = self.table.flatten(0, 1)
        return patches[:0], patches


class SinCos1dPosition(SinCosPosition):
    """Fixed waves of which all channels encode the raster index."""

    kind, summary = "sincos1d", "fixed waves over the raster index"

    @classmethod
    def formula(cls, width: int, grid: Grid, device: torch.device | str | None = None) -> Tensor:
        h, w = grid
        rows = torch.arange(h, dtype=torch.float64, device=device)
        columns = torch.arange(w, dtype=torch.float64, device=device)
        return waves(rows[:, None] * w + columns, width).float()


def waves(position: Tensor, width: int) -> Tensor:
    """sin(p·ω_i), then cos(p·ω_i), with ω_i = 10000^(-2i/width): [...] -> [..., width]."""
    half = width // 2
    omega = 10000.0 ** (-torch.arange(half, dtype=position.dtype, device=position.device) / half)
    angle = position[..., None] * omega
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class FactorisedPosition(Position):
    """A learned vector per row plus a learned vector per column: h + w vectors instead of h·w."""

    kind, summary, acts = "factorised", "a learned vector per row plus one per column", "patches"
    learned = resized = True

    def __init__(self, width: int, grid: Grid, rule: str):
        super().__init__(rule)
        self.rows = nn.Parameter(torch.empty(grid[0], width))
        self.columns = nn.Parameter(torch.empty(grid[1], width))
        nn.init.trunc_normal_(self.rows, std=0.02)
        nn.init.trunc_normal_(self.columns, std=0.02)

    @classmethod
    def build(cls, shape: Shape) -> Position:
        return cls(shape.width, shape.grid, shape.rule)

    def add(self, patches: Tensor) -> Tensor:
        h, w = patches.shape[1:3]
        rows = resize_grid(self.rows[:, None], (h, 1), self.rule)
        columns = resize_grid(self.columns[None], (1, w), self.rule)
        return patches + rows + columns

    @classmethod
    def recognised(cls, stored: Stored) -> dict[str, Any] | None:
        if "rows" not in stored.state:
            return None
        h, w = len(stored.state["rows"]), len(stored.state["columns"])
        return {"image_size": (h * stored.stride[0], w * stored.stride[1])}

    @classmethod
    def resize(cls, state: dict[str, Tensor], old: Grid, new: Grid, rule: str) -> dict[str, Tensor]:
        rows = resize_grid(state["rows"][:, None], (new[0], 1), rule)[:, 0]
        columns = resize_grid(state["columns"][None], (1, new[1]), rule)[0]
        return {"rows": rows, "columns": columns}


class RelativePosition(Position):
    """A learned bias per head and per offset (Δrow, Δcolumn), shared by all blocks and added to the scores.

    Tokens in front have no place in the image: three further rows serve prefix→patch, patch→prefix, prefix→prefix.
    """

    kind, summary, acts = "relative", "a learned bias per offset, inside attention", "attention"
    learned = resized = True
    no_vector = "it is a bias per offset"

    def __init__(self, heads: int, grid: Grid, prefix_tokens: int, rule: str):
        super().__init__(rule)
        self.grid, self.prefix_tokens = grid, prefix_tokens
        offsets = math.prod(offsets_of(grid))
        self.table = nn.Parameter(torch.empty(offsets + (3 if prefix_tokens else 0), heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    @classmethod
    def build(cls, shape: Shape) -> Position:
        return cls(shape.heads, shape.grid, shape.prefix_tokens, shape.rule)

    def bias(self, grid: Grid) -> Tensor:
        shape = offsets_of(self.grid)
        offsets = self.table[: shape[0] * shape[1]].unflatten(0, shape)
        offsets = resize_grid(offsets, offsets_of(grid), self.rule)
        bias = offsets.flatten(0, 1)[relative_index(grid, self.table.device)].permute(2, 0, 1)  # H hw hw
        if p := self.prefix_tokens:
            heads, n = bias.shape[:2]
            to_patch, from_patch, among = self.table[-3:, :, None, None]  # H 1 1 each
            left = torch.cat([among.expand(heads, p, p), from_patch.expand(heads, n, p)], dim=1)
            bias = torch.cat([left, torch.cat([to_patch.expand(heads, p, n), bias], dim=1)], dim=2)
        return bias[None]

    @classmethod
    def recognised(cls, stored: Stored) -> dict[str, Any] | None:
        table = stored.state.get("table")
        if table is None or table.ndim != 2:
            return None
        count = len(table) - (3 if stored.tokens + stored.registers else 0)
        side = (math.isqrt(count) + 1) // 2
        size, _ = stored.image_size([count], [side], lambda grid: math.prod(offsets_of(grid)))
        return {"heads": table.shape[1], "image_size": size}

    @classmethod
    def resize(cls, state: dict[str, Tensor], old: Grid, new: Grid, rule: str) -> dict[str, Tensor]:
        offsets, of_tokens = state["table"].tensor_split([math.prod(offsets_of(old))])
        return {"table": torch.cat([resize_bias_table(offsets, old, new, rule), of_tokens])}

    def carrier(self) -> tuple[str, Tensor]:
        return "the table of relative positions", self.table


class RotaryPosition(Position):
    """Queries and keys are turned by angles that grow with their row and column, so that a score depends on the offset.

    Coordinates are patch centres scaled to [-1, 1] on each axis, and the base is 100, as in DINOv3: any grid spans the
    same angles, so there is no table to resize.
    """

    kind, summary, acts = "rotary", "queries and keys are turned, inside attention", "attention"

    frequencies: Tensor  # d/4

    def __init__(self, head_width: int, base: float):
        super().__init__()
        if head_width % 4:
            raise VitrailError(f"Rotary positions need a head width that is a multiple of 4, got {head_width}.")
        self.head_width, self.base = head_width, base
        self.reset_buffers(torch.get_default_device())

    @classmethod
    def build(cls, shape: Shape) -> Position:
        return cls(shape.width // shape.heads, shape.rotary_base)

    def reset_buffers(self, device: torch.device | str) -> None:
        quarter = torch.arange(0, 1, 4 / self.head_width, dtype=torch.float32, device=device)
        self.register_buffer("frequencies", 1 / self.base**quarter, persistent=False)

    def rotary(self, grid: Grid) -> Rotary:
        angle = rotary_angles(grid, self.frequencies)
        return angle.cos(), angle.sin()

    def vectors(self, grid: Grid, width: int) -> Tensor:
        return torch.cat(self.rotary(grid), dim=-1).float()  # their product is the cosine of the difference

    def carrier(self) -> tuple[str, Tensor]:
        return "the frequencies of the rotary positions", self.frequencies


@torch.fx.wrap
def rotary_angles(grid: Grid, frequencies: Tensor) -> Tensor:
    """[d/4] -> [h·w, d], by which each number of a head turns at each place."""
    (h, w), device = grid, frequencies.device
    rows = 2 * (torch.arange(h, dtype=torch.float32, device=device) + 0.5) / h - 1
    columns = 2 * (torch.arange(w, dtype=torch.float32, device=device) + 0.5) / w - 1
    place = torch.stack([rows[:, None].expand(h, w), columns[None].expand(h, w)], dim=-1)  # h w 2
    angle = 2 * math.pi * place[..., None] * frequencies  # h w 2 d/4
    return angle.flatten(2).flatten(0, 1).tile(2)


class ConditionalPosition(Position):
    """CPVT's positional encoding generator: after the first block a zero-padded depth-wise 3×3 convolution, added to
    the patches. The zeros at the border are what tells the tokens where they are; any grid works."""

    kind, summary, acts = "conditional", "a 3×3 convolution after the first block", "between"
    learned = True
    no_vector = "it depends on the picture"

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width)

    @classmethod
    def build(cls, shape: Shape) -> Position:
        return cls(shape.width)

    def between(self, patches: Tensor) -> Tensor:
        return patches + self.conv(patches.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    @classmethod
    def recognised(cls, stored: Stored) -> dict[str, Any] | None:
        return {} if "conv.weight" in stored.state else None

    def carrier(self) -> tuple[str, Tensor]:
        return "the convolution of the conditional positions", self.conv.weight


KINDS: dict[str, type[Position]] = {
    each.kind: each
    for each in (
        Position, LearnedPosition, SinCosPosition, SinCos1dPosition, FactorisedPosition, RelativePosition,
        RotaryPosition, ConditionalPosition,
    )
}  # fmt: skip


def make_position(kind: str, **shape: Any) -> Position:
    """`shape` are the fields of `Shape`."""
    if kind not in KINDS:
        raise VitrailError(f"Unknown position kind {kind!r}; choose one of {', '.join(KINDS)}.")
    return KINDS[kind].build(Shape(**shape))


def recognise_position(stored: Stored) -> dict[str, Any]:
    """The kind that is stored, and the settings that it tells; fixed kinds leave no trace, and count as none."""
    for name, kind in KINDS.items():
        if (told := kind.recognised(stored)) is not None:
            return {"position": name, **told}
    return {"position": Position.kind}
