"""`report.html`: what a model learned, how sure that is, and where it fails. Every section is made from the values of
a `ReportContent`, and left out if it has none; its HTML is in model_report.html."""

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.report.charts import Series, line_chart, reliability_chart
from vitrail.report.content import DataProblems, ImageCard, ReportContent, taken_for
from vitrail.report.findings import findings
from vitrail.report.heat_map import LARGEST_DRAWN, LARGEST_NAMED, heat_map, without_diagonal
from vitrail.report.numbers import THIN, number, percent
from vitrail.report.page import PARTS, Section, document, macros, name
from vitrail.whole import whole

# What a figure is called, and what it says to someone who has not met it.
FIGURES = {
    "top1": ("Top-1 accuracy", "the first guess is right"),
    "top5": ("Top-5 accuracy", "the right class is among five guesses"),
    "macro_f1": ("Macro F1", "precision and recall in one, every class counting alike"),
    "micro_f1": ("Micro F1", "precision and recall in one, every label counting alike"),
    "map": ("Mean average precision", "how well the images of a class are ranked before the others"),
    "auroc": ("AUROC", f"how often an image of a class is ranked above another; 50{THIN}% is chance"),
    "knn_top1": ("k-NN accuracy", "of the nearest neighbours among the model's features"),
    "probe_top1": ("Linear probe accuracy", "of a linear classifier on the model's features"),
    "knn_map": ("k-NN mean average precision", "of the nearest neighbours among the model's features"),
    "probe_map": ("Linear probe mean average precision", "of linear classifiers on the model's features"),
    "loss": ("Loss", "mean squared error over the hidden patches; lower is better"),
    "ece": ("Calibration error", "how far confidence lies from accuracy (ECE); lower is better"),
}
COLUMNS = {"f1": "F1", "iou": "IoU", "ap50": "AP at IoU 0.50", "average_precision": "Average precision"}
SCORES = {
    "top1": "top-1", "top5": "top-5", "map": "mAP", "macro_f1": "macro F1", "micro_f1": "micro F1",
    "knn_top1": "k-NN top-1", "knn_map": "k-NN mAP", "probe_top1": "linear probe top-1",
    "probe_map": "linear probe mAP", "miou": "mean IoU", "auc": "AUC", "eer": "EER",
}  # fmt: skip
HUES = ("", "rollout", "attention", "grad-cam", "random", "relevance")  # of the scores in one chart; "" is the accent
MOST_CLASSES, MOST_CARDS, MOST_PAIRS = 2000, 60, 15  # the page is for reading, and small enough to be mailed

HTML = macros("report/templates/model_report.html")


def write_report(path: str | Path, content: ReportContent) -> Path:
    """Writes the page, whole or not at all."""
    # A file name that is not UTF-8 reaches us with surrogates, which no encoding takes.
    with whole(Path(path)) as part:
        part.write_bytes(page(content).encode("utf-8", errors="replace"))
    return Path(path)


def page(content: ReportContent) -> str:
    """The whole document."""
    sections = [section for section in _sections(content) if section.body.strip()]
    return document(content.title, sections, content.summary, lead=_headline(content), links=True)


def _sections(content: ReportContent) -> Iterator[Section]:
    yield Section("images", content.gallery_title, _gallery(content.gallery))
    yield from content.sections
    yield Section("mistakes", "Most confident mistakes", _mistakes(content.mistakes))
    yield Section("hardest", "Hardest images", _hardest(content))
    yield Section("classes", "Per class", _class_table(content))
    yield Section("confusion", "Confusion matrix", _confusion(content))
    yield Section("calibration", "Calibration", _calibration(content))
    yield Section("training", "Training", _training(content))
    yield Section("data", "Problems in the data", _problems(content.problems))
    yield Section("recipe", "Recipe", _recipe(content.recipe))
    yield Section("reproduce", "Reproduce this run", HTML.reproduce(content.command, content.versions))


class Figure(NamedTuple):
    """A measured figure as it is shown; the bar and its band are in percent of the width."""

    name: str
    meaning: str
    value: str
    interval: str = ""
    bar: float | None = None
    band: tuple[float, float] | None = None  # from where, and how wide


