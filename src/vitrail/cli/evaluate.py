"""`vitrail evaluate`: figures of a model on labelled images."""

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

NAMES = {
    "top1": "accuracy (top 1)",
    "top5": "accuracy (top 5)",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "auroc": "AUROC",
    "ece": "calibration error (ECE)",
    "map": "mean average precision",
    "map50": "mAP at IoU 0.50",
    "map75": "mAP at IoU 0.75",
    "mask_map": "mAP of the outlines",
    "mask_map50": "mAP of the outlines at 0.50",
    "mask_map75": "mAP of the outlines at 0.75",
    "miou": "mean IoU",
    "pixel_accuracy": "pixel accuracy",
    "boundary_f1": "boundary F1",
    "eer": "EER",
    "hter": "HTER at its threshold",
    "acer": "ACER at its threshold",
    "apcer": "APCER (attacks that pass)",
    "bpcer": "BPCER (live turned away)",
    "auc": "AUC",
    "bpcer_at_apcer_1": "BPCER at APCER 1 %",
    "bpcer_at_apcer_5": "BPCER at APCER 5 %",
    "bpcer_at_apcer_10": "BPCER at APCER 10 %",
    "knn_top1": "k-NN on its features",
    "probe_top1": "linear probe on its features",
}

KINDS = {"iou": "IoU", "ap": "AP", "apcer": "APCER"}  # of a class


def evaluate(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    model: str | None = None,
    split: str | None = None,
    knn: bool = False,
    probe: bool = False,
    flip: bool = False,
    crops: Literal[1, 5, 9] = 1,
    json: Path | None = None,
    report: Path | None = None,
    fit: Literal["crop", "pad", "stretch", "native"] | None = None,
    image_size: int | None = None,
    boxes: Path | None = None,
    architecture: str | None = None,
    batch_size: int = 64,
    device: str | None = None,
) -> int:
    """Measures a model on labelled images: test/, else val/, else all of them. Exit code 1 if some can't be read.

    Args:
        data: Class folders, a CSV or Parquet table, tar shards, a torchvision name, or hf:NAME; for a run that
            segments, detects or judges faces, the like of what it was trained on.
        model: A run folder, a checkpoint, an ONNX file, hf://org/name, or a catalog name; by default the model that
            ships inside.
        split: Which part to score.
        knn: Also k-NN accuracy on the model's features, learnt from train/.
        probe: Also the accuracy of a linear probe on the model's features, learnt from train/.
        flip: Average with the mirror image.
        crops: Average over 1, 5 or 9 windows of each image.
        json: Also write the figures, as fractions from 0 to 1.
        report: Also write a page with the per-class table, the confusion matrix and the mistakes.
        fit: How an image is brought to the model's size; as the model was trained by default.
        image_size: Side to which images are brought; the model's own by default.
        boxes: A table of face boxes, for a model that tells live faces from attacks: path,left,top,width,height.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        batch_size: Images per forward pass.
        device: cpu or cuda; the GPU where there is one.
    """
    import vitrail
    from vitrail.cli.pictures import needed, report_skipped, writing
    from vitrail.data.existence import ANY, check_exists

    check_exists(data, ANY)
    from vitrail.console import Console

    model, view = needed(model), Console()
    shows: dict[str, Any] = {}

    def progress(what: str, done: int, total: int) -> None:
        shows.setdefault(what, view.reading(f"computing {what}"))(done, total)

    with writing(json) as file:  # opened first: better known now than after an hour of images
        figures = vitrail.evaluate(
            model, data, split, knn, probe, flip, crops, report, batch_size, device, fit, image_size, progress, boxes,
            architecture,
        )  # fmt: skip
        problems, notes = figures.pop("problems"), figures.pop("notes")
        if file is not None:
            jsonlib.dump(figures, file, indent=2)
    view.settle()
    print(f"{data}, {figures['split']}: {figures.get('n', 0):,} images")
    for name, title in NAMES.items():
        if name in figures:
            low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
            interval = f"   {100 * low:.1f} to {100 * high:.1f}" if low is not None and high is not None else ""
            print(f"  {title:<28} {100 * figures[name]:5.1f} %{interval}")
    for name in [name for name in figures if name.startswith(("iou/", "ap/", "apcer/"))]:
        kind, _, label = name.partition("/")
        print(f"  {f'{KINDS[kind]} of {label}':<28} {100 * figures[name]:5.1f} %")
    if any(name.endswith("_low") for name in figures):
        print("  (ranges: 95 % intervals)")
    if "bpcer" in figures:
        print(f"  (threshold {figures['threshold']:.4g}, which the development set of its training chose)")
    for note in notes:
        print(f"note: {note}")
    for name, path in (("Report", report), ("Figures", json)):
        if path is not None:
            print(f"{name}: {path}")
    bad = [reason if name in reason else f"{name}: {reason}" for name, reason in problems]
    return report_skipped(bad, figures.get("n", 0) + len(bad))
