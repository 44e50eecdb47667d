"""`--task segment`: from pictures and masks to a class for every pixel."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.data.masks import MaskSource, open_masks, pixels_of
from vitrail.data.masks.joint import JointAugmenter, JointPolicy, fitted_pairs, paired, shrunk_pairs
from vitrail.data.pictures import Pictures
from vitrail.data.samples import Sample
from vitrail.models import SwinSettings
from vitrail.report.drawing import thumbnail
from vitrail.tasks.segment import Segment, balancing_weights
from vitrail.tasks.segment_pictures import case, palette
from vitrail.train.dense.finish import OF_MASKS, Measured, shown_cases, spread
from vitrail.train.dense.plan import DenseFacts, fill_dense
from vitrail.train.dense.start import start_backbone, start_segmenter
from vitrail.train.dense.work import ROUNDS, DenseWork
from vitrail.train.distributed import Processes
from vitrail.train.forward import Forward
from vitrail.train.precision import autocast, choose_precision, fitting_threads
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run, pictures_to_learn, planned, run_folder
from vitrail.train.state import seed_step
from vitrail.train.view import View


def train_segmenter(data: str, recipe: Recipe, group: Processes) -> Run:
    folder, view = group.of_first(run_folder(recipe, data)), View(group.first)
    source = open_masks(data, progress=view.reading("reading the masks"))
    learnt, gpu = pictures_to_learn(source), group.device.type == "cuda"
    seed_step(recipe.seed, 0, 0, 0)  # the initial weights
    facts = DenseFacts("segment", len(learnt), False, False)
    fill_dense(recipe, facts)  # refuses what can't be, before weights are read
    start, whole = start_backbone(recipe, learnt, gpu)
    facts = replace(facts, pretrained=start.pretrained, swin=isinstance(start.model.settings, SwinSettings))
    full, why, samples = planned(partial(fill_dense, facts=facts), recipe, source)
    start = start_segmenter(start, whole, full, source.classes)
    dtype, why["precision"] = choose_precision(recipe.precision, group.device)
    work = Segmentation(data, source, samples, start, recipe, full, why, dtype, folder, group, view)
    with fitting_threads(start.model, group.device):
        return Run(folder, work.run())


@dataclass
class Segmentation(DenseWork):
    source: MaskSource

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = None
        if self.recipe.balance == "weights":
            pixels = pixels_of(self.samples["train"], len(self.source.classes))  # not of what is held out
            weights = torch.from_numpy(balancing_weights(pixels)).float().to(self.group.device)
        self.task = Segment(self.source.classes, smoothing=self.recipe.label_smoothing or 0.0, class_weights=weights)

    def size_row(self) -> tuple[str, str, str]:
        return "images", "×".join(map(str, self.pre.size)), f"fit {self.pre.fit}; trained on windows of this size"

    # -- data --------------------------------------------------------------------------------------------------------

    def to_learn_from(self, samples: list[Sample], cache: str) -> Pictures:
        return shrunk_pairs(samples, self.pre, cache)  # type: ignore[arg-type]

    def to_measure_on(self, samples: list[Sample], cache: str) -> Pictures:
        return fitted_pairs(samples, self.pre, cache)  # type: ignore[arg-type]

    def augmenter(self) -> Any:
        policy, pre = JointPolicy.named(self.recipe.augment), self.pre
        if self.recipe.flip is not None and self.recipe.augment != "none":
            policy = replace(policy, flip=self.recipe.flip)
        joint = JointAugmenter(policy, pre.size, pre.mean, pre.std, self.recipe.seed, fit=pre.fit)

        def augment(
            pairs: Any, numbers: np.ndarray, keys: np.ndarray, epoch: int, device: Any
        ) -> tuple[Tensor, Tensor]:
            return joint(pairs, keys, epoch, device)

        return augment

    def wrong(self) -> dict[str, list[str]]:
        return {"Left out": [*self.source.left_out.values()]} if self.source.left_out else {}

    # -- figures -----------------------------------------------------------------------------------------------------

    def rows(self, model: nn.Module, boundaries: bool) -> Tensor:
        """[n, width], of the held-out pictures in the size that the model sees."""
        images, device = self.views["val"], self.group.device
        outputs = partial(self.task.rows_of_pairs, model, boundaries=boundaries)
        batch = 32 if device.type == "cuda" else 8
        forward = Forward(images, paired(self.pre), self.group, self.dtype, batch)
        return forward.run(model, lambda pairs: [outputs(pairs)], [self.task.width(boundaries)])[0]

    def validate(self, model: nn.Module) -> dict[str, float]:
        rows = self.rows(model, boundaries=False)
        return self.task.score(rows) | spread(self.task.figures(rows, self.recipe.seed, ROUNDS), "miou")

    def measured(self) -> tuple[Measured, dict[str, Any]]:
        rows = self.rows(self.model, boundaries=True)
        cases = self.cases(rows) if self.group.first else []
        figures = self.task.figures(rows, self.recipe.seed)
        return Measured(figures, self.task.per_class(rows), cases, OF_MASKS, "Pixels"), {}

    def cases(self, rows: Tensor) -> list[tuple[str, str]]:
        images, colours = self.views["val"], palette(len(self.task.classes), self.source.colours)
        made = []
        for word, place in shown_cases(self.task.worst_first(rows)):
            number = int(images.numbers[place])
            pixels = images.loader.pictures[number]
            with torch.no_grad(), autocast(self.group.device, self.dtype):
                said = segmented(self.model.eval(), pixels[:-1], self.pre.mean, self.pre.std)
            own = self.task.score(rows[place : place + 1])["miou"]
            title = f"{word}: {images.samples[number].name}, mean IoU {own:.1%}"
            picture = Image.fromarray(pixels[:-1].permute(1, 2, 0).contiguous().numpy().squeeze())
            drawn = case(picture, pixels[-1].numpy(), said, self.task.classes, colours)
            made.append((title, thumbnail(drawn, 1000)))
        return made

    def about(self) -> dict[str, Any]:
        colours = self.source.colours
        return {"task": "segment", **({"colours": [list(each) for each in colours]} if colours else {})}


def segmented(model: nn.Module, pixels: Tensor, mean: Any, std: Any) -> np.ndarray:
    """The class of every pixel of a fitted picture, uint8 [C, h, w] -> [h, w]."""
    device = next(model.parameters()).device
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (mean, std))
    logits = model((pixels.to(device).float().div_(255).sub_(mean).div_(std))[None])
    return logits[0].argmax(dim=0).to(torch.uint8).cpu().numpy()