def _headline(content: ReportContent) -> Markup:
    numbers = {key: float(value) for key, value in content.figures.items() if isinstance(value, Real) and key != "n"}
    keys = [key for key, value in numbers.items() if not key.endswith(("_low", "_high")) and math.isfinite(value)]
    names = {**FIGURES, **content.meanings}
    shown = [_figure(content, key, numbers, *names.get(key, (key.replace("_", " "), ""))) for key in keys]
    columns = 2 if len(keys) > 4 else max(len(keys) - 1, 1)  # beside the first, which is larger
    ranges = any(key.endswith("_low") for key in numbers)
    return HTML.headline(content.split.rstrip("."), ranges, columns, shown, [*findings(content), *content.notes])


def _figure(content: ReportContent, key: str, numbers: Mapping[str, float], words: str, meaning: str) -> Figure:
    value, low, high = numbers[key], numbers.get(f"{key}_low"), numbers.get(f"{key}_high")
    share = content.is_share(key) and 0 <= value <= 1
    write = percent if share else number
    interval, band = "", None
    if low is not None and high is not None:
        interval = f"{100 * low:.1f} – {percent(high)}" if share else f"{number(low)} – {number(high)}"
        band = (100 * low, 100 * (high - low)) if share else None
    return Figure(words, meaning, write(value), interval, 100 * value if share else None, band)


def _gallery(gallery: Sequence[tuple[str, str]]) -> Markup:
    return Markup("").join(PARTS.figure(image, caption, words=caption, kind="painted") for caption, image in gallery)


def _mistakes(cards: Sequence[ImageCard]) -> Markup:
    words = "Wrong, and with high confidence. Look at these first: for some the label may be wrong, not the prediction."
    return PARTS.note(words) + PARTS.gallery(cards[:MOST_CARDS]) if cards else Markup()


def _hardest(content: ReportContent) -> Markup:
    if not content.hardest:
        return Markup()
    what = "The labels with the lowest probability" if content.multi_label else "The lowest probability of the label"
    also = ", without the images above" if content.mistakes else ""
    verb = "lowest" if content.multi_label else "predicted"
    return PARTS.note(f"{what}{also}.") + PARTS.gallery(content.hardest[:MOST_CARDS], verb)


class Cell(NamedTuple):
    """Of a table that can be sorted: by `order`, where the text itself won't do; the unknown, "", come last."""

    text: str | Markup
    order: str | None = None
    bar: str = ""  # the share that a bar behind the number shows


def _class_table(content: ReportContent) -> Markup:
    if not content.per_class:
        return Markup()
    table = content.per_class
    columns = [key for key in ("support", "recall", "precision", "f1") if key in table]
    columns += [key for key in table if key not in columns]
    start = next((key for key in ("f1", "iou", "recall", "average_precision") if key in columns), columns[0])
    values = np.asarray(table[start], dtype=float)
    measured = np.isfinite(values) & (np.asarray(table.get("support", values)) > 0)
    order = np.argsort(np.where(measured, values, np.inf), kind="stable")  # classes without an image come last
    heads = [content.unit if key == "support" else _column(key) for key in columns]
    rows = []
    for c in order[:MOST_CLASSES]:
        cells = [_class_cell(key, float(table[key][c])) for key in columns]
        if content.confusion is not None:
            cells.append(_mistaken(content, int(c)))
        rows.append((name(content.classes[c]), cells))
    few = f" {number(MOST_CLASSES)} of {number(len(order))} classes, the worst" if len(order) > MOST_CLASSES else ""
    legend = " Recall: how many of the class were found. Precision: how many said to be of the class are."
    note = f"The weakest{few} first; a heading sorts by its column.{legend if 'recall' in columns else ''}"
    return HTML.class_table(note, heads, columns.index(start), content.confusion is not None, rows)


def _class_cell(key: str, value: float) -> Cell:
    if key == "support":
        return Cell(number(value), f"{value:g}")
    return Cell(percent(value), f"{value:.6f}", f"{value:.3f}") if math.isfinite(value) else Cell("–", "")


def _mistaken(content: ReportContent, c: int) -> Cell:
    other = taken_for(content.confusion, c)
    if other is None:
        return Cell("", "0")
    words = Markup('{} <span class="muted">×{}</span>').format(name(content.classes[other[0]]), other[1])
    return Cell(words, str(other[1]))


