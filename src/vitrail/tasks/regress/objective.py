"""Regression: values in units become targets in deviations, and what is minimised."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.tasks.regress.metrics import mae, r2

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Scale:
    """Of the training images' values, for each column: what the outputs of the model stand for."""

    mean: Numbers
    std: Numbers
    low: Numbers
    high: Numbers

    @classmethod
    def of(cls, values: np.ndarray) -> "Scale":
        """values [n, C]. A column that is the same everywhere, as in few images it may be, keeps its own unit."""
        spread = values.std(axis=0)
        found = values.mean(axis=0), np.where(spread > 0, spread, 1.0), values.min(axis=0), values.max(axis=0)
        return cls(*(tuple(each.tolist()) for each in found))

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> "Scale":
        """From the header of a model."""
        return cls(**{name: tuple(numbers) for name, numbers in about["scale"].items()})

    def written(self) -> dict[str, list[float]]:
        """For the header of a model."""
        return {name: list(numbers) for name, numbers in asdict(self).items()}

    def standardised(self, values: Tensor) -> Tensor:  # ... C in units -> ... C
        return (values - values.new_tensor(self.mean)) / values.new_tensor(self.std)

    def in_units(self, outputs: Tensor) -> Tensor:  # ... C -> ... C in units
        return outputs * outputs.new_tensor(self.std) + outputs.new_tensor(self.mean)


@dataclass(frozen=True)
class Regress:
    """How values become targets, what is minimised, and by which figure one model is better than another."""

    columns: list[str]
    scale: Scale
    kind: str = "smooth_l1"

    def targets(self, values: Sequence[Numbers], device: torch.device | None = None) -> Tensor:
        """[n, C], of mean 0 and deviation 1 over the training images."""
        return self.scale.standardised(torch.tensor(values, dtype=torch.float64)).float().to(device)

    def smoothed(self, targets: Tensor) -> Tensor:
        """A number is as certain as it stands there."""
        return targets

    def module(self, model: nn.Module) -> nn.Module:
        return model

    def outputs(self, net: nn.Module, pixels: Tensor) -> Tensor:
        return net(pixels)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One number per image, [B]: the mean over the columns."""
        function = F.mse_loss if self.kind == "mse" else F.smooth_l1_loss
        return function(outputs.float(), targets, reduction="none").mean(dim=1)

    def in_units(self, outputs: Tensor) -> np.ndarray:
        """float64 [n, C]."""
        return self.scale.in_units(outputs.double().cpu()).numpy()

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The figures of an epoch, means over the columns: loss, R², and mean absolute error in units."""
        predicted, true = self.in_units(outputs), self.in_units(targets)
        loss = self.loss(outputs, targets).mean().item()
        return {"loss": loss, "r2": _mean(r2(predicted, true)), "mae": _mean(mae(predicted, true))}


def _mean(columns: np.ndarray) -> float:
    known = columns[np.isfinite(columns)]
    return float(known.mean()) if len(known) else float("nan")
