"""The command line of `train` and `pretrain`, made of the same groups of options as their Python keywords."""

import sys
from collections.abc import Iterable
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitrail.options import helps, hinted
from vitrail.tasks import registry
from vitrail.training.config import TrainConfig, file_options, foreign, kinds_of
from vitrail.training.options import CHOSEN, COMMON, TITLES

DATA = tyro.conf.arg(metavar="[DATA]", help_behavior_hint="", help="The data, as below.")
CONFIG = "A YAML or JSON file of options, or the run.json of a run; what is typed beside it counts more."


def parse(
    verb: str, description: str, examples: str, rest: list[str], registry_of_rules: Any
) -> tuple[str, TrainConfig]:
    """DATA and the configuration from the arguments of a verb."""
    task = asked_task(rest) if verb == "train" else "reconstruct"
    _refuse_foreign(rest, task)
    kind = parser_type(verb, task)
    expected = f"DATA: {registry.expects(task)}."
    text = f"{description}\n\n{expected}\n\nexamples:\n{examples}"
    given: Any = tyro.cli(
        kind, prog=f"vitrail {verb}", description=text, args=rest, registry=registry_of_rules,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
    )  # fmt: skip
    typed = {name: value for group in _groups(given) for name, value in vars(group).items()}
    typed = {name: value for name, value in typed.items() if name not in ("task", "config")}
    file = {} if given.common.config is None else file_options(given.common.config)
    flags = [word.removeprefix("--").removeprefix("no-") for word in rest if word.startswith("--")]
    said = {word.partition("=")[0].replace("-", "_") for word in flags}
    values = file | {name: value for name, value in typed.items() if name in said or name not in file}
    return given.data, TrainConfig(**{**values, "task": task})


def asked_task(rest: list[str]) -> str:
    """The value of --task, before the options are known: those of the task are among them. Without it that of the file
    that --config names."""
    task = "classify"
    for name in ("--config", "--task"):
        for place, word in enumerate(rest):
            value = word.partition("=")[2] if word.startswith(f"{name}=") else None
            if word == name and place + 1 < len(rest):
                value = rest[place + 1]
            if value is not None:
                task = value if name == "--task" else file_options(value).get("task", task)
    registry.check(task)
    return task


def _refuse_foreign(rest: Iterable[str], task: str) -> None:
    """An option of another task is answered with the tasks that have it."""
    known = ["task", "config", "help", *(each.name for kind in kinds_of(task) for each in fields(kind))]
    for word in rest:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and name not in known and registry.tasks_with(name):
            raise foreign(name, task, known)


def parser_type(verb: str, task: str) -> type:
    """A dataclass with a field for each group: the common options first, then the others."""
    every = {
        each.name: (each, hint, helps(kind).get(each.name, ""))
        for kind in kinds_of(task)
        for each, hint in hinted(kind)
    }
    common: list[Any] = [_field(*every[name]) for name in COMMON if name in every]
    if verb == "train":
        known = " | ".join(registry.names())
        task_help = f"What is trained: {known}. `vitrail train --task NAME --help` shows the options of each."
        common.insert(0, ("task", Annotated[str, tyro.conf.arg(help=task_help)], task))
    common.append(("config", Annotated[Path | None, tyro.conf.arg(help=CONFIG, help_behavior_hint="")], None))
    groups = {"common": common}
    for kind in kinds_of(task):
        rest = [_field(*every[each.name]) for each in fields(kind) if each.name not in COMMON]
        if rest:
            groups.setdefault(TITLES.get(kind.__name__, task).replace("-", "_"), []).extend(rest)
    made = {title: make_dataclass(title, rows) for title, rows in groups.items()}
    return make_dataclass(
        verb, [("data", Annotated[str, tyro.conf.Positional, DATA], ""),
               *((title, each, field(default_factory=each)) for title, each in made.items())]
    )  # fmt: skip


def _field(declared: Any, hint: Any, text: str) -> tuple[str, Any, Any]:
    shown = "(default: chosen from the data)" if declared.name in CHOSEN else None
    if declared.default is None and shown is None:
        shown = ""
    about = tyro.conf.arg(help=text) if shown is None else tyro.conf.arg(help=text, help_behavior_hint=shown)
    return declared.name, Annotated[hint, about], declared.default


def _groups(given: Any) -> list[Any]:
    return [getattr(given, each.name) for each in fields(given) if each.name != "data"]


def run(verb: str, data: str, config: TrainConfig) -> int:
    import vitrail
    from vitrail.data.existence import check_exists

    if not config.resume:  # before torch is imported: it is the commonest slip
        check_exists(data, registry.expects(config.task), registry.takes_names(config.task))
    from vitrail.training.run import run_folder
    from vitrail.training.signals import Stopped, naming_folder

    try:
        with naming_folder(run_folder(config, data)):
            getattr(vitrail, verb)(data, config)
    except Stopped as stopped:
        print(stopped, file=sys.stdout)
        return 130
    return 0
