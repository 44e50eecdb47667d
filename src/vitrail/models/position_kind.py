"""What a kind of positions is: how it acts in a forward, and what it answers to other modules.

A kind acts in one of three places: on the patch embeddings (`add`), inside attention (`bias`, `rotary`), or after the
first block (`between`). `VisionTransformer` asks for all of them; each kind overrides the one it is about.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.attention import Rotary
from vitrail.models.grid import Grid
from vitrail.models.layers import ceil_div


class Shape(NamedTuple):
    """What a kind may want to know of the model that it is built for."""

    width: int
    heads: int
    grid: Grid
    prefix_tokens: int  # in front of the patches
    prefix_rows: int  # of those, how many have a row in a learned table
    rule: str
    rotary_base: float


@dataclass(frozen=True)
class Stored:
    """What a checkpoint holds of its positions, and what is known by then of the rest of its model."""

    state: dict[str, Tensor]  # by the names behind `position.`
    stride: Grid
    tokens: int  # class and distillation tokens
    registers: int
    stated: Sequence[Grid]  # image sizes that the file tells
    supposed: Sequence[Grid]  # sizes to try after a square

    def image_size(self, counts: Sequence[int], sides: Iterable[int], cells: Callable[[Grid], int]) -> tuple[Grid, int]:
        """The size of images, and which of the possible `counts` of rows it explains. A table tells how many rows it
        has but not of what grid; `cells` are the rows of a grid, and `sides` those of a square one for each count."""
        squares = [(side * self.stride[0], side * self.stride[1]) for side in sides]
        # Rows for tokens are usual, so every size is tried with them before one without: 225 rows are 15×15 patches,
        # but also 14×16 and a class token.
        tried = [(size, count) for size in self.stated for count in counts]
        tried += [(size, n) for n, square in zip(counts, squares, strict=True) for size in (square, *self.supposed)]
        for size, count in tried:
            if cells(ceil_div(size, self.stride)) == count:
                return size, count
        raise VitrailError(
            f"its table of {max(self.state['table'].shape[:-1])} rows is not that of a square image; say which: "
            "image_size=(height, width)"
        )


class Position(nn.Module):
    """No position information; also the interface of every other kind."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "no positions: the order of the patches is unknown to this model"
    acts: ClassVar[str] = "nowhere"  # nowhere | patches | attention | between
    learned: ClassVar[bool] = False  # are there parameters?
    tabular: ClassVar[bool] = False  # is it a table of one vector per patch? Such kinds can take each other's place.
    resized: ClassVar[bool] = False  # is there a table for one grid, that is resized for images of another size?
    may_have_prefix_rows: ClassVar[bool] = False  # does its table, or not, have rows for the tokens in front?
    outweighs_patches: ClassVar[bool] = False  # are its vectors many times larger than fresh embeddings of patches?
    no_vector: ClassVar[str] = "there is none"  # why places can't be compared, where `vectors` gives nothing

    def __init__(self, rule: str = "timm"):
        super().__init__()
        self.rule = rule

    @classmethod
    def build(cls, shape: Shape) -> "Position":
        return cls(shape.rule)

    @classmethod
    def check(cls, width: int) -> None:
        """Refuses a width of tokens that it can't be of."""

    # -- what it does in a forward ------------------------------------------------------------------------------------

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

    # -- what is asked of it by who reads and writes checkpoints ------------------------------------------------------

    @classmethod
    def recognised(cls, stored: Stored) -> dict[str, Any] | None:
        """The settings that what is stored tells, if it is of this kind; None if it is not, or can't be known."""
        return None

    @classmethod
    def resize(cls, state: dict[str, Tensor], old: Grid, new: Grid, rule: str) -> dict[str, Tensor]:
        """What is stored, by the names behind `position.`, for another grid; of kinds that are learned and resized."""
        return state

    @classmethod
    def formula(cls, width: int, grid: Grid, device: torch.device | str | None = None) -> Tensor:
        """The table of a kind that is tabular and not learned, [h, w, D]."""
        raise NotImplementedError

    def as_table(self) -> tuple[Tensor, Tensor] | None:
        """Of tabular kinds the rows for the tokens in front [n, D] and those of the patches [h·w, D]."""
        return None

    # -- what is asked of it by who looks inside ----------------------------------------------------------------------

    def vectors(self, grid: Grid, width: int) -> Tensor | None:
        """One vector per place that tells it from others, [h·w, d] in fp32; None where there is no such thing."""
        if self.acts != "patches":
            return None
        device = next(iter([*self.parameters(), *self.buffers()])).device
        return self.add(torch.zeros(1, *grid, width, device=device))[0].flatten(0, 1).float()

    def carrier(self) -> tuple[str, Tensor] | None:
        """Of kinds that are not added to patches, what carries the position: in words, and the numbers."""
        return None

    def noise(self) -> Tensor | None:
        """What begins as noise of σ = 0.02 and would stay so, had it never been loaded or trained; where that shows."""
        return None
