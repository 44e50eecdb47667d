"""Packages whose names come when they are first asked for: torch takes seconds to import, which help and slips of the
fingers need not wait for."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class Lazy(ModuleType):
    """A package that imports what holds a name on its first use; its modules come by their names, too."""

    _homes: dict[str, str]  # name → the module that has it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in self._homes:
            value = getattr(import_module(self._homes[name]), name)
        else:
            value = self._module(name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # To import vitrail.training.config puts the package vitrail.train where the function vitrail.train is to be.
        if not (name in self._homes and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})

    def _module(self, name: str) -> ModuleType:
        wanted = f"{self.__name__}.{name}"
        try:
            return import_module(wanted)
        except ModuleNotFoundError as error:
            if error.name != wanted:  # it is there, and something that it needs is not
                raise
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def lazily(package: str, names: dict[str, tuple[str, ...]]) -> None:
    """Makes a package lazy: `names` says which of its public names are in which module. A type checker does not see
    them, so the package also imports them under TYPE_CHECKING; a test holds the two together."""
    module = sys.modules[package]
    module.__dict__["_homes"] = {name: home for home, inside in names.items() for name in inside}
    module.__class__ = Lazy
