"""The catalog: for each of our names the settings, and where public weights of it lie, if there are any, with the
preprocessing that they expect."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from vitrail.models.building import ModelSettings
from vitrail.models.mae import MAESettings
from vitrail.models.preprocessing import CLIP, HALF, Preprocessing
from vitrail.models.swin import SwinSettings
from vitrail.models.vit import ViTSettings


@dataclass(frozen=True)
class Entry:
    name: str
    settings: ModelSettings
    preprocessing: Preprocessing
    hub: str | None = None  # where public weights lie, "org/name"
    licence: str | None = None  # of those weights
    aliases: dict[str, dict[str, Any]] = field(default_factory=dict)  # other names, each with the settings it changes


@cache
def catalog() -> dict[str, Entry]:
    """All entries by name, in the order in which a person would look for them."""
    families = (_vit, _deit, _hybrid, _cpvt, _small_images, _swin, _mae, _dino, _image_towers)
    return {entry.name: entry for family in families for entry in family()}


# Letter: timm's word, width, depth, heads, MLP ratio. Ti to H are the papers' sizes, g that of "Scaling ViTs".
SIZES: dict[str, tuple[str, int, int, int, float]] = {
    "ti": ("tiny", 192, 12, 3, 4.0),
    "s": ("small", 384, 12, 6, 4.0),
    "b": ("base", 768, 12, 12, 4.0),
    "l": ("large", 1024, 24, 16, 4.0),
    "h": ("huge", 1280, 32, 16, 4.0),
    "g": ("giant", 1408, 40, 16, 48 / 11),
}


def _sized(letter: str, patch: int, **changes: Any) -> ViTSettings:
    _, width, depth, heads, ratio = SIZES[letter]
    return ViTSettings(width=width, depth=depth, heads=heads, mlp_ratio=ratio, patch_size=(patch, patch), **changes)


def _vit() -> list[Entry]:
    published = {"ti16", "s16", "s32", "b32", "l16"}
    hubs = {size: "augreg_in21k_ft_in1k" for size in published} | {
        "b8": "augreg2_in21k_ft_in1k",
        "b16": "augreg2_in21k_ft_in1k",
        "l32": "orig_in21k",
        "h14": "orig_in21k",
    }
    entries = []
    for letter, (word, *_) in SIZES.items():
        for patch in (8, 14, 16, 32):
            base, tag = f"vit_{word}_patch{patch}", hubs.get(f"{letter}{patch}")
            aliases: dict[str, dict[str, Any]] = {base: {}, f"vit_{letter}_{patch}": {}}
            hub, licence = (f"timm/{base}_224.{tag}", "apache-2.0") if tag else (None, None)
            pre = Preprocessing(**HALF)
            entries.append(Entry(f"vit_{letter}{patch}", _sized(letter, patch), pre, hub, licence, aliases))
    return entries


def _deit() -> list[Entry]:
    entries = []
    for letter in ("ti", "s", "b"):
        word = SIZES[letter][0]
        for distilled in ("", "_distilled"):
            base = f"deit_{word}{distilled}_patch16"
            settings = _sized(letter, 16, distillation_token=bool(distilled))
            aliases: dict[str, dict[str, Any]] = {
                base: {},
                f"deit_{letter}{distilled}": {},
                f"deit_{word}{distilled}": {},
            }
            hub = f"timm/{base}_224.fb_in1k"
            entries.append(Entry(f"deit_{letter}16{distilled}", settings, Preprocessing(), hub, "apache-2.0", aliases))
    for letter, patch in (("s", 16), ("b", 16), ("l", 16), ("h", 14)):
        base = f"deit3_{SIZES[letter][0]}_patch{patch}"
        settings = _sized(letter, patch, position_prefix=False, layer_scale=1e-6)
        hub = f"timm/{base}_224.fb_in1k"
        entries.append(Entry(f"deit3_{letter}{patch}", settings, Preprocessing(), hub, "apache-2.0", {base: {}}))
    return entries


def _hybrid() -> list[Entry]:
    """The stem's blocks per stage, the patch on its feature map, and timm's name. R+Ti/16 is the root alone."""
    augreg, original = "augreg_in21k_ft_in1k", "orig_in21k"
    table: list[tuple[str, str, tuple[int, ...], int, str, str]] = [
        ("r_vit_ti16", "ti", (), 8, "vit_tiny_r_s16_p8", augreg),
        ("r26_vit_s32", "s", (2, 2, 2, 2), 1, "vit_small_r26_s32", augreg),
        ("r50_vit_b16", "b", (3, 4, 9), 1, "vit_base_r50_s16", original),
        ("r50_vit_l32", "l", (3, 4, 6, 3), 1, "vit_large_r50_s32", augreg),
    ]
    entries = []
    for name, letter, stem, patch, alias, tag in table:
        hub = f"timm/{alias}_224.{tag}"
        aliases: dict[str, dict[str, Any]] = {alias: {}, name.replace("vit_", ""): {}}
        settings = _sized(letter, patch, stem=stem)
        entries.append(Entry(name, settings, Preprocessing(**HALF), hub, "apache-2.0", aliases))
    return entries


def _cpvt() -> list[Entry]:
    return [
        Entry(f"cpvt_{letter}16", _sized(letter, 16, position="conditional"), Preprocessing())
        for letter in ("ti", "s", "b")
    ]


def _small_images() -> list[Entry]:
    """The plain ViT of the published small-data tables, 2.7 M parameters: for CIFAR (32) and Tiny-ImageNet (64); a
    hybrid of the same grid, twice as large, with convolutions in its stem and before every block; and two for images
    of a few pixels, such as scikit-learn's digits, that a laptop trains in a minute."""
    mini: dict[str, Any] = {"width": 192, "depth": 9, "heads": 12, "mlp_ratio": 2.0}
    nano: dict[str, Any] = {"width": 64, "depth": 4, "heads": 4, "mlp_ratio": 2.0}
    # Up to 5.6 M parameters and 64 tokens, the last of a residual stem's halvings done by the patches.
    hybrid: dict[str, Any] = {"width": 256, "depth": 7, "heads": 8, "mlp_ratio": 3.0, "pool": "mean", "local": True}
    hybrid["class_token"] = False
    return [
        Entry(
            name,
            ViTSettings(image_size=(size, size), patch_size=(patch, patch), **shape),
            Preprocessing(size=(size, size), crop=1.0),
        )
        for name, size, patch, shape in (
            ("vit_nano2", 8, 2, nano),
            ("vit_nano4", 16, 4, nano),
            ("vit_mini4", 32, 4, mini),
            ("vit_mini8", 64, 8, mini),
            ("hybrid_mini4", 32, 2, {**hybrid, "stem": "res2"}),
            ("hybrid_mini8", 64, 2, {**hybrid, "stem": "res4"}),
        )
    ]


