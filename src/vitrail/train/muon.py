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
    """The nearest matrices, [n, a, b], whose singular values are all about 1. By products alone, in bf16 on a GPU; they
    are smallest where a ≤ b."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
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
        alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor, float | Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            for piece, update in self._smoothed(group) if group["parts"] else ():
                alike[tuple(sorted(update.shape))].append((piece, update, group["lr"]))
        for pieces in alike.values():  # all of one shape at once, whatever their rates, those that stand on end too
            _move(*map(list, zip(*pieces, strict=True)))
        super().step()  # what has no gradient any more is left alone there

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


def _move(places: list[Tensor], updates: list[Tensor], rates: list[Any]) -> None:
    lie = [update.shape[0] <= update.shape[1] for update in updates]
    flat = orthogonal(torch.stack([u if lies else u.mT for u, lies in zip(updates, lie, strict=True)]))
    known = isinstance(rates[0], Tensor)  # on the GPU, where a step is recorded
    column = (torch.stack(rates) if known else torch.tensor(rates, device=flat.device))[:, None, None]
    flat *= column * (-SIZE * flat.shape[2] ** 0.5)
    upright = flat if all(lie) else flat.mT.contiguous()
    moves = [(f if lies else u).view_as(place) for f, u, lies, place in zip(flat, upright, lie, places, strict=True)]
    torch._foreach_add_(places, moves)
