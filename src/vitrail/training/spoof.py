"""`--task spoof`: a run of classification, live against attack types, whose threshold the development set chooses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn

from vitrail.data.samples import Sample, Source, plural, some
from vitrail.data.sources.faces import Face, Faces, open_faces, write_faces
from vitrail.data.subset import Subset
from vitrail.tasks.classify import Classify
from vitrail.tasks.spoof import Spoof, even_weights
from vitrail.tasks.spoof_metrics import Scored
from vitrail.tasks.spoof_page import shown, spoof_content
from vitrail.training.finish import illustrate
from vitrail.training.job import Job


def opener(recipe: dict[str, Any]) -> Callable[[str], Source]:
    """How the data of a run with these options is opened: arranged by its protocol, the same each time."""
    names = ("protocol", "fold", "leave_out", "val", "seed", "boxes", "margin")
    return lambda data: open_faces(data, **{name: recipe[name] for name in names})


def scored_faces(scores: np.ndarray, samples: Sequence[Sample]) -> Scored:
    faces = [sample for sample in samples if isinstance(sample, Face)]
    return Scored(scores, [face.attack for face in faces], [face.person for face in faces])


def spoof_notes(samples: Sequence[Sample], known: Sequence[Sample], labels: Sequence[str], cut: bool) -> list[str]:
    """What to know about faces before their figures are believed: whom and what training has seen, and how."""
    faces = [sample for sample in samples if isinstance(sample, Face)]
    people = {face.person for face in faces} & {face.person for face in known if isinstance(face, Face)} - {""}
    unseen = {face.attack for face in faces} - {*labels, ""}
    notes = []
    if people:
        notes.append(f"{plural(len(people), 'subject')} ({some(sorted(people))}) also trained it: the figures flatter.")
    if unseen:
        notes.append(f"{plural(len(unseen), 'attack type')} it has not learned from ({some(sorted(unseen))}).")
    if any((face.box is not None) != cut for face in faces):
        notes.append(
            f"It was trained {'on faces cut by their boxes' if cut else 'without face boxes'}, and these are not."
        )
    return notes


@dataclass
class SpoofJob(Job):
    kind: ClassVar[type[Classify]] = Spoof

    @property
    def protocol(self) -> dict[str, Any]:
        return self.source.protocol if isinstance(self.source, Faces) else {}

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"protocol": self.protocol}

    def about(self) -> dict[str, Any]:
        """Without the names of people: the file is passed on."""
        known = {key: self.protocol[key] for key in ("protocol", "fold", "leave_out", "margin") if key in self.protocol}
        shared = {pair: len(people) for pair, people in self.protocol.get("overlap", {}).items()}
        return super().about() | {"task": "spoof", "protocol": known | {"shared_subjects": shared}}

    def drawing_weights(self, labels: Sequence[tuple[int, ...]]) -> np.ndarray:
        return even_weights(labels, len(self.task.classes))

    def groups(self, images: Subset) -> list[str] | None:
        faces = [images.samples[number] for number in images.numbers]
        return [face.person or face.name for face in faces if isinstance(face, Face)]

    def validate(self, model: nn.Module) -> dict[str, float]:
        """With the standard error of AUC over people: that over pictures would take luck for progress."""
        logits, targets = self.logits(model)
        error = scored_faces(self.task.scored(logits, targets)[0], self.validated()).auc_error()
        return self.task.score(logits, targets) | ({"auc_error": error} if isfinite(error) else {})

    def figure(self, model: nn.Module) -> float:
        """AUC; of equals, and on few people many are, the likelier."""
        found = self.validate(model)
        return found["auc"] + 1e-6 * exp(-found["loss"])

    def measured(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        scores, _ = self.task.scored(*self.logits(self.model))
        samples = self.validated()
        scored = scored_faces(scores, samples)
        threshold = scored.curve().threshold
        figures, more = scored.figures(threshold), {"threshold": threshold}
        if not self.group.first:
            return figures, more, {}
        parts = spoof_content(scored, threshold, "where these very faces have equal errors")
        for picture in parts["mistakes"]:
            illustrate(picture, samples)
        return figures, more, parts

    def report(
        self, history: list[dict[str, Any]], best: dict[str, Any], figures: dict[str, Any], parts: dict[str, Any],
        unreadable: dict[str, str], summary: str, chose: bool,
    ) -> None:  # fmt: skip
        super().report(history, best, shown(figures), parts, unreadable, summary, chose)

    def write_split(self, path: Path, samples: dict[str, list[Sample]]) -> None:
        write_faces(path, samples)
