"""`vitrail.evaluate`: how good a model is on labelled images, with intervals, and what its features are worth."""

from collections import Counter
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.samples import Sample, Source, plural, some
from vitrail.data.sources import open_source
from vitrail.data.split import place, read_split
from vitrail.data.spoof import MARGIN, open_faces
from vitrail.errors import VitrailError, nearest
from vitrail.predict import Predictor, load
from vitrail.report.content import DataProblems, ReportContent
from vitrail.report.model_report import write_report
from vitrail.tasks import metrics
from vitrail.tasks.classify import Classify
from vitrail.tasks.probe import nearest_neighbours, solve_probe
from vitrail.tasks.spoof_metrics import attack_scores
from vitrail.tasks.spoof_page import shown, spoof_content
from vitrail.train.finish import classification_content, illustrate
from vitrail.train.record import command_line, refitted, versions
from vitrail.train.spoof import scored_faces, spoof_notes
from vitrail.weights import read_checkpoint

Progress = Callable[[str, int, int], None]
AGAIN = (
    "{} of them had been held out, and taught it once they had chosen (--refit): the figures from before that are in "
    "the report of the run; for others, evaluate on images that it has never seen."
)


def evaluate(
    run: str | PathLike[str] | Predictor,
    data: str | PathLike[str],
    split: str | None = None,
    knn: bool = False,
    probe: bool = False,
    flip: bool = False,
    crops: int = 1,
    report: str | PathLike[str] | None = None,
    batch_size: int = 64,
    device: str | None = None,
    fit: str | None = None,
    image_size: int | None = None,
    progress: Progress | None = None,
    boxes: str | PathLike[str] | None = None,
    architecture: str | None = None,
) -> dict[str, Any]:
    """Figures of a model on DATA, flat, as fractions: top1, top5, macro_f1, ece, auroc (or map, macro_f1, micro_f1,
    auroc for several labels; miou, pixel_accuracy, boundary_f1, iou/CLASS of a segmenter; map, map50, map75, ap/CLASS
    of a detector), each with `_low` and `_high`, and `n`, `split`, `skipped`; besides, `notes` (sentences)
    and `problems` (name and reason of each image that can't be read).

    Scores test/, else val/, else all of it. `knn` and `probe` add the accuracy of nearest neighbours and of a linear
    probe on the model's features, fitted on train/. `report` writes a page like that of a training run.

    Of a model that tells live faces from attacks: eer, hter, acer, apcer, bpcer, auc, bpcer_at_apcer_1 (5, 10), at the
    threshold that its development set chose; `boxes` is a table of face boxes. `architecture` is what a bare checkpoint
    is a checkpoint of, where it could be several.
    """
    predictor = run if isinstance(run, Predictor) else load(run, architecture, image_size, device, fit)
    if predictor.task != "classify":
        if knn or probe or flip or crops > 1:
            raise VitrailError("--knn, --probe, --flip and --crops go with a classifier; this model was made to "
                               f"{predictor.task}.")  # fmt: skip
        return _evaluate_dense(predictor, run, fspath(data), split, report, batch_size, progress)
    if predictor.about.get("task") == "spoof":
        if knn or probe:
            raise VitrailError("--knn and --probe go with a classifier; this model tells live faces from attacks.")
        return _evaluate_spoof(predictor, run, data, split, flip, crops, report, batch_size, progress, boxes)
    if boxes is not None:
        raise VitrailError("--boxes goes with a model that tells live faces from attacks.")
    source = open_source(fspath(data), one_class=True)
    samples, name, notes = scored_samples(source, run, split)
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
    if classes is not None:
        rows, kept, problems = _run(predictor, samples, "probabilities", flip, crops, batch_size, progress)
        task = Classify(predictor.labels, predictor.multi_label)
        targets = task.targets([tuple(classes[i] for i in sample.labels) for sample in kept])
        figures |= score(predictor, rows, targets, classes)
        notes += _fewer_classes(source, predictor, classes)
        if report is not None:
            _report(report, predictor, source, task, rows, targets, kept, figures, name, problems, notes)
    if knn or probe:
        found, unread = _feature_quality(predictor, source, samples, knn, probe, batch_size, progress)
        figures, problems = figures | found, problems or unread
    return figures | {"split": name, "skipped": len(problems), "notes": notes, "problems": problems}


