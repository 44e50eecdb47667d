"""What the tests of training share: small data, the command in processes of its own, and comparing two runs."""

import itertools
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.odd_files import photograph
from vitrail.cli import main
from vitrail.data.augment.images import Augmenter, Policy
from vitrail.data.image_set import shrunk
from vitrail.data.loader import Subset, read_subset
from vitrail.data.samples import Item, Sample
from vitrail.distributed import Processes
from vitrail.models import Preprocessing, create_model
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.image_level import AugmentImages
from vitrail.training.batches import Batches, Mixing
from vitrail.training.listeners import Stop
from vitrail.training.trainer import Hyperparameters, Listener, Trainer

TIMING = ("seconds", "images_per_second", "data_wait")
# Small enough for a run to take a second: 140,000 weights, images of 8 pixels.
SMALL = [
    "--model", "vit_nano2", "--weights", "none", "--lr", "1e-3", "--device", "cpu", "--workers", "1",
    "--cache", "memory",
]  # fmt: skip
QUIET = ["--augment", "none", "--mixup", "0", "--cutmix", "0", "--drop-path", "0"]


def make_folder(root: Path, count: int = 48, classes: int = 3, side: int = 12, start: int = 0) -> Path:
    """Class folders of images that differ by colour and texture."""
    for number in range(start, start + count):
        index = number % classes
        path = root / f"class {index}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, side, side + 3, hue=index / classes).save(path)
    return root


def small_options(**options: Any) -> dict[str, Any]:
    """The same for `vitrail.train`."""
    return {
        "model": "vit_nano2", "weights": "none", "lr": 1e-3, "device": "cpu", "workers": 0, "cache": "memory",
    } | options  # fmt: skip


# A server that has imported everything forks a process for each command: a real one, to be killed, without the ten
# seconds that Python needs to import PyTorch.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["tests.training.support", "vitrail.training.run", "vitrail.tasks.segment.task", "vitrail.tasks.detect.task",
     "vitrail.tasks.spoof.task", "vitrail.tasks.reconstruct.task", "vitrail.predict.evaluation", "vitrail.cli.train",
     "vitrail.cli.pretrain", "torch._dynamo", "pycocotools.cocoeval"]
)  # fmt: skip


class Command:
    """`vitrail ARGUMENTS` in a process of its own.

    `at=("vitrail.training.trainer.Trainer.train_step", 7, signal.SIGKILL)` sends the process that signal when it is
    about to call this function for the 7th time: a kill at an exact point, which no clock could hit.
    """

    def __init__(
        self,
        *arguments: Any,
        log: Path,
        cwd: Path | None = None,
        at: tuple[str, int, signal.Signals] | None = None,
        **environment: str,
    ):
        self.log = log
        words = [str(argument) for argument in arguments]
        self.process = _server.Process(target=_main, args=(words, str(log), str(cwd or log.parent), at, environment))
        self.process.start()

    def wait(self, seconds: float = 120) -> int:
        """Its exit code; minus the signal's number if one killed it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"still running after {seconds} s:\n{self.said}")
        return self.process.exitcode

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def _main(arguments: list[str], log: str, cwd: str, at: tuple | None, environment: dict[str, str]) -> None:
    with open(log, "wb", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1) for descriptor in (1, 2))
    os.chdir(cwd)
    os.environ.update(environment)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if at is not None:
        _arm(*at)
    main(arguments)


def _arm(name: str, nth: int, number: signal.Signals) -> None:
    place, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(place)
    function, calls = getattr(owner, attribute), itertools.count(1)

    def armed(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == nth:
            os.kill(os.getpid(), number)
        return function(*args, **kwargs)

    setattr(owner, attribute, armed)


def rows(folder: Path, timing: bool = False) -> list[dict[str, Any]]:
    """metrics.jsonl, without the columns that no two runs share."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if timing or k not in TIMING} for line in lines]


