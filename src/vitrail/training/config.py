"""The configuration of a run: the groups that every training has and those of its task, under flat names."""

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import Any

from vitrail.errors import VitrailError, nearest
from vitrail.options import Config, Options, flag, names, plain_values, read_config
from vitrail.tasks import registry
from vitrail.training.options import GROUPS


class TrainConfig(Config):
    """`TrainConfig(task="segment", head="fcn", epochs=10)`: what is left out is chosen by the data."""

    def __init__(self, task: str = "classify", **values: Any):
        self.task = task
        kinds = kinds_of(task)
        values = plain_values(kinds, _checked(task, kinds, values))
        super().__init__(kinds, values)
        check_optimizer(self)

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        return {"task": self.task, **values}


def check_optimizer(config: Config) -> None:
    if config.optimizer == "muon" and config.get("tune", "full") in ("head", "prompt", "bias"):
        raise VitrailError(
            "--optimizer muon is for matrices inside of a transformer, and with "
            f"--tune {config.tune} none of them is trained: leave it out.",
            code="muon_without_matrices",
        )


def kinds_of(task: str) -> tuple[type[Options], ...]:
    return (*GROUPS, *registry.options_of(task))


def _checked(task: str, kinds: tuple[type[Options], ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses an unknown option with the nearest one, or with the tasks that have it."""
    known = [name for kind in kinds for name in names(kind)]
    for name in values:
        if name not in known:
            raise foreign(name, task, known)
    return {name: "none" if name == "weights" and value is None else value for name, value in values.items()}


def foreign(name: str, task: str, known: list[str]) -> VitrailError:
    verb = "pretrain" if task in registry.PRETRAINED else "train"
    if others := registry.tasks_with(name):
        trained = " or ".join(f"`{'pretrain' if each in registry.PRETRAINED else f'--task {each}'}`" for each in others)
        return VitrailError(
            f"{flag(name)} goes with {trained}, not with {'`pretrain`' if verb == 'pretrain' else f'--task {task}'}.",
            code="option_of_another_task", option=name, task=task, tasks=others,
        )  # fmt: skip
    return VitrailError(
        f"{name!r} is not an option of {verb}.{nearest(name, ['task', *known])}", code="unknown_option", option=name
    )


def made(
    task: str | None, options: Mapping[str, Any], config: TrainConfig | None = None,
    file: str | PathLike[str] | None = None,
) -> TrainConfig:  # fmt: skip
    """From Python's keywords, over those of a file, over a configuration."""
    values: dict[str, Any] = {}
    if config is not None:
        values |= {name: value for name, value in config.to_dict().items() if value != config.defaults.get(name)}
        values["task"] = config.task
    if file is not None:
        values |= file_options(file)
    values |= options
    return TrainConfig(**(values | ({"task": task} if task else {})))


def file_options(path: str | PathLike[str]) -> dict[str, Any]:
    """Of a file that --config names; of the record of an older version without what belongs to other tasks."""
    values, record = read_config(path)
    if not record:
        return values
    known = {"task", *(name for kind in kinds_of(values.get("task", "classify")) for name in names(kind))}
    return {name: value for name, value in values.items() if name in known or not registry.tasks_with(name)}


def from_dict(values: Mapping[str, Any], default: str = "classify") -> TrainConfig:
    """From the record of a run, perhaps of an earlier version, which had the options of all tasks in one table."""
    values = dict(values)
    task = values.pop("task", default)
    kinds = kinds_of(task)
    known = {name for kind in kinds for name in names(kind)}
    of_others = {name for name in values.keys() - known if registry.tasks_with(name)}
    if unknown := sorted(values.keys() - known - of_others):
        raise VitrailError(
            f"The run was made with options that this version does not know: {', '.join(unknown)}.",
            code="unknown_option", option=unknown[0],
        )  # fmt: skip
    return TrainConfig(task, **{name: value for name, value in values.items() if name in known})


def concerning(config: Config) -> dict[str, Any]:
    """For a reader: without what is left open, switches, and the options of a kind of tuning that is not used."""
    defaults, about, tune = config.defaults, config.about, config.get("tune")
    return {
        name: value
        for name, value in config.to_dict().items()
        if value is not None
        and (
            value != defaults.get(name)
            or not (about.get(name, {}).get("switch") or about.get(name, {}).get("kind", tune) != tune)
        )
    }


def machine_options(config: Config) -> set[str]:
    """What may differ when a run is resumed: where and how fast it runs. Another device, compiler or micro-batch rounds
    and draws drop path differently; everything else stays the same to the bit."""
    return {each.name for kind in config.kinds for each in fields(kind) if each.metadata.get("machine")}
