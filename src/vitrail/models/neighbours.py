"""Each patch with its neighbours: a depth-wise 3×3 convolution before a block, and kernels for it on a GPU.

With it a transformer that learns from few images need not find out that what lies side by side belongs together (the
local perception unit of CMT, Guo et al. 2022; CPVT has one such convolution for its positions). It takes hardly any
arithmetic, but libraries make several passes over memory of it; here it is one forward and one backward.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models.kernels.short_attention import can_build, tl, triton
from vitrail.models.layers import exporting, traced
from vitrail.models.plain import is_plain

WIDEST = 64  # grid that the kernels take, in patches across
TILE = 1024  # numbers that one program has in its registers at a time


class Neighbours(nn.Conv2d):
    """Adds to each patch a convolution of those around it; tokens in front of the patches stay as they are."""

    def __init__(self, width: int):
        super().__init__(width, width, kernel_size=3, padding=1, groups=width)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:  # type: ignore[override]  # B N D
        assert self.bias is not None
        if suits(x, grid):
            return mix_neighbours(x, self.weight, self.bias, *grid)
        prefix = x.shape[1] - grid[0] * grid[1]
        patches = x[:, prefix:].unflatten(1, grid)
        mixed = (patches + super().forward(patches.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)).flatten(1, 2)
        return torch.cat([x[:, :prefix], mixed], dim=1) if traced(prefix) or prefix else mixed


def suits(x: Tensor, grid: tuple[int, int]) -> bool:
    if is_plain():
        return False
    return x.is_cuda and x.dtype != torch.float64 and grid[1] <= WIDEST and not exporting() and can_build()


if triton is not None:

    @triton.jit
    def _at(start, row, across, dy: tl.constexpr, dx: tl.constexpr, height, width, channels, c):
        """Of every place in a row the neighbour at (dy, dx): [places, channels], zeros beyond the border."""
        y, x = row + dy + tl.zeros_like(across), across + dx
        there = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        places = start + (y * width + x)[:, None] * channels + c[None, :]
        return tl.load(places, mask=there[:, None] & (c < channels)[None, :], other=0.0).to(tl.float32)

    @triton.jit
    def _put(start, row, across, values, width, channels, c):
        places = start + (row * width + across)[:, None] * channels + c[None, :]
        tl.store(places, values.to(start.dtype.element_ty), mask=(across < width)[:, None] & (c < channels)[None, :])

    @triton.jit
    def _copy(source, target, rows, channels, c):
        for row in range(rows):
            values = tl.load(source + row * channels + c, mask=c < channels)
            tl.store(target + row * channels + c, values, mask=c < channels)

    @triton.jit
    def _forward(
        tokens, weight, bias, out, prefix, height, width, channels, across_block: tl.constexpr, block: tl.constexpr
    ):
        c, across = tl.program_id(1) * block + tl.arange(0, block), tl.arange(0, across_block)
        start = tl.program_id(0).to(tl.int64) * (prefix + height * width) * channels
        tokens += start
        out += start
        _copy(tokens, out, prefix, channels, c)
        tokens += prefix * channels
        out += prefix * channels
        added = tl.load(bias + c, mask=c < channels, other=0.0)[None, :]
        for row in range(height):
            made = _at(tokens, row, across, 0, 0, height, width, channels, c) + added
            for k in tl.static_range(9):
                factor = tl.load(weight + k * channels + c, mask=c < channels, other=0.0)[None, :]
                made += factor * _at(tokens, row, across, k // 3 - 1, k % 3 - 1, height, width, channels, c)
            _put(out, row, across, made, width, channels, c)

    @triton.jit
    def _tap(
        tokens, grad, here, made, found, weight, k: tl.constexpr, row, across, height, width, channels, c
    ):  # fmt: skip
        """What one of the nine weights gets, and what it gives back to the neighbour that it was applied to."""
        dy: tl.constexpr = k // 3 - 1
        dx: tl.constexpr = k % 3 - 1
        found += tl.sum(here * _at(tokens, row, across, dy, dx, height, width, channels, c), 0)
        factor = tl.load(weight + k * channels + c, mask=c < channels, other=0.0)[None, :]
        made += factor * _at(grad, row, across, -dy, -dx, height, width, channels, c)
        return made, found

    @triton.jit
    def _backward(
        tokens, grad, weight, out, sums, prefix, height, width, channels,
        across_block: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        c, across = tl.program_id(1) * block + tl.arange(0, block), tl.arange(0, across_block)
        start = tl.program_id(0).to(tl.int64) * (prefix + height * width) * channels
        tokens += start
        grad += start
        out += start
        _copy(grad, out, prefix, channels, c)
        tokens += prefix * channels
        grad += prefix * channels
        out += prefix * channels
        total = tl.zeros((block,), tl.float32)
        f0, f1, f2, f3, f4, f5, f6, f7, f8 = total, total, total, total, total, total, total, total, total
        for row in range(height):
            here = _at(grad, row, across, 0, 0, height, width, channels, c)
            made = here
            total += tl.sum(here, 0)
            made, f0 = _tap(tokens, grad, here, made, f0, weight, 0, row, across, height, width, channels, c)
            made, f1 = _tap(tokens, grad, here, made, f1, weight, 1, row, across, height, width, channels, c)
            made, f2 = _tap(tokens, grad, here, made, f2, weight, 2, row, across, height, width, channels, c)
            made, f3 = _tap(tokens, grad, here, made, f3, weight, 3, row, across, height, width, channels, c)
            made, f4 = _tap(tokens, grad, here, made, f4, weight, 4, row, across, height, width, channels, c)
            made, f5 = _tap(tokens, grad, here, made, f5, weight, 5, row, across, height, width, channels, c)
            made, f6 = _tap(tokens, grad, here, made, f6, weight, 6, row, across, height, width, channels, c)
            made, f7 = _tap(tokens, grad, here, made, f7, weight, 7, row, across, height, width, channels, c)
            made, f8 = _tap(tokens, grad, here, made, f8, weight, 8, row, across, height, width, channels, c)
            _put(out, row, across, made, width, channels, c)
        sums += tl.program_id(0).to(tl.int64) * 10 * channels + c
        tl.store(sums, f0, mask=c < channels)
        tl.store(sums + channels, f1, mask=c < channels)
        tl.store(sums + 2 * channels, f2, mask=c < channels)
        tl.store(sums + 3 * channels, f3, mask=c < channels)
        tl.store(sums + 4 * channels, f4, mask=c < channels)
        tl.store(sums + 5 * channels, f5, mask=c < channels)
        tl.store(sums + 6 * channels, f6, mask=c < channels)
        tl.store(sums + 7 * channels, f7, mask=c < channels)
        tl.store(sums + 8 * channels, f8, mask=c < channels)
        tl.store(sums + 9 * channels, total, mask=c < channels)


def _launch(kernel: Any, programs: int, tensors: list[Tensor], counts: tuple[int, ...]) -> None:
    """`counts` ends with the height, the width and the channels of the grid."""
    width, channels = counts[-2:]
    across = max(2, 1 << (width - 1).bit_length())
    block = max(16, TILE // across)
    with torch.cuda.device_of(tensors[0]):  # Triton starts on the current device, wherever the tensors are
        kernel[(programs, -(-channels // block))](*tensors, *counts, across, block, num_warps=1)


def _by_place(weight: Tensor) -> Tensor:
    """[D, 1, 3, 3] -> [9, D]."""
    return weight.flatten(1).t().float().contiguous()


@torch.library.custom_op("vitrail::mix_neighbours", mutates_args=())
def mix_neighbours(tokens: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    """[B, N, D], the last h·w of the N tokens a grid, to the same with the convolution added."""
    tokens, out = tokens.contiguous(), torch.empty_like(tokens, memory_format=torch.contiguous_format)
    b, n, d = tokens.shape
    counts = (n - height * width, height, width, d)
    _launch(_forward, b, [tokens, _by_place(weight), bias, out], counts)
    return out


@torch.library.custom_op("vitrail::mix_neighbours_backward", mutates_args=())
def mix_neighbours_backward(
    grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    grad, tokens = grad.contiguous(), tokens.contiguous()
    b, n, d = tokens.shape
    out, sums = torch.empty_like(grad), tokens.new_empty(b, 10, d, dtype=torch.float32)  # of each image, to be added up
    counts = (n - height * width, height, width, d)
    _launch(_backward, b, [tokens, grad, _by_place(weight), out, sums], counts)
    total = sums.sum(0)
    return out, total[:9].t().reshape(weight.shape).to(weight.dtype).contiguous(), total[9].to(weight.dtype, copy=True)


@mix_neighbours.register_fake
def _(tokens: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    return torch.empty_like(tokens, memory_format=torch.contiguous_format)


@mix_neighbours_backward.register_fake
def _(grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    new = torch.empty_like(grad, memory_format=torch.contiguous_format)
    return new, torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.grid = inputs[3:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *mix_neighbours_backward(grad, *ctx.saved_tensors, *ctx.grid), None, None


mix_neighbours.register_autograd(_differentiate, setup_context=_remember)
