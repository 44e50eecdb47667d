"""Google's `.npz` files (the layout of the original and the AugReg checkpoints): read, not written.

Flax keeps matrices as [inputs, outputs], filters as [height, width, inputs, outputs], and the heads of attention as a
dimension of their own.
"""

from collections.abc import Callable

import torch

from vitrail.errors import VitrailError
from vitrail.models.preprocessing import HALF
from vitrail.weights.rules import Operation, Rule, Tensors, WeightLayout


def read_only(read: Callable[[Tensors], Tensors]) -> Operation:
    def write(_: Tensors) -> Tensors:
        raise VitrailError("Google's .npz files are read, not written; save with another dialect.")

    return Operation(read, write)


MATRIX = read_only(lambda t: [t[0].t()])  # inputs outputs
FILTERS = read_only(lambda t: [t[0].permute(3, 2, 0, 1)])  # height width inputs outputs
SCALE = read_only(lambda t: [t[0].flatten()])  # group norm: 1 1 1 channels
QKV = read_only(lambda t: [torch.cat([x.flatten(1).t() for x in t])])  # each inputs heads d
QKV_BIAS = read_only(lambda t: [torch.cat([x.flatten() for x in t])])  # each heads d
OUT = read_only(lambda t: [t[0].flatten(0, 1).t()])  # heads d outputs

LAYER = "Transformer/encoderblock_{i}/"
MSA = LAYER + "MultiHeadDotProductAttention_1/"


def norm(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", f"{theirs}/scale"), Rule(f"{ours}.bias", f"{theirs}/bias")]


def dense(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", f"{theirs}/kernel", MATRIX), Rule(f"{ours}.bias", f"{theirs}/bias")]


def stem_unit() -> list[Rule]:
    ours, theirs = "stem.stages.{i}.{j}.", "block{i+1}/unit{j+1}/"
    pairs = [(f"conv{k}", f"norm{k}", f"conv{k}", f"gn{k}") for k in (1, 2, 3)]
    rules = []
    for conv, gn, their_conv, their_gn in [*pairs, ("conv_shortcut", "norm_shortcut", "conv_proj", "gn_proj")]:
        rules += [
            Rule(f"{ours}{conv}.weight", f"{theirs}{their_conv}/kernel", FILTERS),
            Rule(f"{ours}{gn}.weight", f"{theirs}{their_gn}/scale", SCALE),
            Rule(f"{ours}{gn}.bias", f"{theirs}{their_gn}/bias", SCALE),
        ]
    return rules


RULES = (
    Rule("patch.weight", "embedding/kernel", FILTERS),
    Rule("patch.bias", "embedding/bias"),
    Rule("class_token", "cls"),
    Rule("position.table", "Transformer/posembed_input/pos_embedding"),
    *norm("blocks.{i}.norm1", LAYER + "LayerNorm_0"),
    *norm("blocks.{i}.norm2", LAYER + "LayerNorm_2"),
    Rule("blocks.{i}.attention.qkv.weight", [MSA + f"{x}/kernel" for x in ("query", "key", "value")], QKV),
    Rule("blocks.{i}.attention.qkv.bias", [MSA + f"{x}/bias" for x in ("query", "key", "value")], QKV_BIAS),
    Rule("blocks.{i}.attention.proj.weight", MSA + "out/kernel", OUT),
    Rule("blocks.{i}.attention.proj.bias", MSA + "out/bias"),
    *dense("blocks.{i}.mlp.fc1", LAYER + "MlpBlock_3/Dense_0"),
    *dense("blocks.{i}.mlp.fc2", LAYER + "MlpBlock_3/Dense_1"),
    *norm("norm", "Transformer/encoder_norm"),
    *dense("head.hidden", "pre_logits"),
    *dense("head.output", "head"),
    Rule("stem.conv.weight", "conv_root/kernel", FILTERS),
    Rule("stem.norm.weight", "gn_root/scale", SCALE),
    Rule("stem.norm.bias", "gn_root/bias", SCALE),
    *stem_unit(),
)

LAYOUTS = [
    WeightLayout(
        "google",
        "vit",
        (MSA + "query/kernel",),
        RULES,
        {"position_rule": "google", "norm_eps": 1e-6, "activation": "gelu"},
        HALF,
        ignore=r"^opt/state/",
        older=((r"^opt/target/", ""),),
    ),
]
