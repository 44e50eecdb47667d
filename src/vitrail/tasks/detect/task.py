"""The task of detection."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from vitrail.data import fit_image, to_image
from vitrail.data.augment.boxes import BoxAugmenter, BoxPolicy, viewed
from vitrail.data.cache import choose
from vitrail.data.image_set import ImageSet, as_pixels
from vitrail.data.inspect.labels import BOX_TROUBLES
from vitrail.data.samples import Sample, Source, some
from vitrail.data.sources.boxes import open_boxes
from vitrail.data.sources.boxes.samples import BoxSource
from vitrail.errors import VitrailError, extra
from vitrail.inference.size_batches import in_batches
from vitrail.models import Preprocessing
from vitrail.models.dense.detector import Detector
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.backbones import Start, set_drop_path, typical_side
from vitrail.tasks.base import Batch, Evaluation, Measured, Row
from vitrail.tasks.context import Context
from vitrail.tasks.data_sheet import data_sheet
from vitrail.tasks.dense.cases import standard_error
from vitrail.tasks.dense.plan import plan_dense, suited_width
from vitrail.tasks.dense.task import ROUNDS, DenseTask, continue_weights
from vitrail.tasks.detect.export import LEAST, Boxes, example
from vitrail.tasks.detect.export_check import compare
from vitrail.tasks.detect.measure import MEANINGS, measure_boxes, measured_boxes
from vitrail.tasks.detect.metrics import Score
from vitrail.tasks.detect.objective import Detect, find_alike
from vitrail.tasks.detect.options import EXPECTS, OPTIONS
from vitrail.tasks.detect.overlay import boxes_over
from vitrail.tasks.detect.results import Detections
from vitrail.tasks.detect.writing import BoxWriter
from vitrail.tasks.exporting import Graph
from vitrail.tasks.planning import Choices, Facts
from vitrail.tasks.scoring import class_indices, scored_samples

LONGER = 5 / 3  # the long side of an image that a detector sees, at most, in short sides: 800 for 480


class DetectTask(DenseTask):
    name = "detect"
    method = "detect"
    figure = "map"
    titles = {name: title for name, (title, _) in MEANINGS.items()}
    listed = {
        "map": "mean average precision",
        "map50": "mAP at IoU 0.50",
        "map75": "mAP at IoU 0.75",
        "mask_map": "mAP of the outlines",
        "mask_map50": "mAP of the outlines at 0.50",
        "mask_map75": "mAP of the outlines at 0.75",
    }
    kinds = {"ap": "AP"}
    predict_options = ("out", "threshold")
    overlay_kind = "boxes"
    sizes_itself = True
    options = OPTIONS
    expects = EXPECTS
    image_size_of_backbone = False

    # -- data --------------------------------------------------------------------------------------------------------

    def check(self, config: Config) -> None:
        super().check(config)
        if find_spec("pycocotools") is None:
            raise VitrailError(f"mAP is measured by pycocotools, which is not installed: {extra('detect')}.")
        if config.fit is not None:
            raise VitrailError(
                "A detector sees the whole image in its own proportions: leave --fit out.", code="own_proportions"
            )

    def open(self, data: str, config: Config, console: Any = None) -> Source:
        source = open_boxes(data)
        if config.head == "mask_rcnn" and not source.outlined:
            bare = some(source.bare, 3)
            raise VitrailError(
                f"--head mask_rcnn learns outlines, and {data} has boxes without ({bare}): use faster_rcnn.",
                code="no_outlines", data=data,
            )  # fmt: skip
        return source

    def train_images(self, ctx: Context, samples: list[Sample], cache: str) -> ImageSet:
        room = self._policy(ctx.config).scale[1]
        return viewed(samples, *self._sides(ctx), room=room, mode=_mode(ctx), cache=cache)  # type: ignore[arg-type]

    def val_images(self, ctx: Context, samples: list[Sample], cache: str) -> ImageSet:
        """As they are, which may be far larger than the detector sees them."""
        return viewed(samples, *self._sides(ctx), room=None, mode=_mode(ctx), cache=cache)  # type: ignore[arg-type]

    def val_cache(self, ctx: Context, samples: list[Sample], cache: str) -> str:
        if ctx.config.cache != "auto":
            return cache
        sizes: list[Any] = [getattr(each, "size", None) for each in samples]
        areas = [size[0] * size[1] for size in sizes if size is not None] or [1_000_000]
        expected = int(np.mean(areas) * len(samples) * len(_mode(ctx)))
        return ctx.processes.of_first(choose("auto", expected, ctx.processes.count))

    def _sides(self, ctx: Context) -> tuple[int, int]:
        return ctx.settings.short_side, ctx.settings.long_side

    def _policy(self, config: Config) -> BoxPolicy:
        policy = BoxPolicy.named(config.augment)
        return replace(policy, flip=config.flip) if config.flip is not None and config.augment != "none" else policy

    # -- the plan and the model --------------------------------------------------------------------------------------

    def plan(self, config: Config, facts: Facts) -> Choices:
        return {"head": ("faster_rcnn", Reason("faster_rcnn"))} | plan_dense(config, facts, 8, (2e-4, 3e-4))

    def build(
        self, start: Start, config: Config, why: dict[str, Any], source: Source, learnt: list[Sample], gpu: bool
    ) -> Start:
        short, long, why["image_size"] = viewing_sides(config.image_size, typical_side(learnt, min), gpu)
        backbone = set_drop_path(start.model, config.drop_path or 0.0)
        width = suited_width(backbone.settings)
        model = Detector(
            backbone, config.head or "faster_rcnn", len(source.classes), pyramid=config.pyramid or "auto",
            pyramid_channels=width, hidden=4 * width, short_side=short, long_side=long,
        )  # fmt: skip
        return continue_weights(start, model, model.preprocessing, source.classes)

    def size_row(self, ctx: Context) -> Row:
        short, long = self._sides(ctx)
        return "images", f"{short} to {long}", f"short side, and the long one at most; {ctx.why['image_size']}"

    def hyperparameters(self, ctx: Context) -> dict[str, Any]:
        return super().hyperparameters(ctx) | {"varied": True}

    # -- learning ----------------------------------------------------------------------------------------------------

    def objective(self, ctx: Context) -> Detect:
        return Detect(ctx.source.classes, ctx.settings.head == "mask_rcnn")

    def informed(self, ctx: Context) -> Detect:
        if "val" in ctx.subsets:  # measured from the host one by one, in their own sizes: no copy on the GPU is wanted
            ctx.subsets["val"].loader.resident = None
        return ctx.objective

    def augment(self, ctx: Context) -> "AugmentBoxes":
        pre = ctx.preprocessing
        boxes = BoxAugmenter(
            self._policy(ctx.config), *self._sides(ctx), pre.mean, pre.std, ctx.config.seed, ctx.objective.masks
        )
        return AugmentBoxes(boxes, ctx.subsets["train"].samples)

    def _score(self, ctx: Context, model: nn.Module) -> tuple[Score, list[int]]:
        """Of the validation images as they are, by all processes together; and which images these are."""
        subset, objective, numbers = ctx.subsets["val"], ctx.objective, list[int]()
        score, share = Score(objective.classes, objective.masks), ctx.processes.share(subset.numbers)
        batch = 8 if ctx.device.type == "cuda" else 2
        images = subset.loader.images
        mine = [*objective.answers(model, images, share.tolist(), ctx.preprocessing, ctx.dtype, batch)]
        for part in ctx.processes.of_all(mine):
            for number, truth, found in part:
                score.add(truth, found)
                numbers.append(number)
        return score, numbers

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        figures = self._score(ctx, model)[0].figures(ROUNDS, ctx.config.seed)
        names = [name for name in ("map", "map50", "mask_map") if name in figures]
        return {name: figures[name] for name in names} | standard_error(figures, "map")

    def measure(self, ctx: Context) -> Measured:
        score, numbers = self._score(ctx, ctx.model)
        threshold, samples = score.best_threshold(), ctx.subsets["val"].samples
        seen = [samples[number] for number in numbers]
        measured = measured_boxes(score, seen, threshold, ctx.processes.first, ctx.config.seed)
        return replace(measured, header={"threshold": threshold})

    def header(self, ctx: Context) -> dict[str, Any]:
        return {"category_ids": list(ctx.source.category_ids)} if isinstance(ctx.source, BoxSource) else {}

    def wrong(self, ctx: Context) -> dict[str, list[str]]:
        problems = ctx.source.problems if isinstance(ctx.source, BoxSource) else {}
        return {BOX_TROUBLES[what].capitalize(): where for what, where in problems.items()}

    # -- use ---------------------------------------------------------------------------------------------------------

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        """Images in their own size, by everything that `predictor.detections` finds on them."""
        source, progress = open_boxes(data), options["progress"]
        samples, name, notes = scored_samples(source, run, options["split"])
        masks = predictor.model.settings.head == "mask_rcnn" and source.outlined
        measured, kept, problems = measure_boxes(
            predictor.labels, samples,  # type: ignore[arg-type]
            lambda images: (each.found for each in predictor.detections(images, 0.0, options["batch_size"])),
            class_indices(source, predictor), masks, predictor.about.get("threshold", 0.5),
            progress and (lambda done, total: progress("images with boxes", done, total)),
            options["report"] is not None,
        )  # fmt: skip
        return Evaluation(measured.figures, name, kept, problems, notes + source.notes, measured.page, source)

    def answers(self, predictor: Any, images: Iterable[Any], batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """Images of one size go through the model together. `threshold` is the probability from which on; by default
        the one that suited the run's validation images best."""
        threshold = options.get("threshold")
        least = predictor.about.get("threshold", 0.5) if threshold is None else threshold
        own = replace(predictor.preprocessing, fit="native")
        for batch in in_batches((fit_image(to_image(image), own) for image in images), batch_size):
            pixels = [torch.from_numpy(as_pixels(image)).permute(2, 0, 1) for image in batch]
            every = find_alike(predictor.model, pixels, predictor.preprocessing, predictor.dtype)
            for image, found in zip(batch, every, strict=True):
                yield Detections(image, found.above(least), predictor.labels)

    def writer(self, predictor: Any, options: Mapping[str, Any]) -> BoxWriter:
        return BoxWriter(predictor, options, threshold=options["threshold"])

    def overlay(self, predictor: Any, x: Tensor, frame: tuple[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
        return boxes_over(predictor, x, frame)

    # -- export and inspection ---------------------------------------------------------------------------------------

    def graph(self, model: Any, size: tuple[int, int]) -> Graph:
        open_sizes = {2: Dim("height", min=LEAST), 3: Dim("width", min=LEAST)}
        return Graph(Boxes(model), example(model.settings.channels), open_sizes, "found")

    def check_export(
        self, model: Any, path: Path, pre: Preprocessing, other: Any, reader: str
    ) -> tuple[float | None, str]:
        agreement = compare(model, path, pre)
        return agreement.scores, agreement.words(path)

    def inspected(self, data: str) -> Source:
        return open_boxes(data)

    def draw_samples(self, source: Source, out: Path) -> tuple[str, Path] | None:
        return "Images with their boxes", data_sheet(source, out)  # type: ignore[arg-type]


class AugmentBoxes:
    output_values: int | None = None  # not several steps at once

    def __init__(self, augmenter: BoxAugmenter, samples: list[Any]):
        self.augmenter, self.samples = augmenter, samples

    def __call__(
        self, images: Any, numbers: np.ndarray, keys: np.ndarray, epoch: int, device: Any, out: Any = None
    ) -> Batch:
        batch = self.augmenter(images, [self.samples[number] for number in numbers], keys, epoch, device)
        return batch, batch


def _mode(ctx: Context) -> str:
    return "L" if len(ctx.preprocessing.mean) == 1 else "RGB"


def viewing_sides(image_size: int | None, short: int, gpu: bool) -> tuple[int, int, Reason]:
    """Short and long side in which a detector sees images whose own short side is `short`; and why."""
    if image_size is not None:
        side, why = image_size, Reason("as_asked")
    else:
        most = 480 if gpu else 320
        side = max(64, min(most, 32 * round(1.5 * short / 32)))
        why = Reason("view_small", short=short)
        if side == most:
            why = Reason("view_gpu" if gpu else "view_cpu")
    side = max(32, side)
    return side, round(side * LONGER), why
