"""Names → settings → models. Our names are short (`vit_b16`, `swin_t`); timm's, torchvision's and `ViT-B/16` mean the
same entries of the catalog."""

import ast
import re
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from typing import Any

from torch import nn

from vitrail.errors import VitrailError, nearest
from vitrail.models.building import ModelSettings, build
from vitrail.models.checks import setting_names
from vitrail.models.cnn import PREFIX, CNNSettings, architectures
from vitrail.models.entries import Entry, catalog
from vitrail.models.preprocessing import Preprocessing
from vitrail.models.vit import ViTSettings


def create_model(architecture: str, **changes: Any) -> nn.Module:
    """Builds a model by name, with freshly initialised weights.

    >>> vitrail.create_model("vit_b16", num_classes=10, image_size=(224, 320))

    `changes` are fields of the entry's settings (`ViTSettings`, `SwinSettings`, `MAESettings`); sizes may be a number.
    The model remembers the preprocessing that the entry's public weights expect as `model.preprocessing`.
    """
    model = build(model_settings(architecture, **changes))
    model.preprocessing = resolve(architecture)[0].preprocessing.suited(model.settings)  # type: ignore
    return model


def model_settings(architecture: str, **changes: Any) -> ModelSettings:
    """The settings of a named model, with changes."""
    entry, implied = resolve(architecture)
    return change(entry.settings, **{**implied, **changes})


def change(settings: ModelSettings, **changes: Any) -> ModelSettings:
    """`dataclasses.replace`, with an error that names the nearest setting."""
    names = setting_names(type(settings))
    for key in changes:
        if key not in names:
            hint = nearest(key, names)
            raise VitrailError(f"{key!r} is not a setting of {type(settings).__name__[:-8]} models.{hint}")
    return replace(settings, **changes)


def list_models(pattern: str = "*") -> list[str]:
    """The names in the catalog that match a pattern such as "swin*"; with "tv:*", torchvision's baselines."""
    if pattern.startswith(PREFIX):
        return [name for name in map(PREFIX.__add__, architectures()) if fnmatch(name, pattern)]
    return [name for name in catalog() if fnmatch(name, pattern)]


def resolve(architecture: str) -> tuple[Entry, dict[str, Any]]:
    """The entry that a name means, and the settings it changes: `vit_base_patch16_384` is `vit_b16` at 384, and
    `vit_b16_distilled` has a distillation token; `tv:resnet18` is torchvision's. Any setting can be changed by name:
    `vit_mini4:position=rotary,pool=mean`."""
    if "=" in architecture:
        return _changed(architecture)
    if architecture.startswith(PREFIX):
        arch = architecture.removeprefix(PREFIX)
        return Entry(architecture, CNNSettings(arch), Preprocessing()), {}
    # "ViT-B/16" whole, "google/vit-base-patch16-224" by its last part.
    for spelling in (architecture, architecture.split("/")[-1]):
        plain = re.sub(r"[-+ ]", "_", spelling.split(".")[0].lower()).replace("/", "")
        if found := _look_up(plain):
            return found
    hint = nearest(plain, [*catalog(), *_aliases(), *list_models(f"{PREFIX}*")])
    raise VitrailError(f"There is no model named {architecture!r}.{hint} `vitrail models` lists them all.")


def _changed(name: str) -> tuple[Entry, dict[str, Any]]:
    """`vit_mini4:position=rotary,depth=6`: what stands behind the last colon, as Python writes it or as a bare word."""
    base, _, words = name.rpartition(":")
    if not base:
        raise VitrailError(f"{name!r} names no model: write it as in vit_mini4:position=rotary.")
    entry, implied = resolve(base)
    changes = dict(implied)
    for word in re.split(r",(?![^(]*\))", words):  # not inside of (3, 4, 9)
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            raise VitrailError(f"{word!r} in {name!r} changes no setting: write it as in vit_mini4:position=rotary.")
        changes[key] = value
        with suppress(ValueError, SyntaxError):
            changes[key] = ast.literal_eval(value.title() if value.lower() in ("true", "false") else value)
    change(entry.settings, **changes)  # refuses what is no setting, and what can't be one
    return entry, changes


def _look_up(plain: str) -> tuple[Entry, dict[str, Any]] | None:
    entries, aliases = catalog(), _aliases()
    for candidate in (plain, f"vit_{plain}"):  # "B/16"
        if candidate in entries:
            return entries[candidate], {}
    if plain in aliases:
        return aliases[plain]
    if match := re.fullmatch(r"(.+)_(\d{2,4})(?:_in2[12]k)?", plain):
        if (joined := match[1] + match[2]) in entries:  # "R50+ViT-B_16"
            return entries[joined], {}
        if found := _look_up(match[1]):
            side = int(match[2])
            of_patch = getattr(found[0].settings, "patch_size", None) == (side, side)  # "deit_tiny_16"
            return found[0], found[1] if of_patch else {**found[1], "image_size": side}
    if plain.endswith("_distilled") and (found := _look_up(plain.removesuffix("_distilled"))):
        if not takes_distillation(found[0].settings):
            raise VitrailError(
                f"{found[0].name} has no place for a distillation token, which stands beside a class token that is "
                "read: leave _distilled out, and with --teacher its logits are distilled."
            )
        return found[0], {**found[1], "distillation_token": True}
    return None


def takes_distillation(settings: ModelSettings) -> bool:
    """Is there, or could there be, a distillation token? It stands beside a class token that is read."""
    return isinstance(settings, ViTSettings) and settings.class_token and settings.pool == "token"


@cache
def _aliases() -> dict[str, tuple[Entry, dict[str, Any]]]:
    return {alias: (entry, implied) for entry in catalog().values() for alias, implied in entry.aliases.items()}
