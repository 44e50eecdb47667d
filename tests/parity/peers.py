"""Shared by the parity tests: models with random but lively weights, and the comparison itself."""

import torch
from torch import Tensor, nn


def shake(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights everywhere, also where an initialisation has zeros or ones that would hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.5 * parameter.std().item() if parameter.numel() > 1 and parameter.std() > 0 else 0.05
            parameter += spread * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def pictures(*size: int, batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Within 1e-4, and within 1e-5 of the largest output."""
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs().max().item()
    assert difference <= 1e-4, f"differs by {difference:.2e}"
    assert difference <= 1e-5 * max(theirs.abs().max().item(), 1.0), f"differs by {difference:.2e}"
    assert theirs.std() > 1e-3, "a constant output would compare equal to anything"
