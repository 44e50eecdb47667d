"""Attention over few tokens on a GPU: one program makes a whole map in its registers, forward and backward.

The kernels that libraries have walk over long sequences in tiles, and over the 64 tokens of a 32×32 image they spend
most of their time on getting ready: they took half of a training step of the small ViT (records/speed).
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitrail.models.layers import exporting

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU or a Mac, where it is not needed
    triton = tl = None  # type: ignore[assignment]

MOST = 64 * 64  # tokens × numbers per head, each rounded up to a power of two: beyond, tiles begin to pay


def can_build() -> bool:
    """Whether Triton works here. It compiles a little C on first use, and many machines, most containers among them,
    have no compiler or no headers of Python: so it is tried. Where it does not, PyTorch's own kernels do the work."""
    return _tried()


# As torch.compiler.assume_constant_result marks it, which would import the compiler: as long again as torch itself.
can_build._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _tried() -> bool:
    if triton is None or not torch.cuda.is_available():
        return False
    try:
        one = torch.zeros(1, device="cuda")
        _increment[(1,)](one)
        return one.item() == 1
    except Exception:  # a missing compiler, header, driver or feature of the GPU: each raises its own
        return False


def suits(qkv: Tensor) -> bool:
    """Whether `short_attention` takes these: half precision on a GPU, few tokens, nothing exported."""
    _, tokens, _, _, width = qkv.shape
    fits = qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and _block(tokens) * _block(width) <= MOST
    return fits and not exporting() and can_build()


def _block(count: int) -> int:
    """A power of two, and 16 at least, as the tensor cores want it."""
    return max(16, 1 << (count - 1).bit_length())


if triton is not None:

    @triton.jit
    def _increment(one):
        tl.store(one, tl.load(one) + 1)

    @triton.jit
    def _load(start, stride, rows: tl.constexpr, columns: tl.constexpr, tokens, width):
        """[rows, columns] of one head's [tokens, width], zeros beyond."""
        n, d = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
        return tl.load(start + n * stride + d, mask=(n < tokens) & (d < width), other=0.0)

    @triton.jit
    def _store(start, stride, values, rows: tl.constexpr, columns: tl.constexpr, tokens, width):
        n, d = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
        tl.store(start + n * stride + d, values.to(start.dtype.element_ty), mask=(n < tokens) & (d < width))

    @triton.jit
    def _map(q, k, scale, rows: tl.constexpr, tokens):
        """softmax(scale·QKᵀ) of one head, in fp32."""
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(tl.arange(0, rows)[None, :] < tokens, scores, float("-inf"))
        scores = tl.exp(scores - tl.max(scores, 1)[:, None])
        return scores / tl.sum(scores, 1)[:, None]

    @triton.jit
    def _forward(
        qkv, out, scale, heads, tokens, width, image, token, part, head, o_image, o_token, o_head,
        rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        i, h = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
        qkv += i * image + h * head
        q = _load(qkv, token, rows, columns, tokens, width)
        k = _load(qkv + part, token, rows, columns, tokens, width)
        v = _load(qkv + 2 * part, token, rows, columns, tokens, width)
        made = tl.dot(_map(q, k, scale, rows, tokens).to(v.dtype), v)
        _store(out + i * o_image + h * o_head, o_token, made, rows, columns, tokens, width)

    @triton.jit
    def _backward(
        qkv, grad, made, scale, heads, tokens, width, image, token, part, head, g_image, g_token, g_head,
        m_image, m_token, m_part, m_head, rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        i, h = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
        qkv += i * image + h * head
        made += i * m_image + h * m_head
        q = _load(qkv, token, rows, columns, tokens, width)
        k = _load(qkv + part, token, rows, columns, tokens, width)
        v = _load(qkv + 2 * part, token, rows, columns, tokens, width)
        above = _load(grad + i * g_image + h * g_head, g_token, rows, columns, tokens, width)
        attention = _map(q, k, scale, rows, tokens)  # made again: cheaper than to keep it
        dv = tl.dot(tl.trans(attention.to(above.dtype)), above)
        _store(made + 2 * m_part, m_token, dv, rows, columns, tokens, width)
        by_map = tl.dot(above, tl.trans(v))
        by_score = attention * (by_map - tl.sum(attention * by_map, 1)[:, None]) * scale
        by_score = by_score.to(q.dtype)
        _store(made, m_token, tl.dot(by_score, k), rows, columns, tokens, width)
        _store(made + m_part, m_token, tl.dot(tl.trans(by_score), q), rows, columns, tokens, width)


def _whole(tensor: Tensor) -> Tensor:
    """The numbers of a head must lie side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _launch(kernel: Any, tensors: list[Tensor], scale: float) -> None:
    b, n, _, h, d = tensors[0].shape
    strides = [stride for tensor in tensors for stride in tensor.stride()[:-1]]
    with torch.cuda.device_of(tensors[0]):  # Triton starts on the current device, wherever the tensors are
        kernel[(b * h,)](*tensors, scale, h, n, d, *strides, _block(n), _block(d), num_warps=4 if n <= 64 else 8)


@torch.library.custom_op("vitrail::short_attention", mutates_args=())
def short_attention(qkv: Tensor, scale: float) -> Tensor:
    """softmax(scale·QKᵀ)·V: [B, N, 3, H, d], as one projection gives all three, to [B, N, H, d], as the next wants it.
    The gradient comes in one piece as well: three would have to be put together again."""
    qkv = _whole(qkv)
    b, n, _, h, d = qkv.shape
    out = qkv.new_empty(b, n, h, d)
    _launch(_forward, [qkv, out], scale)
    return out


@torch.library.custom_op("vitrail::short_attention_backward", mutates_args=())
def short_attention_backward(grad: Tensor, qkv: Tensor, scale: float) -> Tensor:
    made = qkv.new_empty(qkv.shape)
    _launch(_backward, [_whole(qkv), _whole(grad), made], scale)
    return made


@short_attention.register_fake
def _(qkv: Tensor, scale: float) -> Tensor:
    b, n, _, h, d = qkv.shape
    return qkv.new_empty(b, n, h, d)


@short_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, scale: float) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return short_attention_backward(grad, *ctx.saved_tensors, ctx.scale), None


short_attention.register_autograd(_differentiate, setup_context=_remember)