def _evaluate_dense(
    predictor: Predictor, run: Any, data: str, split: str | None, report: Any, batch: int, progress: Progress | None
) -> dict[str, Any]:
    """Pictures in their own size, by what `predictor.segment` or `.detect` says of them."""
    from vitrail.data.boxes import open_boxes
    from vitrail.data.masks import open_masks
    from vitrail.tasks.segment import Segment
    from vitrail.tasks.segment_pictures import palette
    from vitrail.train.dense.finish import dense_content, measure_boxes, measure_masks

    labels, about = predictor.labels, predictor.about

    def show(done: int, total: int) -> None:
        if progress:
            progress(f"{predictor.task}ed pictures", done, total)

    source: Any
    kept: Any
    problems: list[tuple[str, str]]
    if predictor.task == "segment":
        source = open_masks(data)
        samples, name, notes = scored_samples(source, run, split)
        indices, colours = class_indices(source, predictor), palette(len(labels), about.get("colours"))
        found, kept, problems = measure_masks(
            Segment(labels), samples,  # type: ignore[arg-type]
            lambda images: (found.mask for found in predictor.segmentations(images, batch_size=batch)), indices,
            colours, show, report is not None,
        )  # fmt: skip
    else:
        source = open_boxes(data)
        samples, name, notes = scored_samples(source, run, split)
        masks = predictor.model.settings.head == "mask_rcnn" and source.outlined  # type: ignore[union-attr]
        found, kept, problems = measure_boxes(
            labels, samples,  # type: ignore[arg-type]
            lambda images: (each.found for each in predictor.detections(images, 0.0, batch)),
            class_indices(source, predictor), masks, about.get("threshold", 0.5), show, report is not None,
        )  # fmt: skip
    notes += source.notes
    if report is not None:
        parts = dense_content(found)
        _write(report, predictor, source, parts.pop("figures"), kept, name, problems, notes, parts)
    return found.figures | {"split": name, "skipped": len(problems), "notes": notes, "problems": problems}


def _evaluate_spoof(
    predictor: Predictor, run: Any, data: Any, split: str | None, flip: bool, crops: int, report: Any, batch: int,
    progress: Progress | None, boxes: Any,
) -> dict[str, Any]:  # fmt: skip
    """At the threshold of the run, never at one of these faces' own."""
    margin = predictor.about.get("protocol", {}).get("margin")
    source = open_faces(data, boxes=boxes, margin=MARGIN if margin is None else margin, training=False)
    places = _places_in_training(run)
    tested = [face for faces in source.splits.values() for face in faces if places.get(place(face)) == "test"]
    samples, name, notes = tested, "test", list[str]()  # set apart by the run's own protocol
    if split is not None or not tested:
        samples, name, notes = scored_samples(source, run, split)
    known = [face for faces in source.splits.values() for face in faces if places.get(place(face)) == "train"]
    notes += [*spoof_notes(samples, known, predictor.labels, margin is not None), *source.notes]
    rows, kept, problems = _run(predictor, samples, "probabilities", flip, crops, batch, progress)
    threshold = predictor.about.get("threshold", 0.5)
    scored = scored_faces(attack_scores(rows.numpy()), kept)
    figures = scored.figures(threshold)
    if report is not None:
        parts = spoof_content(scored, threshold, "which the development set of its training chose")
        for picture in parts["mistakes"]:
            illustrate(picture, kept)
        _write(report, predictor, source, shown(figures), kept, name, problems, notes, parts)
    return figures | {"split": name, "skipped": len(problems), "notes": notes, "problems": problems}


def score(
    predictor: Predictor, probabilities: Tensor, targets: Tensor, among: Sequence[int] | None = None
) -> dict[str, float]:
    """`among` are the classes of the data, where the model may know more: means over classes are over these."""
    chances, truth = probabilities.numpy().astype(np.float64), targets.numpy()
    if predictor.multi_label:
        thresholds = np.array(predictor.thresholds)
        return metrics.multi_label_figures(chances, truth > 0.5, predictor.labels, thresholds, among=among)
    return metrics.classification_figures(chances, truth.argmax(axis=1), predictor.labels, among=among)