def differences(one: Path, other: Path) -> list[str]:
    """Where two finished runs differ by as much as a bit: weights kept, last weights, average, optimizer, figures."""
    found = []
    kept = [load_file(folder / "model.safetensors") for folder in (one, other)]
    states = [torch.load(folder / "last.pt", weights_only=True) for folder in (one, other)]
    for state in states:
        state["history"] = [{k: v for k, v in row.items() if k not in TIMING} for row in state["history"]]
        state["best"] = {k: v for k, v in state["best"].items() if k not in TIMING}
    _compare("model.safetensors", *kept, found)
    _compare("last.pt", *states, found)
    _compare("metrics.jsonl", rows(one), rows(other), found)
    return found


def _compare(name: str, a: Any, b: Any, found: list[str]) -> None:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            _compare(f"{name}/{key}", a[key], b[key], found)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, pair in enumerate(zip(a, b, strict=True)):
            _compare(f"{name}/{index}", *pair, found)
    elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if not torch.equal(a, b):
            found.append(f"{name}: by {(a - b).abs().max():.3g}")
    elif a != b:
        found.append(f"{name}: {a!r} and {b!r}")


def make_images(count: int = 32, classes: int = 4, side: int = 8, labels: list[int] | None = None) -> Subset:
    dataset = []
    for number in range(count):
        label = number % classes if labels is None else labels[number]
        dataset.append((photograph(number, side, side, hue=label / classes), label))
    samples = [Sample(f"{n}.png", Item(dataset, n), (label,)) for n, (_, label) in enumerate(dataset)]
    pre = Preprocessing(size=(side, side), crop=1.0)
    return read_subset(shrunk(samples, pre, "memory"), Processes(), workers=0)


def make_trainer(
    model: torch.nn.Module | None = None,
    images: Subset | None = None,
    policy: str = "none",
    classes: int = 4,
    note: Callable[[str], None] = print,
    objective: Any = None,
    validate: Callable[[torch.nn.Module], dict[str, float]] | None = None,
    validated: int = 0,
    listeners: Sequence[Listener] = (),
    mixup: float = 0.0,
    cutmix: float = 0.0,
    side: int = 8,
    **hyper: Any,
) -> Trainer:
    """One process, one thread, 8×8 images; `hyper` are the hyperparameters."""
    torch.manual_seed(1)
    numbers = Hyperparameters(**{"epochs": 1, "batch_size": 32, "lr": 1e-3, **hyper})
    model = model or create_model("vit_nano2", depth=2, num_classes=classes)
    images = images or make_images(classes=classes)
    labels = Classify([f"class {index}" for index in range(classes)])
    augmenter = Augmenter(Policy.named(policy), (side, side), (0.5,) * 3, (0.5,) * 3, seed=0)
    augment = AugmentImages(augmenter, labels, images, [sample.labels for sample in images.samples])
    mixing = Mixing(mixup, cutmix, numbers.seed, numbers.epochs)
    batches = Batches(images, augment, numbers.batch_size, numbers.seed, Processes(), mixing, note)
    return Trainer(
        model, objective or labels, batches, numbers, Processes(), validate, "top1", validated, listeners
    )  # fmt: skip


def watch_steps(
    patch: pytest.MonkeyPatch, look: Callable[[Trainer], Any] = lambda trainer: None, stop_in: Collection[int] = ()
) -> list[Any]:
    """What `look` says of the trainer before each step of every run from here on, in a list that grows. In the steps of
    these numbers, counted from 1, the run is asked to stop, as by Ctrl-C."""
    seen: list[Any] = []
    step = Trainer.train_step

    def watched(trainer: Trainer, inputs: Any, targets: Any) -> Any:
        seen.append(look(trainer))
        return step(trainer, inputs, targets)

    patch.setattr(Trainer, "train_step", watched)
    patch.setattr(Stop, "wants", lambda self: (self.signals.asked or len(seen) in stop_in, False))
    return seen


class Narrow(torch.nn.Module):
    """Has memory for `room` images at a time, and for none at the calls in `never`."""

    def __init__(self, model: torch.nn.Module, room: int, never: Collection[int] = ()):
        super().__init__()
        self.model, self.room, self.never, self.asked = model, room, never, []
        self.blocks = model.blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(x))
        if len(x) > self.room or len(self.asked) in self.never:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.model(x)
