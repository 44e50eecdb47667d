"""Why this class: relevance (Chefer, Gur and Wolf, 2021) and Grad-CAM on tokens. Both ask for a class, by default the
predicted one, and follow its logit backwards."""

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.explain.looking import (
    Target,
    at_rest,
    class_logits,
    full_precision,
    graph,
    portions_with,
    readout,
    refuse_swin,
    seeing,
    targets,
)
from vitrail.models import capture
from vitrail.models.checks import check_layers
from vitrail.models.swin import SwinBlock


def relevance(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Attention that speaks for the class, followed through all layers: [B, h, w], at least 0.

    In every layer Ā = mean over heads of (∂logit/∂A ⊙ A)⁺, and R ← R + Ā·R from R = I. What the head reads of R,
    without I, is the answer. It reads rows of R, so a row vector suffices, taken through the layers from the last to
    the first while the gradient passes: r ← r + r·Ā. One layer's maps exist at a time, and no product of N×N.
    """
    inner = seeing(model)
    refuse_swin(inner, "Relevance", "grad_cam")
    found = []
    for part, chosen in portions_with(inner, x, target):
        with at_rest(inner):
            read = readout(inner, part)
            row = [read]

            def step(attention: Tensor, gradient: Tensor, row: list[Tensor] = row) -> None:
                row[0] = follow(row[0], attention, gradient)

            with graph(part) as leaf, capture(inner, reduce=step, gradients=True):
                logits = class_logits(inner, leaf)
                torch.autograd.grad(logits.gather(1, targets(logits, chosen)[:, None]).sum(), leaf)
        found.append((row[0] - read)[:, inner.prefix_tokens :])
    return torch.cat(found).unflatten(1, inner.token_grid(*x.shape[2:])).cpu()


def follow(row: Tensor, attention: Tensor, gradient: Tensor) -> Tensor:
    """One layer further down: r + r·Ā, [B, N], with Ā = mean over heads of (∂logit/∂A ⊙ A)⁺. It is made in the place of
    `attention`, so that no third tensor of that size exists."""
    speaking = attention.mul_(gradient).clamp_(min=0).mean(dim=1)  # B N N
    with full_precision(row):
        return row + (row[:, None] @ speaking)[:, 0]


def grad_cam(model: nn.Module, x: Tensor, target: Target = None, layer: int | None = None) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) with tokens for pixels: [B, h, w], at least 0. For Swin too.

    (Σ_d w_d·z_d)⁺, with z the patch tokens and w the mean gradient over them, where the class last reads the patches.
    A class token does so in the attention of the last block, behind which the patches have no gradient: z is what that
    attention reads. Where the patches are averaged, z is what is averaged. With `layer`, what the attention of that
    block reads.
    """
    inner = seeing(model)
    place, entering = reading_place(inner, layer)
    found = []
    for part, chosen in portions_with(inner, x, target):
        tokens: list[Tensor] = []

        def keep(_: nn.Module, arguments: tuple[Any, ...], output: Any = None, tokens: list[Tensor] = tokens) -> None:
            tokens.append(arguments[0] if entering else output)

        hook = place.register_forward_pre_hook(keep) if entering else place.register_forward_hook(keep)
        try:
            with at_rest(inner), graph(part) as leaf:
                logits = class_logits(inner, leaf)
                score = logits.gather(1, targets(logits, chosen)[:, None]).sum()
                (flow,) = torch.autograd.grad(score, tokens[0])
        finally:
            hook.remove()
        z = tokens[0].detach()
        if z.ndim == 3:  # B N D, tokens in front first; Swin's are B h w D
            grid = inner.token_grid(*part.shape[2:])
            z, flow = (t[:, inner.prefix_tokens :].unflatten(1, grid) for t in (z, flow))
        weight = flow.float().mean(dim=(1, 2), keepdim=True)
        found.append((weight * z.float()).sum(dim=-1).relu())
    return torch.cat(found).cpu()


def reading_place(model: Any, layer: int | None) -> tuple[nn.Module, bool]:
    """The module whose output is looked at or, if true, whose input."""
    if layer is None and getattr(model.settings, "pool", "mean") != "token":
        return (model.blocks[-1] if model.norm is None else model.norm), False
    (number,) = check_layers([-1 if layer is None else layer], len(model.blocks))
    block = model.blocks[number]
    if isinstance(block, SwinBlock):
        norm_first = block.version == 1
    else:
        norm_first = block.norm_first
    return (block.norm1, False) if norm_first else (block, True)
