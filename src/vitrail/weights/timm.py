"""timm's names, which the official DeiT, DeiT-III, DINOv2, MAE and Swin files share but for a few spellings."""

from vitrail.weights.rules import STACK2, Layout, Rule, prefixed

NORM_MLP = [
    Rule("blocks.{i}.norm1.{p}", "blocks.{i}.norm1.{p}"),
    Rule("blocks.{i}.norm2.{p}", "blocks.{i}.norm2.{p}"),
    Rule("blocks.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}"),
    Rule("blocks.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.fc2.{p}"),
]
ATTENTION = [
    Rule("blocks.{i}.attention.qkv.{p}", "blocks.{i}.attn.qkv.{p}"),
    Rule("blocks.{i}.attention.q_bias", "blocks.{i}.attn.q_bias"),
    Rule("blocks.{i}.attention.v_bias", "blocks.{i}.attn.v_bias"),
    Rule("blocks.{i}.attention.proj.{p}", "blocks.{i}.attn.proj.{p}"),
]
TOKENS = [
    Rule("patch.{p}", "patch_embed.proj.{p}"),
    Rule("class_token", "cls_token"),
    Rule("distillation_token", "dist_token"),
    Rule("registers", "reg_token"),
    Rule("position.table", "pos_embed"),
    Rule("norm.{p}", "norm.{p}"),
]
VIT = [
    *TOKENS,
    *ATTENTION,
    *NORM_MLP,
    Rule("blocks.{i}.attention.q_norm.{p}", "blocks.{i}.attn.q_norm.{p}"),
    Rule("blocks.{i}.attention.k_norm.{p}", "blocks.{i}.attn.k_norm.{p}"),
    Rule("blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"),
    Rule("blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"),
    Rule("norm_before.{p}", "norm_pre.{p}"),
    Rule("norm_pool.{p}", "fc_norm.{p}"),
    Rule("pool_attention.query", "attn_pool.latent"),
    Rule("pool_attention.q.{p}", "attn_pool.q.{p}"),
    Rule("pool_attention.kv.{p}", "attn_pool.kv.{p}"),
    Rule("pool_attention.proj.{p}", "attn_pool.proj.{p}"),
    Rule("pool_attention.norm.{p}", "attn_pool.norm.{p}"),
    Rule("pool_attention.mlp.fc1.{p}", "attn_pool.mlp.fc1.{p}"),
    Rule("pool_attention.mlp.fc2.{p}", "attn_pool.mlp.fc2.{p}"),
    Rule("head.hidden.{p}", "pre_logits.fc.{p}"),
    Rule("head.output.{p}", "head.{p}"),
    Rule("head_distillation.output.{p}", "head_dist.{p}"),
]

# The hybrid's ResNet. Without stages (R+Ti/16) timm calls the root `backbone`, with them `backbone.stem`.
ROOT = [Rule("stem.conv.weight", "patch_embed.backbone.conv.weight"), Rule("stem.norm.{p}", "patch_embed.backbone.norm.{p}")]
UNIT = "patch_embed.backbone.stages.{i}.blocks.{j}."
STEM = [
    Rule("stem.conv.weight", "patch_embed.backbone.stem.conv.weight"),
    Rule("stem.norm.{p}", "patch_embed.backbone.stem.norm.{p}"),
    *(Rule(f"stem.stages.{{i}}.{{j}}.conv{k}.weight", UNIT + f"conv{k}.weight") for k in (1, 2, 3)),
    *(Rule(f"stem.stages.{{i}}.{{j}}.norm{k}.{{p}}", UNIT + f"norm{k}.{{p}}") for k in (1, 2, 3)),
    Rule("stem.stages.{i}.{j}.conv_shortcut.weight", UNIT + "downsample.conv.weight"),
    Rule("stem.stages.{i}.{j}.norm_shortcut.{p}", UNIT + "downsample.norm.{p}"),
]

# timm builds DINOv3 with another class, which spells layer scale and the gated MLP differently.
EVA = [
    *TOKENS,
    *ATTENTION,
    *(Rule(f"blocks.{{i}}.{part}.{{p}}", f"blocks.{{i}}.{part}.{{p}}") for part in ("norm1", "norm2", "mlp.fc2")),
    Rule("blocks.{i}.scale1.gamma", "blocks.{i}.gamma_1"),
    Rule("blocks.{i}.scale2.gamma", "blocks.{i}.gamma_2"),
    Rule("head.output.{p}", "head.{p}"),
]
DINOV3 = [*EVA, Rule("blocks.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}")]
DINOV3_GATED = [
    *EVA,
    Rule("blocks.{i}.mlp.fc1.{p}", ["blocks.{i}.mlp.fc1_g.{p}", "blocks.{i}.mlp.fc1_x.{p}"], STACK2),
]

