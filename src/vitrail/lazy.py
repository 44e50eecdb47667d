"""Packages whose public names are imported when they are first asked for (PEP 562).

torch takes seconds to import, and `vitrail --help` or a mistyped option need not wait for it.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(package: str, names: dict[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package; `names` says which of its public names are in which module.

    >>> __getattr__, __dir__ = lazy(__name__, {"vitrail.data.decode": ("open_image", "to_image")})

    A type checker sees none of them, so the package also imports them under TYPE_CHECKING; a test compares the two.
    Modules of the package are found by their names, too, whether or not anyone has imported them before.
    """
    homes = {name: module for module, inside in names.items() for name in inside}

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name) if name in homes else _submodule(package, name)
        vars(sys.modules[package])[name] = value  # from now on without this function
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__


def _submodule(package: str, name: str) -> ModuleType:
    wanted = f"{package}.{name}"
    try:
        return import_module(wanted)
    except ModuleNotFoundError as error:
        if error.name != wanted:  # the module is there, and something that it imports is not
            raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
