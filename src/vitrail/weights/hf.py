"""transformers' names. They are those on disk, which it keeps stable; in memory its releases differ.

What its `config.json` says beyond the weights is in `hf_config`.
"""

import torch

from vitrail.weights.rules import STACK2, STACK3, Operation, Rule, WeightLayout, prefixed, reshaped

QKV = ("query", "key", "value")
ROW = reshaped(lambda t: t[None], lambda t: t[0])  # N D <-> 1 N D
VECTOR = reshaped(lambda t: t[None, None], lambda t: t[0, 0])  # D <-> 1 1 D


def block(theirs: str) -> list[Rule]:
    """The encoder layer that ViT, DeiT and MAE share."""
    ours = "blocks.{i}."
    return [
        Rule(ours + "norm1.{p}", theirs + "layernorm_before.{p}"),
        Rule(ours + "attention.qkv.{p}", [theirs + f"attention.attention.{x}.{{p}}" for x in QKV], STACK3),
        Rule(ours + "attention.proj.{p}", theirs + "attention.output.dense.{p}"),
        Rule(ours + "norm2.{p}", theirs + "layernorm_after.{p}"),
        Rule(ours + "mlp.fc1.{p}", theirs + "intermediate.dense.{p}"),
        Rule(ours + "mlp.fc2.{p}", theirs + "output.dense.{p}"),
    ]


EMBEDDINGS = [
    Rule("class_token", "embeddings.cls_token"),
    Rule("distillation_token", "embeddings.distillation_token"),
    Rule("registers", "embeddings.register_tokens"),
    Rule("position.table", "embeddings.position_embeddings"),
    Rule("patch.{p}", "embeddings.patch_embeddings.projection.{p}"),
    Rule("norm.{p}", "layernorm.{p}"),
]
VIT = (
    *EMBEDDINGS,
    *block("encoder.layer.{i}."),
    Rule("head.output.{p}", "classifier.{p}"),
    Rule("head.hidden.{p}", "pooler.dense.{p}"),
)
DEIT = (
    *EMBEDDINGS,
    *block("encoder.layer.{i}."),
    Rule("head.output.{p}", "cls_classifier.{p}"),
    Rule("head_distillation.output.{p}", "distillation_classifier.{p}"),
)
# DeiTForImageClassification keeps the distillation token but reads nothing from it: a register.
DEIT_ALONE = (Rule("registers", "embeddings.distillation_token"), *(r for r in VIT if r is not EMBEDDINGS[1]))
MAE = (
    *prefixed("encoder.", "vit.", [*EMBEDDINGS, *block("encoder.layer.{i}.")]),
    Rule("mask_token", "decoder.mask_token"),
    Rule("decoder_embed.{p}", "decoder.decoder_embed.{p}"),
    Rule("decoder_position.table", "decoder.decoder_pos_embed"),
    *prefixed("decoder_", "decoder.decoder_", block("encoder.layer.{i}.")),
    Rule("decoder_norm.{p}", "decoder.decoder_norm.{p}"),
    Rule("decoder_predict.{p}", "decoder.decoder_pred.{p}"),
)

LAYER = "encoder.layer.{i}."
DINOV2 = (
    *EMBEDDINGS,
    Rule("blocks.{i}.attention.qkv.{p}", [LAYER + f"attention.attention.{x}.{{p}}" for x in QKV], STACK3),
    Rule("blocks.{i}.attention.proj.{p}", LAYER + "attention.output.dense.{p}"),
    *(Rule(f"blocks.{{i}}.{part}.{{p}}", LAYER + f"{part}.{{p}}") for part in ("norm1", "norm2")),
    *(Rule(f"blocks.{{i}}.scale{k}.gamma", LAYER + f"layer_scale{k}.lambda1") for k in (1, 2)),
)
DINOV2_MLP = tuple(Rule(f"blocks.{{i}}.mlp.{part}.{{p}}", LAYER + f"mlp.{part}.{{p}}") for part in ("fc1", "fc2"))
DINOV2_GATED = (
    Rule("blocks.{i}.mlp.fc1.{p}", LAYER + "mlp.weights_in.{p}"),
    Rule("blocks.{i}.mlp.fc2.{p}", LAYER + "mlp.weights_out.{p}"),
)

