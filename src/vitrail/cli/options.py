"""How options are read, where that differs from tyro's way."""

from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo


def registry() -> ConstructorRegistry:
    """An option that may be left out is None by that alone: None is no value to write, nor a choice among others."""
    rules = ConstructorRegistry()

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

    return rules
