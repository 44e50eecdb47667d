"""The task of regression: one or several numbers per image, from a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from vitrail.data.augment.images import Policy
from vitrail.data.samples import Sample, Source, plural
from vitrail.data.sources.values import ValueSource, check_varied, open_values, values_of, write_values
from vitrail.errors import VitrailError
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.report.numbers import number
from vitrail.tasks.base import Evaluation, Measured
from vitrail.tasks.classify.plan import fine_tuning_rate, plan_classifier, policy_of, rate_for_batch
from vitrail.tasks.context import Context
from vitrail.tasks.image_level import ImageTask
from vitrail.tasks.linear_probe import solve_heads
from vitrail.tasks.planning import Choices, Facts
from vitrail.tasks.problems import labelled_problems
from vitrail.tasks.regress.metrics import figure_resampled, regression_figures
from vitrail.tasks.regress.objective import Regress, Scale
from vitrail.tasks.regress.options import EXPECTS, OPTIONS, RegressOptions
from vitrail.tasks.regress.showing import MEANINGS, Value, ValueWriter, value_page, values_in
from vitrail.tasks.ridge import solve_ridge
from vitrail.tasks.scoring import answers_of, scored_samples

ROUNDS = 40  # of the bootstrap after an epoch, which only says what difference counts
OF_CLASSES = ("mixup", "cutmix", "label_smoothing")  # choices for a classifier, which mean nothing here
SHORT = {"r2": "R²", "mae": "MAE", "rmse": "RMSE", "spearman": "Spearman"}


class RegressTask(ImageTask):
    name = "regress"
    figure = "r2"
    titles = {name: title for name, (title, _) in MEANINGS.items()}
    short = SHORT
    listed = {"r2": "R²", "mae": "mean absolute error", "rmse": "RMSE", "spearman": "Spearman correlation"}
    kinds = SHORT
    answer = "values"
    predict_options = ("csv", "flip", "crops")
    options = OPTIONS
    expects = EXPECTS

    # -- data and plan -----------------------------------------------------------------------------------------------

    def open(self, data: str, config: Config, console: Any = None) -> ValueSource:
        options: RegressOptions = config.group("columns")
        source = open_values(data, options.column_names())
        check_varied(source)
        return source

    def targets_of(self, source: Source) -> str:
        return f"{plural(len(source.classes), 'number')} per image ({', '.join(source.classes)})"

    def truths(self, samples: Sequence[Sample]) -> Sequence[tuple[float, ...]]:
        return [sample.target for sample in samples]

    def write_split(self, ctx: Context, path: Path, samples: dict[str, list[Sample]]) -> None:
        write_values(path, samples, ctx.source.classes)

    def plan(self, config: Config, facts: Facts) -> Choices:
        chosen = {name: choice for name, choice in plan_classifier(config, facts).items() if name not in OF_CLASSES}
        chosen["augment"] = ("light", Reason("regress_light"))
        rate_for_batch(chosen, config, facts)
        return chosen

    def policy(self, config: Config, size: tuple[int, int]) -> Policy:
        return policy_of(config.augment, config.flip, size)

    # -- learning ----------------------------------------------------------------------------------------------------

    def is_share(self, figure: str) -> bool:
        return False

    def objective(self, ctx: Context) -> Regress:
        # The second training, on all images, goes on from weights that learned with the scale of the first.
        scale = ctx.parent.objective.scale if ctx.parent else Scale.of(values_of(ctx.samples["train"]))
        return Regress(ctx.source.classes, scale, ctx.config.loss)

    def tuning_rate(self, config: Config, score: float) -> tuple[float, Reason]:
        return fine_tuning_rate(score, config.batch_size or 64, config.tune, SHORT[self.figure])

    def solve_heads(self, ctx: Context, features: Sequence[Tensor], targets: Tensor) -> Tensor:
        return solve_heads(
            ctx.model, features, lambda inputs: solve_ridge(inputs, targets, seed=ctx.config.seed), ctx.processes
        )

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        outputs, targets = self.outputs(ctx, model)
        predicted, true = ctx.objective.in_units(outputs), ctx.objective.in_units(targets)
        figures = ctx.objective.score(outputs, targets)
        return figures | {"r2_error": float(np.std(figure_resampled("r2", predicted, true, ctx.config.seed, ROUNDS)))}

    def choosing(self, ctx: Context, model: nn.Module) -> float:
        return ctx.objective.score(*self.outputs(ctx, model))["r2"]

    # -- the end -----------------------------------------------------------------------------------------------------

    def measure(self, ctx: Context) -> Measured:
        outputs, _ = self.outputs(ctx, ctx.model)
        samples, columns = ctx.validated(), ctx.source.classes
        predicted, true = ctx.objective.in_units(outputs), values_of(samples)
        figures = regression_figures(predicted, true, columns)
        page = value_page(predicted, true, columns, figures, samples) if ctx.processes.first else {}
        return Measured(figures, page=page)

    def header(self, ctx: Context) -> dict[str, Any]:
        return {"scale": ctx.objective.scale.written()}

    def problems(self, ctx: Context, unreadable: dict[str, str]) -> Any:
        source = ctx.source
        return labelled_problems(ctx.samples, unreadable, source.notes, lambda one: ", ".join(source.words_of(one)))

    # -- use ---------------------------------------------------------------------------------------------------------

    def check_evaluation(self, options: Mapping[str, Any]) -> None:
        for name in ("knn", "probe", "boxes"):
            if options[name]:
                raise VitrailError(
                    f"--{name} says nothing of a model that was trained to regress: leave it out.",
                    code="option_of_another_task", option=name, task=self.name,
                )  # fmt: skip

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        source, columns = open_values(data, predictor.labels), predictor.labels
        samples, name, notes = scored_samples(source, run, options["split"])
        rows, kept, problems = answers_of(
            predictor, samples, "values", options["batch_size"], options["progress"], options["flip"], options["crops"]
        )
        predicted, true = rows.double().numpy(), values_of(kept)
        figures = regression_figures(predicted, true, columns)
        page = value_page(predicted, true, columns, figures, kept) if options["report"] is not None else {}
        return Evaluation(figures, name, kept, problems, notes + source.notes, page, source)

    def examined(self, data: str) -> Source:
        return open_values(data)

    def interpreted(self, predictor: Any, outputs: Tensor) -> Tensor:
        return Scale.read(predictor.about).in_units(outputs)

    def predictions(self, predictor: Any, answer: Tensor, top: int | None = None) -> list[Value]:
        if top is not None:
            raise VitrailError(
                "top chooses among classes, and this model gives numbers: leave it out.",
                code="option_of_another_task", option="top", task=self.name,
            )  # fmt: skip
        return values_in(predictor, answer)

    def order(self, predictor: Any, probabilities: Tensor) -> list[int]:
        """The columns as they come."""
        return [*range(len(predictor.labels))]

    def studio_row(self, predictor: Any, answer: Tensor, index: int) -> dict[str, Any]:
        """The bar shows where the number lies among those of training."""
        scale, value = Scale.read(predictor.about), float(answer[index])
        share = (value - scale.low[index]) / max(scale.high[index] - scale.low[index], 1e-12)
        row = super().studio_row(predictor, answer, index)
        return row | {"probability": min(max(share, 0.0), 1.0), "value": value, "text": number(value)}

    def writer(self, predictor: Any, options: Mapping[str, Any]) -> ValueWriter:
        return ValueWriter(predictor, options)

    def export_notes(self, about: Mapping[str, Any]) -> list[str]:
        scale = Scale.read(about)
        columns = ", ".join(f"× {std:.6g} + {mean:.6g}" for mean, std in zip(scale.mean, scale.std, strict=True))
        return [f"Its outputs are in deviations from the mean; in units, column by column: {columns}."]

    def inspected(self, data: str) -> Source:
        return open_values(data)