def _swin() -> list[Entry]:
    table = {
        "t": ("tiny", 96, (2, 2, 6, 2), (3, 6, 12, 24), "ms_in1k"),
        "s": ("small", 96, (2, 2, 18, 2), (3, 6, 12, 24), "ms_in22k_ft_in1k"),
        "b": ("base", 128, (2, 2, 18, 2), (4, 8, 16, 32), "ms_in22k_ft_in1k"),
        "l": ("large", 192, (2, 2, 18, 2), (6, 12, 24, 48), "ms_in22k_ft_in1k"),
    }
    entries = []
    for letter, (word, width, depths, heads, tag) in table.items():
        base = f"swin_{word}_patch4"
        aliases: dict[str, dict[str, Any]] = {f"{base}_window7": {}, f"{base}_window12": {"window": 12}}
        settings = SwinSettings(width=width, depths=depths, heads=heads)
        hub = f"timm/{base}_window7_224.{tag}"
        entries.append(Entry(f"swin_{letter}", settings, Preprocessing(), hub, "mit", aliases))
    for letter in ("t", "s", "b"):
        word, width, depths, heads, _ = table[letter]
        settings = SwinSettings(
            image_size=(256, 256), width=width, depths=depths, heads=heads, window=(8, 8), version=2
        )
        aliases = {f"swin_v2_{letter}": {}, f"swinv2_{word}_window8": {}, f"swinv2_{word}_patch4_window8": {}}
        aliases |= {f"swinv2_{word}_window16": {"window": 16}, f"swinv2_{word}_patch4_window16": {"window": 16}}
        hub = f"timm/swinv2_{word}_window8_256.ms_in1k"
        entries.append(Entry(f"swinv2_{letter}", settings, Preprocessing(size=(256, 256)), hub, "mit", aliases))
    return entries


