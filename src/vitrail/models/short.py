"""Attention over few tokens on a GPU: one program makes a whole map in its registers, forward and backward.

The kernels that libraries have walk over long sequences in tiles, and over the 64 tokens of a 32×32 picture they spend
most of their time on getting ready: they took half of a training step of the small ViT (records/speed).
"""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU or a Mac, where it is not needed
    triton = None  # type: ignore[assignment]

LONGEST, WIDEST = 64, 32  # tokens, and numbers per head: beyond, tiles begin to pay


def can_build() -> bool:
    """Triton compiles a little C on first use. Many machines, and most containers, have no compiler or no headers of
    Python: there PyTorch's own kernel does it."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file()


READY = triton is not None and can_build()


def suits(q: Tensor, v: Tensor) -> bool:
    """Whether `short_attention` takes these: half precision on a GPU, few tokens, nothing exported."""
    fits = q.shape[-2] <= LONGEST and q.shape[-1] <= WIDEST and q.dtype in (torch.bfloat16, torch.float16)
    return READY and q.is_cuda and fits and v.dtype == q.dtype and not torch.compiler.is_exporting()


if triton is not None:

    @triton.jit
    def _load(start, at, stride, rows: tl.constexpr, columns: tl.constexpr, tokens, width):
        """[rows, columns] of one head's [tokens, width], zeros beyond."""
        n, d = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
        return tl.load(start + at + n * stride + d, mask=(n < tokens) & (d < width), other=0.0)

    @triton.jit
    def _store(start, at, stride, values, rows: tl.constexpr, columns: tl.constexpr, tokens, width):
        n, d = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
        tl.store(start + at + n * stride + d, values.to(start.dtype.element_ty), mask=(n < tokens) & (d < width))

    @triton.jit
    def _map(q, k, scale, rows: tl.constexpr, tokens):
        """softmax(scale·QKᵀ) of one head, in fp32."""
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(tl.arange(0, rows)[None, :] < tokens, scores, float("-inf"))
        scores = tl.exp(scores - tl.max(scores, 1)[:, None])
        return scores / tl.sum(scores, 1)[:, None]

    @triton.jit
    def _forward(
        q, k, v, out, scale, heads, tokens, width,
        q_image, q_head, q_token, k_image, k_head, k_token, v_image, v_head, v_token, o_image, o_head, o_token,
        rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
        queries = _load(q, image * q_image + head * q_head, q_token, rows, columns, tokens, width)
        keys = _load(k, image * k_image + head * k_head, k_token, rows, columns, tokens, width)
        values = _load(v, image * v_image + head * v_head, v_token, rows, columns, tokens, width)
        made = tl.dot(_map(queries, keys, scale, rows, tokens).to(values.dtype), values)
        _store(out, image * o_image + head * o_head, o_token, made, rows, columns, tokens, width)

    @triton.jit
    def _backward(
        q, k, v, grad, dq, dk, dv, scale, heads, tokens, width,
        q_image, q_head, q_token, k_image, k_head, k_token, v_image, v_head, v_token,
        g_image, g_head, g_token, d_image, d_head, d_token,
        rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
        queries = _load(q, image * q_image + head * q_head, q_token, rows, columns, tokens, width)
        keys = _load(k, image * k_image + head * k_head, k_token, rows, columns, tokens, width)
        values = _load(v, image * v_image + head * v_head, v_token, rows, columns, tokens, width)
        above = _load(grad, image * g_image + head * g_head, g_token, rows, columns, tokens, width)
        at = image * d_image + head * d_head
        attention = _map(queries, keys, scale, rows, tokens)  # made again: cheaper than to keep it
        through = tl.dot(tl.trans(attention.to(above.dtype)), above)
        _store(dv, at, d_token, through, rows, columns, tokens, width)
        by_map = tl.dot(above, tl.trans(values))
        by_score = attention * (by_map - tl.sum(attention * by_map, 1)[:, None]) * scale
        by_score = by_score.to(queries.dtype)
        _store(dq, at, d_token, tl.dot(by_score, keys), rows, columns, tokens, width)
        _store(dk, at, d_token, tl.dot(tl.trans(by_score), queries), rows, columns, tokens, width)


def _like(q: Tensor) -> Tensor:
    """[B, H, N, d] that lies in memory as [B, N, H, d]: the heads of a token side by side, as the projection wants."""
    b, h, n, d = q.shape
    return torch.empty(b, n, h, d, dtype=q.dtype, device=q.device).transpose(1, 2)


def _whole(*tensors: Tensor) -> list[Tensor]:
    """The numbers of a head must lie side by side."""
    return [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors]


def _launch(kernel: Any, tensors: list[Tensor], scale: float, strided: list[Tensor]) -> None:
    b, h, n, d = tensors[0].shape
    rows, columns = max(16, triton.next_power_of_2(n)), max(16, triton.next_power_of_2(d))
    strides = [stride for tensor in strided for stride in tensor.stride()[:3]]
    with torch.cuda.device_of(tensors[0]):  # Triton starts on the current device, wherever the tensors are
        kernel[(b * h,)](*tensors, scale, h, n, d, *strides, rows, columns, num_warps=4 if rows <= 64 else 8)


@torch.library.custom_op("vitrail::short_attention", mutates_args=())
def short_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale·QKᵀ)·V; all [B, H, N, d]."""
    q, k, v = _whole(q, k, v)
    out = _like(q)
    _launch(_forward, [q, k, v, out], scale, [q, k, v, out])
    return out


@torch.library.custom_op("vitrail::short_attention_backward", mutates_args=())
def short_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v = _whole(grad, q, k, v)
    dq, dk, dv = _like(q), _like(q), _like(q)
    _launch(_backward, [q, k, v, grad, dq, dk, dv], scale, [q, k, v, grad, dq])
    return dq, dk, dv


@short_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return _like(q)


@short_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q), _like(q), _like(q)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.scale = inputs[3]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return (*short_attention_backward(grad, *ctx.saved_tensors, ctx.scale), None)


short_attention.register_autograd(_differentiate, setup_context=_remember)
