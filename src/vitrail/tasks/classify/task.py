"""The task of classification."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.images import Policy
from vitrail.data.loader import Subset
from vitrail.data.samples import Sample, Source, some
from vitrail.data.sources.classification import open_source
from vitrail.errors import VitrailError
from vitrail.options import Config, Options
from vitrail.reasons import Reason
from vitrail.tasks.base import Evaluation, Measured
from vitrail.tasks.classify.distillation import Distil
from vitrail.tasks.classify.evaluate import evaluate_classifier
from vitrail.tasks.classify.objective import SHORT, Classify, balancing_weights, sampling_weights
from vitrail.tasks.classify.options import EXPECTS, OPTIONS
from vitrail.tasks.classify.page import classification_page, figures_of
from vitrail.tasks.classify.plan import (
    MOVED,
    TINY,
    fine_tuning_rate,
    plan_classifier,
    policy_of,
    rate_for_batch,
)
from vitrail.tasks.classify.teacher import Teacher, how_good, load_teacher, with_reasons
from vitrail.tasks.classify.writing import ClassWriter
from vitrail.tasks.context import Context, header_of
from vitrail.tasks.image_level import ImageTask
from vitrail.tasks.linear_probe import solve_heads, solve_probe
from vitrail.tasks.planning import Choices, Facts
from vitrail.tasks.problems import class_problems

# Those of features alone included, which --knn and --probe ask for.
LISTED = {
    "top1": "accuracy (top 1)",
    "top5": "accuracy (top 5)",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "auroc": "AUROC",
    "ece": "calibration error (ECE)",
    "map": "mean average precision",
    "knn_top1": "k-NN on its features",
    "probe_top1": "linear probe on its features",
}


class ClassifyTask(ImageTask):
    name = "classify"
    titles = {"top1": "Accuracy", "map": "Mean average precision", "macro_f1": "Macro F1"}
    short = SHORT
    listed = LISTED
    options: ClassVar[tuple[type[Options], ...]] = OPTIONS
    expects = EXPECTS
    by_name = True
    objective_kind: type[Classify] = Classify

    # -- data and plan -----------------------------------------------------------------------------------------------

    def open(self, data: str, config: Config, console: Any = None) -> Source:
        return open_source(data)

    def truths(self, samples: Sequence[Sample]) -> Sequence[tuple[int, ...]]:
        return [sample.labels for sample in samples]

    def plan(self, config: Config, facts: Facts) -> Choices:
        chosen = plan_classifier(config, facts)
        chosen["balance"] = ("none", Reason("usual"))
        rate_for_batch(chosen, config, facts)
        return chosen

    def settle(self, config: Config, why: dict[str, Reason], facts: Facts) -> Config:
        if why.get("balance") != Reason("as_asked"):
            why.pop("balance", None)  # what nobody asked for and nobody chose is not worth a line
        if config.calm > config.epochs:
            raise VitrailError(
                f"--calm {config.calm} is more than the {config.epochs} epochs of the run.", code="calm_too_long"
            )
        if TINY < facts.side <= MOVED and config.augment != "none":
            why["augment"] = Reason("moved", reason=why["augment"], side=facts.side)
        return config

    def policy(self, config: Config, size: tuple[int, int]) -> Policy:
        return policy_of(config.augment, config.flip, size)

    # -- learning ----------------------------------------------------------------------------------------------------

    def figure_of(self, ctx: Context) -> str:
        return ctx.objective.figure

    def objective(self, ctx: Context) -> Classify:
        config, source = ctx.config, ctx.source
        plain = self.objective_kind(source.classes, source.multi_label, config.label_smoothing or 0.0)
        return plain if config.get("teacher") is None else self._taught(ctx, plain)

    def _taught(self, ctx: Context, plain: Classify) -> Distil:
        """With a teacher in the loss."""
        config, source = ctx.config, ctx.config.teacher
        if config.tune == "probe" and not ctx.parent:
            raise VitrailError(
                "--tune probe solves for a head from the labels alone: leave --teacher out.", code="probe_with_teacher"
            )
        if (path := Path(source).expanduser()).exists():  # to be found again from another folder
            source = str(path.absolute())
            ctx.given, ctx.config = ctx.given.replace(teacher=source), config.replace(teacher=source)
        elif ctx.resumed is not None and path.is_absolute():
            raise VitrailError(
                f"The teacher of this run is no longer at {source}: say where it is with --teacher.",
                code="teacher_gone", source=source,
            )  # fmt: skip
        if ctx.parent:
            teacher = ctx.parent.objective.teacher
        else:
            teacher = load_teacher(source, plain.classes, plain.multi_label, ctx.preprocessing, ctx.device)
        before = ctx.record.get("teacher", {}).get("weights", teacher.weights)
        if before != teacher.weights:
            raise VitrailError(
                f"The teacher {source} has other weights than when the run began: start a new run.",
                code="teacher_changed",
            )
        if ctx.is_new:
            ctx.why = with_reasons(ctx.why, teacher, ctx.model, config.tune)
        return Distil(
            plain.classes, plain.multi_label, plain.smoothing, None, teacher, config.distill == "hard",
            config.alpha or 0.0, config.temperature or 1.0,
        )  # fmt: skip

    def informed(self, ctx: Context) -> Classify:
        objective, train = ctx.objective, ctx.subsets["train"]
        if ctx.is_new:
            self._check_classes(ctx)
        if ctx.config.balance == "weights":
            weights = balancing_weights(train.labels(), len(objective.classes), objective.multi_label)
            # On the device: a step that is recorded as a CUDA graph can't fetch them.
            objective = replace(objective, class_weights=torch.from_numpy(weights).float().to(ctx.device))
        train.weights = self.draws(ctx, train)
        if getattr(objective, "teacher", None) is not None and "val" in ctx.subsets and ctx.resumed is None:
            known = objective.teacher.may_know(header_of(ctx, {}), "val" in ctx.source.splits)
            for line in how_good(objective.teacher, objective, ctx.subsets["val"], ctx.processes, ctx.dtype, known):
                ctx.console.line(line)
        return objective

    def _check_classes(self, ctx: Context) -> None:
        """Classes without a readable image are named; there must be two others to tell apart."""
        samples, classes = ctx.samples["train"], ctx.source.classes
        had = {label for sample in samples for label in sample.labels}
        has = {label for sample in samples if sample.name not in ctx.left_out for label in sample.labels}
        if not had - has:
            return
        lost = f"No image of {some([classes[label] for label in sorted(had - has)])} can be read"
        if len(has) < 2:
            raise VitrailError(
                f"{lost}, so there is nothing to tell apart: repair the files, or name other data.",
                code="nothing_to_tell_apart",
            )
        ctx.console.line(f"  note: {lost}: the model will not know it. Repair the files, or take the class out.")

    def draws(self, ctx: Context, subset: Subset) -> np.ndarray | None:
        if ctx.config.balance != "sampling":
            return None
        return self.drawing_weights(subset.labels(), len(ctx.source.classes))

    def drawing_weights(self, labels: Sequence[tuple[int, ...]], classes: int) -> np.ndarray:
        """How often each image is drawn, with --balance sampling."""
        return sampling_weights(labels, classes)

    def groups(self, subset: Subset) -> list[str] | None:
        """For cross-validation: images that are too alike to test one another have the same word; None: all differ."""
        return None

    def tuning_rate(self, config: Config, score: float) -> tuple[float, Reason]:
        return fine_tuning_rate(score, config.batch_size or 64, config.tune)

    def solve_heads(self, ctx: Context, features: Sequence[Tensor], targets: Tensor) -> Tensor:
        groups = self.groups(ctx.subsets["train as predicted"])

        def solve(inputs: Tensor) -> Any:
            return solve_probe(inputs, targets, ctx.objective.multi_label, seed=ctx.config.seed, groups=groups)

        return solve_heads(ctx.model, features, solve, ctx.processes)

    # -- the end -----------------------------------------------------------------------------------------------------

    def measure(self, ctx: Context) -> Measured:
        logits, targets = self.outputs(ctx, ctx.model)
        figures, header = figures_of(ctx.objective, logits, targets)
        if not ctx.processes.first:
            return Measured(figures, header)
        page = classification_page(ctx.objective, logits, targets, ctx.validated(), header.get("thresholds"))
        return Measured(figures, header, page)

    def header(self, ctx: Context) -> dict[str, Any]:
        teacher: Teacher | None = getattr(ctx.objective, "teacher", None)
        about = {"multi_label": ctx.source.multi_label}
        return about | ({"teacher": teacher.facts(shared=True)} if teacher else {})

    def record_facts(self, ctx: Context) -> dict[str, Any]:
        teacher: Teacher | None = getattr(ctx.objective, "teacher", None)
        return {"teacher": teacher.facts()} if teacher else {}

    def problems(self, ctx: Context, unreadable: dict[str, str]) -> Any:
        return class_problems(ctx.samples, ctx.source.classes, unreadable, ctx.source.notes)

    # -- use ---------------------------------------------------------------------------------------------------------

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        return evaluate_classifier(predictor, run, data, options)

    def writer(self, predictor: Any, options: Mapping[str, Any]) -> ClassWriter:
        return ClassWriter(predictor, options)

    def inspected(self, data: str) -> Source:
        return open_source(data)
