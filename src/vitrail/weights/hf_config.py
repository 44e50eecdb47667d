"""transformers' `config.json` and `preprocessor_config.json`: what they tell us, and how we write them."""

from dataclasses import dataclass, field
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, Preprocessing, Settings, SwinSettings

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}

# Their word for each setting that no shape tells.
WORDS = {
    "num_attention_heads": "heads",
    "num_heads": "heads",
    "layer_norm_eps": "norm_eps",
    "image_size": "image_size",
    "rope_theta": "rotary_base",
    "window_size": "window",
    "pretrained_window_sizes": "pretrained_window",
    "mask_ratio": "mask_ratio",
    "norm_pix_loss": "norm_pix",
    "decoder_num_attention_heads": "decoder_heads",
}
# A config may leave out what equals the default of its type (SigLIP's do).
DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "image_size": 224},
    "deit": {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "image_size": 224},
    "vit_mae": {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "decoder_num_attention_heads": 16, "norm_pix_loss": False},
    "dinov2": {"num_attention_heads": 12, "layer_norm_eps": 1e-6},
    "dinov2_with_registers": {"num_attention_heads": 12, "layer_norm_eps": 1e-6},
    "dinov3_vit": {"num_attention_heads": 6, "layer_norm_eps": 1e-5, "rope_theta": 100.0},
    "clip_vision_model": {"num_attention_heads": 12, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "image_size": 224},
    "siglip_vision_model": {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    "swin": {"layer_norm_eps": 1e-5, "window_size": 7},
    "swinv2": {"layer_norm_eps": 1e-5, "window_size": 7},
}
TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}


def settings_from(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that a config states; shapes tell the rest."""
    kind = config.get("model_type", "")
    if "vision_config" in config:  # CLIP and SigLIP with their text half
        kind, config = TOWERS.get(kind, kind), config["vision_config"]
    if kind not in DEFAULTS:
        raise VitrailError(f"config.json says model_type {kind!r}; known are {', '.join([*DEFAULTS, *TOWERS])}.")
    config = {**DEFAULTS[kind], **config}
    facts = {ours: config[theirs] for theirs, ours in WORDS.items() if config.get(theirs) is not None}
    for name in ("heads", "pretrained_window", "image_size", "window"):
        if isinstance(facts.get(name), list):
            facts[name] = tuple(facts[name])
    if kind == "dinov2_with_registers":  # the one class there that resizes with anti-aliasing
        facts["position_rule"] = "timm"
    if not config.get("use_swiglu_ffn") and not config.get("use_gated_mlp"):
        facts["activation"] = ACTIVATIONS.get(config.get("hidden_act", "gelu"), "gelu")
    return facts


def labels_from(config: dict[str, Any]) -> list[str] | None:
    names = config.get("id2label")
    return [names[key] for key in sorted(names, key=int)] if names else None


def preprocessing_from(config: dict[str, Any], size: tuple[int, int]) -> Preprocessing:
    """The preprocessing of a `preprocessor_config.json`; `size` stands in for one that is not stated."""

    def pair(value: Any) -> tuple[int, int] | None:
        if isinstance(value, dict):
            return (value["height"], value["width"]) if "height" in value else None
        return (value, value) if isinstance(value, int) else None

    resized, crop, fit = config.get("size", {}), 1.0, "stretch"
    target = pair(resized) or size
    if config.get("do_center_crop", True) and config.get("crop_size"):
        target = pair(config["crop_size"]) or size
        short = resized.get("shortest_edge") or resized.get("height") if isinstance(resized, dict) else resized
        crop, fit = min(1.0, target[0] / (short or target[0])), "crop"
    return Preprocessing(
        size=target,
        mean=tuple(config.get("image_mean", (0.5, 0.5, 0.5))),
        std=tuple(config.get("image_std", (0.5, 0.5, 0.5))),
        crop=crop,
        interpolation=RESAMPLING.get(config.get("resample", 3), "bicubic"),
        fit=fit,
    )


def preprocessor_config(pre: Preprocessing) -> dict[str, Any]:
    """The inverse: for transformers' image processors."""
    crop = pre.fit == "crop"
    height, width = pre.size
    common = {
        "image_processor_type": "CLIPImageProcessor" if crop else "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pre.mean),
        "image_std": list(pre.std),
        "resample": {name: number for number, name in RESAMPLING.items()}[pre.interpolation],
        "size": {"height": height, "width": width},
    }
    if crop:
        common |= {
            "do_center_crop": True,
            "do_convert_rgb": True,
            "crop_size": {"height": height, "width": width},
            "size": {"shortest_edge": int(min(height, width) / pre.crop)},
        }
    return common


@dataclass(frozen=True)
class Kind:
    """A transformers class that can express some of our settings."""

    model_type: str
    architecture: str
    layout: str  # key of hf.BY_TYPE
    prefix: str  # put in front of every name but those of the heads
    needs: dict[str, Any]  # settings it can't do otherwise
    extra: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, Any] = {
    "stem": None,
    "patch_bias": True,
    "position": "learned",
    "class_token": True,
    "distillation_token": False,
    "registers": 0,
    "pool": "token",
    "norm_first": True,
    "norm_before": False,
    "norm_after_pool": False,
    "qkv_bias": True,
    "qk_norm": False,
    "layer_scale": None,
    "head": "linear",
}
SCALED = {key: value for key, value in PLAIN.items() if key not in ("layer_scale", "registers")} | {"num_classes": 0}
TOWER = {**PLAIN, "num_classes": 0}

