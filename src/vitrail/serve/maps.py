"""Attention in a form small enough to send once, so that hovering never waits for the server.

A value a of a row becomes round(255·√(a / largest of the row)) in one byte, and the row's largest value goes along as a
float: the error is below 1/255 of the largest value of the row, and far below that for the many small values.

One layout serves every family. A layer is [windows, heads, n, n] with the place of each of the n tokens of a window:
0, 1, … for patches row by row, -1, -2, … for the tokens in front of them, and `NOWHERE` for padding. A ViT has one
window; Swin's are shifted and padded.
"""

from typing import Any

import torch
from torch import Tensor

from vitrail.models import SwinTransformer
from vitrail.models.attention import TokenLayout
from vitrail.models.layers import ceil_div

NOWHERE = -1000
# All layers are sent at once up to this many bytes (ViT-B/16 at 224: 5.6 MB, at 384: 48 MB), and one by one beyond it.
SENT_AT_ONCE = 24 * 2**20
# The largest map of one layer that a page should have to hold; it decides how far the size slider goes.
LARGEST_LAYER = 32 * 2**20


def packed(attention: Tensor) -> tuple[Tensor, Tensor]:
    """[..., n, n] in fp32 -> uint8 [..., n, n] and the largest value of each row [..., n]."""
    top = attention.amax(dim=-1)
    share = attention / top[..., None].clamp(min=1e-30)
    return share.sqrt_().mul_(255).round_().to(torch.uint8).cpu(), top.float().cpu()


def unpacked(bytes_: Tensor, top: Tensor) -> Tensor:
    """What the page computes, for tests."""
    return (bytes_.float() / 255).square() * top[..., None]


def windows_first(attention: Tensor) -> Tensor:
    """One image of a captured layer as [windows, heads, n, n]: ViT [1, H, N, N], Swin [1, windows, H, n, n]."""
    return attention[0] if attention.ndim == 5 else attention


def places(layout: TokenLayout) -> Tensor:
    """Where the tokens of each window of a captured layer lie: int32 [windows, n]."""
    if layout.windows is not None and isinstance(layout.places, Tensor):
        return torch.where(layout.places < 0, NOWHERE, layout.places).int().cpu()
    front = -1 - torch.arange(len(layout.prefix), dtype=torch.int32)
    return torch.cat([front, torch.arange(layout.grid[0] * layout.grid[1], dtype=torch.int32)])[None]


def packed_bytes(net: Any, grids: list[tuple[int, int]]) -> int:
    """Of all layers, before any of them is computed."""
    total = 0
    for block, (h, w) in zip(net.blocks, grids, strict=True):
        windows, n = 1, net.prefix_tokens + h * w
        if isinstance(net, SwinTransformer):
            across = ceil_div((h, w), block.window)
            windows, n = across[0] * across[1], block.window[0] * block.window[1]
        total += windows * block.attention.heads * n * n
    return total
