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

# Of Jordan's quintic, fast rather than exact: most singular values end between 0.7 and 1.2, the least lie below.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SIZE = 0.2  # root mean square of an update, about that of AdamW's
MOMENTUM = 0.95


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices, [n, a, b], whose singular values are all about 1. By products alone, in bf16 on a GPU."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.AdamW):
    """A group has `parts`, of each of its parameters the number of matrices that lie in it side by side, such as 3 for
    queries, keys and values; or None, and is AdamW's. torch.optim.Muon is the same for a single matrix; it takes no
    convolutions, no parts, one matrix after the other, and nothing that is AdamW's."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["parts"]:
                self._step_matrices(group)
        super().step()  # what has no gradient any more is left alone there

    def _step_matrices(self, group: dict[str, Any]) -> None:
        waiting: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, parts in zip(group["params"], group["parts"], strict=True):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
                state["step"] = torch.zeros(())  # AdamW looks for it when a state is loaded
            state["momentum"].lerp_(parameter.grad, 1 - MOMENTUM)
            ahead = parameter.grad.lerp(state["momentum"], MOMENTUM)  # Nesterov's
            parameter.grad = None
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            for piece, update in zip(parameter.chunk(parts), ahead.chunk(parts), strict=True):
                waiting[update.flatten(1).shape].append((piece, update))
        for shape, pieces in waiting.items():  # all of one shape at once
            updates = orthogonal(torch.stack([update.flatten(1) for _, update in pieces]))
            updates *= group["lr"] * (-SIZE * max(shape) ** 0.5)
            torch._foreach_add_(
                [piece for piece, _ in pieces], [u.view_as(p) for (p, _), u in zip(pieces, updates, strict=True)]
            )
