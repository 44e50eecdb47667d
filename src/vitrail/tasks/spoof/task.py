"""The task of face anti-spoofing: classification of live faces against attack types, whose threshold the development
set chooses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.augment.images import Policy
from vitrail.data.inspect.faces import faces_as_they_are
from vitrail.data.loader import Subset
from vitrail.data.samples import Sample, Source
from vitrail.data.sources.faces import open_faces, write_faces
from vitrail.data.sources.faces.protocol import DEVELOPMENT
from vitrail.data.sources.faces.samples import Face, Faces
from vitrail.errors import VitrailError
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.base import Evaluation, Measured
from vitrail.tasks.classify.page import illustrate
from vitrail.tasks.classify.plan import TINY, plan_classifier, policy_of, rate_for_batch
from vitrail.tasks.classify.task import ClassifyTask
from vitrail.tasks.context import Context
from vitrail.tasks.planning import Choices, Facts, by
from vitrail.tasks.spoof.evaluate import evaluate_faces, scored_faces
from vitrail.tasks.spoof.metrics import attack_scores
from vitrail.tasks.spoof.objective import Spoof, even_weights
from vitrail.tasks.spoof.options import EXPECTS, OPTIONS
from vitrail.tasks.spoof.page import shown, spoof_content


class SpoofTask(ClassifyTask):
    name = "spoof"
    figure = "auc"
    titles = {"auc": "AUC", "eer": "EER"}
    short = {"auc": "AUC"}
    listed = {
        "eer": "EER",
        "hter": "HTER at its threshold",
        "acer": "ACER at its threshold",
        "apcer": "APCER (attacks that pass)",
        "bpcer": "BPCER (live turned away)",
        "auc": "AUC",
        "bpcer_at_apcer_1": "BPCER at APCER 1 %",
        "bpcer_at_apcer_5": "BPCER at APCER 5 %",
        "bpcer_at_apcer_10": "BPCER at APCER 10 %",
    }
    kinds = {"apcer": "APCER"}
    options = OPTIONS
    expects = EXPECTS
    by_name = False
    divides_itself = True
    objective_kind = Spoof

    def check(self, config: Config) -> None:
        if config.refit == "on":
            raise VitrailError(
                "--refit on would change the weights after their threshold was chosen: leave it out.",
                code="threshold_before_refit",
            )

    def open(self, data: str, config: Config, console: Any = None) -> Source:
        """Arranged by its protocol, the same each time."""
        names = ("protocol", "fold", "leave_out", "val", "seed", "boxes", "margin")
        return open_faces(data, **{name: config.get(name) for name in names})

    def write_split(self, ctx: Context, path: Path, samples: dict[str, list[Sample]]) -> None:
        write_faces(path, samples)

    def plan(self, config: Config, facts: Facts) -> Choices:
        """What gives an attack away is fine texture, colour and the edges of a print or screen: none of it is to be
        augmented away, and no live face mixed with an attack."""
        chosen, evidence = plan_classifier(config, facts), Reason("spoof_evidence")
        few = (by(facts.images, ((50_000, 10),), 5), Reason("spoof_epochs"))
        chosen |= {
            "epochs": few if facts.pretrained and not facts.masked else chosen["epochs"],
            "augment": ("light", Reason("spoof_light")),
            "mixup": (0.0, evidence),
            "cutmix": (0.0, evidence),
            "balance": ("sampling", Reason("spoof_sampling")),
            "val": (DEVELOPMENT, Reason("spoof_development")),
            "refit": ("off", Reason("threshold")),
        }
        rate_for_batch(chosen, config, facts)
        return chosen

    def settle(self, config: Config, why: dict[str, Reason], facts: Facts) -> Config:
        if config.calm > config.epochs:
            raise VitrailError(f"--calm {config.calm} is more than the {config.epochs} epochs of the run.")
        return config

    def policy(self, config: Config, size: tuple[int, int]) -> Policy:
        policy = Policy.named(config.augment)
        if policy.scale is None or max(size) <= TINY:
            return policy_of(config.augment, config.flip, size)
        if config.flip is not None:
            policy = replace(policy, flip=config.flip)
        return replace(policy, scale=(0.6, 1.0), ratio=(0.9, 1 / 0.9)) if config.augment == "light" else policy

    def figure_of(self, ctx: Context) -> str:
        return self.figure

    def drawing_weights(self, labels: Sequence[tuple[int, ...]], classes: int) -> np.ndarray:
        return even_weights(labels, classes)

    def groups(self, subset: Subset) -> list[str] | None:
        faces = [subset.samples[number] for number in subset.numbers]
        return [face.person or face.name for face in faces if isinstance(face, Face)]

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        """With the standard error of AUC over people: that over images would take luck for progress."""
        outputs, targets = self.outputs(ctx, model)
        error = scored_faces(ctx.objective.scored(outputs, targets)[0], ctx.validated()).auc_error()
        return ctx.objective.score(outputs, targets) | ({"auc_error": error} if isfinite(error) else {})

    def choosing(self, ctx: Context, model: nn.Module) -> float:
        """AUC; of equals, and on few people many are, the one of the smaller loss."""
        found = self.validate(ctx, model)
        return found["auc"] + 1e-6 * exp(-found["loss"])

    def measure(self, ctx: Context) -> Measured:
        scores, _ = ctx.objective.scored(*self.outputs(ctx, ctx.model))
        samples = ctx.validated()
        scored = scored_faces(scores, samples)
        threshold = scored.curve().threshold
        figures, header = scored.figures(threshold), {"threshold": threshold}
        if not ctx.processes.first:
            return Measured(figures, header)
        page = spoof_content(scored, threshold, "where these very faces have equal errors")
        for card in page["mistakes"]:
            illustrate(card, samples)
        return Measured(figures, header, page | {"figures": shown(figures)})

    def header(self, ctx: Context) -> dict[str, Any]:
        """Without the names of people: the file is passed on."""
        protocol = self._protocol(ctx)
        known = {key: protocol[key] for key in ("protocol", "fold", "leave_out", "margin") if key in protocol}
        shared = {pair: len(people) for pair, people in protocol.get("overlap", {}).items()}
        return super().header(ctx) | {"protocol": known | {"shared_subjects": shared}}

    def record_facts(self, ctx: Context) -> dict[str, Any]:
        return super().record_facts(ctx) | {"protocol": self._protocol(ctx)}

    def _protocol(self, ctx: Context) -> dict[str, Any]:
        return ctx.source.protocol if isinstance(ctx.source, Faces) else {}

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        return evaluate_faces(predictor, run, data, options)

    def after_evaluation(self, figures: Mapping[str, Any]) -> list[str]:
        if "bpcer" not in figures:
            return []
        return [f"(threshold {figures['threshold']:.4g}, which the development set of its training chose)"]

    def order(self, predictor: Any, probabilities: Tensor) -> list[int]:
        """First the answer at the threshold that the development set chose."""
        order = super().order(predictor, probabilities)
        attacked = attack_scores(probabilities[None].numpy())[0] >= predictor.about.get("threshold", 0.5)
        first = next(i for i in order if i) if attacked else 0
        return [first, *(i for i in order if i != first)]

    def explained_class(self, predictor: Any, x: Tensor) -> int | None:
        """The likeliest attack, also on a live face: what speaks for one."""
        with torch.inference_mode():
            return 1 + int(predictor.model(x)[0, 1:].argmax())

    def inspected(self, data: str) -> Source:
        return faces_as_they_are(data)
