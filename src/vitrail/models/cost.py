"""What a model costs: parameters, multiply-adds, tokens. Counted on models without memory, not by a formula."""

from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.models.building import ModelSettings, build
from vitrail.models.cnn import CNNSettings
from vitrail.models.dense.settings import DetectorSettings, SegmenterSettings
from vitrail.models.mae import MAESettings
from vitrail.models.meta import ParametersOnMeta
from vitrail.models.registry import model_settings
from vitrail.models.swin import SwinSettings


@dataclass(frozen=True)
class ModelCost:
    parameters: int
    multiply_adds: int  # of one image at the default size
    tokens: int  # patches and those in front of them; of Swin's first stage


@cache
def cost(architecture: str | ModelSettings) -> ModelCost:
    """All blocks of a stage cost the same: one of each is run, and counts as often as there are.

    Shapes alone are computed, which is slow all the same (a tenth of a second for each block), so none is run twice.
    """
    settings = model_settings(architecture) if isinstance(architecture, str) else architecture
    if isinstance(settings, CNNSettings | SegmenterSettings | DetectorSettings):
        return ModelCost(*_count(settings, {}), tokens=0)
    prefix = 0 if isinstance(settings, SwinSettings) else settings.prefix_tokens
    one: ModelSettings
    stages: dict[str, tuple[int, ...]]  # where the blocks are, and how many of each there would be
    if isinstance(settings, SwinSettings):
        one, stages = replace(settings, depths=(1,) * len(settings.depths)), {"blocks": settings.depths}
    elif isinstance(settings, MAESettings):
        one = replace(settings, encoder=replace(settings.encoder, depth=1), decoder_depth=1)
        stages = {"encoder.blocks": (settings.depth,), "decoder_blocks": (settings.decoder_depth,)}
    else:
        one, stages = replace(settings, depth=1), {"blocks": (settings.depth,)}
    return ModelCost(*_count(one, stages), settings.grid[0] * settings.grid[1] + prefix)


def _count(settings: ModelSettings, stages: dict[str, tuple[int, ...]]) -> tuple[int, int]:
    """Parameters and multiply-adds; the blocks that are found there count as often as it says."""
    with ParametersOnMeta() if isinstance(settings, CNNSettings) else torch.device("meta"), torch.no_grad():
        model = build(settings).eval()
    with torch.device("meta"), torch.no_grad():
        blocks = [
            (block, times - 1)
            for where, depths in stages.items()
            for block, times in zip(attrgetter(where)(model), depths, strict=True)
        ]
        parameters = sum(p.numel() for p in model.parameters())
        parameters += sum(more * p.numel() for block, more in blocks for p in block.parameters())
        with FlopCounterMode(display=False) as counter:
            repeated = [_repeated(block, more, counter) for block, more in blocks]
            model(torch.empty(1, settings.channels, *settings.image_size))
    return parameters, (counter.get_total_flops() + sum(map(sum, repeated))) // 2


def _repeated(block: nn.Module, more: int, counter: FlopCounterMode) -> list[int]:
    """Filled when the block runs: what it would take to run it so many times more."""
    found: list[int] = []
    block.register_forward_pre_hook(lambda *_: found.append(-more * counter.get_total_flops()))
    block.register_forward_hook(lambda *_: found.append(more * counter.get_total_flops()))
    return found
