"""What tasks share whose answers lie inside the image."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.export import Dim

from vitrail.data import to_image
from vitrail.data.augment.masks import JointAugmenter, JointPolicy
from vitrail.data.image_set import ImageSet
from vitrail.data.maps import MapKind, fitted_with_maps, shrunk_with_maps
from vitrail.data.samples import Sample, Source
from vitrail.errors import VitrailError
from vitrail.inference.size_batches import in_batches
from vitrail.models import SwinSettings, ViTSettings
from vitrail.models.dense.segmenter import Segmenter
from vitrail.models.preprocessing import Preprocessing
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.backbones import Start, find_weights, set_drop_path, start_model, typical_side
from vitrail.tasks.base import Augment, Batch, Evaluation, Measured, Row, Task
from vitrail.tasks.context import Context
from vitrail.tasks.dense.cases import Problems, asked, standard_error
from vitrail.tasks.dense.maps import answered_maps, rows_over
from vitrail.tasks.dense.plan import plan_dense, refuse_tuning, suited_width
from vitrail.tasks.dense.writing import MapWriter
from vitrail.tasks.exporting import Graph, Logits
from vitrail.tasks.planning import Choices, Facts
from vitrail.tasks.problems import copies
from vitrail.tasks.scoring import check_some, scored_samples

# Weights of layers that stand for single classes; a model of other classes takes over only the rest. The cls_logits of
# a region proposal network tell objects from background, whatever they are called: only RetinaNet's are of classes.
OF_CLASSES = ("head.output", "box_predictor.", "mask_fcn_logits.", "classification_head.cls_logits.")
ROUNDS = 40  # of the bootstrap after an epoch, which only says what difference counts


class DenseTask(Task):
    answers_inside = True
    validations = 20  # small data takes many short epochs, and measuring is slow
    image_size_of_backbone = True  # does --image-size speak of what the backbone sees?

    # -- the model ---------------------------------------------------------------------------------------------------

    def check(self, config: Config) -> None:
        refuse_tuning(config, self.name)

    def start(self, config: Config, source: Source, learnt: list[Sample], gpu: bool) -> Start:
        """The backbone, without classes; `build` puts the head on it."""
        largest = typical_side(learnt)
        found = find_weights(config.model, config.weights, largest, gpu)
        size = config.image_size if self.image_size_of_backbone else None
        start = start_model(config.model, config.weights, [], size, None, largest, gpu, found=found)
        if not isinstance(start.model.settings, SwinSettings | ViTSettings):
            raise VitrailError(
                f"{start.name} gives no maps to {self.name} from: use a ViT or a Swin with --model.",
                code="no_maps", model=start.name,
            )  # fmt: skip
        return start

    def prepare_model(self, ctx: Context) -> None:
        if ctx.config.get("tune") == "head":
            backbone: Any = ctx.model.backbone
            backbone.requires_grad_(False)

    def plan_rows(self, ctx: Context) -> list[Row]:
        tune = ctx.config.get("tune", "full")
        return [] if tune == "full" else [("tune", tune, "the backbone stays as it is")]

    def hidden_choices(self, ctx: Context) -> set[str]:
        return {"precision", "val", "refit", "image_size"} | ({"flip"} if ctx.config.augment == "none" else set())

    def hyperparameters(self, ctx: Context) -> dict[str, Any]:
        # Not compiled unless asked for: a detector's images come in many sizes, each of which would be compiled anew.
        return {"compile": ctx.config.compile == "on", "batch_size": ctx.config.batch_size or 8}

    def backbone(self, model: Any) -> Any:
        return model.backbone

    # -- the end -----------------------------------------------------------------------------------------------------

    def wrong(self, ctx: Context) -> dict[str, list[str]]:
        """What was wrong with the labels, by kind: where."""
        return {}

    def problems(self, ctx: Context, unreadable: dict[str, str]) -> Any:
        return copies(ctx.samples, unreadable, ctx.source.notes, self.wrong(ctx))

    def closing_notes(self, ctx: Context, measured: Measured) -> list[str]:
        if all(name.removeprefix("class ").isdigit() for name in ctx.source.classes):
            return ["Its classes are numbers: put a classes.txt (a name a line, from 0 on) beside the data for names."]
        return []


def continue_weights(start: Start, model: nn.Module, pre: Preprocessing, classes: list[str]) -> Start:
    """The start with this model on its backbone. Where the checkpoint is of a model of the same kind, its head and its
    pyramid are taken over too, as far as they fit."""
    model.preprocessing = pre  # type: ignore[assignment]
    whole, made = start.checkpoint, replace(start, model=model, preprocessing=pre, checkpoint=None)
    if whole is None or type(whole.settings) is not type(model.settings):
        return made
    same = whole.labels == classes
    theirs = {n: t for n, t in whole.state.items() if same or not any(part in n for part in OF_CLASSES)}
    ours = model.state_dict()
    fitting = {n: t for n, t in theirs.items() if n in ours and ours[n].shape == t.shape}
    inside: str = model.settings.inside  # type: ignore[union-attr,assignment]
    around = {n: t for n, t in fitting.items() if not n.startswith(inside)}
    model.load_state_dict(around, strict=False)
    source = next((reason.fields["source"] for reason in start.reasons if "source" in reason.fields), "")
    if same and len(fitting) == len(ours):
        return replace(made, reasons=[Reason("start_whole", source=source)])
    if not around:
        return made
    total = sum(not name.startswith(inside) for name in ours)
    return replace(made, reasons=[Reason("start_backbone_more", count=len(around), total=total, source=source)])


class MapTask(DenseTask):
    """A task whose target is a map beside each image: `map_kind` says what the maps are, and `scorer` gives the
    objective. That has `rows(outputs, maps)`, for each image a row of numbers that its figures are made of [B, width],
    and `figures(rows, seed, rounds)`, which are those of all images together. What else a task of maps does differently
    from this, it overrides."""

    map_kind: MapKind
    usual_batch = 16
    rates = (3e-4, 5e-4)  # learning rates for that batch, with weights and from scratch
    predict_options: ClassVar[tuple[str, ...]] = ("out",)

    @abstractmethod
    def scorer(self, labels: list[str]) -> Any:
        """The objective of a model with these outputs."""

    # -- data and model ----------------------------------------------------------------------------------------------

    def train_images(self, ctx: Context, samples: list[Sample], cache: str) -> ImageSet:
        return shrunk_with_maps(samples, ctx.preprocessing, self.map_kind, cache)

    def val_images(self, ctx: Context, samples: list[Sample], cache: str) -> ImageSet:
        return fitted_with_maps(samples, ctx.preprocessing, self.map_kind, cache)

    def size_row(self, ctx: Context) -> Row:
        pre = ctx.preprocessing
        return "images", "×".join(map(str, pre.size)), f"fit {pre.fit}; trained on windows of this size"

    def plan(self, config: Config, facts: Facts) -> Choices:
        return plan_dense(config, facts, self.usual_batch, self.rates)

    def build(
        self, start: Start, config: Config, why: dict[str, Any], source: Source, learnt: list[Sample], gpu: bool
    ) -> Start:
        backbone = set_drop_path(start.model, config.drop_path or 0.0)
        changes: dict[str, Any] = {} if config.pyramid is None else {"pyramid": config.pyramid}
        width = suited_width(backbone.settings)
        model = Segmenter(backbone, len(source.classes), config.get("head") or "upernet", width=width, **changes)
        pre = replace(start.preprocessing, fit=config.fit or "stretch", crop=1.0)
        return continue_weights(start, model, pre, source.classes)

    # -- learning ----------------------------------------------------------------------------------------------------

    def objective(self, ctx: Context) -> Any:
        return self.scorer(ctx.source.classes)

    def augment(self, ctx: Context) -> Augment:
        policy, pre, config = JointPolicy.named(ctx.config.augment), ctx.preprocessing, ctx.config
        if config.flip is not None and config.augment != "none":
            policy = replace(policy, flip=config.flip)
        joint = JointAugmenter(
            policy, pre.size, pre.mean, pre.std, config.seed, fit=pre.fit, fill=self.map_kind.fill
        )  # fmt: skip
        return AugmentMaps(joint)

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        rows = rows_over(ctx, model, ctx.objective.rows, ctx.objective.width)
        figures = ctx.objective.figures(rows, ctx.config.seed, ROUNDS)
        kept = {name: value for name, value in figures.items() if name != "n" and not name.endswith(("_low", "_high"))}
        return kept | standard_error(figures, self.figure)

    def measure(self, ctx: Context) -> Measured:
        rows = rows_over(ctx, ctx.model, ctx.objective.rows, ctx.objective.width)
        return Measured(ctx.objective.figures(rows, ctx.config.seed))

    # -- use ---------------------------------------------------------------------------------------------------------

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        """Images in their own sizes."""
        source, objective, progress = self.inspected(data), self.scorer(predictor.labels), options["progress"]
        samples, name, notes = scored_samples(source, run, options["split"])
        rows, kept = [], []
        problems: Problems = []
        several = asked(
            samples, lambda sample: (sample.decode(), self.map_kind.read(sample)),
            lambda images: self.answers(predictor, images, options["batch_size"]), problems,
            progress and (lambda done, total: progress("maps", done, total)),
        )  # fmt: skip
        for sample, truth, answer in several:
            rows.append(objective.rows(torch.from_numpy(answer)[None], torch.from_numpy(truth)[None]))
            kept.append(sample)
        check_some(kept, problems)
        return Evaluation(objective.figures(torch.cat(rows)), name, kept, problems, notes + source.notes, {}, source)

    def answers(self, predictor: Any, images: Iterable[Any], batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """Of each image a map at its own size: the only output of the model [h, w], or all of them [C, h, w]."""
        for batch in in_batches(map(to_image, images), batch_size):
            for found in answered_maps(predictor, batch):
                yield found[0] if len(found) == 1 else found

    def writer(self, predictor: Any, options: Mapping[str, Any]) -> Any:
        return MapWriter(predictor, options)

    # -- export ------------------------------------------------------------------------------------------------------

    def export_preprocessing(self, pre: Preprocessing) -> tuple[Preprocessing, list[str]]:
        if pre.fit != "native":
            return pre, []
        note = f"For images of {pre.size[1]}×{pre.size[0]} pixels, to which others are brought."
        return replace(pre, fit="stretch"), [note]

    def graph(self, model: Any, size: tuple[int, int]) -> Graph:
        return Graph(Logits(model), torch.zeros(2, model.settings.channels, *size), {0: Dim("batch")})


class AugmentMaps:
    output_values: int | None = None  # not several steps at once

    def __init__(self, joint: JointAugmenter):
        self.joint = joint

    def __call__(
        self, images: Any, numbers: np.ndarray, keys: np.ndarray, epoch: int, device: Any, out: Any = None
    ) -> Batch:
        return self.joint(images, keys, epoch, device)
