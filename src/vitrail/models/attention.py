"""Self-attention, global and in windows: the one place that chooses a kernel, or hands out an attention map.

The fused kernel never forms softmax(QKᵀ/√d). Whoever asks through `capture` gets it recomputed from the very q and k
of the forward that is running; layers that nobody asked about keep their kernel, and no output changes.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.checks import check_layers

Rotary = tuple[Tensor, Tensor]  # cos and sin of the angles, each [h·w, d]


class Attention(nn.Module):
    """Multi-head self-attention: softmax(QKᵀ/√d + bias)·V per head, heads concatenated and projected.

    `qkv_bias` may be "qv": queries and values get a bias and keys none, as in Swin v2 and DINOv3.
    `cosine` compares directions instead of dot products, with a learned temperature per head (Swin v2).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        qkv_bias: bool | str = True,
        qk_norm: bool = False,
        cosine: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        self.heads, self.cosine = heads, cosine
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias is True)
        self.q_bias = nn.Parameter(torch.zeros(width)) if qkv_bias == "qv" else None
        self.v_bias = nn.Parameter(torch.zeros(width)) if qkv_bias == "qv" else None
        self.q_norm = nn.LayerNorm(width // heads, eps=norm_eps) if qk_norm else None
        self.k_norm = nn.LayerNorm(width // heads, eps=norm_eps) if qk_norm else None
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0))) if cosine else None
        self.proj = nn.Linear(width, width)
        self.sink: Callable[[Tensor], None] | None = None  # set by `capture`

    def forward(
        self, x: Tensor, bias: Tensor | None = None, rotary: Rotary | None = None, windows: int | None = None
    ) -> Tensor:
        """[B, N, D] -> [B, N, D]. A `bias` [M, H, N, N] repeats every M samples along the batch.

        Swin hands in its windows as samples, M of each image in a row, and says so in `windows`.
        """
        qkv = self.qkv(x)
        if self.q_bias is not None and self.v_bias is not None:
            qkv = qkv + torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # B H N d each
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        scale = q.shape[-1] ** -0.5
        if self.logit_scale is not None:
            # The temperature is held below 100, as the Swin v2 paper does for stability.
            # Not in half precision: a padded token has k = 0, and there is no epsilon small enough to divide it by.
            wide = torch.promote_types(v.dtype, torch.float32)
            q = F.normalize(q.to(wide), dim=-1) * self.logit_scale.clamp(max=math.log(100.0)).exp()
            q, k, scale = q.to(v.dtype), F.normalize(k.to(wide), dim=-1).to(v.dtype), 1.0
        if self.sink is not None:
            with torch.no_grad():  # nothing of it may enter the graph: checkpointing would miss it in its second run
                attention = attention_map(q, k, bias, scale)
            self.sink(attention if windows is None else attention.unflatten(0, (-1, windows)))
        x = attend(q, k, v, bias, scale, self.attention_dropout if self.training else 0.0)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    """softmax(scale·QKᵀ + bias)·V by the fastest kernel there is; q, k, v and the result are [B, H, N, d]."""
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    bias = bias.to(q.dtype)
    if q.device.type == "cpu" and bias.requires_grad:
        # No fused CPU kernel has a gradient for the bias, and the plain product is faster than its stand-in.
        scores = ((q * scale) @ k.transpose(-2, -1)).unflatten(0, (-1, bias.shape[0])) + bias
        return F.dropout(scores.flatten(0, 1).softmax(dim=-1), dropout) @ v
    # M different biases: the windows are made to look like further heads, so that one [1, M·H, N, N] bias serves the
    # whole batch by broadcasting and is never repeated in memory.
    (b, h, n, d), m = q.shape, bias.shape[0]
    if m > 1:
        q, k, v = (t.reshape(b // m, m * h, n, d) for t in (q, k, v))
    mask = bias.reshape(1, m * h, n, n)
    if q.device.type == "cuda":
        # The memory-efficient kernel wants rows that start on 16 bytes; without that, a slower one steps in.
        mask = F.pad(mask, (0, -n % 8))[..., :n].expand(q.shape[0], -1, -1, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale).reshape(b, h, n, d)


def attention_map(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(scale·QKᵀ + bias) in fp32, [B, H, N, N]."""
    scores = q.float() @ k.float().transpose(-2, -1) * scale
    if bias is not None:
        scores = (scores.unflatten(0, (-1, bias.shape[0])) + bias.float()).flatten(0, 1)
    return scores.softmax(dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x_i, x_{i+d/2}) of the patch tokens by its angle; tokens in front of them stay as they are."""
    prefix, patches = x[..., : x.shape[-2] - cos.shape[-2], :], x[..., x.shape[-2] - cos.shape[-2] :, :]
    left, right = patches.chunk(2, dim=-1)
    turned = patches * cos + torch.cat([-right, left], dim=-1) * sin
    return torch.cat([prefix, turned.to(x.dtype)], dim=-2)


class AttentionMaps(dict[int, Tensor]):
    """The maps that a `capture` has seen: `maps[layer]` is [B, H, N, N], in Swin [B, windows, H, n, n].

    Layers count from 0, and from the end as -1, -2, …, as in the call of `capture`.
    """

    def __init__(self, depth: int):
        super().__init__()
        self.depth = depth

    def __missing__(self, layer: int) -> Tensor:
        if layer < 0 and layer + self.depth in self:
            return self[layer + self.depth]
        raise VitrailError(f"Layer {layer} was not captured; there are {sorted(self)}.")


@contextmanager
def capture(model: nn.Module, layers: Iterable[int] | None = None) -> Iterator[AttentionMaps]:
    """Collects the true attention of the chosen layers (all of them by default) during the forwards inside.

    >>> with vitrail.capture(model, layers=[0, 11]) as maps:
    ...     model(images)
    >>> maps[11][0].mean(0)  # [N, N], the last layer of the first image, averaged over its heads
    """
    modules = [m for m in model.modules() if isinstance(m, Attention)]
    chosen = check_layers(range(len(modules)) if layers is None else layers, len(modules))
    maps = AttentionMaps(len(modules))
    before = {i: modules[i].sink for i in chosen}  # a capture around this one goes on afterwards
    for i in chosen:
        modules[i].sink = lambda attention, i=i: maps.__setitem__(i, attention.detach())  # type: ignore[misc]
    try:
        yield maps
    finally:
        for i, sink in before.items():
            modules[i].sink = sink