VIT_KINDS = [
    Kind("vit", "ViTForImageClassification", "vit", "vit.", PLAIN),
    Kind("deit", "DeiTForImageClassificationWithTeacher", "deit", "deit.", {**PLAIN, "distillation_token": True}),
    Kind("dinov2", "Dinov2Model", "dinov2", "", {**SCALED, "registers": 0}),
    Kind("dinov2_with_registers", "Dinov2WithRegistersModel", "dinov2", "", SCALED),
    Kind("dinov3_vit", "DINOv3ViTModel", "dinov3_vit", "", {**SCALED, "position": "rotary", "qkv_bias": "qv"}),
    Kind("clip_vision_model", "CLIPVisionModel", "clip_vision_model", "", {**TOWER, "norm_before": True, "patch_bias": False}),
    Kind(
        "siglip_vision_model", "SiglipVisionModel", "siglip_vision_model", "", {**TOWER, "class_token": False, "pool": "attention"}
    ),
]
MAE_KIND = Kind("vit_mae", "ViTMAEForPreTraining", "vit_mae", "", {**PLAIN, "position": "sincos"})
SWIN_KINDS = {
    1: Kind("swin", "SwinForImageClassification", "swin", "swin.", {}),
    2: Kind("swinv2", "Swinv2ForImageClassification", "swinv2", "swinv2.", {}),
}


def kind_of(settings: Settings) -> Kind:
    """The transformers class for these settings; refuses, naming the setting, what none of them can do."""
    if isinstance(settings, SwinSettings):
        return SWIN_KINDS[settings.version]
    kinds = [MAE_KIND] if isinstance(settings, MAESettings) else VIT_KINDS
    misfits = []
    for kind in kinds:
        wrong = [f"{key}={getattr(settings, key)!r}" for key, value in kind.needs.items() if getattr(settings, key) != value]
        if not wrong:
            return kind
        misfits.append((len(wrong), kind.architecture, wrong))
    _, architecture, wrong = min(misfits)
    raise VitrailError(
        f"transformers has no class for this model: the nearest, {architecture}, can't do {', '.join(wrong)};"
        " save it with dialect vitrail or timm instead."
    )


def config_from(settings: Settings, labels: list[str] | None) -> dict[str, Any]:
    """A `config.json` from which transformers builds the same model."""

    def number(size: tuple[int, int]) -> int | list[int]:
        return size[0] if size[0] == size[1] else list(size)

    kind = kind_of(settings)
    activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    config: dict[str, Any] = {
        "model_type": kind.model_type,
        "architectures": [kind.architecture],
        "image_size": number(settings.image_size),
        "patch_size": number(settings.patch_size),
        "num_channels": settings.channels,
        "layer_norm_eps": settings.norm_eps,
        "qkv_bias": bool(settings.qkv_bias),
        "hidden_act": activation.get(settings.activation, "gelu"),
    }
    if settings.num_classes:
        names = labels or [f"LABEL_{i}" for i in range(settings.num_classes)]
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    if isinstance(settings, SwinSettings):
        if settings.window[0] != settings.window[1]:
            raise VitrailError(f"transformers has square windows only, not {settings.window}.")
        config |= {
            "embed_dim": settings.width,
            "depths": list(settings.depths),
            "num_heads": list(settings.heads),
            "window_size": settings.window[0],
            "mlp_ratio": settings.mlp_ratio,
            "drop_path_rate": settings.drop_path,
            "hidden_size": settings.width * 2 ** (len(settings.depths) - 1),
        }
        if settings.version == 2:
            config["pretrained_window_sizes"] = list(settings.pretrained_window or [0] * len(settings.depths))
        return config
    gated = settings.activation == "swiglu"
    config |= {
        "hidden_size": settings.width,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.mlp_width,
    }
    if kind.model_type.startswith("dinov2"):
        config |= {"mlp_ratio": round(settings.mlp_ratio * (1.5 if gated else 1)), "use_swiglu_ffn": gated}
    if kind.model_type.startswith("dino"):
        config |= {"layerscale_value": settings.layer_scale, "num_register_tokens": settings.registers}
    if kind.model_type == "dinov3_vit":
        config |= {"use_gated_mlp": gated, "rope_theta": settings.rotary_base, "key_bias": False}
        config["hidden_act"] = "silu" if gated else config["hidden_act"]
    if isinstance(settings, MAESettings):
        config |= {
            "decoder_hidden_size": settings.decoder_width,
            "decoder_num_hidden_layers": settings.decoder_depth,
            "decoder_num_attention_heads": settings.decoder_heads,
            "decoder_intermediate_size": settings.decoder.mlp_width,
            "mask_ratio": settings.mask_ratio,
            "norm_pix_loss": settings.norm_pix,
        }
    return config
