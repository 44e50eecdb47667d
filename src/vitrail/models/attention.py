"""Self-attention, global and in windows: the one place that chooses a kernel.

A fused kernel never forms softmax(QKᵀ/√d). Whoever wants it leaves a probe (`models.attention_maps`), which is handed
the very q and k of the forward that is running; layers without one do nothing for it, and no output changes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.kernels.short_attention import short_attention, suits
from vitrail.models.plain import is_plain

Rotary = tuple[Tensor, Tensor]  # cos and sin of the angles, each [h·w, d]


class TokenLayout(NamedTuple):
    """Where the tokens of a layer lie in the image. The models hand it along to a `capture` and `Neighbours`."""

    grid: tuple[int, int]  # h, w of all patches
    prefix: tuple[str, ...] = ()  # names of the tokens in front of the patches
    # Which patch each token is, -1 for padding: [B, n] where patches were left out (MAE), [windows, n] in Swin.
    places: Tensor | Callable[[], Tensor] | None = None
    windows: int | None = None  # Swin: the samples are windows, so many of each image in a row
    prompts: int = 0  # learned tokens in front of all others; maps leave them out


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
        self.probes: list[Callable[..., None]] = []  # put there by `capture`

    def forward(
        self, x: Tensor, bias: Tensor | None = None, rotary: Rotary | None = None, layout: TokenLayout | None = None
    ) -> Tensor:
        """[B, N, D] -> [B, N, D]. A `bias` [M, H, N, N] repeats every M samples along the batch: Swin hands in its
        windows as samples, M of each image in a row."""
        qkv = self.qkv(x)
        if self.q_bias is not None and self.v_bias is not None:
            qkv = qkv + torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = qkv.unflatten(-1, (3, self.heads, -1))  # B N 3 H d
        q, k, v = projected = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # B H N d each
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            cos, sin = rotary
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scale = q.shape[-1] ** -0.5
        if self.logit_scale is not None:
            # The temperature is held below 100, as the Swin v2 paper does for stability.
            # Not in half precision: a padded token has k = 0, and there is no epsilon small enough to divide it by.
            q = F.normalize(widened(q), dim=-1) * self.logit_scale.clamp(max=math.log(100.0)).exp()
            q, k, scale = q.to(v.dtype), F.normalize(widened(k), dim=-1).to(v.dtype), 1.0
        dropout = self.attention_dropout if self.training else 0.0
        if bias is None and not dropout and not is_plain() and suits(qkv):
            if q is not projected[0]:  # turned or normalised
                qkv = torch.stack([each.transpose(1, 2) for each in (q, k, v)], dim=2)
            x = short_attention(qkv, scale).transpose(1, 2)
        else:
            x = attend(q, k, v, bias, scale, dropout)
        for probe in self.probes:  # none, unless someone captures
            probe(q, k, v, bias, scale, dropout, x, layout)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


@torch.fx.wrap
def widened(x: Tensor) -> Tensor:
    """In float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    """softmax(scale·QKᵀ + bias)·V by the fastest kernel there is; q, k, v and the result are [B, H, N, d]."""
    if is_plain():
        return explicit(q, k, v, bias, scale, dropout)
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    bias = bias.to(q.dtype)
    if q.device.type == "cpu" and bias.requires_grad:
        # No fused CPU kernel has a gradient for the bias, and the plain product is faster than its stand-in.
        return explicit(q, k, v, bias, scale, dropout)
    (b, h, n, d), m = q.shape, bias.shape[0]
    if m > 1 and q.device.type == "cpu" and n <= 2 * d:
        # The bias of small windows, repeated for every image, is less to copy than q, k and v below.
        bias = bias.repeat(b // m, 1, 1, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    # M different biases: the windows are made to look like further heads, so that one [1, M·H, N, N] bias serves the
    # whole batch by broadcasting and is never repeated in memory.
    if m > 1:
        q, k, v = (t.reshape(b // m, m * h, n, d) for t in (q, k, v))
    mask = bias.reshape(1, m * h, n, n)
    if q.device.type == "cuda":
        # The memory-efficient kernel wants rows that start on 16 bytes; without that, a slower one steps in.
        mask = F.pad(mask, (0, -n % 8))[..., :n].expand(q.shape[0], -1, -1, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale).reshape(b, h, n, d)


def explicit(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    """The same, step by step."""
    scores = (q * scale) @ k.transpose(-2, -1)
    if bias is not None:
        scores = (scores.unflatten(0, (-1, bias.shape[0])) + bias.to(q.dtype)).flatten(0, 1)
    return F.dropout(scores.softmax(dim=-1), dropout) @ v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x_i, x_{i+d/2}) of the patch tokens by its angle; tokens in front of them stay as they are."""
    prefix, patches = x[..., : x.shape[-2] - cos.shape[-2], :], x[..., x.shape[-2] - cos.shape[-2] :, :]
    left, right = patches.chunk(2, dim=-1)
    turned = patches * cos + torch.cat([-right, left], dim=-1) * sin
    return torch.cat([prefix, turned.to(x.dtype)], dim=-2)
