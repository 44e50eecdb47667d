"""`--task detect`: from pictures and boxes to a detector."""

from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from torch import nn

from vitrail.console import View
from vitrail.data.augment.boxes import BoxAugmenter, BoxBatch, BoxPolicy, viewed
from vitrail.data.cache import choose
from vitrail.data.image_set import ImageSet
from vitrail.data.inspect.labels import BOX_TROUBLES
from vitrail.data.samples import Sample, some
from vitrail.data.sources.boxes import open_boxes
from vitrail.data.sources.boxes.samples import BoxSource
from vitrail.distributed import Processes
from vitrail.errors import VitrailError, extra
from vitrail.inference.precision import choose_precision, fitting_threads
from vitrail.models import SwinSettings
from vitrail.tasks.detect import Detect
from vitrail.tasks.detect_metrics import Score
from vitrail.training.checkpoint import seed_step
from vitrail.training.config import Recipe
from vitrail.training.dense.finish import Measured, measured_boxes, spread
from vitrail.training.dense.plan import DenseFacts, fill_dense, viewing_sides
from vitrail.training.dense.start import start_backbone, start_detector
from vitrail.training.dense.work import ROUNDS, DenseWork
from vitrail.training.run import Run, pictures_to_learn, planned, run_folder, typical_side
from vitrail.training.trainer import Settings


def train_detector(data: str, recipe: Recipe, group: Processes) -> Run:
    folder, view = group.of_first(run_folder(recipe, data)), View(group.first)
    if find_spec("pycocotools") is None:
        raise VitrailError(f"mAP is measured by pycocotools, which is not installed: {extra('detect')}.")
    source = open_boxes(data)
    if recipe.head == "mask_rcnn" and not source.outlined:
        bare = some(source.bare, 3)
        raise VitrailError(f"--head mask_rcnn learns outlines, and {data} has boxes without ({bare}): use faster_rcnn.")
    learnt, gpu = pictures_to_learn(source), group.device.type == "cuda"
    seed_step(recipe.seed, 0, 0, 0)  # the initial weights
    facts = DenseFacts("detect", len(learnt), False, False)
    fill_dense(recipe, facts)  # refuses what can't be, before weights are read
    start, whole = start_backbone(recipe, learnt, gpu)
    facts = replace(facts, pretrained=start.pretrained, swin=isinstance(start.model.settings, SwinSettings))
    full, why, samples = planned(partial(fill_dense, facts=facts), recipe, source)
    short, long, why["image_size"] = viewing_sides(recipe.image_size, typical_side(learnt, min), gpu)
    start = start_detector(start, whole, full, source.classes, (short, long))
    dtype, why["precision"] = choose_precision(recipe.precision, group.device)
    work = Detection(data, source, samples, start, recipe, full, why, dtype, folder, group, view)
    with fitting_threads(start.model, group.device):
        return Run(folder, work.run())


@dataclass
class Detection(DenseWork):
    source: BoxSource

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = self.model.settings
        self.sides = (settings.short_side, settings.long_side)
        self.policy = BoxPolicy.named(self.recipe.augment)
        if self.recipe.flip is not None and self.recipe.augment != "none":
            self.policy = replace(self.policy, flip=self.recipe.flip)
        self.task = Detect(self.source.classes, settings.head == "mask_rcnn")

    def size_row(self) -> tuple[str, str, str]:
        short, long = self.sides
        return "images", f"{short} to {long}", f"short side, and the long one at most; {self.why['image_size']}"

    # -- data --------------------------------------------------------------------------------------------------------

    def to_learn_from(self, samples: list[Sample], cache: str) -> ImageSet:
        return viewed(samples, *self.sides, room=self.policy.scale[1], mode=self.mode, cache=cache)  # type: ignore[arg-type]

    def to_measure_on(self, samples: list[Sample], cache: str) -> ImageSet:
        """As they are, which may be far larger than they are looked at."""
        boxed: Any = samples
        if self.recipe.cache == "auto":
            areas = [each.size[0] * each.size[1] for each in boxed if each.size is not None] or [1_000_000]
            expected = int(np.mean(areas) * len(boxed) * len(self.mode))
            cache = self.group.of_first(choose("auto", expected, self.group.count))
        return viewed(boxed, *self.sides, room=None, mode=self.mode, cache=cache)

    def read(self) -> None:
        super().read()
        if "val" in self.views:  # measured from the host one by one, in their own sizes: no copy on the GPU is wanted
            self.views["val"].loader.resident = None

    @property
    def mode(self) -> str:
        return "L" if len(self.pre.mean) == 1 else "RGB"

    def augmenter(self) -> Any:
        boxes = BoxAugmenter(self.policy, *self.sides, self.pre.mean, self.pre.std, self.recipe.seed, self.task.masks)
        samples: Any = self.views["train"].samples

        def augment(
            images: Any, numbers: np.ndarray, keys: np.ndarray, epoch: int, device: Any
        ) -> tuple[BoxBatch, BoxBatch]:
            batch = boxes(images, [samples[number] for number in numbers], keys, epoch, device)
            return batch, batch

        return augment

    def wrong(self) -> dict[str, list[str]]:
        return {BOX_TROUBLES[what].capitalize(): where for what, where in self.source.problems.items()}

    # -- the model ---------------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        return replace(super().settings(), varied=True)

    # -- figures -----------------------------------------------------------------------------------------------------

    def score(self, model: nn.Module) -> tuple[Score, list[int]]:
        """Of the held-out pictures as they are, by all processes together; and which pictures these are."""
        images, score, numbers = self.views["val"], Score(self.task.classes, self.task.masks), []
        share, pictures = self.group.share(images.numbers), images.loader.pictures
        batch = 8 if self.group.device.type == "cuda" else 2
        mine = [*self.task.answers(model, pictures, share.tolist(), self.pre, self.dtype, batch)]
        for part in self.group.of_all(mine):
            for number, truth, found in part:
                score.add(truth, found)
                numbers.append(number)
        return score, numbers

    def validate(self, model: nn.Module) -> dict[str, float]:
        figures = self.score(model)[0].figures(ROUNDS, self.recipe.seed)
        names = [name for name in ("map", "map50", "mask_map") if name in figures]
        return {name: figures[name] for name in names} | spread(figures, "map")

    def measured(self) -> tuple[Measured, dict[str, Any]]:
        score, numbers = self.score(self.model)
        threshold, samples = score.best_threshold(), self.views["val"].samples
        seen = [samples[number] for number in numbers]
        found = measured_boxes(score, seen, threshold, self.group.first, self.recipe.seed)
        return found, {"threshold": threshold}

    def about(self) -> dict[str, Any]:
        return {"task": "detect", "category_ids": list(self.source.category_ids)}
