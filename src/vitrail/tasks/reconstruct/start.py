"""The autoencoder that pre-training starts from: a ViT of the catalog, or one that was pre-trained before."""

from dataclasses import replace
from typing import Any

from vitrail.data.samples import plural
from vitrail.errors import VitrailError
from vitrail.models import MAESettings, ModelSettings, ViTSettings, build, resolve
from vitrail.models.mae import decoder_for, visible_patches
from vitrail.models.registry import model_settings
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.backbones import Start, check_asked, suited
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.shipped import AUTOENCODER, check_architecture


def start_autoencoder(config: Config, largest: int, gpu: bool) -> Start:
    """`largest` is the larger side of a typical image: small images get small patches, and so do small sizes."""
    check_architecture(config.model, AUTOENCODER)
    asked = {"mask_ratio": config.mask_ratio, "norm_pix": config.norm_pix}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if config.image_size is not None:
        changes["image_size"] = (config.image_size, config.image_size)
    scratch = config.weights in ("none", "auto")
    if scratch:
        name = config.model or suited(config.image_size or largest, gpu, plain=True)
        if name.startswith("tv:"):
            raise VitrailError(
                f"{name} is a convolutional network, which has no patches to leave out: use a ViT.", code="no_patches"
            )
        entry = resolve(name)[0]
        settings = mae_settings(model_settings(name), name, **changes)
        model, pre = build(settings), entry.preprocessing.suited(settings)
        name, why = _named(entry.name), Reason("start_mae_scratch", name=_named(entry.name))
    else:
        checkpoint = read_checkpoint(config.weights, config.model)
        if not isinstance(checkpoint.settings, MAESettings):
            raise VitrailError(
                f"{config.weights} is no masked autoencoder; --weights of pretrain continues one.",
                code="not_an_autoencoder",
            )
        if config.model is not None:
            check_asked(config.model, checkpoint, config.weights)
        model = model_from(checkpoint, **changes).train()
        pre = model.preprocessing  # type: ignore[assignment]
        name = checkpoint.name or "mae"
        why = Reason("start_mae", what=checkpoint.name or "the model", source=config.weights)
    _check_masks(model.settings)  # type: ignore[arg-type]
    pre = replace(pre, fit=config.fit or ("crop" if pre.fit == "native" else pre.fit))
    model.preprocessing = pre  # type: ignore[assignment]
    return Start(model, pre, name, not scratch, [why], image_side=largest)


def mae_settings(settings: ModelSettings, name: str, **changes: Any) -> MAESettings:
    """A ViT's settings as those of a masked autoencoder: no head, the paper's positions, a decoder that suits."""
    if not isinstance(settings, ViTSettings | MAESettings):
        raise VitrailError(
            f"{name} can't be pre-trained by masking: three quarters of its patches are left out, and only a ViT does "
            "without them; use one such as vit_s16.",
            code="no_patches",
        )
    if settings.distillation_token:
        raise VitrailError(
            f"{name} has a distillation token, which nobody would teach here: use the plain model.",
            code="distillation_token",
        )
    if isinstance(settings, ViTSettings):
        taken: dict[str, Any] = {"num_classes": 0, "head": "linear", "norm_after_pool": False, "drop_path": 0.0}
        taken["pool"] = "token" if settings.class_token else "mean"
        if settings.position == "learned":
            taken["position"] = "sincos"
        settings = MAESettings(replace(settings, **taken), **decoder_for(settings.width, settings.depth))
    return replace(settings, **changes)


def _named(name: str) -> str:
    return name if name.startswith("mae_") else f"mae_{name}"


def _check_masks(settings: MAESettings) -> None:
    patches = settings.grid[0] * settings.grid[1]
    if visible_patches(patches, settings.mask_ratio) == patches:
        raise VitrailError(
            f"Images of {settings.image_size[0]} pixels are {plural(patches, 'patch', 'patches')} of "
            f"{settings.patch_size[0]}, too few to hide {settings.mask_ratio:.0%} of them: use a larger --image-size, "
            "or a --model with smaller patches.",
            code="too_few_patches", patches=patches,
        )  # fmt: skip
