"""run.json: what a run is, written when it begins, so that it can be told, repeated, and continued."""

import hashlib
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from vitrail.data.samples import Sample, plural
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing, build
from vitrail.train.recipe import MACHINE, R, from_dict, to_dict
from vitrail.train.start import Start
from vitrail.train.state import write_text
from vitrail.weights.header import settings_from_dict, settings_to_dict


@dataclass
class Record:
    """Values that JSON can hold."""

    data: str
    given: dict[str, Any]  # the recipe as it was asked for
    recipe: dict[str, Any]  # with nothing left open
    why: dict[str, str]  # the reason of each choice
    model: dict[str, Any]  # architecture, preprocessing, where its weights came from
    samples: dict[str, str]  # split → digest of the pictures in it and their labels
    unreadable: dict[str, str] = field(default_factory=dict)  # name → reason, of the pictures left out from the start
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    verb: str = "train"  # of the command that began it
    protocol: dict[str, Any] = field(default_factory=dict)  # who was kept apart from whom, where that matters
    teacher: dict[str, Any] = field(default_factory=dict)  # whom it learns from: name, source, digest, figures

    def write(self, folder: Path, first: bool = False) -> None:
        """`first`: only where there is none, else FileExistsError."""
        path, text = folder / "run.json", json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        if not first:
            write_text(path, text)
            return
        draft = folder / f".run.json.{os.getpid()}.part"
        try:
            draft.write_text(text, encoding="utf-8")
            os.link(draft, path)  # which takes no other's place, as a renaming would
        except FileExistsError:
            raise
        except OSError:  # a file system without links, or another reason, which is told
            write_text(path, text)
        finally:
            draft.unlink(missing_ok=True)

    def start(self) -> Start:
        """The model that the run began with, but for its weights, which the saved state has."""
        values = dict(self.model)
        model = build(settings_from_dict(values.pop("settings")))
        stored: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.pop("preprocessing").items()
        }
        pre = Preprocessing(**stored)
        model.preprocessing = pre  # type: ignore[assignment]
        return Start(model, pre, **values)


def described(start: Start) -> dict[str, Any]:
    """What `Record.start` reads back."""
    settings = settings_to_dict(start.model.settings)  # type: ignore[arg-type]
    return {
        "name": start.name,
        "pretrained": start.pretrained,
        "why": start.why,
        "masked": start.masked,
        "base": start.base,
        "pictures": start.pictures,
        "settings": settings,
        "preprocessing": asdict(start.preprocessing),
    }


def read_record(folder: Path) -> Record:
    path = folder / "run.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        saved = {"verb": "train", "teacher": {}, "protocol": {}, **saved}  # of a run from before there was another
        return Record(**{name: saved[name] for name in (field.name for field in fields(Record))})
    except FileNotFoundError:
        nothing = f"There is nothing to resume in {folder}: it holds no run.json. Start without --resume."
        raise VitrailError(nothing) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VitrailError(f"{path} can't be read ({error}): start again without --resume.") from None


def continued(record: Record, asked: R) -> tuple[R, R]:
    """The recipe of the run that is continued, as it was given and in full. What a machine does may change; what the
    run is may not."""
    kind: Any = type(asked)
    given, wanted, default = from_dict(kind, record.given), to_dict(asked), to_dict(kind())
    for name, value in to_dict(given).items():
        planned = record.recipe.get(name, value)
        if name not in MACHINE and wanted[name] != default[name] and wanted[name] not in (value, planned):
            raise VitrailError(
                f"The run in {wanted['out']} has {name} {planned}; --resume continues it exactly, so leave "
                f"--{name.replace('_', '-')} {wanted[name]} out, or start a new run."
            )
    changes = {name: getattr(asked, name) for name in MACHINE & wanted.keys() if wanted[name] != default[name]}
    return replace(given, **changes), replace(from_dict(kind, record.recipe), **changes)


def digest(samples: list[Sample]) -> str:
    """Of the names and labels, in order: what a number means in a saved state."""
    text = json.dumps([[sample.name, sample.labels] for sample in samples])
    return f"{len(samples)} images, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def refitted(about: dict[str, Any]) -> bool:
    """By the header of its model: has a run learned, in the end, from what it had validated on?"""
    return bool(about.get("finished")) and (about.get("recipe") or {}).get("refit") == "on"


def same_split(about: dict[str, Any], other: dict[str, Any], own_val: bool) -> bool:
    """By the headers of their models: did two runs hold out the same images? `own_val`: the data comes with them. Older
    headers have no digest of these, but the name of the data, and how they were drawn."""
    if "held_out" in about and "held_out" in other:
        return about["held_out"] == other["held_out"]
    one, two = (each.get("recipe") or {} for each in (about, other))
    alike = own_val or all(name in one and one[name] == two.get(name) for name in ("seed", "val"))
    return alike and about.get("data") == other.get("data")


def command_line() -> str:
    """The command that a person typed; of a Python program, its name."""
    program = Path(sys.argv[0])
    name = "vitrail" if program.name in ("vitrail", "__main__.py") else str(program)
    return shlex.join([name, *sys.argv[1:]])


def versions(device: torch.device) -> dict[str, str]:
    import vitrail

    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{platform.processor() or platform.machine()}, {plural(torch.get_num_threads(), 'thread')}"
    return {
        "vitrail": vitrail.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": installed("torchvision"),  # without the seconds that it takes to import
        "hardware": hardware,
    }


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
