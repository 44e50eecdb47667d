"""How options are read, where that differs from tyro's way."""

from dataclasses import replace
from inspect import cleandoc, signature
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

F = TypeVar("F")
NUMBERS = {int: "a whole number", float: "a number"}
UNSAID = tyro.conf.arg(help_behavior_hint="")


def helpful(verb: F) -> F:
    """A function whose help is silent about a default of None, which is not what an option left out comes to, and whose
    lines end where the screen does and not where its docstring's did."""
    verb.__doc__ = cleandoc(verb.__doc__ or "").replace(f"\n{8 * ' '}", " ")
    for name, parameter in signature(verb).parameters.items():  # type: ignore[arg-type]
        if parameter.default is None:
            verb.__annotations__[name] = Annotated[verb.__annotations__[name], UNSAID]
    return verb


def registry() -> ConstructorRegistry:
    """An option that may be left out is None by that alone: None is no value to write, nor a choice among others, nor a
    default to show. What is no number is told in words, not in Python's."""
    rules = ConstructorRegistry()
    asked: list[Any] = []

    @rules.primitive_rule
    def numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if info.type not in NUMBERS:
            return None
        kind: Any = info.type
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=kind.__name__.upper(),
            instance_from_str=lambda words: _number(kind, words[0]),
            is_instance=lambda value: isinstance(value, int | kind),
            str_from_instance=lambda value: [str(value)],
        )

    @rules.primitive_rule
    def left_out(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        kinds = get_args(info.type)
        if info.type_origin not in (Union, UnionType) or NoneType not in kinds:
            return None
        others: Any = Union[tuple(kind for kind in kinds if kind is not NoneType)]  # noqa: UP007
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(others, info.markers))
        if not isinstance(spec, PrimitiveConstructorSpec):  # several commands, say
            return None
        return replace(
            spec,
            is_instance=lambda value: value is None or spec.is_instance(value),
            str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        )

    @rules.struct_rule
    def unsaid(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type in asked:  # by the lines below: the other rules have the word
            return None
        asked.append(info.type)
        spec = ConstructorRegistry.get_struct_spec(info)
        asked.pop()
        if not isinstance(spec, StructConstructorSpec):
            return None
        kinds: list[Any] = [Annotated[f.type, UNSAID] if _is_silent(f) else f.type for f in spec.fields]
        return replace(spec, fields=tuple(replace(f, type=kind) for f, kind in zip(spec.fields, kinds, strict=True)))

    return rules


def _is_silent(declared: Any) -> bool:
    """Has it a default of None, and nothing to say of it?"""
    told = [each for each in getattr(declared.type, "__metadata__", ()) if getattr(each, "help_behavior_hint", None)]
    return declared.default is None and not told


def _number(kind: Any, word: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        raise ValueError(f"must be {NUMBERS[kind]}, got {word!r}") from None
