"""Refusals in one sentence: what was given, what was expected, what to do."""

from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral, Real
from operator import index
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError


def check_image(x: Tensor, channels: int, smallest: tuple[int, int]) -> None:
    """Refuses, in one sentence, what is not a batch of images that this model can cut into patches."""
    if x.ndim != 4:
        hint = f"; add a batch dimension with x[None] for [1, {', '.join(map(str, x.shape))}]" if x.ndim == 3 else ""
        raise VitrailError(
            f"Expected a batch of images [B, {channels}, H, W], got a tensor of shape {list(x.shape)}{hint}."
        )
    if x.shape[1] != channels:
        hint = f"; build the model with channels={x.shape[1]}, or convert the images"
        if x.shape[-1] == channels:
            hint = "; the channels look to be last: x.permute(0, 3, 1, 2) puts them first"
        raise VitrailError(f"Expected {channels} channels in [B, {channels}, H, W], got shape {list(x.shape)}{hint}.")
    if x.shape[2] < smallest[0] or x.shape[3] < smallest[1]:
        raise VitrailError(
            f"An image of {x.shape[2]}×{x.shape[3]} pixels is smaller than one patch of {smallest[0]}×{smallest[1]};"
            " enlarge the image, or use a model with smaller patches."
        )


def check_settings(
    settings: Any,
    choices: dict[str, Iterable[object]],
    counts: dict[str, int],
    rates: Iterable[str],
    positive: Iterable[str] = (),
) -> None:
    """Refuses, in one sentence, settings that no model can be built from: `choices` are names of a list, `counts` whole
    numbers with a least value, `rates` probabilities, `positive` numbers above 0. Switches are True or False."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(field.default, bool) and field.name not in choices and not isinstance(value, bool):
            raise VitrailError(f"{field.name} must be True or False, got {value!r}.")
    for name, allowed in choices.items():
        value = getattr(settings, name)
        if not any(type(value) is type(one) and value == one for one in allowed):  # 1 is no True
            raise VitrailError(f"{name}={value!r} is not known; choose one of {[*allowed]}.")
    for name, least in counts.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise VitrailError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    for name in rates:
        value = getattr(settings, name)
        if not is_number(value) or not 0 <= value <= 1:
            raise VitrailError(f"{name} is a probability, between 0 and 1, got {value!r}.")
    for name in positive:
        value = getattr(settings, name)
        if not is_number(value) or not value > 0:
            raise VitrailError(f"{name} must be a number above 0, got {value!r}.")


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def whole_numbers(values: object, name: str, least: int | None = None) -> tuple[int, ...]:
    """Several of them, in a list or the like."""
    limit = "" if least is None else f" of at least {least}"
    refusal = VitrailError(f"{name} must be a list of whole numbers{limit}, got {values!r}.")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise refusal
    try:
        numbers = tuple(None if isinstance(n, bool) else index(n) for n in values)  # also of NumPy and of a tensor
    except TypeError:
        raise refusal from None
    if any(n is None or (least is not None and n < least) for n in numbers):
        raise refusal
    return numbers  # type: ignore[return-value]


def one_or_several(values: Any) -> Any:
    return [values] if isinstance(values, Integral) else values


def setting_names(kind: Any) -> list[str]:
    """What may be set, of a class of settings: its fields; an encoder's are set beside those of what stands on it."""
    names: list[str] = []
    for field in fields(kind):
        names += setting_names(field.type) if field.name == "encoder" else [field.name]
    return names


def setting_values(settings: Any) -> dict[str, Any]:
    """The same names, with the values that they have."""
    return {name: getattr(settings, name) for name in setting_names(type(settings))}


def known_fields(kind: type, values: dict[str, Any], whose: str) -> dict[str, Any]:
    """Values for the settings of the class `kind`, out of JSON."""
    if unknown := sorted(set(values) - set(setting_names(kind))):
        names = ", ".join(unknown)
        raise VitrailError(f"{whose} settings have {names}, unknown to this version; upgrade vitrail.")
    return tuples(values)


def tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where our dataclasses have tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def pair(value: int | tuple[int, int] | list[int], name: str) -> tuple[int, int]:
    """A size given as one number or as (height, width)."""
    if isinstance(value, bool) or not isinstance(value, int | tuple | list):
        raise VitrailError(f"{name} must be a number or (height, width), got {value!r}.")
    values = (value, value) if isinstance(value, int) else tuple(value)
    if len(values) != 2 or any(not isinstance(v, int) or v < 1 for v in values):
        raise VitrailError(f"{name} must be one or two positive whole numbers, got {value!r}.")
    return values


def check_layers(layers: Iterable[int] | int, depth: int) -> list[int]:
    """Layer numbers counted from 0; negative ones from the end."""
    asked = whole_numbers(one_or_several(layers), "layers")
    if wrong := [i for i in asked if not -depth <= i < depth]:
        back = f", from the end -1 to {-depth}" if wrong[0] < 0 else ""
        raise VitrailError(f"This model has layers 0 to {depth - 1}{back}; there is no layer {wrong[0]}.")
    return [i + depth if i < 0 else i for i in asked]