DINOV3 = (
    Rule("class_token", "embeddings.cls_token"),
    Rule("registers", "embeddings.register_tokens"),
    Rule("patch.{p}", "embeddings.patch_embeddings.{p}"),
    Rule("blocks.{i}.attention.qkv.weight", [f"layer.{{i}}.attention.{x}_proj.weight" for x in "qkv"], STACK3),
    Rule("blocks.{i}.attention.q_bias", "layer.{i}.attention.q_proj.bias"),
    Rule("blocks.{i}.attention.v_bias", "layer.{i}.attention.v_proj.bias"),
    Rule("blocks.{i}.attention.proj.{p}", "layer.{i}.attention.o_proj.{p}"),
    *(Rule(f"blocks.{{i}}.{part}.{{p}}", f"layer.{{i}}.{part}.{{p}}") for part in ("norm1", "norm2")),
    *(Rule(f"blocks.{{i}}.scale{k}.gamma", f"layer.{{i}}.layer_scale{k}.lambda1") for k in (1, 2)),
    Rule("blocks.{i}.mlp.fc2.{p}", "layer.{i}.mlp.down_proj.{p}"),
    Rule("norm.{p}", "norm.{p}"),
)
DINOV3_MLP = (Rule("blocks.{i}.mlp.fc1.{p}", "layer.{i}.mlp.up_proj.{p}"),)
DINOV3_GATED = (Rule("blocks.{i}.mlp.fc1.{p}", [f"layer.{{i}}.mlp.{x}_proj.{{p}}" for x in ("gate", "up")], STACK2),)

