"""Attention without kernels, for what no kernel can do."""

from collections.abc import Iterator
from contextlib import contextmanager

_plain = False


def is_plain() -> bool:
    """Is there a `plain_attention` around?"""
    return _plain


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as the paper writes it, softmax(QKᵀ/√d)·V, step by step, for what no fused kernel has: gradients of
    gradients, forward-mode derivatives, and a traced graph that shows every step. It is slower, takes memory for the
    whole map, and its results differ from those of a kernel by rounding.

    >>> with vitrail.plain_attention():
    ...     loss, product = torch.autograd.functional.hvp(loss_of, images, direction)
    >>> with vitrail.plain_attention():
    ...     graph = torch.fx.symbolic_trace(model.eval())  # takes images of any size

    It holds for all models of the process, in all its threads.
    """
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before
