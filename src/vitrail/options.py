"""Options: small dataclasses beside what they configure, and `Config`, several of them as one flat set of names.

A group declares its names, defaults, help (the docstring under each field) and ranges; `Config` composes groups and is
what Python's keywords, the command line, the file kept with a run and `--config FILE` all become.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrail.errors import VitrailError, nearest

C = TypeVar("C", bound="Config")


def option(default: Any, least: float | None = None, most: float | None = None, **about: Any) -> Any:
    """A field with a range. `about` says more of it: `source=True` is a path or a name that `fspath` may have to turn
    into a string, `machine=True` may differ when a run is resumed."""
    return field(default=default, metadata={"least": least, "most": most, **about})


def flag(name: str) -> str:
    """How the command line spells an option."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Options:
    """A group of options. Values are checked when the group is made, before anything is read or written."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            check_value(each.name, getattr(self, each.name), hints[each.name], each.metadata)


def check_value(name: str, value: Any, hint: Any, about: Mapping[str, Any]) -> None:
    """Refuses a value of another type, or outside of its range. From Python, anything may have been given."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return
    if choices := [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]:
        if value not in choices:
            raise VitrailError(
                f"{flag(name)} {value} is not known: use {', '.join(choices)}.{nearest(str(value), choices)}"
            )
    elif float in kinds or int in kinds:
        whole = float not in kinds
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise VitrailError(f"{flag(name)} must be a {'whole ' if whole else ''}number, got {value!r}.")
    elif not isinstance(value, tuple(kinds)):
        raise VitrailError(f"{flag(name)} can't be {value!r}.")
    least, most = about.get("least"), about.get("most")
    if least is not None and not (value >= least and (most is None or value <= most)):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise VitrailError(f"{flag(name)} must be {wanted}, got {value}.")


class Config:
    """Groups of options under flat names: `config.lr`, whichever group holds it. It never changes; `replace` gives
    another one."""

    def __init__(self, kinds: Iterable[type[Options]], values: Mapping[str, Any]):
        self.kinds = tuple(kinds)
        self.groups = tuple(kind(**{n: values[n] for n in names(kind) if n in values}) for kind in self.kinds)
        self._values = {name: getattr(group, name) for group in self.groups for name in names(type(group))}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"there is no option {name!r}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.groups == other.groups

    def __repr__(self) -> str:
        given = {name: value for name, value in self._values.items() if value != self.defaults[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    @property
    def defaults(self) -> dict[str, Any]:
        return {each.name: each.default for kind in self.kinds for each in fields(kind)}

    @property
    def about(self) -> dict[str, Mapping[str, Any]]:
        """What each option's declaration says of it besides its default."""
        return {each.name: each.metadata for kind in self.kinds for each in fields(kind)}

    def replace(self: C, **changes: Any) -> C:
        if unknown := changes.keys() - self._values.keys():
            raise AttributeError(f"there is no option {', '.join(sorted(unknown))}")
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        Config.__init__(made, self.kinds, self._values | changes)
        return made

    def group(self, name: str) -> Any:
        """The group that holds an option."""
        return next(group for group in self.groups if name in names(type(group)))

    def shared(self) -> dict[str, Any]:
        """For a file that is passed on: without the folders of this machine."""
        values = self.to_dict()
        for name, about in self.about.items():
            value = values[name]
            if about.get("source") and isinstance(value, str) and value not in ("auto", "none"):
                values[name] = value if value.startswith("hf://") else Path(value).name
        return {name: value for name, value in values.items() if name != "out"}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in self._values.items()}


def names(kind: type[Options]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def helps(kind: type[Options]) -> dict[str, str]:
    """The docstring under each field, those of the group's bases included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is Options or not issubclass(base, Options):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for one, other in zip(body.body, body.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(other, ast.Expr):
                found[one.target.id] = " ".join(ast.literal_eval(other.value).split())
    return found


def plain_values(kinds: Iterable[type[Options]], values: Mapping[str, Any]) -> dict[str, Any]:
    """What Python passes, as the fields want it: paths and runs as strings, folders as paths."""
    about = {each.name: (each.metadata, hint) for kind in kinds for each, hint in hinted(kind)}
    found = dict(values)
    for name, value in values.items():
        metadata, hint = about.get(name, ({}, None))
        if metadata.get("source") and isinstance(value, PathLike):
            found[name] = fspath(value)
        elif Path in get_args(hint) and value is not None:
            found[name] = Path(value).expanduser()
    return found


def hinted(kind: type[Options]) -> list[tuple[Any, Any]]:
    """The fields of a group, each with its type."""
    hints = get_type_hints(kind)
    return [(each, hints[each.name]) for each in fields(kind)]


def read_config(path: str | PathLike[str]) -> tuple[dict[str, Any], bool]:
    """The options in a JSON or YAML file, and whether it is the run.json of a run: of that, what was asked for."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
        found = _yaml(text, file) if file.suffix in (".yaml", ".yml") else json.loads(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise VitrailError(f"--config {path} can't be read: {reason}.") from None
    record = isinstance(found, dict) and isinstance(found.get("given"), dict)
    if record:
        if found.get("verb") == "pretrain":  # of which version 0.2.1 did not say its task
            found["given"].setdefault("task", "reconstruct")
        found = {name: value for name, value in found["given"].items() if name not in ("out", "resume")}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise VitrailError(f"--config {path} has to hold names of options with their values, such as epochs: 10.")
    return {name.replace("-", "_"): value for name, value in found.items()}, record


def _yaml(text: str, file: Path) -> Any:
    """As YAML 1.2 has it: 1e-4 is a number, and on and off are words."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in rules if not tag.endswith((":bool", ":float"))]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
    number = r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$"
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(number), list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
