"""transformers' `config.json` and `preprocessor_config.json`: what they tell us, and how we write them."""

from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import MAESettings, ModelSettings, Preprocessing, SwinSettings, ViTSettings
from vitrail.weights.hf import BY_TYPE
from vitrail.weights.limits import OURS, PLAIN, Needs, misfits, refuse_misfits, shrinks, square, swin_needs, transformer
from vitrail.weights.rules import WeightLayout

# Of several that mean the same, the first is the one we write.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
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
    "vit": {"num_attention_heads": 12, "layer_norm_eps": 1e-12},
    "deit": {"num_attention_heads": 12, "layer_norm_eps": 1e-12},
    "vit_mae": {
        "num_attention_heads": 12,
        "layer_norm_eps": 1e-12,
        "decoder_num_attention_heads": 16,
        "norm_pix_loss": False,
    },
    "dinov2": {"num_attention_heads": 12, "layer_norm_eps": 1e-6},
    "dinov2_with_registers": {"num_attention_heads": 12, "layer_norm_eps": 1e-6},
    "dinov3_vit": {"num_attention_heads": 6, "layer_norm_eps": 1e-5, "rope_theta": 100.0, "image_size": 224},
    "clip_vision_model": {"num_attention_heads": 12, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
    "siglip_vision_model": {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    "swin": {"layer_norm_eps": 1e-5, "window_size": 7, "image_size": 224},
    "swinv2": {"layer_norm_eps": 1e-5, "window_size": 7, "image_size": 224},
}
TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}