def _fewer_classes(source: Source, predictor: Predictor, classes: Sequence[int]) -> list[str]:
    known, here = len(predictor.labels), len({*classes})
    note = (
        f"The model knows {known:,} classes and {source.name} has {here:,} of them: macro F1 and AUROC are means over "
        f"{'that one' if here == 1 else f'these {here:,}'}, and any other answer is a mistake."
    )
    return [note] if here < known else []


def scored_samples(source: Source, run: Any, split: str | None) -> tuple[list[Sample], str, list[str]]:
    """Which images are scored, how that split is called, and what to know about it."""
    if split is not None and split not in source.splits:
        hint = nearest(split, source.splits)
        raise VitrailError(f"{source.name} has no split {split}; it has {', '.join(source.splits)}.{hint}")
    name = split or next(name for name in ("test", "val", "all", "train") if name in source.splits)
    samples, places = source.splits[name], _places_in_training(run)
    part = [places.get(place(sample)) for sample in samples]
    again = [AGAIN.format(plural(part.count("again"), "image"))] if "again" in part else []
    part = ["train" if where == "again" else where for where in part]
    trained, chose = part.count("train"), part.count("val")
    if trained and name == "all" and trained < len(samples):
        samples = [sample for sample, where in zip(samples, part, strict=True) if where != "train"]
        note = f"{plural(trained, 'image')} of {source.name} trained this model: only the others count."
        return samples, "held out in training" if chose else "new since training", [note, *_chose(chose)]
    if trained:
        note = f"{plural(trained, 'image')} of these trained this model: the figures flatter it."
        return samples, name, [note, *again]
    return samples, name, _chose(chose)


def _chose(count: int) -> list[str]:
    note = f"{plural(count, 'image')} of these chose what was kept of this model: expect less on new ones."
    return [note] if count else []


def _places_in_training(run: Any) -> dict[str, str]:
    """For each image that a run used, by its place: "train"; "val" if it was chosen by, or "again" if it taught the
    model after that (--refit)."""
    source = run.source if isinstance(run, Predictor) else fspath(run)
    if source is None or not (folder := Path(source).expanduser()).exists():
        return {}
    table = (folder if folder.is_dir() else folder.parent) / "split.csv"
    if not table.is_file():
        return {}
    learned = "again" if _refitted(table.parent) else "val"
    return {where: learned if split == "val" else split for where, split in read_split(table).items()}


def _refitted(folder: Path) -> bool:
    """Has the run learned, in the end, from what it had validated on? Not before it is finished."""
    try:
        return refitted(read_checkpoint(folder / "model.safetensors").about)
    except VitrailError:
        return False


def class_indices(source: Source, predictor: Predictor) -> list[int]:
    """For each class of the data, the model's index: by its name, however it is spelled; or by its number, where the
    classes of the data are numbers and those of the model are not: all of them, or written as 0001."""
    labels = {label: index for index, label in reversed([*enumerate(predictor.labels)])}
    spelled = Counter(map(_plain, labels))
    # What differs from another in its spelling alone has to be spelled right.
    alike = {_plain(label): index for label, index in labels.items() if spelled[_plain(label)] == 1}
    asked = Counter(map(_plain, source.classes))
    found = [labels.get(name, alike.get(_plain(name)) if asked[_plain(name)] == 1 else None) for name in source.classes]
    known = [index for index in found if index is not None]
    if len(known) == len(found):
        return known
    numbered = all(name.isdigit() and int(name) < len(predictor.labels) for name in source.classes)
    padded = any(len(name) > 1 and name[0] == "0" for name in source.classes)
    if numbered and (padded or len(source.classes) == len(predictor.labels)) and not any(map(str.isdigit, labels)):
        return [int(name) for name in source.classes]
    if not predictor.labels:
        name = predictor.name or "This model"
        raise VitrailError(f"{name} has no classes to measure; it gives features: use --knn or --probe.")
    unknown = [name for name, index in zip(source.classes, found, strict=True) if index is None]
    raise VitrailError(
        f"{source.name} has classes that this model does not know: {some(unknown)}; it knows {some(predictor.labels)}."
    )


