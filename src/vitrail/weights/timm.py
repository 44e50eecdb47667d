"""timm's names, which the official DeiT, DeiT-III, DINOv2, MAE and Swin files share but for a few spellings."""

from typing import Any

from vitrail.models import MAESettings, ModelSettings, SwinSettings, ViTSettings
from vitrail.models.preprocessing import IMAGENET
from vitrail.weights.limits import PLAIN, Needs, one_of, refuse_misfits, swin_needs, table, transformer
from vitrail.weights.rules import STACK2, Rule, WeightLayout, prefixed

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
ROOT = [
    Rule("stem.conv.weight", "patch_embed.backbone.conv.weight"),
    Rule("stem.norm.{p}", "patch_embed.backbone.norm.{p}"),
]
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


# timm writes no arithmetic into its files; these are the settings of its classes.
VIT_FACTS = {"position_rule": "timm", "norm_eps": 1e-6}
CLIP_FACTS = {"position_rule": "timm", "norm_eps": 1e-5}
DINOV3_FACTS = {"position": "rotary", "norm_eps": 1e-5}
# Facebook resizes by bicubic interpolation: MAE and DINOv2 as transformers does, DINOv2 with registers as timm does.
FACEBOOK_FACTS = {"position_rule": "hf", "norm_eps": 1e-6}
# The official Swin fits its windows to the image as timm does, and takes no image that would have to be padded.
SWIN_FACTS = {"padding": "timm", "norm_eps": 1e-5}

SWIN_BUFFERS = r"attn_mask|relative_position_index|relative_coords_table|k_bias$"
OLDER = (
    (r"\.gamma_([12])$", r".ls\1.gamma"),  # DeiT-III
    (r"\.mlp\.w12\.", ".mlp.fc1."),  # DINOv2
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^register_tokens$", "reg_token"),
)

BLOCK = "blocks.{i}.attn.qkv.weight"
PATCH = "patch_embed.proj.weight"
TABLE_V1 = "layers.{i}.blocks.{j}.attn.relative_position_bias_table"
MLP_V2 = "layers.{i}.blocks.{j}.attn.cpb_mlp.2.weight"
OFFICIAL = "layers.0.downsample.norm.weight"  # timm's first stage merges nothing


def _vit(
    signature: tuple[str, ...],
    facts: dict[str, Any],
    rules: list[Rule] = VIT,
    preprocessing: dict[str, Any] | None = None,
) -> WeightLayout:
    ignore = r"^mask_token$|k_bias$"
    return WeightLayout("timm", "vit", (*signature, BLOCK), tuple(rules), facts, preprocessing or {}, ignore, OLDER)


def _swin(version: str, signature: tuple[str, ...], rules: list[Rule]) -> WeightLayout:
    return WeightLayout("timm", version, signature, tuple(rules), SWIN_FACTS, ignore=SWIN_BUFFERS)


PLAIN_VIT = _vit((PATCH,), VIT_FACTS)
ROOT_HYBRID = _vit(("patch_embed.backbone.conv.weight",), VIT_FACTS, [*ROOT, *VIT])
HYBRID = _vit(("patch_embed.backbone.stem.conv.weight",), VIT_FACTS, [*STEM, *VIT])
EVA_SIGNATURE = ("blocks.{i}.gamma_1", "reg_token")
EVA_PLAIN = WeightLayout("timm", "vit", (*EVA_SIGNATURE, BLOCK), tuple(DINOV3), DINOV3_FACTS, ignore="k_bias$")
EVA_GATED = WeightLayout(
    "timm", "vit", (*EVA_SIGNATURE, "blocks.{i}.mlp.fc1_g.weight"), tuple(DINOV3_GATED), DINOV3_FACTS, ignore="k_bias$"
)
MASKED = WeightLayout("timm", "mae", ("decoder_embed.weight", BLOCK), tuple(MAE), FACEBOOK_FACTS)
TIMM_SWIN = swin("layers.{i+1}.downsample.", "head.fc.{p}")
OFFICIAL_SWIN = swin("layers.{i}.downsample.", "head.{p}")
SWIN = {1: _swin("swin", (TABLE_V1,), TIMM_SWIN), 2: _swin("swinv2", (MLP_V2,), TIMM_SWIN)}

# In the order of trial: the more particular signature first.
LAYOUTS = [
    MASKED,
    EVA_GATED,
    EVA_PLAIN,
    ROOT_HYBRID,
    HYBRID,
    _vit((PATCH, "norm_pre.weight"), CLIP_FACTS),
    _vit((PATCH, "mask_token", "reg_token"), VIT_FACTS),
    _vit((PATCH, "mask_token"), FACEBOOK_FACTS),
    _vit((PATCH, "cls_token", "fc_norm.weight"), VIT_FACTS, preprocessing=IMAGENET),  # fine-tuned MAE
    PLAIN_VIT,
    _swin("swin", (TABLE_V1, OFFICIAL), OFFICIAL_SWIN),
    SWIN[1],
    _swin("swinv2", (MLP_V2, OFFICIAL), OFFICIAL_SWIN),
    SWIN[2],
]

POOLS = {"token": "token", "avg": "mean", "map": "attention"}


def settings_from(config: dict[str, Any]) -> dict[str, Any]:
    """What timm's `config.json` says that no shape tells."""
    facts: dict[str, Any] = {}
    if config.get("global_pool") in POOLS:
        facts["pool"] = POOLS[config["global_pool"]]
    heads = (config.get("model_args") or {}).get("num_heads")
    if heads is not None:
        facts["heads"] = tuple(heads) if isinstance(heads, list) else heads
    return facts


def layout_for(settings: ModelSettings) -> WeightLayout:
    """The layout that timm's class for these settings loads; refuses what none of its arguments can bring about."""
    settings = transformer(settings)
    if isinstance(settings, SwinSettings):
        refuse_misfits(settings, swin_needs(settings, padding="timm"), "timm's SwinTransformer")
        return SWIN[settings.version]
    if isinstance(settings, MAESettings):
        needs = {name: need for name, need in PLAIN.items() if name != "pool"}
        refuse_misfits(settings.encoder, needs, "The official MAE")
        return MASKED
    if settings.position == "rotary":
        refuse_misfits(settings, _eva_needs(), "timm's Eva, its class for rotary positions,")
        return EVA_GATED if settings.activation == "swiglu" else EVA_PLAIN
    refuse_misfits(settings, _vit_needs(settings), "timm's VisionTransformer")
    return PLAIN_VIT if settings.stem is None else HYBRID if settings.stem else ROOT_HYBRID


def _vit_needs(settings: ViTSettings) -> Needs:
    needs: Needs = {
        "position": lambda kind: kind == "none" or table(kind),
        "stem": lambda stem: not isinstance(stem, str),  # a ResNet, or none
        "norm_first": True,
        "qkv_bias": one_of(True, False),
        "patch_bias": not settings.norm_before,  # there the one excludes the other
        "head": "linear",
        "head_bias": True,
    }
    if settings.distillation_token:
        needs |= {"registers": 0, "norm_after_pool": False, "position": table}
    return needs


def _eva_needs() -> Needs:
    free = ("activation", "class_token", "registers", "layer_scale")
    shared = {name: need for name, need in PLAIN.items() if name not in free}
    return shared | {"position": "rotary", "qkv_bias": one_of("qv", False), "pool": one_of("token", "mean")}
