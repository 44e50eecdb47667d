"""The protocol of a task: what is learned from images, and everything that only it knows.

A task is one object in `registry`. It owns its options, how its data is opened, the model on a backbone, what
augmentation does to images and targets, the loss, the figures and the one that chooses, what `predict` writes, what the
report shows and what an export is checked by. Nobody else asks which task it has: whoever needs to know something about
a task asks the task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from vitrail.data.image_set import ImageSet, fitted, shrunk
from vitrail.data.samples import Sample, Source, plural
from vitrail.data.sources.classification import open_source
from vitrail.data.split import write_split
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing
from vitrail.options import Config, Options
from vitrail.tasks.backbones import Start
from vitrail.tasks.context import Context
from vitrail.tasks.exporting import Graph, LogitsAndFeatures, check_difference, difference, open_sizes, shapes_to_try
from vitrail.tasks.planning import Choices, Facts

Batch = tuple[Any, Any]  # what the model is given, and what it is to answer
Row = tuple[str, str, Any]  # of a plan: name, value, reason


class Objective(Protocol):
    """What the training loop minimises."""

    def module(self, model: nn.Module) -> nn.Module:
        """The module whose forward the loss is made of."""
        return model

    def outputs(self, net: nn.Module, inputs: Any) -> Any:
        """What the loss is made of."""
        return net(inputs)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """One number per image, [B]."""


class Augment(Protocol):
    """From decoded images to a batch. `numbers` say which images these are, `keys` what each draws at random."""

    output_values: int | None  # numbers that an image becomes; None: not to be made several steps at once

    def __call__(
        self, images: Any, numbers: np.ndarray, keys: np.ndarray, epoch: int, device: torch.device, out: Any = None
    ) -> Batch: ...


@dataclass
class Measured:
    """What came of labelled images."""

    figures: dict[str, Any] = field(default_factory=dict)  # flat, fractions, with intervals
    header: dict[str, Any] = field(default_factory=dict)  # what the file to ship has to know of them
    page: dict[str, Any] = field(default_factory=dict)  # fields of the report, besides those of every report

    @property
    def headline(self) -> dict[str, Any]:
        """The figures that stand at the head of a page."""
        return self.page.get("figures", self.figures)


@dataclass
class Evaluation:
    """What `evaluate` found, and on what."""

    figures: dict[str, Any]
    split: str
    samples: Sequence[Sample]
    problems: list[tuple[str, str]]  # name and reason of each image that can't be read
    notes: list[str]
    page: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None


class Task(ABC):
    name: ClassVar[str]
    verb: ClassVar[str] = "train"  # of the command that trains it
    method: ClassVar[str] = "predict"  # of a Predictor, that gives its answers
    figure: ClassVar[str] = ""  # chooses between epochs, higher is better; without one the last epoch is kept
    titles: ClassVar[Mapping[str, str]] = {}  # of the figures that the end of a run tells
    short: ClassVar[Mapping[str, str]] = {}  # the same inside of a sentence
    listed: ClassVar[Mapping[str, str]] = {}  # of the figures that `vitrail evaluate` prints, in this order
    kinds: ClassVar[Mapping[str, str]] = {}  # of figures of one class: {"iou": "IoU"} for iou/cat
    answer: ClassVar[str] = "probabilities"  # of an image, what a Predictor's `stream` gives
    options: ClassVar[tuple[type[Options], ...]] = ()  # besides those that all tasks have
    expects: ClassVar[str]  # what DATA may be
    by_name: ClassVar[bool] = False  # may DATA be the name of a data set, or a pattern of shards?
    predict_options: ClassVar[tuple[str, ...]] = ("top", "csv", "flip", "crops")  # of `vitrail predict`
    self_supervised: ClassVar[bool] = False  # are its images their own targets?
    sizes_itself: ClassVar[bool] = False  # does the model take images whole, and bring them to its size?
    overlay_kind: ClassVar[str | None] = None  # what the Studio lays over an image: mask, boxes
    validations: ClassVar[int | None] = None  # at most so many in a run; None: after every epoch
    divides_itself: ClassVar[bool] = False  # does `open` divide the data into splits by --val?
    answers_inside: ClassVar[bool] = False  # are its answers inside the image, so that views of it can't be averaged?

    # -- data --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, data: str, config: Config, console: Any = None) -> Source:
        """The samples of DATA. `config` may have things open yet."""

    def check(self, config: Config) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuses options that do not go together, before anything is read."""

    def train_images(self, ctx: Context, samples: list[Sample], cache: str) -> ImageSet:
        """What training augments: images somewhat larger than the model sees them."""
        return shrunk(samples, ctx.preprocessing, cache)

    def val_images(self, ctx: Context, samples: list[Sample], cache: str) -> ImageSet:
        """Images as `predict` prepares them."""
        return fitted(samples, ctx.preprocessing, cache)

    def val_cache(self, ctx: Context, samples: list[Sample], cache: str) -> str:
        """Where validation images are kept."""
        return cache

    def write_split(self, ctx: Context, path: Path, samples: dict[str, list[Sample]]) -> None:
        """split.csv: which image is in which split."""
        write_split(path, samples["train"], samples["val"], samples["test"], ctx.source.classes)

    def targets_of(self, source: Source) -> str:
        """What there is to learn in a data set, for the plan."""
        return plural(len(source.classes), "class", "classes") if source.classes else "no labels"

    # -- the plan and the model --------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, config: Config, source: Source, learnt: list[Sample], gpu: bool) -> Start:
        """The model that training starts from, or its backbone, with the weights that --weights names."""

    @abstractmethod
    def plan(self, config: Config, facts: Facts) -> Choices:
        """What to choose where nothing was asked for, by option."""

    def settle(self, config: Config, why: dict[str, Any], facts: Facts) -> Config:
        """The last word on a plan that is complete."""
        return config

    def build(
        self, start: Start, config: Config, why: dict[str, Any], source: Source, learnt: list[Sample], gpu: bool
    ) -> Start:
        """What the task puts on a backbone. Most have all in `start`."""
        return start

    def prepare_model(self, ctx: Context) -> None:  # noqa: B027
        """Freezes, or adds parts that are trained, before anything is read."""

    def size_row(self, ctx: Context) -> Row:
        """How large the images are that the model sees."""
        pre = ctx.preprocessing
        return "images", "×".join(map(str, pre.size)), f"fit {pre.fit}"

    def plan_rows(self, ctx: Context) -> list[Row]:
        """Rows of the plan besides model, images and device, above the choices."""
        return []

    def hidden_choices(self, ctx: Context) -> set[str]:
        """Choices that are of no interest to a reader of the plan."""
        return {"precision", "val"}

    # -- learning ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def objective(self, ctx: Context) -> Any:
        """Outputs and loss, made before images are read."""

    def informed(self, ctx: Context) -> Any:
        """The objective once the images are read: it may weigh by their labels."""
        return ctx.objective

    @abstractmethod
    def augment(self, ctx: Context) -> Augment:
        """What happens to images and targets on the way to the model."""

    def hyperparameters(self, ctx: Context) -> dict[str, Any]:
        """Where the loop differs from what the options say."""
        return {}

    @abstractmethod
    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        """Figures of the validation images after an epoch. `loss` among them must be finite."""

    def choosing(self, ctx: Context, model: nn.Module) -> float:
        """The figure that chooses, of a model between two others."""
        return self.validate(ctx, model)[self.figure_of(ctx)]

    def figure_of(self, ctx: Context) -> str:
        return self.figure

    def is_share(self, figure: str) -> bool:
        """Is a figure a share, which is written as a percentage? Any other is written as a number."""
        return figure != "loss"

    def log_beside(self, ctx: Context) -> str:
        """What to print beside a training loss: what to expect of it."""
        return ""

    # -- the end of a run --------------------------------------------------------------------------------------------

    @abstractmethod
    def measure(self, ctx: Context) -> Measured:
        """All figures of the validation images, with intervals, and what the report shows of them. Runs in every
        process; only the first one needs a page."""

    def header(self, ctx: Context) -> dict[str, Any]:
        """What the model's file says of itself besides recipe, data and figures; `task` is added."""
        return {}

    def record_facts(self, ctx: Context) -> dict[str, Any]:
        """What run.json says besides."""
        return {}

    def page(self, ctx: Context, measured: Measured) -> dict[str, Any]:
        """Fields of the report that need no validation images."""
        return {}

    def problems(self, ctx: Context, unreadable: dict[str, str]) -> Any:
        """What was found in the data that a person may want to mend."""
        return None

    def kept(self, ctx: Context, row: dict[str, Any]) -> None:  # noqa: B027
        """After the file to ship was written for an epoch."""

    def closing_notes(self, ctx: Context, measured: Measured) -> list[str]:
        """What to say below the figures at the end of a run."""
        return []

    # -- use ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        """Figures of a trained model on labelled images. `options` are those of `vitrail.evaluate`."""

    def check_evaluation(self, options: Mapping[str, Any]) -> None:
        """Refuses options of `vitrail.evaluate` that say nothing here."""
        if self.answers_inside and (options["knn"] or options["probe"] or options["flip"] or options["crops"] > 1):
            raise VitrailError(
                f"--knn, --probe, --flip and --crops go with a classifier; this model was trained to {self.name}.",
                code="option_of_another_task", task=self.name,
            )  # fmt: skip

    def after_evaluation(self, figures: Mapping[str, Any]) -> list[str]:
        """What to say below the figures that `vitrail evaluate` prints."""
        return []

    def examined(self, data: str) -> Source:
        """The images of DATA that `vitrail doctor` shows a model, with their classes where they have some."""
        return open_source(data, one_class=True)

    def backbone(self, model: Any) -> Any:
        """What gives features: of most the model itself."""
        return model

    def own_loss(self, model: Any, x: Tensor) -> Callable[[nn.Module], Tensor] | None:
        """Of a self-supervised model: its loss on these images under one mask, as a function of the model."""
        return None

    def interpreted(self, predictor: Any, outputs: Tensor) -> Tensor:
        """What the outputs of the model [..., C] mean: by default the probability of each class."""
        return outputs.sigmoid() if predictor.multi_label else outputs.softmax(dim=-1)

    def predictions(self, predictor: Any, answer: Tensor, top: int | None = None) -> list[Any]:
        """Of one image, from its row of answers: what `Predictor.predict` lists."""
        return predictor.ranked(answer, top)

    def studio_row(self, predictor: Any, answer: Tensor, index: int) -> dict[str, Any]:
        """One line of the Studio's list of answers: `probability` is the length of its bar, and what is written beside
        it unless there is a `text`."""
        return {"index": index, "label": predictor.labels[index], "probability": float(answer[index])}

    def order(self, predictor: Any, probabilities: Tensor) -> list[int]:
        """All classes of one image, its answer first, then the likeliest."""
        return probabilities.argsort(descending=True, stable=True).tolist()

    def explained_class(self, predictor: Any, x: Tensor) -> int | None:
        """Which class to explain where nobody says; None: the likeliest."""
        return None

    def answers(self, predictor: Any, images: Iterable[Any], batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """Of a task whose answers lie inside the image: one for each, in order and as they come."""
        raise self.refuse(predictor, self.name)

    def refuse(self, predictor: Any, wanted: str) -> VitrailError:
        return VitrailError(
            f"{predictor.name or 'This model'} was made to {self.name}: use `{self.method}`.",
            code="other_task", task=self.name, wanted=wanted,
        )  # fmt: skip

    @abstractmethod
    def writer(self, predictor: Any, options: Mapping[str, Any]) -> "Writer":
        """What `vitrail predict` prints and writes."""

    def overlay(
        self, predictor: Any, x: Tensor, frame: tuple[int, int]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What the Studio lays over the image: arrays, and words about them. `x` is [1, C, H, W] as the model sees it,
        `frame` its size with the margin that the backbone adds."""
        raise VitrailError(f"{predictor.name or 'This model'} gives no answer inside of an image.", code="no_overlay")

    # -- export ------------------------------------------------------------------------------------------------------

    def export_preprocessing(self, pre: Preprocessing) -> tuple[Preprocessing, list[str]]:
        """With what a file is written, and notes on it."""
        return pre, []

    def export_notes(self, about: Mapping[str, Any]) -> list[str]:
        """What whoever uses an exported file has to know of its outputs."""
        return []

    def exported(self, model: Any) -> tuple[Any, list[str]]:
        """The part of the model that a graph is made of, and notes on it."""
        return model, []

    def graph(self, model: Any, size: tuple[int, int]) -> Graph:
        channels = model.settings.channels
        return Graph(LogitsAndFeatures(model), torch.zeros(2, channels, *size), {0: Dim("batch"), **open_sizes(model)})

    def check_export(
        self, model: Any, path: Path, pre: Preprocessing, other: Any, reader: str
    ) -> tuple[float | None, str]:
        """The largest difference of the answers of a file that was read back, and a sentence; more than rounding is an
        error."""
        found = difference(model, other, shapes_to_try(model, pre.size), pre)
        check_difference(path, found)
        what = "logits" if model.settings.num_classes else "features"
        words = f"The written file, read back and run by {reader}: largest difference of the {what} from the model's"
        return found, f"{words} {found:.1e}"

    # -- `vitrail data inspect` --------------------------------------------------------------------------------------

    def inspected(self, data: str) -> Source:
        """DATA as it is, with everything that is wrong with it."""
        return self.open(data, Config((), {}))

    def draw_samples(self, source: Source, out: Path) -> tuple[str, Path] | None:
        """A sheet with some images and their labels, with a title; None: what the model will see says it all."""
        return None


class Writer(Protocol):
    """What a task prints and writes of its answers, image by image."""

    def each(self, paths: Sequence[Path], failed: Callable[[VitrailError], None]) -> Iterator[tuple[Path, Any]]:
        """The images that can be read, with the answers to them; the others go to `failed`."""

    def write(self, path: Path, answer: Any) -> None:
        """Prints an answer, and writes its rows and files."""

    def close(self) -> None:
        """The end of the files, also for whoever interrupts."""