TOWER_LAYER = "encoder.layers.{i}."
TOWER = (
    Rule("patch.{p}", "embeddings.patch_embedding.{p}"),
    Rule("position.table", "embeddings.position_embedding.weight", ROW),
    Rule("blocks.{i}.norm1.{p}", TOWER_LAYER + "layer_norm1.{p}"),
    Rule("blocks.{i}.attention.qkv.{p}", [TOWER_LAYER + f"self_attn.{x}_proj.{{p}}" for x in "qkv"], STACK3),
    Rule("blocks.{i}.attention.proj.{p}", TOWER_LAYER + "self_attn.out_proj.{p}"),
    Rule("blocks.{i}.norm2.{p}", TOWER_LAYER + "layer_norm2.{p}"),
    Rule("blocks.{i}.mlp.fc1.{p}", TOWER_LAYER + "mlp.fc1.{p}"),
    Rule("blocks.{i}.mlp.fc2.{p}", TOWER_LAYER + "mlp.fc2.{p}"),
    Rule("norm.{p}", "post_layernorm.{p}"),
)
CLIP = (
    *TOWER,
    Rule("class_token", "embeddings.class_embedding", VECTOR),
    Rule("norm_before.{p}", "pre_layrnorm.{p}"),
    Rule("head.output.weight", "visual_projection.weight"),
)
# The query, key and value of SigLIP's pooling are one matrix there; here q is apart from k and v.
Q_AND_KV = Operation(lambda t: [t[0][: len(t[0]) // 3], t[0][len(t[0]) // 3 :]], lambda t: [torch.cat(t)])
SIGLIP = (
    *TOWER,
    Rule("pool_attention.query", "head.probe"),
    Rule(["pool_attention.q.weight", "pool_attention.kv.weight"], "head.attention.in_proj_weight", Q_AND_KV),
    Rule(["pool_attention.q.bias", "pool_attention.kv.bias"], "head.attention.in_proj_bias", Q_AND_KV),
    Rule("pool_attention.proj.{p}", "head.attention.out_proj.{p}"),
    Rule("pool_attention.norm.{p}", "head.layernorm.{p}"),
    Rule("pool_attention.mlp.fc1.{p}", "head.mlp.fc1.{p}"),
    Rule("pool_attention.mlp.fc2.{p}", "head.mlp.fc2.{p}"),
)

UNIT, THEIRS = "stages.{i}.{j}.", "encoder.layers.{i}.blocks.{j}."
SWIN_SHARED = (
    Rule("patch.{p}", "embeddings.patch_embeddings.projection.{p}"),
    Rule("norm_before.{p}", "embeddings.norm.{p}"),
    Rule(UNIT + "norm1.{p}", THEIRS + "layernorm_before.{p}"),
    Rule(UNIT + "attention.qkv.weight", [THEIRS + f"attention.self.{x}.weight" for x in QKV], STACK3),
    Rule(UNIT + "attention.proj.{p}", THEIRS + "attention.output.dense.{p}"),
    Rule(UNIT + "norm2.{p}", THEIRS + "layernorm_after.{p}"),
    Rule(UNIT + "mlp.fc1.{p}", THEIRS + "intermediate.dense.{p}"),
    Rule(UNIT + "mlp.fc2.{p}", THEIRS + "output.dense.{p}"),
    Rule("merges.{i}.reduction.weight", "encoder.layers.{i}.downsample.reduction.weight"),
    Rule("merges.{i}.norm.{p}", "encoder.layers.{i}.downsample.norm.{p}"),
    Rule("norm.{p}", "layernorm.{p}"),
    Rule("head.output.{p}", "classifier.{p}"),
)
SWIN = (
    *SWIN_SHARED,
    Rule(UNIT + "attention.qkv.bias", [THEIRS + f"attention.self.{x}.bias" for x in QKV], STACK3),
    Rule(UNIT + "bias.table", THEIRS + "attention.self.relative_position_bias_table"),
)
SWIN_V2 = (
    *SWIN_SHARED,
    Rule(UNIT + "attention.q_bias", THEIRS + "attention.self.query.bias"),
    Rule(UNIT + "attention.v_bias", THEIRS + "attention.self.value.bias"),
    Rule(UNIT + "attention.logit_scale", THEIRS + "attention.self.logit_scale"),
    Rule(UNIT + "bias.fc1.{p}", THEIRS + "attention.self.continuous_position_bias_mlp.0.{p}"),
    Rule(UNIT + "bias.fc2.weight", THEIRS + "attention.self.continuous_position_bias_mlp.2.weight"),
)

QUERY = LAYER + "attention.attention.query.weight"
SELF = THEIRS + "attention.self."
TOWER_QUERY = TOWER_LAYER + "self_attn.q_proj.weight"
OTHER_HEADS = r"^(text_model|logit_|text_projection|embeddings\.mask_token$)|position_ids$"
SWIN_BUFFERS = r"relative_position_index|relative_coords_table|mask_token$|^pooler\."


def _vit(signature: tuple[str, ...], rules: tuple[Rule, ...], eps: float, prefixes: str) -> WeightLayout:
    facts = {"position_rule": "hf", "norm_eps": eps}
    return WeightLayout("hf", "vit", signature, rules, facts, ignore=OTHER_HEADS, prefixes=prefixes)


def _dinov3(signature: str, rules: tuple[Rule, ...]) -> WeightLayout:
    facts = {"position": "rotary", "norm_eps": 1e-5}
    return WeightLayout("hf", "vit", (signature,), rules, facts, ignore=OTHER_HEADS, prefixes="model|dinov3_vit")


def _swin(version: str, signature: tuple[str, ...], rules: tuple[Rule, ...]) -> WeightLayout:
    facts = {"padding": "torchvision", "norm_eps": 1e-5}
    return WeightLayout("hf", version, signature, rules, facts, ignore=SWIN_BUFFERS, prefixes=version)


DINOV2_PREFIX = "dinov2(_with_registers)?"

# By transformers' model type; those that look alike, the more particular first.
BY_TYPE = {
    "vit_mae": WeightLayout(
        "hf",
        "mae",
        ("decoder.decoder_embed.weight",),
        MAE,
        {"position_rule": "hf", "norm_eps": 1e-12},
        ignore=r"embeddings\.mask_token$",
    ),
    "deit": _vit(("distillation_classifier.weight", QUERY), DEIT, 1e-12, "deit"),
    "deit_alone": _vit(("embeddings.distillation_token", "classifier.weight", QUERY), DEIT_ALONE, 1e-12, "deit"),
    "dinov2_gated": _vit((QUERY, LAYER + "mlp.weights_in.weight"), DINOV2 + DINOV2_GATED, 1e-6, DINOV2_PREFIX),
    "dinov2": _vit((QUERY, LAYER + "layer_scale1.lambda1"), DINOV2 + DINOV2_MLP, 1e-6, DINOV2_PREFIX),
    "vit": _vit((QUERY,), VIT, 1e-12, "vit|deit"),
    "dinov3_gated": _dinov3("layer.{i}.mlp.gate_proj.weight", DINOV3 + DINOV3_GATED),
    "dinov3": _dinov3("layer.{i}.attention.q_proj.weight", DINOV3 + DINOV3_MLP),
    "siglip": _vit((TOWER_QUERY, "head.probe"), SIGLIP, 1e-6, "vision_model"),
    "clip": _vit((TOWER_QUERY, "pre_layrnorm.weight"), CLIP, 1e-5, "vision_model"),
    "swinv2": _swin("swinv2", (SELF + "query.weight", SELF + "logit_scale"), SWIN_V2),
    "swin": _swin("swin", (SELF + "query.weight",), SWIN),
}
LAYOUTS = list(BY_TYPE.values())
