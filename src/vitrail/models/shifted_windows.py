"""Windows over a map of tokens, shifted by a part of their size: how Swin cuts a map, and how it puts it together.

Any h×w: a map that the window does not divide is padded. Peers disagree on when, and the weights of each were trained
its way, so the order is a named rule that travels with the weights:

    torchvision   pad, then roll; the window keeps its size, and does not shift on a map that is not larger than it
    timm          roll, then pad; the window shrinks to a map that is smaller, as `image_size` says

Neither hides the padding from attention; `mask_padding=True` does.
"""

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.grid import Grid
from vitrail.models.layers import ceil_div, open_size, traced

MASKED = -100.0  # what the published models were trained with, rather than minus infinity


class ShiftedWindows:
    """The windows over one map of `real` tokens, h×w."""

    def __init__(self, real: Grid, window: Grid, shift: Grid, padding: str, mask_padding: bool):
        self.real, self.window, self.mask_padding = real, window, mask_padding
        self.pad_first = padding == "torchvision"
        self.padded = whole_windows(real, window)
        self.grown = open_size(real) or self.padded != real
        self.shift: Any = shift
        self.rolls: Any = any(shift)
        if self.pad_first:
            # None where one window covers the map; as a minimum, since an exported graph can't branch on a size.
            room = (self.padded[0] - window[0], self.padded[1] - window[1])
            # Of plain numbers Python's own: PyTorch 2.11 can't compile the other.
            least = torch.sym_min if open_size(real) else min
            self.shift = (least(shift[0], room[0]), least(shift[1], room[1]))
            self.rolls = any(shift) if traced(real[0]) else any(self.shift)

    @property
    def count(self) -> int:
        return self.padded[0] // self.window[0] * (self.padded[1] // self.window[1])

    def cut(self, x: Tensor) -> Tensor:
        """Pads and rolls, in the order of the rule, and cuts: [B, h, w, D] -> [B·windows, n, D]."""
        margin = (0, 0, 0, self.padded[1] - self.real[1], 0, self.padded[0] - self.real[0])
        if self.pad_first and self.grown:
            x = F.pad(x, margin)
        if self.rolls:
            x = roll(x, (-self.shift[0], -self.shift[1]))
        if not self.pad_first and self.grown:
            x = F.pad(x, margin)
        return partition(x, self.window)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `cut`: [B·windows, n, D] -> [B, h, w, D]."""
        x = unpartition(x, self.window, self.padded)
        if not self.pad_first and self.grown:
            x = x[:, : self.real[0], : self.real[1]]
        if self.rolls:
            x = roll(x, self.shift)
        if self.pad_first and self.grown:
            x = x[:, : self.real[0], : self.real[1]]
        return x

    def places(self, device: torch.device) -> Tensor:
        """Which token, counted row by row, lies at each place of each window, -1 for padding: [windows, n]."""
        h, w = self.real
        numbers = torch.arange(1, h * w + 1, device=device).view(1, h, w, 1)  # padding adds zeros
        return self.cut(numbers)[..., 0] - 1

    def mask(self, device: torch.device) -> Tensor | None:
        """Which pairs inside a window may not see each other, as -100 on the scores: [windows, 1, n, n]; None where all
        may."""
        if not self.rolls and not (self.mask_padding and self.grown):
            return None
        rows, columns = (
            regions(self.padded[i], self.real[i], self.shift[i], self.pad_first, self.mask_padding, device)
            for i in (0, 1)
        )
        region = rows[:, None] * 4 + columns
        region = partition(region[None, ..., None], self.window).flatten(1)  # windows n
        return torch.where(region[:, None, :] == region[:, :, None], 0.0, MASKED)[:, None]


@torch.fx.wrap
def regions(padded: int, real: int, shift: int, pad_first: bool, mask_padding: bool, device: torch.device) -> Tensor:
    """Labels of the rows, or the columns; only tokens of equal labels belong together. After a roll the last `shift`
    places come from the other end of the image; with `mask_padding`, the padding is a region of its own, wherever the
    roll has put it."""
    place = torch.arange(padded, device=device)
    label = (place >= padded - shift).long()
    if mask_padding:
        origin = place
        if pad_first:
            origin = torch.where(place < padded - shift, place + shift, place + shift - padded)
        label = label + 2 * (origin >= real)
    return label


def partition(x: Tensor, window: Grid) -> Tensor:
    """[B, h, w, D] -> [B·windows, n, D]."""
    b, h, w, d = x.shape
    x = x.view(b, h // window[0], window[0], w // window[1], window[1], d)
    return x.transpose(2, 3).reshape(-1, window[0] * window[1], d)


def unpartition(x: Tensor, window: Grid, grid: Grid) -> Tensor:
    """The inverse of `partition`: [B·windows, n, D] -> [B, h, w, D]."""
    rows, columns = grid[0] // window[0], grid[1] // window[1]
    x = x.view(-1, rows, columns, window[0], window[1], x.shape[-1])
    return x.transpose(2, 3).reshape(-1, grid[0], grid[1], x.shape[-1])


def whole_windows(size: Grid, window: Grid) -> Grid:
    """The size up to the next multiple of the window."""
    count = ceil_div(size, window)
    return count[0] * window[0], count[1] * window[1]


def roll(x: Tensor, shift: Grid) -> Tensor:
    """[B, h, w, D], its rows and columns moved on by `shift`, the last ones to the front."""
    if traced(shift[0]) or not open_size(shift):
        return torch.roll(x, shift, dims=(1, 2))
    # ONNX rolls by known numbers only; and cut in two, a part of one row would be taken to be always one.
    for dim, (by, size) in enumerate(zip(shift, x.shape[1:3], strict=True), 1):
        place = torch.arange(size, device=x.device) - by
        place = torch.where(place < 0, place + size, place)
        x = x.index_select(dim, torch.where(place < size, place, place - size))
    return x
