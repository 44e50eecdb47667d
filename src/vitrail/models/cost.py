"""What a model costs: parameters, multiply-adds, tokens. Counted on models without memory, not by a formula."""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.models.catalog import Settings, build, model_settings
from vitrail.models.cnn import CNNSettings
from vitrail.models.dense import DetectorSettings, SegmenterSettings
from vitrail.models.swin import SwinSettings


@dataclass(frozen=True)
class Cost:
    parameters: int
    multiply_adds: int  # of one image at the default size
    tokens: int  # patches and those in front of them; of Swin's first stage


@cache
def cost(model: str | Settings) -> Cost:
    """All blocks of a stage cost the same: one of each is counted, and what a second one adds is taken for the rest."""
    settings = model_settings(model) if isinstance(model, str) else model
    if isinstance(settings, CNNSettings | SegmenterSettings | DetectorSettings):
        return Cost(*_count(settings), tokens=0)
    depths = settings.depths if isinstance(settings, SwinSettings) else (settings.depth,)
    parameters, multiply_adds = base = _count(settings, (1,) * len(depths))
    for stage, depth in enumerate(depths):
        if depth > 1:
            one_more = _count(settings, tuple(2 if i == stage else 1 for i in range(len(depths))))
            parameters += (depth - 1) * (one_more[0] - base[0])
            multiply_adds += (depth - 1) * (one_more[1] - base[1])
    prefix = 0 if isinstance(settings, SwinSettings) else settings.prefix_tokens
    return Cost(parameters, multiply_adds, settings.grid[0] * settings.grid[1] + prefix)


def _count(settings: Settings, depths: tuple[int, ...] = ()) -> tuple[int, int]:
    """Parameters and multiply-adds at these depths."""
    if depths:
        settings = replace(
            settings, **({"depths": depths} if isinstance(settings, SwinSettings) else {"depth": depths[0]})
        )
    with torch.device("meta"), torch.no_grad():
        model = build(settings).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, settings.channels, *settings.image_size))
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2