def _plain(name: str) -> str:
    """A folder is called english_springer where a label is "English springer"."""
    return name.lower().replace("_", " ").replace("-", " ").strip()


def _run(
    predictor: Predictor,
    samples: list[Sample],
    what: str,
    flip: bool,
    crops: int,
    batch: int,
    progress: Progress | None,
) -> tuple[Tensor, list[Sample], list[tuple[str, str]]]:
    """The rows of the readable images, which these are, and (name, reason) of the others."""
    rows, kept, problems = [], [], []
    outcomes = predictor.stream(samples, what, batch, flip, crops)
    for done, (sample, outcome) in enumerate(zip(samples, outcomes, strict=True), 1):
        if outcome.values is None:
            problems.append((sample.name, str(outcome.error)))
        else:
            rows.append(outcome.values)
            kept.append(sample)
        if progress:
            progress(what, done, len(samples))
    if not rows:
        raise VitrailError(f"None of the {len(samples)} images can be read, for instance: {problems[0][1]}")
    return torch.stack(rows), kept, problems


def _feature_quality(
    predictor: Predictor,
    source: Source,
    samples: list[Sample],
    knn: bool,
    probe: bool,
    batch: int,
    progress: Progress | None,
) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """The figures, of how many images, and (name, reason) of those that can't be read."""
    if "train" not in source.splits or samples is source.splits["train"]:
        raise VitrailError(
            f"--knn and --probe learn from train/ and are scored elsewhere; {source.name} has no such two."
        )
    if source.multi_label:
        raise VitrailError("--knn and --probe are for data with one label per image.")
    task = Classify(source.classes)
    known, kept, _ = _run(predictor, source.splits["train"], "features", False, 1, batch, progress)
    asked, scored, problems = _run(predictor, samples, "features", False, 1, batch, progress)
    targets = task.targets([sample.labels for sample in kept])
    truth = np.array([sample.labels[0] for sample in scored])
    figures: dict[str, float] = {"n": len(scored)}
    if knn:
        figures["knn_top1"] = metrics.top_k(nearest_neighbours(known, targets, asked).numpy(), truth, 1)
    if probe:
        chances = solve_probe(known, targets)(asked).softmax(dim=1)
        figures["probe_top1"] = metrics.top_k(chances.numpy(), truth, 1)
    return figures, problems


def _report(
    path: Any, predictor: Predictor, source: Source, task: Classify, rows: Tensor, targets: Tensor, kept: list[Sample],
    figures: dict[str, float], split: str, problems: list[tuple[str, str]], notes: list[str],
) -> None:  # fmt: skip
    # The page works on logits; the log of a probability is one.
    logits = torch.logit(rows.double(), 1e-12) if predictor.multi_label else rows.double().clamp_min(1e-300).log()
    thresholds = predictor.thresholds if predictor.multi_label else None
    parts = classification_content(task, logits, targets, kept, thresholds)
    _write(path, predictor, source, figures, kept, split, problems, notes, parts)


def _called(predictor: Predictor) -> str:
    """A run by its folder: many are of one architecture."""
    place = Path(predictor.source or "").expanduser()
    return place.name if predictor.source and place.is_dir() else predictor.name or "Model"


def _write(
    path: Any, predictor: Predictor, source: Source, figures: dict[str, Any], kept: list[Sample], split: str,
    problems: list[tuple[str, str]], notes: list[str], parts: dict[str, Any],
) -> None:  # fmt: skip
    write_report(
        Path(path),
        ReportContent(
            title=f"{_called(predictor)} on {source.name}",
            figures=figures,
            split=f"{len(kept):,} images ({split})",
            classes=predictor.labels,
            problems=DataProblems(unreadable=problems),
            command=command_line(),
            versions=versions(predictor.device),
            notes=notes,
            **parts,
        ),
    )
