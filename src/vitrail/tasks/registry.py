"""The tasks by their names: the only place that lists them. A package outside brings its own by an entry point of the
group `vitrail.tasks`, whose value is a subclass of `vitrail.tasks.base.Task`.

A task's options and what its data may be are known without importing PyTorch, so that help and slips of the fingers are
answered at once.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError, nearest
from vitrail.options import Options
from vitrail.options import names as fields_of

if TYPE_CHECKING:
    from vitrail.tasks.base import Task

# name → folder of vitrail.tasks: options.py has OPTIONS and EXPECTS, task.py the class
TRAINED = {
    "classify": "ClassifyTask",
    "segment": "SegmentTask",
    "detect": "DetectTask",
    "spoof": "SpoofTask",
    "regress": "RegressTask",
}
PRETRAINED = {"reconstruct": "ReconstructTask"}
BUILT_IN = TRAINED | PRETRAINED
BY_NAME = {"classify", "reconstruct"}  # DATA may be the name of a data set


@cache
def _outside() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="vitrail.tasks")}


def names() -> list[str]:
    """Of all tasks that `train --task` takes."""
    return [*TRAINED, *sorted(_outside())]


@cache
def task(name: str) -> "Task":
    """The task of that name. Imported when asked for: torchvision's detection alone takes a second."""
    if name in BUILT_IN:
        return getattr(import_module(f"vitrail.tasks.{name}.task"), BUILT_IN[name])()
    check(name)
    return _outside()[name].load()()


def check(name: str) -> None:
    if name not in BUILT_IN and name not in _outside():
        known = names()
        raise VitrailError(
            f"--task {name} is not known: use {', '.join(known)}.{nearest(name, known)}", code="unknown_task", task=name
        )


def options_of(name: str) -> tuple[type[Options], ...]:
    """Besides those that all tasks have."""
    check(name)
    if name in BUILT_IN:
        return import_module(f"vitrail.tasks.{name}.options").OPTIONS
    return tuple(task(name).options)


def expects(name: str) -> str:
    """What DATA may be."""
    return import_module(f"vitrail.tasks.{name}.options").EXPECTS if name in BUILT_IN else task(name).expects


def takes_names(name: str) -> bool:
    """May DATA be the name of a data set, or a pattern of shards?"""
    return name in BY_NAME if name in BUILT_IN else task(name).by_name


def tasks_with(option: str) -> list[str]:
    """The tasks that have an option of that name."""
    every: Iterable[str] = [*BUILT_IN, *sorted(_outside())]
    return [name for name in every if any(option in fields_of(kind) for kind in options_of(name))]


def task_of(about: dict[str, Any], settings: Any = None) -> "Task":
    """The task of a model, by what its header says; of one without a header, by the kind of its settings."""
    if about.get("task") in BUILT_IN or about.get("task") in _outside():
        return task(about["task"])
    kinds = {"SegmenterSettings": "segment", "DetectorSettings": "detect", "MAESettings": "reconstruct"}
    return task(kinds.get(type(settings).__name__, "classify"))
