"""Muon for the matrices inside a transformer's blocks, AdamW for all else.

AdamW scales each number of a gradient by itself. Muon (Jordan et al., 2024) takes a matrix as a whole: it makes all
singular values of the smoothed gradient about 1, so that rare directions are learned as fast as common ones. Scaled as
in "Muon is scalable for LLM training" (Liu et al., 2025), its updates are about as large as AdamW's: a learning rate
and a weight decay mean the same for both.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from vitrail.inference.precision import has_bf16

# Of Jordan's quintic, fast rather than exact: most singular values end between 0.7 and 1.2, the least lie below.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SIZE = 0.2  # root mean square of an update, about that of AdamW's
MOMENTUM = 0.95


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices, [n, a, b], whose singular values are all about 1. By products alone, in bf16 on a GPU that
    has it; the products are smallest where a ≤ b."""
    x = matrices.bfloat16() if matrices.is_cuda and has_bf16() else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


class Muon(torch.optim.AdamW):
    """A group has `parts`, of each of its parameters the number of matrices that lie in it side by side, such as 3 for
    queries, keys and values; or None, and is AdamW's. torch.optim.Muon is the same for a single matrix; it takes no
    convolutions, no parts, one matrix after the other, and nothing that is AdamW's."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        alike = self._alike()
        # Of all layers, whatever their rates: few large products, not many small ones. The largest come last, when the
        # memory of the others is free again.
        for shape in sorted(alike, key=lambda shape: len(alike[shape]) * shape[0] * shape[1]):
            _move(alike.pop(shape))
        super().step()  # what has no gradient any more is left alone there

    def _alike(self) -> dict[tuple[int, ...], list[tuple[Tensor, Tensor, Any]]]:
        """By shape, lying or standing: places, smoothed gradients and rates. Nothing else keeps the gradients."""
        alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Any]]] = defaultdict(list)
        for group in self.param_groups:
            for place, gradient in self._smoothed(group) if group["parts"] else ():
                alike[tuple(sorted(gradient.shape))].append((place, gradient, group["lr"]))
        return alike

    def _smoothed(self, group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
        """Of each matrix its place in a parameter, which has decayed, and the smoothed gradient."""
        found = [(p, parts) for p, parts in zip(group["params"], group["parts"], strict=True) if p.grad is not None]
        if not found:
            return []
        parameters, gradients = [p for p, _ in found], [p.grad for p, _ in found]
        for parameter in parameters:
            if not (state := self.state[parameter]):
                state["momentum"] = torch.zeros_like(parameter)
                state["step"] = torch.zeros(())  # AdamW looks for it when a state is loaded
            parameter.grad = None
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov's
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        return [(piece, update.flatten(1)) for (parameter, parts), whole in zip(found, ahead, strict=True)
                for piece, update in zip(parameter.chunk(parts), whole.chunk(parts), strict=True)]  # fmt: skip


def _move(matrices: list[tuple[Tensor, Tensor, Any]]) -> None:
    """Each place by its gradient, made orthogonal, at its rate; all are of one shape, some of them standing on end."""
    matrices.sort(key=lambda one: one[1].shape[0] > one[1].shape[1])  # those that lie, then those that stand
    places, gradients, rates = ([*column] for column in zip(*matrices, strict=True))
    flat = sum(gradient.shape[0] <= gradient.shape[1] for gradient in gradients)
    lying = torch.stack([*gradients[:flat], *(gradient.mT for gradient in gradients[flat:])])
    matrices.clear()  # a large model wants the memory of its gradients back
    del gradients
    moves = orthogonal(lying).mul_(-SIZE * lying.shape[2] ** 0.5)
    if isinstance(rates[0], Tensor):  # on the GPU, where a step is recorded
        moves *= torch.stack(rates)[:, None, None]
    else:
        torch._foreach_mul_([*moves], rates)
    turned = [*moves[:flat], *moves[flat:].mT.contiguous()]
    torch._foreach_add_(places, [move.view_as(place) for move, place in zip(turned, places, strict=True)])
