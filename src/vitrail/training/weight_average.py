"""The running average of a model's weights, which is what is validated and kept."""

from typing import Any

import torch
from torch import Tensor, nn


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """What batch norm keeps of the images that it has seen, by name; a transformer has none."""
    kept = model.state_dict(keep_vars=True)
    return {n: v for n, v in kept.items() if not isinstance(v, nn.Parameter) and v.is_floating_point()}


class RunningAverage:
    """EMA of a model's trainable weights, and of the statistics that go with them: a ← d·a + (1 − d)·w after every
    step, with d = min(decay, (1 + t) / (10 + t)), so that the first weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self._statistics = statistics(model)
        self.average = {n: p.detach().clone() for n, p in self._averaged(model).items()}

    def _averaged(self, model: nn.Module) -> dict[str, Tensor]:
        return {n: p for n, p in model.named_parameters() if p.requires_grad} | self._statistics

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_([*self.average.values()], [*self._averaged(model).values()], 1 - decay)

    def swap(self, model: nn.Module) -> None:
        """Exchanges the average and the model's weights; twice changes nothing."""
        with torch.no_grad():
            for name, value in self._averaged(model).items():
                kept = value.detach().clone()
                value.copy_(self.average[name])
                self.average[name].copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in self.average.items():
            value.copy_(state["average"][name])
