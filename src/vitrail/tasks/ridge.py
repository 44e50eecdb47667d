"""A linear probe of numbers: ridge regression on frozen features, in closed form, the penalty by cross-validation."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.tasks.linear_probe import standardised

PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(4, -11, -1))  # 100 to 1e-5, from strong to weak


@dataclass(frozen=True)
class Ridge:
    """outputs = features @ weight.T + bias."""

    weight: Tensor  # C D
    bias: Tensor  # C
    penalties: Tensor  # C, of each column: times the number of images the alpha of other libraries
    held_out: Tensor  # n C: for each training image what the solutions say that did not see it

    def __call__(self, features: Tensor) -> Tensor:
        return features.to(self.weight) @ self.weight.T + self.bias


def solve_ridge(features: Tensor, targets: Tensor, folds: int = 4, seed: int = 0) -> Ridge:
    """For each column of the targets [n, C] the weights that minimise

        ‖y − X·w − b‖² / n + penalty · ‖w‖²

    over standardised features X [n, D], with the penalty whose held-out squared error is the least. In float64; the
    result takes features as they are.
    """
    x, y, mean, std = (each.double() for each in standardised(features, targets))
    number = min(folds, len(x))
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)) % number).to(x.device)
    held_out = x.new_empty(len(PENALTIES), *y.shape)
    for k in range(number):
        seen, unseen = fold != k, fold == k
        weights, bias = _path(x[seen], y[seen])
        held_out[:, unseen] = torch.einsum("nd,pcd->pnc", x[unseen], weights) + bias[:, None]
    errors = (held_out - y).square().mean(dim=1)  # penalties C
    best, columns = errors.argmin(dim=0), torch.arange(y.shape[1], device=x.device)
    weights, bias = _path(x, y)
    weight = weights[best, columns] / std
    return Ridge(
        weight.float(),
        (bias[best, columns] - weight @ mean).float(),
        torch.tensor(PENALTIES, dtype=torch.float64)[best.cpu()],
        held_out[best, :, columns].T.float(),
    )


def _path(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [P, C, D] and biases [P, C] for every penalty, from one decomposition: with XᵀX = V·S·Vᵀ of centred
    features, w = V·(S + n·penalty)⁻¹·Vᵀ·Xᵀ·y."""
    middle, level = x.mean(dim=0), y.mean(dim=0)
    centred = x - middle
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    along = vectors.T @ (centred.T @ (y - level))  # D C
    alphas = len(x) * torch.tensor(PENALTIES, dtype=x.dtype, device=x.device)
    shrunk = along / (values.clamp_min(0)[None, :, None] + alphas[:, None, None])  # P D C
    weights = (vectors @ shrunk).transpose(1, 2)
    return weights, level - weights @ middle