def settings_from(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that a config states; shapes tell the rest."""
    kind = config.get("model_type")
    if "vision_config" in config:  # CLIP and SigLIP with their text half
        kind, config = TOWERS.get(str(kind), kind), config["vision_config"]
    if kind not in DEFAULTS:
        raise VitrailError(f"config.json says model_type {kind!r}; known are {', '.join([*DEFAULTS, *TOWERS])}.")
    config = {**DEFAULTS[kind], **config}
    facts = {ours: config[theirs] for theirs, ours in WORDS.items() if config.get(theirs) is not None}
    facts = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    if kind == "dinov2_with_registers":  # the one class there that resizes with anti-aliasing
        facts["position_rule"] = "timm"
    if kind == "swinv2":  # pads as torchvision does, but fits a window to a map that is smaller as timm does
        names = {"patch_size": "patch_size", "embed_dim": "width", "depths": "depths", "num_heads": "heads"}
        shape = {ours: config[theirs] for theirs, ours in names.items() if theirs in config}
        small = shrinks(SwinSettings(**shape, window=facts["window"], image_size=facts["image_size"]))
        facts["padding"] = "timm" if small else "torchvision"
        if not any(facts.get("pretrained_window", ())):  # zeros: the window itself
            facts["pretrained_window"] = ()
    if not config.get("use_swiglu_ffn") and not config.get("use_gated_mlp"):
        word = config.get("hidden_act", "gelu")
        if word not in ACTIVATIONS:
            raise VitrailError(f"config.json says hidden_act {word!r}; known are {', '.join(ACTIVATIONS)}.")
        facts["activation"] = ACTIVATIONS[word]
    return facts


def labels_from(config: dict[str, Any]) -> list[str] | None:
    names = config.get("id2label")
    labels = [names[key] for key in sorted(names, key=int)] if names else []
    return labels if labels and labels[0] != "LABEL_0" else None


def preprocessing_from(config: dict[str, Any]) -> dict[str, Any]:
    """What a `preprocessor_config.json` says, as fields of `Preprocessing`."""
    resized = config.get("size") or {}
    cropped = config.get("do_center_crop", True) and config.get("crop_size")
    stated: dict[str, Any] = {
        "mean": tuple(config.get("image_mean") or (0.5, 0.5, 0.5)),
        "std": tuple(config.get("image_std") or (0.5, 0.5, 0.5)),
        "interpolation": RESAMPLING.get(config.get("resample", 3), "bicubic"),
        "fit": "crop" if cropped else "stretch",
        "crop": 1.0,
    }
    if not config.get("do_normalize", True):
        stated |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    size = _pair(config["crop_size"] if cropped else resized)
    if size is not None:
        stated["size"] = size
    if size is not None and cropped:
        short = resized.get("shortest_edge") or resized.get("height") if isinstance(resized, dict) else resized
        stated["crop"] = min(1.0, min(size) / (short or min(size)))
    return stated


def _pair(size: Any) -> tuple[int, int] | None:
    """A size as their releases have written it: a number, a height and a width, or a length of the shortest edge."""
    if isinstance(size, dict):
        return (size["height"], size["width"]) if "height" in size else None
    return (size, size) if isinstance(size, int) else None


def preprocessor_config(pre: Preprocessing) -> dict[str, Any] | None:
    """The inverse, where transformers has an image processor that does the same: colour images, stretched to any size
    or cropped to a square."""
    height, width = pre.size
    crop = pre.fit == "crop"
    if len(pre.mean) != 3 or not (pre.fit == "stretch" or (crop and height == width)):
        return None
    common = {
        "image_processor_type": "CLIPImageProcessor" if crop else "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pre.mean),
        "image_std": list(pre.std),
        "resample": {name: number for number, name in RESAMPLING.items()}.get(pre.interpolation, 3),
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
    """A transformers class, and the settings that it can express."""

    model_type: str
    architecture: str
    layout: str  # key of BY_TYPE
    needs: Needs
    prefix: str = ""  # put in front of every name but those of the heads
    square: tuple[str, ...] = ()  # the sizes that it computes with as one number


def given(value: object) -> bool:
    return value is not None


FEATURES = {**PLAIN, "num_classes": 0}  # a class without a classifier
SCALED = {**FEATURES, "layer_scale": given}
GATED = {**SCALED, "activation": "swiglu"}
ROTARY = {"position": "rotary", "qkv_bias": "qv", "registers": given}
CLIP = {**FEATURES, "norm_before": True, "patch_bias": False}
SIGLIP = {**FEATURES, "class_token": False, "pool": "attention"}
IMAGE, BOTH = ("image_size",), ("image_size", "patch_size")
REGISTERS, SWIN = "Dinov2WithRegistersModel", "ForImageClassification"
TEACHER = "DeiTForImageClassificationWithTeacher"

VIT_KINDS = [
    Kind("vit", "ViTForImageClassification", "vit", PLAIN, "vit."),
    Kind("deit", TEACHER, "deit", {**PLAIN, "distillation_token": True}, "deit."),
    Kind("dinov2", "Dinov2Model", "dinov2", SCALED, square=IMAGE),
    Kind("dinov2", "Dinov2Model", "dinov2_gated", GATED, square=IMAGE),
    Kind("dinov2_with_registers", REGISTERS, "dinov2", {**SCALED, "registers": given}, square=IMAGE),
    Kind("dinov2_with_registers", REGISTERS, "dinov2_gated", {**GATED, "registers": given}, square=IMAGE),
    Kind("dinov3_vit", "DINOv3ViTModel", "dinov3", {**SCALED, **ROTARY}),
    Kind("dinov3_vit", "DINOv3ViTModel", "dinov3_gated", {**GATED, **ROTARY}),
    Kind("clip_vision_model", "CLIPVisionModel", "clip", CLIP, square=BOTH),
    Kind("siglip_vision_model", "SiglipVisionModel", "siglip", SIGLIP, square=BOTH),
]
MAE_KIND = Kind("vit_mae", "ViTMAEForPreTraining", "vit_mae", {**FEATURES, "position": "sincos"}, square=BOTH)


def kind_of(settings: ModelSettings) -> Kind:
    """The transformers class for these settings; refuses, naming the settings, what none of them can do."""
    settings = transformer(settings)
    if isinstance(settings, SwinSettings):
        # Its v2 fits windows to the image as timm does, and pads as torchvision does.
        padding = "timm" if settings.version == 2 and shrinks(settings) else "torchvision"
        name = "swin" if settings.version == 1 else "swinv2"
        kind = Kind(name, f"{name.capitalize()}{SWIN}", name, {}, f"{name}.")
        refuse_misfits(
            settings, {**swin_needs(settings, padding), "window": square}, f"transformers' {kind.architecture}"
        )
        return kind
    kinds = [MAE_KIND] if isinstance(settings, MAESettings) else VIT_KINDS
    nearest = min(kinds, key=lambda kind: len(misfits(settings, kind.needs)))
    needs = {**nearest.needs, **dict.fromkeys(nearest.square, square)}
    refuse_misfits(settings, needs, f"transformers' {nearest.architecture}, its nearest class,")
    return nearest


def layout_for(settings: ModelSettings) -> WeightLayout:
    """The layout of that class on disk, its names without the prefix."""
    return BY_TYPE[kind_of(settings).layout]


def named_for(settings: ModelSettings, name: str) -> str:
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.")
    return name if name.startswith(heads) else kind_of(settings).prefix + name


def config_from(settings: ModelSettings, labels: list[str] | None) -> dict[str, Any]:
    """A `config.json` from which transformers builds the same model."""
    kind, settings = kind_of(settings), transformer(settings)
    activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    names = labels or [f"LABEL_{i}" for i in range(settings.num_classes)]
    config: dict[str, Any] = {
        "model_type": kind.model_type,
        "architectures": [kind.architecture],
        "image_size": _number(settings.image_size),
        "patch_size": _number(settings.patch_size),
        "num_channels": settings.channels,
        "layer_norm_eps": settings.norm_eps,
        "qkv_bias": bool(settings.qkv_bias),
        "hidden_act": activation.get(settings.activation, "silu"),
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if isinstance(settings, SwinSettings):
        return config | _swin(settings)
    if isinstance(settings, MAESettings):
        return config | _vit(settings.encoder, kind.model_type) | _decoder(settings)
    return config | _vit(settings, kind.model_type)


def _number(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _swin(settings: SwinSettings) -> dict[str, Any]:
    config: dict[str, Any] = {
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


def _vit(settings: ViTSettings, model_type: str) -> dict[str, Any]:
    gated = settings.activation == "swiglu"
    config: dict[str, Any] = {
        "hidden_size": settings.width,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.mlp_width,
    }
    if model_type.startswith("dinov2"):
        # Here the hidden width follows from a whole ratio; if it is gated, two thirds of it, in steps of eight.
        ratio = round(settings.mlp_ratio * (1.5 if gated else 1))
        width = (int(settings.width * ratio * 2 / 3) + 7) // 8 * 8 if gated else settings.width * ratio
        if width != settings.mlp_width:
            raise VitrailError(
                f"transformers' Dinov2Model can't do mlp_ratio={settings.mlp_ratio!r} at a width of {settings.width};"
                f" {OURS}."
            )
        config |= {"mlp_ratio": ratio, "use_swiglu_ffn": gated}
    if model_type.startswith("dino"):
        config |= {"layerscale_value": settings.layer_scale, "num_register_tokens": settings.registers}
    if model_type == "dinov3_vit":
        config |= {"use_gated_mlp": gated, "rope_theta": settings.rotary_base, "key_bias": False}
    return config


def _decoder(settings: MAESettings) -> dict[str, Any]:
    return {
        "decoder_hidden_size": settings.decoder_width,
        "decoder_num_hidden_layers": settings.decoder_depth,
        "decoder_num_attention_heads": settings.decoder_heads,
        "decoder_intermediate_size": settings.decoder.mlp_width,
        "mask_ratio": settings.mask_ratio,
        "norm_pix_loss": settings.norm_pix,
    }