def _confusion(content: ReportContent) -> Markup:
    if content.confusion is None or not np.sum(content.confusion):
        return Markup()
    matrix = np.asarray(content.confusion)
    wrong = without_diagonal(matrix)
    most = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [(*divmod(int(i), len(matrix)), int(wrong.flat[i])) for i in most if wrong.flat[i] > 0]
    rows = [[name(content.classes[r]), name(content.classes[c]), n, percent(n / matrix[r].sum())] for r, c, n in pairs]
    merged = math.ceil(len(matrix) / LARGEST_DRAWN)
    summed = " Only mistakes are coloured." if len(matrix) > LARGEST_NAMED else ""
    summed += f" Each cell sums {merged} × {merged} classes, in their order." if merged > 1 else ""
    note = (
        "A row is the label, a column the prediction; the stronger the colour, the larger the share of the row."
        f"{summed} Point at a cell, or use the arrow keys, to read it."
    )
    return HTML.confusion(note, heat_map(matrix, content.classes), rows)


def _calibration(content: ReportContent) -> Markup:
    table = content.reliability
    if table is None or not np.sum(table["count"]):
        return Markup()
    count = table["count"]
    rows = [
        [f"{percent(b / len(count), 0)} – {percent((b + 1) / len(count), 0)}",
         percent(table["confidence"][b]), percent(table["accuracy"][b]), int(count[b])]
        for b in range(len(count)) if count[b]
    ]  # fmt: skip
    unit = "labels" if content.multi_label else "images"
    return HTML.calibration(reliability_chart(table), rows, unit, content.figures.get("ece"))


def _training(content: ReportContent) -> Markup:
    rows = [row for row in content.curves if _value(row, "epoch") is not None]
    if not rows:
        return Markup()
    x = [float(row["epoch"]) for row in rows]
    keys = [*dict.fromkeys(key for row in rows for key in row if _value(row, key) is not None)]
    mark = x.index(content.best_epoch) if content.best_epoch in x else None

    def line(key: str, words: str = "", plain: bool = False, hue: str = "") -> list[Series]:
        return [Series(words, [_value(row, key) for row in rows], plain, hue)] if key in keys else []

    scores: list[Series] = []
    names = {**content.scores, **SCORES}
    measured = [score for score in names if {f"train_{score}", f"val_{score}"} & {*keys}]
    for score, hue in zip(measured, HUES, strict=False):
        scores += line(f"train_{score}", f"training {names[score]}", plain=True)
        scores += line(f"val_{score}", f"validation {names[score]}", hue=hue)
    write = percent if all(map(content.is_share, measured)) else number
    small = (330, 190)
    main = [
        line_chart("Loss", x, line("train_loss", "training", plain=True) + line("val_loss", "validation"), mark=mark),
        line_chart("Accuracy" if "val_top1" in keys else "Score", x, scores, write, mark=mark),
    ]
    others = [
        line_chart("Learning rate", x, line("lr"), mark=mark, size=small),
        line_chart("Speed", x, line("images_per_second", "images/s"), mark=mark, size=small),
        line_chart("Waiting for data", x, line("data_wait"), percent, mark=mark, size=small),
    ]
    note = "Point at a chart, or use the arrow keys, to read an epoch."
    note += f" Kept: {content.kept}." if content.kept else ""
    note += "" if mark is None else f" The thin vertical line marks epoch {x[mark]:g}."
    cells = [[number(_value(row, key)) for key in keys] for row in rows]
    return HTML.training(note, main, others, [_column(key) for key in keys], cells)


def _problems(found: DataProblems) -> Markup:
    groups = [
        ("In more than one split", found.leaked,
         "The same image is in two splits: figures measured on it are optimistic."),
        ("With more than one label", found.conflicting, "The same image with different labels: which is right?"),
        ("Twice in one split", found.duplicates, "The same image counts more than once."),
    ]  # fmt: skip
    tables: list[tuple[str, list[str], Sequence[Sequence[object]], str]] = [
        (title, ["Files"], [[Markup("<br>").join(files)] for files in alike], note) for title, alike, note in groups
    ]
    tables.append(("Not readable", ["File", "Reason"], found.unreadable, ""))
    tables += [(title, ["File"], [[place] for place in places], "") for title, places in found.listed.items()]
    return HTML.problems(found.notes, [table for table in tables if table[2]])


def _recipe(recipe: Sequence[tuple[str, Any, str]]) -> Markup:
    rows = [[Markup("<code>{}</code>").format(option), value, why] for option, value, why in recipe]
    return PARTS.table("The options of this run", ["Option", "Value", "Why"], rows) if rows else Markup()


def _column(key: str) -> str:
    return COLUMNS.get(key, key.replace("_", " ").capitalize())


def _value(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    measured = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if measured else None  # type: ignore[arg-type]
