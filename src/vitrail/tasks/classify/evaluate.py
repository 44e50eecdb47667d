"""Figures of a classifier on labelled images, and what its features are worth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.samples import Sample, Source
from vitrail.data.sources.classification import open_source
from vitrail.errors import VitrailError
from vitrail.tasks.base import Evaluation
from vitrail.tasks.classify import metrics
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.classify.page import classification_page
from vitrail.tasks.linear_probe import nearest_neighbours, solve_probe
from vitrail.tasks.scoring import Progress, answers_of, class_indices, scored_samples


def evaluate_classifier(predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
    if options["boxes"] is not None:
        raise VitrailError("--boxes goes with a model that tells live faces from attacks.")
    knn, probe, report = options["knn"], options["probe"], options["report"]
    batch, progress = options["batch_size"], options["progress"]
    source = open_source(data, one_class=True)
    samples, name, notes = scored_samples(source, run, options["split"])
    if source.multi_label and not predictor.multi_label:
        raise VitrailError(f"{source.name} has several labels per image, and this model was trained to give one.")
    classes: list[int] | None = None
    if not (knn or probe) or predictor.labels:
        try:
            classes = class_indices(source, predictor)
        except VitrailError as mismatch:
            if report is not None or not (knn or probe):
                raise
            notes.append(f"Its features are measured, its own answers are not: {mismatch}")
    figures: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    page: dict[str, Any] = {}
    kept: Sequence[Sample] = samples
    if classes is not None:
        rows, kept, problems = answers_of(
            predictor, samples, "probabilities", batch, progress, options["flip"], options["crops"]
        )
        objective = Classify(predictor.labels, predictor.multi_label)
        targets = objective.targets([tuple(classes[i] for i in sample.labels) for sample in kept])
        figures |= score(predictor, rows, targets, classes)
        notes += _fewer_classes(source, predictor, classes)
        if report is not None:
            page = _page(predictor, objective, rows, targets, kept)
    if knn or probe:
        found, unread = _feature_quality(predictor, source, samples, knn, probe, batch, progress)
        figures, problems = figures | found, problems or unread
    return Evaluation(figures, name, kept, problems, notes, page, source)


def score(
    predictor: Any, probabilities: Tensor, targets: Tensor, among: Sequence[int] | None = None
) -> dict[str, float]:
    """`among` are the classes of the data, where the model may know more: means over classes are over these."""
    chances, truth = probabilities.numpy().astype(np.float64), targets.numpy()
    if predictor.multi_label:
        thresholds = np.array(predictor.thresholds)
        return metrics.multi_label_figures(chances, truth > 0.5, predictor.labels, thresholds, among=among)
    return metrics.classification_figures(chances, truth.argmax(axis=1), predictor.labels, among=among)


def _fewer_classes(source: Source, predictor: Any, classes: Sequence[int]) -> list[str]:
    known, here = len(predictor.labels), len({*classes})
    note = (
        f"The model knows {known:,} classes and {source.name} has {here:,} of them: macro F1 and AUROC are means over "
        f"{'that one' if here == 1 else f'these {here:,}'}, and any other answer is a mistake."
    )
    return [note] if here < known else []


def _page(predictor: Any, objective: Classify, rows: Tensor, targets: Tensor, kept: Sequence[Sample]) -> dict[str, Any]:
    # The page works on logits; the log of a probability is one.
    logits = torch.logit(rows.double(), 1e-12) if predictor.multi_label else rows.double().clamp_min(1e-300).log()
    thresholds = predictor.thresholds if predictor.multi_label else None
    return classification_page(objective, logits, targets, kept, thresholds)


def _feature_quality(
    predictor: Any, source: Source, samples: list[Sample], knn: bool, probe: bool, batch: int, progress: Progress | None
) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """The figures, of how many images, and (name, reason) of those that can't be read."""
    if "train" not in source.splits or samples is source.splits["train"]:
        raise VitrailError(
            f"--knn and --probe learn from train/ and are scored elsewhere; {source.name} has no such two."
        )
    if source.multi_label:
        raise VitrailError("--knn and --probe are for data with one label per image.")
    known, kept, _ = answers_of(predictor, source.splits["train"], "features", batch, progress)
    asked, scored, problems = answers_of(predictor, samples, "features", batch, progress)
    targets = Classify(source.classes).targets([sample.labels for sample in kept])
    truth = np.array([sample.labels[0] for sample in scored])
    figures: dict[str, float] = {"n": len(scored)}
    if knn:
        figures["knn_top1"] = metrics.top_k(nearest_neighbours(known, targets, asked).numpy(), truth, 1)
    if probe:
        chances = solve_probe(known, targets)(asked).softmax(dim=1)
        figures["probe_top1"] = metrics.top_k(chances.numpy(), truth, 1)
    return figures, problems
