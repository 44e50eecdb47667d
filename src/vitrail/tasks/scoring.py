"""What the evaluations of all tasks share: which images are scored, which class is which, and the answers."""

from collections import Counter
from collections.abc import Callable, Sequence
from os import fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.samples import Sample, Source, plural, some
from vitrail.data.split import place, read_split
from vitrail.errors import VitrailError, nearest
from vitrail.tasks.context import is_refitted
from vitrail.weights import read_checkpoint

Progress = Callable[[str, int, int], None]
REFITTED = (
    "{} of them had been held out, and were trained on once they had chosen (--refit): the figures from before that "
    "are in the report of the run; for others, evaluate on images that the model has never seen."
)


def scored_samples(source: Source, run: Any, split: str | None) -> tuple[list[Sample], str, list[str]]:
    """Which images are scored, how that split is called, and what to know about it."""
    if split is not None and split not in source.splits:
        hint = nearest(split, source.splits)
        raise VitrailError(f"{source.name} has no split {split}; it has {', '.join(source.splits)}.{hint}")
    name = split or next(name for name in ("test", "val", "all", "train") if name in source.splits)
    samples, places = source.splits[name], places_in_training(run)
    part = [places.get(place(sample)) for sample in samples]
    again = [REFITTED.format(plural(part.count("again"), "image"))] if "again" in part else []
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


def places_in_training(run: Any) -> dict[str, str]:
    """For each image that a run used, by its place: "train"; "val" if it was chosen by, or "again" if the model was
    trained on it after that (--refit). `run` is a path, a `Run` or a `Predictor`."""
    source = run.source if hasattr(run, "source") else fspath(run)
    if source is None or not (folder := Path(source).expanduser()).exists():
        return {}
    table = (folder if folder.is_dir() else folder.parent) / "split.csv"
    if not table.is_file():
        return {}
    learned = "again" if _refitted(table.parent) else "val"
    return {where: learned if split == "val" else split for where, split in read_split(table).items()}


def _refitted(folder: Path) -> bool:
    try:
        return is_refitted(read_checkpoint(folder / "model.safetensors").about)
    except VitrailError:
        return False


def class_indices(source: Source, predictor: Any) -> list[int]:
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


def answers_of(
    predictor: Any, samples: Sequence[Sample], what: str, batch_size: int, progress: Progress | None,
    flip: bool = False, crops: int = 1,
) -> tuple[Tensor, list[Sample], list[tuple[str, str]]]:  # fmt: skip
    """The rows of the readable images, which these are, and (name, reason) of the others."""
    rows, kept, problems = [], [], []
    outcomes = predictor.stream(samples, what, batch_size, flip, crops)
    for done, (sample, outcome) in enumerate(zip(samples, outcomes, strict=True), 1):
        if outcome.values is None:
            problems.append((sample.name, str(outcome.error)))
        else:
            rows.append(outcome.values)
            kept.append(sample)
        if progress:
            progress(what, done, len(samples))
    check_some(kept, problems)
    return torch.stack(rows), kept, problems


def check_some(kept: Sequence[Sample], problems: Sequence[tuple[str, str]]) -> None:
    if not kept:
        raise VitrailError(f"None of the {len(problems)} images can be read, for instance: {problems[0][1]}")
