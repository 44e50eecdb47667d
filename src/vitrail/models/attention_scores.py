"""Attention as matrices: softmax(QKᵀ/√d + bias) in fp32, which no fused kernel forms, from its q and k."""

from itertools import groupby

import torch
from torch import Tensor


def scores_of(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """scale·QKᵀ + bias in fp32, however q and k are stored: [B, H, n, d] and [B, H, N, d] -> [B, H, n, N]."""
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and not torch.compiler.is_compiling():
        # The product of two halves is exact in fp32, and this adds them up in fp32: nothing is lost, nothing widened.
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(-2, -1), out_dtype=torch.float32)
        scores = scores.unflatten(0, q.shape[:2]).mul_(scale)
    else:
        with torch.autocast(q.device.type, enabled=False):  # it would multiply in half precision
            scores = (q.float() * scale) @ k.float().transpose(-2, -1)
    if bias is not None:
        scores.unflatten(0, (-1, bias.shape[0])).add_(bias.to(q.dtype))  # as rounded as the kernel gets it
    return scores


def attention_map(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(scale·QKᵀ + bias) in fp32, [B, H, n, N], made in place: no second matrix of this size exists."""
    scores = scores_of(q, k, bias, scale)
    scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    return scores.div_(scores.sum(dim=-1, keepdim=True))


class ClassRows:
    """The class rows of many layers, made together.

    One row is so little work that a GPU takes longer to be told of it than to do it. So layers leave their q and k, the
    very tensors of the forward, and a few kernels make the rows of all of them: when the last of the chosen layers has
    passed, when more than `most` bytes wait, or when someone wants to read.
    """

    # Nine layers of ViT-B/16 in half precision at batch 32, or all twelve of one image of 1024×1024.
    most = 2**28

    def __init__(self, heads: list[int] | None, to: torch.device | None, last: int):
        self.heads, self.to, self.last = heads, to, last
        self.waiting: dict[int, tuple[Tensor, Tensor, Tensor | None, float, int]] = {}
        self.bytes = 0
        self.made: dict[int, Tensor] = {}

    def add(self, layer: int, q: Tensor, k: Tensor, bias: Tensor | None, scale: float, prompts: int) -> None:
        self.made.pop(layer, None)  # of an earlier forward
        self.waiting[layer] = (q, k, bias, scale, prompts)
        self.bytes += 3 * k.nbytes  # q, k and v are parts of one tensor, which waits as a whole
        if layer == self.last or self.bytes > self.most:
            self.make()

    @torch.no_grad()
    def make(self) -> None:
        waiting, self.waiting, self.bytes = self.waiting, {}, 0
        for _, group in groupby(waiting.items(), key=lambda item: alike(*item[1])):  # MAE: encoder, then decoder
            layers, parts = zip(*group, strict=True)
            bias, scale, first = parts[0][2:]
            q = torch.cat([part[0].select(2, first) for part in parts]).unsqueeze(2)  # L·B H 1 d
            k = torch.cat([part[1] for part in parts])  # L·B H N d
            bias = None if bias is None else bias[:, :, first : first + 1]
            rows = scores_of(q, k, bias, scale).softmax(dim=-1)
            rows = rows[:, :, 0, first:].unflatten(0, (len(layers), -1))
            rows = rows if self.heads is None else rows[:, :, self.heads]
            rows = rows if self.to is None else rows.to(self.to)
            self.made.update(zip(layers, rows.unbind(), strict=True))


def alike(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, prompts: int) -> tuple[object, ...]:
    """Layers of which this is the same can be made together."""
    return k.shape, k.dtype, k.device, id(bias), scale, prompts


def outer_product(left: Tensor, right: Tensor, _: None) -> Tensor:
    """left·rightᵀ in fp32: [B, H, N, d] twice -> [B, H, N, N]."""
    with torch.autocast(left.device.type, enabled=False):
        return left.float() @ right.float().transpose(-2, -1)
