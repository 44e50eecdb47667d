"""Tokens as colours: their first three principal components, in one mapping for every figure and for the Studio."""

import torch
from torch import Tensor, nn


def principal_components(points: Tensor) -> Tensor:
    """The first three principal components of [n, D]: [n, 3] in float64, zeros where there are fewer.

    By subspace iteration, eight rounds from eight of the points themselves: the same every time, exact to what an eye
    can see, and in a small part of the time of a full decomposition. A component's sign is arbitrary;
    here the points that lie far out on one side only are on the positive one (their sum of cubes is).
    """
    x = points.double()
    x = x - x.mean(dim=0)
    basis = x[:: max(1, len(x) // 8)][:8].T  # D 8
    for _ in range(8):
        basis = torch.linalg.qr(x.T @ (x @ basis)).Q
    seen = x @ basis
    values = seen @ torch.linalg.svd(seen, full_matrices=False).Vh[:3].T
    values = values * torch.where(values.pow(3).sum(dim=0) < 0, -1.0, 1.0)
    return nn.functional.pad(values, (0, 3 - values.shape[1]))


def component_colours(components: Tensor) -> Tensor:
    """Three components [..., 3] as sRGB colours from 0 to 1, [..., 3]: the first from blue to gold, the second from
    green to red, the third from dark to light. In Oklab, where equal steps look equal; each between its 2nd and 98th
    percentile, for a few extreme tokens would leave the rest grey.

    The weaker ones are paler: at full range the third, which is often noise, would be as loud as the first.
    """
    flat = components.flatten(0, -2)
    low, high = flat.quantile(0.02, dim=0), flat.quantile(0.98, dim=0)
    spread = (high - low).clamp(min=1e-12)
    share = ((components - (low + high) / 2) / spread).clamp(-0.5, 0.5) * (spread / spread.max()).sqrt()
    first, second, third = share.unbind(-1)
    return from_oklab(0.64 + 0.24 * first + 0.30 * third, 0.36 * second, 0.36 * first)


def from_oklab(lightness: Tensor, green_red: Tensor, blue_yellow: Tensor) -> Tensor:
    """sRGB from 0 to 1, [..., 3] (B. Ottosson's matrices)."""
    lab = torch.stack([lightness, green_red, blue_yellow], dim=-1)
    to_cones = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
    to_linear = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
    linear = ((lab @ lab.new_tensor(to_cones).T) ** 3 @ lab.new_tensor(to_linear).T).clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp(min=1e-9) ** (1 / 2.4) - 0.055)
