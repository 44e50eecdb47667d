"""The running average of the weights, against the sum that it stands for."""

import math

import pytest
import torch
from torch import nn

from tests.training.support import make_trainer
from vitrail.training.optimization import RunningAverage


@pytest.mark.parametrize("decay", [0.9, 0.2])
def test_the_average_is_the_weighted_sum_of_all_weights_that_were(decay):
    model = nn.Linear(3, 2).double()
    average = RunningAverage(model, decay)
    weights = [model.weight.detach().clone()]
    for _ in range(30):
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 3, dtype=torch.float64))
        average.update(model)
        weights.append(model.weight.detach().clone())
    factors = [min(decay, (1 + t) / (10 + t)) for t in range(1, 31)]
    # a_30 = (Π d_t) w_0 + Σ_t (1 − d_t) (Π_{s > t} d_s) w_t
    wanted = math.prod(factors) * weights[0]
    for t in range(1, 31):
        wanted = wanted + (1 - factors[t - 1]) * math.prod(factors[t:]) * weights[t]
    torch.testing.assert_close(average.average["weight"], wanted, rtol=1e-12, atol=1e-12)
    kept = model.weight.detach().clone()
    average.swap(model)
    torch.testing.assert_close(model.weight.detach(), wanted, rtol=1e-12, atol=1e-12)
    average.swap(model)
    assert torch.equal(model.weight, kept)


def test_the_loop_averages_the_weights_after_every_step():
    trainer = make_trainer(epochs=2, batch_size=8, ema=0.5)
    model = trainer.model
    wanted, updates = {n: p.detach().clone() for n, p in model.named_parameters()}, 0
    step = trainer.optimizer.step

    def watched() -> None:
        nonlocal updates
        step()
        updates += 1
        decay = min(0.5, (1 + updates) / (10 + updates))
        for name, parameter in model.named_parameters():
            wanted[name] = decay * wanted[name] + (1 - decay) * parameter.detach()

    trainer.optimizer.step = watched
    trainer.run()
    assert updates == trainer.average.updates == 8
    for name, value in trainer.average.average.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6)
