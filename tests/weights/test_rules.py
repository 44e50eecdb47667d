"""Templates match what they say and nothing else; every layout reads what it writes."""

import pytest
import torch

from tests.weights.small import FAMILIES, small
from vitrail.weights import google, hf, timm, torchvision
from vitrail.weights.rules import STACK2, STACK3, Rule, Template, WeightLayout, group_names
from vitrail.weights.save import _tables

LAYOUTS = {
    **{f"timm-{i}-{layout.family}": layout for i, layout in enumerate(timm.LAYOUTS)},
    **{f"hf-{name}": layout for name, layout in hf.BY_TYPE.items()},
    **{f"torchvision-{name}": layout for name, layout in torchvision.LAYOUTS.items()},
}


@pytest.mark.parametrize(
    ("template", "name", "values"),
    [
        ("norm.{p}", "norm.weight", {"p": "weight"}),
        ("blocks.{i}.norm1.{p}", "blocks.11.norm1.bias", {"i": 11, "p": "bias"}),
        ("layers.{i}.blocks.{j}.x", "layers.3.blocks.17.x", {"i": 3, "j": 17}),
        ("features.{2i+1}.{j}.x", "features.5.0.x", {"i": 2, "j": 0}),
        ("features.{2i+2}.x", "features.2.x", {"i": 0}),
        ("layers.{i+1}.x", "layers.1.x", {"i": 0}),
    ],
)
def test_template_reads_its_fields_and_fills_them_back(template, name, values):
    assert Template(template).match(name) == values
    assert Template(template).fill(values) == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("norm.{p}", "norm.gamma"),
        ("norm.{p}", "fc_norm.weight"),
        ("norm.{p}", "norm.weight.more"),
        ("blocks.{i}.norm1.{p}", "blocks.x.norm1.weight"),
        ("blocks.{i}.norm1.{p}", "blocks.-1.norm1.weight"),
        ("blocks.{i}.norm1.{p}", "blocksX0.norm1.weight"),  # a dot is a dot
        ("features.{2i+1}.x", "features.4.x"),
        ("features.{2i+2}.x", "features.0.x"),
        ("layers.{i+1}.x", "layers.0.x"),
    ],
)
def test_template_matches_nothing_else(template, name):
    assert Template(template).match(name) is None


def test_stacked_matrices_come_apart_in_the_order_they_went_in():
    q, k, v = (torch.full((2, 3), float(i)) for i in range(3))
    rule = Rule("qkv", ["q", "k", "v"], STACK3)
    ours, used = rule.read({"q": q, "k": k, "v": v})
    assert ours["qkv"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert used == {"q", "k", "v"}
    theirs, _ = rule.write(ours)
    assert torch.equal(theirs["k"], k)
    assert [len(half) for half in STACK2.write([torch.zeros(6, 2)])] == [3, 3]


def test_rule_with_a_part_missing_uses_nothing():
    assert Rule("qkv", ["q", "k", "v"], STACK3).read({"q": torch.zeros(1), "k": torch.zeros(1)}) == ({}, set())


def test_layout_names_what_it_does_not_know_but_not_what_it_ignores():
    rules = (Rule("norm.{p}", "final.{p}"),)
    layout = WeightLayout("x", "vit", (), rules, {}, ignore="index$", older=((r"^last\.", "final."),), prefixes="model")
    state = {"model.last.weight": torch.ones(2), "extra": torch.ones(1), "model.index": torch.ones(1)}
    ours, unknown = layout.read(state)
    assert list(ours) == ["norm.weight"]
    assert unknown == ["extra"]
    assert layout.write({"norm.bias": torch.ones(2), "other": torch.ones(1)})[1] == ["other"]


@pytest.fixture(scope="module")
def states():
    """Every small model's weights, as it hands them to a layout."""
    models = {family: small(family) for family in FAMILIES}
    dialects = ("timm", "hf", "torchvision")
    return {
        family: {dialect: model.state_dict() | _tables(model, dialect) for dialect in dialects}
        for family, model in models.items()
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_reads_back_exactly_what_it_writes(name, states):
    layout = LAYOUTS[name]
    tried = []
    for family, by_dialect in states.items():
        state = by_dialect[layout.dialect]
        theirs, left = layout.write(state)
        if left:
            continue
        ours, unknown = layout.read(theirs)
        assert unknown == []
        assert ours.keys() == state.keys()
        assert [key for key in state if not torch.equal(ours[key], state[key])] == []
        tried.append(family)
    assert tried, "no small model has this layout"


def test_layouts_claim_the_files_they_write_before_any_other(states):
    every = [*timm.LAYOUTS, *hf.LAYOUTS, *torchvision.LAYOUTS.values(), *google.LAYOUTS]
    for family, layout in {
        "vit": timm.PLAIN_VIT,
        "mae": timm.MASKED,
        "dinov3": timm.EVA_PLAIN,
        "dinov3_gated": timm.EVA_GATED,
        "hybrid": timm.HYBRID,
        "root_hybrid": timm.ROOT_HYBRID,
        "swin": timm.SWIN[1],
        "swinv2": timm.SWIN[2],
    }.items():
        theirs, left = layout.write(states[family]["timm"])
        assert left == []
        assert next(other for other in every if other.fits(theirs)) is layout


def test_names_are_told_in_groups():
    names = [f"blocks.{i}.norm1.weight" for i in range(12)] + ["head.output.bias", "stages.0.1.x", "stages.2.0.x"]
    assert group_names(names) == "blocks.0–11.norm1.weight, head.output.bias, stages.0–2.*.x"
    assert group_names(["a", "b", "c"], most=2) == "a, b and 1 more kinds"
