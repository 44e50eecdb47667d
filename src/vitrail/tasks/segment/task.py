"""The task of segmentation."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data import to_image
from vitrail.data.maps import MapKind
from vitrail.data.samples import Sample, Source
from vitrail.data.sources.masks import MaskedSample, MaskSource, open_masks, pixels_of
from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.errors import VitrailError
from vitrail.inference.size_batches import in_batches
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.base import Evaluation, Measured
from vitrail.tasks.context import Context
from vitrail.tasks.data_sheet import data_sheet
from vitrail.tasks.dense.cases import standard_error
from vitrail.tasks.dense.task import ROUNDS, MapTask
from vitrail.tasks.planning import Choices, Facts
from vitrail.tasks.scoring import class_indices, scored_samples
from vitrail.tasks.segment.drawing import palette, shares
from vitrail.tasks.segment.measure import MEANINGS, cases_in_training, measure_masks, page_of, rows_of
from vitrail.tasks.segment.objective import Segment, balancing_weights
from vitrail.tasks.segment.options import EXPECTS, OPTIONS
from vitrail.tasks.segment.results import Segmentation, pixel_classes
from vitrail.tasks.segment.writing import MaskWriter


def mask_of(sample: Sample) -> Any:
    assert isinstance(sample, MaskedSample)
    return sample.mask_pixels()


class SegmentTask(MapTask):
    name = "segment"
    method = "segment"
    figure = "miou"
    titles = {name: title for name, (title, _) in MEANINGS.items()}
    listed = {"miou": "mean IoU", "pixel_accuracy": "pixel accuracy", "boundary_f1": "boundary F1"}
    kinds = {"iou": "IoU"}
    predict_options = ("out", "window")
    overlay_kind = "mask"
    options = OPTIONS
    expects = EXPECTS
    map_kind = MapKind("masks", mask_of)

    def check(self, config: Config) -> None:
        super().check(config)
        if config.head == "linear" and config.pyramid is not None:
            raise VitrailError(
                "--head linear reads the backbone's last map and no pyramid: leave --pyramid out.",
                code="pyramid_unused",
            )
        if config.fit == "crop":
            raise VitrailError(
                "--fit crop would lose the borders of an image: segment with stretch or pad.", code="loses_borders"
            )

    def open(self, data: str, config: Config, console: Any = None) -> Source:
        return open_masks(data, progress=console.reading("reading the masks") if console else None)

    def plan(self, config: Config, facts: Facts) -> Choices:
        chosen = {"head": ("upernet", Reason("upernet"))} | super().plan(config, facts)
        if config.head == "linear":
            del chosen["pyramid"]  # it reads the backbone's last map
        return chosen

    def scorer(self, labels: list[str]) -> Segment:
        return Segment(labels)

    def objective(self, ctx: Context) -> Segment:
        classes, weights = ctx.source.classes, None
        if ctx.config.balance == "weights":
            pixels = pixels_of(ctx.samples["train"], len(classes))  # not of what is held out
            weights = torch.from_numpy(balancing_weights(pixels)).float().to(ctx.device)
        return Segment(classes, smoothing=ctx.config.label_smoothing or 0.0, class_weights=weights)

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        rows = rows_of(ctx, model, boundaries=False)
        figures = ctx.objective.figures(rows, ctx.config.seed, ROUNDS)
        return ctx.objective.score(rows) | standard_error(figures, "miou")

    def measure(self, ctx: Context) -> Measured:
        rows = rows_of(ctx, ctx.model, boundaries=True)
        cases = cases_in_training(ctx, rows) if ctx.processes.first else []
        figures = ctx.objective.figures(rows, ctx.config.seed)
        return Measured(figures, page=page_of(figures, ctx.objective.per_class(rows), cases))

    def header(self, ctx: Context) -> dict[str, Any]:
        colours = ctx.source.colours if isinstance(ctx.source, MaskSource) else None
        return {"colours": [list(each) for each in colours]} if colours else {}

    def wrong(self, ctx: Context) -> dict[str, list[str]]:
        left_out = ctx.source.left_out if isinstance(ctx.source, MaskSource) else {}
        return {"Left out": [*left_out.values()]} if left_out else {}

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        """Images in their own size, by what `predictor.segmentations` says of them."""
        source, labels, progress = open_masks(data), predictor.labels, options["progress"]
        samples, name, notes = scored_samples(source, run, options["split"])
        indices, colours = class_indices(source, predictor), palette(len(labels), predictor.about.get("colours"))
        measured, kept, problems = measure_masks(
            self.scorer(labels), samples,  # type: ignore[arg-type]
            lambda images: (found.mask for found in predictor.segmentations(images, batch_size=options["batch_size"])),
            indices, colours, progress and (lambda done, total: progress("segmented images", done, total)),
            options["report"] is not None,
        )  # fmt: skip
        return Evaluation(measured.figures, name, kept, problems, notes + source.notes, measured.page, source)

    def answers(self, predictor: Any, images: Iterable[Any], batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """Images of one size go through the model together."""
        window, overlap = options.get("window"), options.get("overlap", 0.25)
        colours = palette(len(predictor.labels), predictor.about.get("colours"))
        for batch in in_batches(map(to_image, images), batch_size):
            with predictor.precision():
                masks = pixel_classes(
                    predictor.model, batch, predictor.preprocessing, predictor.device, window, overlap
                )
            for image, mask in zip(batch, masks, strict=True):
                yield Segmentation(image, mask, predictor.labels, colours)

    def writer(self, predictor: Any, options: Mapping[str, Any]) -> MaskWriter:
        return MaskWriter(predictor, options, window=options["window"])

    def overlay(self, predictor: Any, x: Tensor, frame: tuple[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
        found = predictor.model(x)[0].argmax(dim=0).to(torch.uint8).cpu().numpy()
        mask = np.full(frame, IGNORE, np.uint8)
        mask[: found.shape[0], : found.shape[1]] = found
        labels = list(predictor.labels)
        rows = [{**one, "probability": one["share"]} for one in shares(found, labels)]
        colours = palette(len(labels), predictor.about.get("colours"))[: len(labels)].tolist()
        return {"mask": mask}, {"rows": rows, "colours": colours, "labels": labels}

    # -- inspection --------------------------------------------------------------------------------------------------

    def inspected(self, data: str) -> Source:
        return open_masks(data)

    def draw_samples(self, source: Source, out: Path) -> tuple[str, Path] | None:
        return "Images with their masks", data_sheet(source, out)  # type: ignore[arg-type]
