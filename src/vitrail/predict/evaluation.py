"""`vitrail.evaluate`: how good a model is on labelled images, with intervals, and what its features are worth."""

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from vitrail.environment import command_line, versions
from vitrail.predict import Predictor, load
from vitrail.report.content import DataProblems, ReportContent
from vitrail.report.model_report import write_report
from vitrail.tasks import registry
from vitrail.tasks.base import Evaluation
from vitrail.tasks.scoring import Progress


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
    threshold that its development set chose; `boxes` is a table of face boxes. Of one that gives numbers: r2, mae,
    rmse, spearman, in the units of the table, and mae/COLUMN. `architecture` is what a bare checkpoint
    is a checkpoint of, where it could be several.
    """
    predictor = run if isinstance(run, Predictor) else load(run, architecture, image_size, device, fit)
    options = {
        "split": split, "knn": knn, "probe": probe, "flip": flip, "crops": crops, "report": report,
        "batch_size": batch_size, "progress": progress, "boxes": boxes,
    }  # fmt: skip
    task = registry.task_of(predictor.about, predictor.model.settings)
    task.check_evaluation(options)
    found = task.evaluate(predictor, run, fspath(data), options)
    if report is not None and found.page:
        _write(Path(report), predictor, found)
    rest = {"split": found.split, "skipped": len(found.problems), "notes": found.notes, "problems": found.problems}
    return found.figures | rest


def _write(path: Path, predictor: Predictor, found: Evaluation) -> None:
    source = found.source.name if found.source else ""
    content = ReportContent(
        title=f"{_called(predictor)} on {source}",
        split=f"{len(found.samples):,} images ({found.split})",
        classes=predictor.labels,
        problems=DataProblems(unreadable=found.problems),
        command=command_line(),
        versions=versions(predictor.device),
        is_share=predictor.kind.is_share,
        notes=found.notes,
        **({"figures": found.figures} | found.page),
    )
    write_report(path, content)


def _called(predictor: Predictor) -> str:
    """A run by its folder: many are of one architecture."""
    place = Path(predictor.source or "").expanduser()
    return place.name if predictor.source and place.is_dir() else predictor.name or "Model"
