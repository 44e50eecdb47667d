"""MixUp and CutMix: each image of a batch together with its neighbour, and the targets in the same proportion.

As in torchvision's v2: the partner is the batch rolled by one, one λ and one box for the whole batch. What is drawn
depends on (seed, epoch, step) alone, so a resumed run mixes as the run that was never stopped.
"""

from functools import lru_cache

import numpy as np
from torch import Tensor

from vitrail.data.augment.random_keys import STEPS, uniforms


def draw(seed: int, epoch: int, step: int) -> np.ndarray:
    """float64 [4], the numbers that `mix` takes for one step: which of the two, λ, and the box's centre (x, y)."""
    return uniforms(seed, epoch, np.array([step]), 4, STEPS)[0]


def mix(images: Tensor, targets: Tensor, mixup: float, cutmix: float, drawn: np.ndarray) -> tuple[Tensor, Tensor]:
    """[B, C, H, W] and [B, classes] floating point, both mixed; `mixup` and `cutmix` are the α of λ ~ Beta(α, α).

    0 switches one off. With both on, each has half of the steps.
    """
    which, quantile, x, y = (float(value) for value in drawn)
    if cutmix > 0 and (mixup <= 0 or which < 0.5):
        height, width = images.shape[-2:]
        box, share = cutmix_box(beta(cutmix, quantile), x, y, height, width)
        return paste(images, box), blend(targets, share)
    if mixup > 0:
        share = beta(mixup, quantile)
        return blend(images, share), blend(targets, share)
    return images, targets


def blend(values: Tensor, share: float) -> Tensor:
    """λ·values + (1 − λ)·(values of the partner)."""
    return values.roll(1, 0).mul_(1 - share).add_(values.mul(share))


def paste(images: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """The images with the partner's pixels inside `box` (left, top, right, bottom)."""
    left, top, right, bottom = box
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
    return mixed


def cutmix_box(share: float, x: float, y: float, height: int, width: int) -> tuple[tuple[int, int, int, int], float]:
    """(left, top, right, bottom) of area 1 − λ about a centre drawn anywhere, and the λ of what is left inside."""
    half = 0.5 * (1 - share) ** 0.5
    half_width, half_height = int(half * width), int(half * height)
    centre_x, centre_y = int(x * width), int(y * height)
    left, right = max(centre_x - half_width, 0), min(centre_x + half_width, width)
    top, bottom = max(centre_y - half_height, 0), min(centre_y + half_height, height)
    return (left, top, right, bottom), 1 - (right - left) * (bottom - top) / (width * height)


def beta(alpha: float, quantile: float) -> float:
    """The value below which Beta(α, α) lies with probability `quantile`: one uniform number gives one λ."""
    mass, nodes, power = _half_beta(alpha)
    lower = float(np.interp(2 * min(quantile, 1 - quantile), mass, nodes)) ** (1 / power)
    return lower if quantile < 0.5 else 1 - lower


@lru_cache(maxsize=16)
def _half_beta(alpha: float) -> tuple[np.ndarray, np.ndarray, float]:
    """∫₀ᵗ s^(α−1) (1−s)^(α−1) ds up to t = ½, at nodes v = t^p with p = min(α, 1), scaled to end at 1.

    In v the integrand is v^(α/p − 1) (1−t)^(α−1): bounded, where in t it runs to infinity at 0 for α < 1.
    """
    power = min(alpha, 1.0)
    nodes = np.linspace(0, 0.5**power, 4097)
    density = nodes ** (alpha / power - 1) * (1 - nodes ** (1 / power)) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return mass / mass[-1], nodes, power
