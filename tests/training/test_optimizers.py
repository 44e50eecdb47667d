"""Parameter groups: which learning rate and which decay each weight of a model gets."""

import pytest
from torch import nn

from vitrail.models import create_model
from vitrail.models.classifier import decays
from vitrail.training.optimization import parameter_groups


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
