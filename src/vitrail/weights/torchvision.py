"""torchvision's names: `VisionTransformer`, `SwinTransformer` and its v2."""

import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, ModelSettings, SwinSettings
from vitrail.models.preprocessing import IMAGENET
from vitrail.models.swin import ContinuousBias, SwinBlock
from vitrail.weights.limits import PLAIN, refuse_misfits, square, swin_needs, transformer
from vitrail.weights.rules import Operation, Rule, State, Template, WeightLayout

BLOCK = "encoder.layers.encoder_layer_{i}."
VIT = (
    Rule("patch.{p}", "conv_proj.{p}"),
    Rule("class_token", "class_token"),
    Rule("position.table", "encoder.pos_embedding"),
    Rule("blocks.{i}.norm1.{p}", BLOCK + "ln_1.{p}"),
    Rule("blocks.{i}.attention.qkv.weight", BLOCK + "self_attention.in_proj_weight"),
    Rule("blocks.{i}.attention.qkv.bias", BLOCK + "self_attention.in_proj_bias"),
    Rule("blocks.{i}.attention.proj.{p}", BLOCK + "self_attention.out_proj.{p}"),
    Rule("blocks.{i}.norm2.{p}", BLOCK + "ln_2.{p}"),
    Rule("blocks.{i}.mlp.fc1.{p}", BLOCK + "mlp.0.{p}"),
    Rule("blocks.{i}.mlp.fc2.{p}", BLOCK + "mlp.3.{p}"),
    Rule("norm.{p}", "encoder.ln.{p}"),
    Rule("head.hidden.{p}", "heads.pre_logits.{p}"),
    Rule("head.output.{p}", "heads.head.{p}"),
)

# torchvision keeps a bias for the keys of v2, and sets it to zero on every call.
QV_BIAS = Operation(
    lambda t: [t[0].chunk(3)[0], t[0].chunk(3)[2]], lambda t: [torch.cat([t[0], torch.zeros_like(t[0]), t[1]])]
)
UNIT, THEIRS = "stages.{i}.{j}.", "features.{2i+1}.{j}."
SWIN_SHARED = (
    Rule("patch.{p}", "features.0.0.{p}"),
    Rule("norm_before.{p}", "features.0.2.{p}"),
    Rule(UNIT + "attention.qkv.weight", THEIRS + "attn.qkv.weight"),
    Rule(UNIT + "attention.proj.{p}", THEIRS + "attn.proj.{p}"),
    Rule(UNIT + "norm1.{p}", THEIRS + "norm1.{p}"),
    Rule(UNIT + "norm2.{p}", THEIRS + "norm2.{p}"),
    Rule(UNIT + "mlp.fc1.{p}", THEIRS + "mlp.0.{p}"),
    Rule(UNIT + "mlp.fc2.{p}", THEIRS + "mlp.3.{p}"),
    Rule("merges.{i}.reduction.weight", "features.{2i+2}.reduction.weight"),
    Rule("merges.{i}.norm.{p}", "features.{2i+2}.norm.{p}"),
    Rule("norm.{p}", "norm.{p}"),
    Rule("head.output.{p}", "head.{p}"),
)
SWIN = (
    *SWIN_SHARED,
    Rule(UNIT + "attention.qkv.bias", THEIRS + "attn.qkv.bias"),
    Rule(UNIT + "bias.table", THEIRS + "attn.relative_position_bias_table"),
)
SWIN_V2 = (
    *SWIN_SHARED,
    Rule([UNIT + "attention.q_bias", UNIT + "attention.v_bias"], THEIRS + "attn.qkv.bias", QV_BIAS),
    Rule(UNIT + "attention.logit_scale", THEIRS + "attn.logit_scale"),
    Rule(UNIT + "bias.fc1.{p}", THEIRS + "attn.cpb_mlp.0.{p}"),
    Rule(UNIT + "bias.fc2.weight", THEIRS + "attn.cpb_mlp.2.weight"),
)
BUFFERS = r"relative_position_index|relative_coords_table"
SWIN_FACTS = {"padding": "torchvision", "norm_eps": 1e-5}

LAYOUTS = {
    "vit": WeightLayout(
        "torchvision",
        "vit",
        (BLOCK + "ln_1.weight",),
        VIT,
        {"position_rule": "torchvision", "norm_eps": 1e-6, "activation": "gelu"},
        {**IMAGENET, "crop": 224 / 256, "interpolation": "bilinear"},
        older=((r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3.")),
    ),
    "swin": WeightLayout(
        "torchvision",
        "swin",
        ("features.{i}.{j}.attn.relative_position_bias_table",),
        SWIN,
        SWIN_FACTS,
        {**IMAGENET, "crop": 224 / 232},
        BUFFERS,
    ),
    "swinv2": WeightLayout(
        "torchvision",
        "swinv2",
        ("features.{i}.{j}.attn.cpb_mlp.2.weight",),
        SWIN_V2,
        SWIN_FACTS,
        {**IMAGENET, "crop": 256 / 260},
        BUFFERS,
    ),
}


def layout_for(settings: ModelSettings) -> WeightLayout:
    """The layout that torchvision's class for these settings loads; refuses what that class can't do."""
    settings = transformer(settings)
    if isinstance(settings, MAESettings):
        raise VitrailError(
            "torchvision has no masked autoencoder; timm and hf have, and so has our own file (dialect vitrail)."
        )
    fixed = {"channels": 3, "activation": "gelu", "qkv_bias": True}
    if isinstance(settings, SwinSettings):
        refuse_misfits(settings, swin_needs(settings, padding="torchvision") | fixed, "torchvision's SwinTransformer")
        return LAYOUTS["swin" if settings.version == 1 else "swinv2"]
    hidden = {"head": "mlp", "head_activation": "tanh"} if settings.head == "mlp" else {}
    needs = PLAIN | fixed | hidden | {"image_size": square, "patch_size": square}
    refuse_misfits(settings, needs, "torchvision's VisionTransformer")
    return LAYOUTS["vit"]


def buffers_of(model: nn.Module) -> State:
    """torchvision keeps the index and, in v2, the log-spaced offsets in its state dict."""
    buffers: State = {}
    for name, block in model.named_modules():
        if isinstance(block, SwinBlock):
            _, stage, place = name.split(".")
            prefix = Template(THEIRS).fill({"i": int(stage), "j": int(place)}) + "attn."
            buffers[prefix + "relative_position_index"] = block.bias.get_buffer("index").flatten().cpu()
            if isinstance(block.bias, ContinuousBias):
                shape = (1, 2 * block.window[0] - 1, 2 * block.window[1] - 1, 2)
                buffers[prefix + "relative_coords_table"] = block.bias.get_buffer("offsets").reshape(shape).cpu()
    return buffers