MAE = [
    *prefixed("encoder.", "", VIT),
    Rule("mask_token", "mask_token"),
    Rule("decoder_embed.{p}", "decoder_embed.{p}"),
    Rule("decoder_position.table", "decoder_pos_embed"),
    *prefixed("decoder_", "decoder_", [*ATTENTION, *NORM_MLP]),
    Rule("decoder_norm.{p}", "decoder_norm.{p}"),
    Rule("decoder_predict.{p}", "decoder_pred.{p}"),
]


def swin(downsample: str, head: str) -> list[Rule]:
    """timm keeps the merging of patches at the start of a stage, the official files at the end of the one before."""
    unit, theirs = "stages.{i}.{j}.", "layers.{i}.blocks.{j}."
    return [
        Rule("patch.{p}", "patch_embed.proj.{p}"),
        Rule("norm_before.{p}", "patch_embed.norm.{p}"),
        Rule(unit + "bias.table", theirs + "attn.relative_position_bias_table"),
        Rule(unit + "bias.fc1.{p}", theirs + "attn.cpb_mlp.0.{p}"),
        Rule(unit + "bias.fc2.weight", theirs + "attn.cpb_mlp.2.weight"),
        Rule(unit + "attention.logit_scale", theirs + "attn.logit_scale"),
        Rule(unit + "attention.q_bias", theirs + "attn.q_bias"),
        Rule(unit + "attention.v_bias", theirs + "attn.v_bias"),
        Rule(unit + "attention.qkv.{p}", theirs + "attn.qkv.{p}"),
        Rule(unit + "attention.proj.{p}", theirs + "attn.proj.{p}"),
        *(Rule(unit + f"{part}.{{p}}", theirs + f"{part}.{{p}}") for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")),
        Rule("merges.{i}.reduction.weight", downsample + "reduction.weight"),
        Rule("merges.{i}.norm.{p}", downsample + "norm.{p}"),
        Rule("norm.{p}", "norm.{p}"),
        Rule("head.output.{p}", head),
    ]


TIMM_SWIN = tuple(swin("layers.{i+1}.downsample.", "head.fc.{p}"))
OFFICIAL_SWIN = tuple(swin("layers.{i}.downsample.", "head.{p}"))

VIT_FACTS: dict[str, object] = {"position_rule": "timm"}
DINOV3_FACTS: dict[str, object] = {"norm_eps": 1e-5, "position": "rotary"}
SWIN_FACTS: dict[str, object] = {"padding": "timm", "norm_eps": 1e-5}
OFFICIAL_FACTS: dict[str, object] = {"padding": "torchvision", "norm_eps": 1e-5}
SWIN_BUFFERS = r"attn_mask|relative_position_index|relative_coords_table|k_bias$"
OLDER = (
    (r"\.gamma_([12])$", r".ls\1.gamma"),  # DeiT-III
    (r"\.mlp\.w12\.", ".mlp.fc1."),  # DINOv2
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^register_tokens$", "reg_token"),
)

BLOCK = "blocks.{i}.attn.qkv.weight"
TABLE = "layers.{i}.blocks.{j}.attn.relative_position_bias_table"
CONTINUOUS = "layers.{i}.blocks.{j}.attn.cpb_mlp.2.weight"

# In the order of trial: the more particular signature first.
LAYOUTS = [
    Layout("timm", "mae", ("decoder_embed.weight", BLOCK), tuple(MAE), {"position_rule": "hf"}),
    Layout("timm", "vit", ("blocks.{i}.gamma_1", "blocks.{i}.mlp.fc1_g.weight"), tuple(DINOV3_GATED), DINOV3_FACTS, "k_bias$"),
    Layout("timm", "vit", ("blocks.{i}.gamma_1", "reg_token", BLOCK), tuple(DINOV3), DINOV3_FACTS, "k_bias$"),
    Layout("timm", "vit", ("patch_embed.backbone.conv.weight", BLOCK), (*ROOT, *VIT), VIT_FACTS),
    Layout("timm", "vit", ("patch_embed.backbone.stem.conv.weight", BLOCK), (*STEM, *VIT), VIT_FACTS),
    Layout("timm", "vit", (BLOCK, "patch_embed.proj.weight"), tuple(VIT), VIT_FACTS, r"^mask_token$", OLDER),
    Layout("timm", "swin", (TABLE, "layers.0.downsample.norm.weight"), OFFICIAL_SWIN, OFFICIAL_FACTS, SWIN_BUFFERS),
    Layout("timm", "swin", (TABLE,), TIMM_SWIN, SWIN_FACTS, SWIN_BUFFERS),
    Layout("timm", "swinv2", (CONTINUOUS, "layers.0.downsample.norm.weight"), OFFICIAL_SWIN, OFFICIAL_FACTS, SWIN_BUFFERS),
    Layout("timm", "swinv2", (CONTINUOUS,), TIMM_SWIN, SWIN_FACTS, SWIN_BUFFERS),
]
