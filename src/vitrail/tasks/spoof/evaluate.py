"""Figures of a model that tells live faces from attacks, at the threshold that its development set chose."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.data.samples import Sample, plural, some
from vitrail.data.sources.faces import open_faces
from vitrail.data.sources.faces.samples import MARGIN, Face
from vitrail.data.split import place
from vitrail.errors import VitrailError
from vitrail.tasks.base import Evaluation
from vitrail.tasks.classify.page import illustrate
from vitrail.tasks.scoring import answers_of, places_in_training, scored_samples
from vitrail.tasks.spoof.metrics import Scored, attack_scores
from vitrail.tasks.spoof.page import shown, spoof_content


def evaluate_faces(predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
    """At the threshold of the run, never at one that these faces would choose."""
    if options["knn"] or options["probe"]:
        raise VitrailError("--knn and --probe go with a classifier; this model tells live faces from attacks.")
    margin = predictor.about.get("protocol", {}).get("margin")
    source = open_faces(data, boxes=options["boxes"], margin=MARGIN if margin is None else margin, training=False)
    places = places_in_training(run)
    tested = [face for faces in source.splits.values() for face in faces if places.get(place(face)) == "test"]
    samples, name, notes = tested, "test", list[str]()  # set apart by the run's own protocol
    if options["split"] is not None or not tested:
        samples, name, notes = scored_samples(source, run, options["split"])
    known = [face for faces in source.splits.values() for face in faces if places.get(place(face)) == "train"]
    notes += [*notes_on_faces(samples, known, predictor.labels, margin is not None), *source.notes]
    rows, kept, problems = answers_of(
        predictor, samples, "probabilities", options["batch_size"], options["progress"], options["flip"],
        options["crops"],
    )  # fmt: skip
    threshold = predictor.about.get("threshold", 0.5)
    scored = scored_faces(attack_scores(rows.numpy()), kept)
    figures = scored.figures(threshold)
    page: dict[str, Any] = {}
    if options["report"] is not None:
        page = spoof_content(scored, threshold, "which the development set of its training chose")
        for card in page["mistakes"]:
            illustrate(card, kept)
        page["figures"] = shown(figures)
    return Evaluation(figures, name, kept, problems, notes, page, source)


def scored_faces(scores: np.ndarray, samples: Sequence[Sample]) -> Scored:
    faces = [sample for sample in samples if isinstance(sample, Face)]
    return Scored(scores, [face.attack for face in faces], [face.person for face in faces])


def notes_on_faces(samples: Sequence[Sample], known: Sequence[Sample], labels: Sequence[str], cut: bool) -> list[str]:
    """What to know about faces before their figures are believed: whom and what training has seen, and how."""
    faces = [sample for sample in samples if isinstance(sample, Face)]
    people = {face.person for face in faces} & {face.person for face in known if isinstance(face, Face)} - {""}
    unseen = {face.attack for face in faces} - {*labels, ""}
    notes = []
    if people:
        notes.append(
            f"{plural(len(people), 'subject')} ({some(sorted(people))}) also trained the model: the figures flatter it."
        )
    if unseen:
        notes.append(
            f"{plural(len(unseen), 'attack type')} that the model was not trained on ({some(sorted(unseen))})."
        )
    if any((face.box is not None) != cut for face in faces):
        how = "on faces cut by their boxes" if cut else "without face boxes"
        notes.append(f"The model was trained {how}, and these are not.")
    return notes
