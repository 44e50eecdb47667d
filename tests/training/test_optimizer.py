"""Parameter groups, the schedule and the running average, against what their formulas say."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.support import make_trainer
from vitrail.models import create_model
from vitrail.training.optimization import RunningAverage
from vitrail.models.classifier import decays
from vitrail.training.optimization import parameter_groups
from vitrail.training.optimization import rate_factor


def rates(model: nn.Module, **options: float) -> dict[str, tuple[float, float]]:
    """Name → (learning rate, weight decay)."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, **options)
    return {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}


def test_block_l_of_12_learns_at_the_decay_to_the_power_of_12_minus_l():
    model = create_model("deit_ti16", width=24, heads=2)
    found = rates(model, lr=2.0, weight_decay=0.1, layer_decay=0.75)
    assert len(found) == len(list(model.parameters()))
    for name, (lr, _) in found.items():
        if name.startswith("blocks."):
            power = 12 - (int(name.split(".")[1]) + 1)
        else:
            power = 0 if name.startswith(("head", "norm.")) else 12
        assert lr == pytest.approx(2.0 * 0.75**power, rel=1e-12), name
    assert found["blocks.11.mlp.fc1.weight"][0] == found["head.output.weight"][0] == 2.0
    assert found["position.table"][0] == found["patch.weight"][0] == pytest.approx(2.0 * 0.75**12)


def test_a_swin_counts_its_blocks_through_all_stages():
    model = create_model("swin_t", width=12, heads=(1, 1, 1, 1))
    found = rates(model, lr=1.0, weight_decay=0.0, layer_decay=0.5)
    depths = [2, 2, 6, 2]
    for stage, blocks in enumerate(depths):
        for block in range(blocks):
            place = sum(depths[:stage]) + block + 1
            assert found[f"stages.{stage}.{block}.attention.qkv.weight"][0] == 0.5 ** (12 - place)
    # A merging counts with the block before it.
    assert [found[f"merges.{i}.reduction.weight"][0] for i in range(3)] == [0.5**10, 0.5**8, 0.5**2]


@pytest.mark.parametrize(
    "name", ["vit_ti16", "deit_ti16_distilled", "swin_t", "swinv2_t", "dinov2_s14_reg4", "cpvt_ti16"]
)
def test_matrices_decay_and_nothing_else(name):
    model = create_model(name)
    decayed = {n for n, p in model.named_parameters() if decays(n, p)}
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert f"{module_name}.weight" in decayed
    for parameter_name, parameter in model.named_parameters():
        alone = ("bias", "table", "token", "registers", "gamma", "logit_scale")
        if parameter.ndim == 1 or parameter_name.endswith(alone):
            assert parameter_name not in decayed


def test_frozen_parameters_are_in_no_group():
    model = create_model("vit_nano2", num_classes=3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    assert set(rates(model, lr=1.0, weight_decay=0.1)) == {"head.output.weight", "head.output.bias"}


def test_the_rate_rises_in_a_line_and_falls_in_half_a_cosine():
    steps, warmup = 100, 10
    found = np.array([rate_factor(step, steps, warmup) for step in range(steps)])
    rise = (np.arange(10) + 1) / 10
    fall = 0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * np.arange(90) / 89))
    np.testing.assert_allclose(found, np.concatenate([rise, fall]), atol=1e-12)
    assert found[-1] == pytest.approx(0.01) and found.max() == found[10] == 1.0
    assert rate_factor(0, 1, 0) == 1.0


def test_each_step_of_the_loop_has_the_rate_of_the_schedule():
    trainer = make_trainer(epochs=3, batch_size=8, lr=0.5, layer_decay=0.5, warmup=1.5)
    seen = []
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda: (seen.append([g["lr"] for g in trainer.optimizer.param_groups]), step())[1]
    trainer.run()
    scales = [group["scale"] for group in trainer.optimizer.param_groups]
    assert sorted(set(scales)) == [0.25, 0.5, 1.0]
    wanted = [[0.5 * rate_factor(s, 12, 6) * scale for scale in scales] for s in range(12)]
    np.testing.assert_allclose(seen, wanted, rtol=1e-12)
    assert [row["lr"] for row in trainer.history] == pytest.approx([0.5 * rate_factor(s, 12, 6) for s in (3, 7, 11)])


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