def _mae() -> list[Entry]:
    entries = []
    for letter, patch in (("b", 16), ("l", 16), ("h", 14)):
        word, width, depth, heads, _ = SIZES[letter]
        settings = MAESettings(width=width, depth=depth, heads=heads, patch_size=(patch, patch))
        aliases: dict[str, dict[str, Any]] = {f"mae_vit_{word}_patch{patch}": {}, f"vit_mae_{word}": {}}
        hub = f"facebook/vit-mae-{word}"
        entries.append(Entry(f"mae_{letter}{patch}", settings, Preprocessing(), hub, "cc-by-nc-4.0", aliases))
    return entries


def _dino() -> list[Entry]:
    entries = []
    giant: dict[str, Any] = {"width": 1536, "heads": 24, "mlp_ratio": 8 / 3, "activation": "swiglu"}
    for registers in (0, 4):
        for letter in ("s", "b", "l", "g"):
            word = SIZES[letter][0]
            settings = _sized(letter, 14, num_classes=0, image_size=(518, 518), layer_scale=1e-5)
            settings = replace(
                settings, registers=registers, position_prefix=not registers, **(giant if letter == "g" else {})
            )
            middle = "_reg4" if registers else ""
            aliases: dict[str, dict[str, Any]] = {f"vit_{word}_patch14{middle}_dinov2": {}}
            aliases[f"dinov2{'_with_registers' if registers else ''}_{word}"] = {}
            hub = f"facebook/dinov2-{'with-registers-' if registers else ''}{word}"
            pre = Preprocessing(size=(518, 518), crop=1.0)
            entries.append(Entry(f"dinov2_{letter}14{middle}", settings, pre, hub, "apache-2.0", aliases))

    gated: dict[str, Any] = {"activation": "swiglu"}
    for name, letter, word, extra in (
        ("s16", "s", "small", {}),
        ("s16_plus", "s", "small_plus", gated),
        ("b16", "b", "base", {}),
        ("l16", "l", "large", {}),
        ("h16_plus", "h", "huge_plus", {**gated, "heads": 20}),
    ):
        settings = _sized(
            letter, 16, num_classes=0, image_size=(256, 256), position="rotary", registers=4, norm_eps=1e-5
        )
        settings = replace(settings, qkv_bias="qv", layer_scale=1e-5, **extra)
        timm_name = f"vit_{word}_patch16_dinov3"
        aliases = {f"{timm_name}_qkvb": {}, timm_name: {"qkv_bias": False}}
        hub = f"facebook/dinov3-vit{letter}16{'plus' if extra else ''}-pretrain-lvd1689m"
        aliases[hub.split("/")[1].replace("-", "_")] = {}
        pre = Preprocessing(size=(256, 256), crop=1.0)
        entries.append(Entry(f"dinov3_{name}", settings, pre, hub, "dinov3-license", aliases))
    return entries


def _image_towers() -> list[Entry]:
    """The image halves of CLIP and SigLIP, as backbones."""
    entries = []
    for letter, patch in (("b", 32), ("b", 16), ("l", 14)):
        word = SIZES[letter][0]
        settings = _sized(
            letter, patch, num_classes=0, activation="quick_gelu", norm_before=True, patch_bias=False, norm_eps=1e-5
        )
        base = f"vit_{word}_patch{patch}_clip"
        aliases: dict[str, dict[str, Any]] = {f"{base}_quickgelu": {}, base: {"activation": "gelu"}}
        aliases[f"clip_vit_{word}_patch{patch}"] = {}
        hub = f"openai/clip-vit-{word}-patch{patch}"
        entries.append(Entry(f"clip_{letter}{patch}", settings, Preprocessing(crop=1.0, **CLIP), hub, "mit", aliases))

    shape: dict[str, Any] = {"num_classes": 0, "activation": "gelu_tanh", "class_token": False, "pool": "attention"}
    so400m = ViTSettings(width=1152, depth=27, heads=16, mlp_ratio=4304 / 1152, patch_size=(14, 14), **shape)
    towers = [
        ("siglip_b16", _sized("b", 16, **shape), "base", 16, 224),
        ("siglip_l16", _sized("l", 16, image_size=(256, 256), **shape), "large", 16, 256),
        ("siglip_so400m14", so400m, "so400m", 14, 224),
    ]
    for name, settings, word, patch, size in towers:
        # timm builds these with the exact GELU, though they were trained with the tanh one.
        aliases = {f"siglip_{word}_patch{patch}": {}, f"vit_{word}_patch{patch}_siglip": {"activation": "gelu"}}
        pre = Preprocessing(size=(size, size), crop=1.0, **HALF)
        hub = f"google/siglip-{word}-patch{patch}-{size}"
        entries.append(Entry(name, settings, pre, hub, "apache-2.0", aliases))
    return entries
