"""How a report looks: its sections as HTML, each from the values of a `ReportContent` and left out if it has none."""

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.tasks.charts import (
    LARGEST_DRAWN,
    LARGEST_NAMED,
    THIN,
    Series,
    escape,
    heat_map,
    line_chart,
    number,
    percent,
    reliability_chart,
    without_diagonal,
)
from vitrail.tasks.report import ReportContent, findings, taken_for
from vitrail.tasks.report_pieces import WINDOW, folded, gallery, isolated, tabled

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
MOST_CLASSES = 2000  # the page is for reading, and small enough to be mailed


def page(content: ReportContent) -> str:
    """The whole document."""
    here = Path(__file__)
    style, script = (here.with_name(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    sections = [section for section in _sections(content) if section[2]]
    links = "".join(f'<a href="#{key}">{key.capitalize()}</a>' for key, _, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{title}</h2>{inside}</section>'
        for key, title, inside in sections
    )
    # The policy makes sure of what the page promises: nothing is asked from outside, whatever a name may hold.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="generator" content="Vitrail">'
        f"<title>{escape(content.title)}</title><style>{style}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the figures</a>{_header(content)}'
        f'<nav aria-label="Sections">{links}</nav><main id="main">{_headline(content)}{body}</main>'
        "<footer>Made by Vitrail. This page is complete in itself and asks for nothing from outside.</footer>"
        f"<script>{script}</script></body></html>\n"
    )


def _sections(content: ReportContent) -> Iterator[tuple[str, str, str]]:
    yield "pictures", content.gallery_title, _painted(content)
    yield from content.sections
    yield "mistakes", "Surest mistakes", _mistakes(content)
    yield "hardest", "Hardest images", _hardest(content)
    yield "classes", "Class by class", _class_table(content)
    yield "confusion", "What is taken for what", _confusion(content)
    yield "calibration", "Can its confidence be believed?", _calibration(content)
    yield "training", "Training", _training(content)
    yield "data", "Problems in the data", _problems(content)
    yield "recipe", "Recipe", _recipe(content)
    yield "reproduce", "To do it again", _reproduce(content)


def _header(content: ReportContent) -> str:
    summary = f"<p>{escape(content.summary)}</p>" if content.summary else ""
    return f"<header>{WINDOW}<div><h1>{escape(content.title)}</h1>{summary}</div></header>"


def _headline(content: ReportContent) -> str:
    numbers = {key: float(value) for key, value in content.figures.items() if isinstance(value, Real) and key != "n"}
    keys = [key for key, value in numbers.items() if not key.endswith(("_low", "_high")) and math.isfinite(value)]
    names = {**FIGURES, **content.meanings}
    cards = "".join(_figure(key, numbers, names, first=key == keys[0]) for key in keys)
    columns = 2 if len(keys) > 4 else max(len(keys) - 1, 1)  # beside the first, which is larger
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in [*findings(content), *content.notes])
    spread = any(key.endswith("_low") for key in numbers)
    how = f" Ranges are 95{THIN}% intervals." if spread else ""
    return (
        '<section id="figures" aria-label="Figures">'
        f'<p class="lead-in">Measured on {escape(content.split.rstrip("."))}.{how}</p>'
        f'<div class="figures" style="--columns:{columns}">{cards}</div>'
        + (f'<ul class="findings">{sentences}</ul>' if sentences else "")
        + "</section>"
    )


def _figure(key: str, figures: Mapping[str, float], names: Mapping[str, tuple[str, str]], first: bool) -> str:
    name, meaning = names.get(key, (key.replace("_", " "), ""))
    value, low, high = figures[key], figures.get(f"{key}_low"), figures.get(f"{key}_high")
    share = 0 <= value <= 1 and key != "loss"
    interval = band = bar = ""
    if low is not None and high is not None:
        words = f"{100 * low:.1f} – {percent(high)}" if share else f"{number(low)} – {number(high)}"
        interval = f'<p class="interval">{words}</p>'
        band = f'<i style="left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"></i>'
    if share:
        bar = f'<div class="gauge" aria-hidden="true"><b style="width:{100 * value:.2f}%"></b>{band}</div>'
    return (
        f'<div class="figure{" first" if first else ""}"><h3>{escape(name)}</h3>'
        f'<p class="value">{percent(value) if share else number(value)}</p>{interval}{bar}'
        f'<p class="meaning">{escape(meaning)}</p></div>'
    )


def _painted(content: ReportContent) -> str:
    return "".join(
        f'<figure class="painted"><img src="{image}" alt="{escape(caption)}"><figcaption>{escape(caption)}</figcaption>'
        "</figure>"
        for caption, image in content.gallery
    )


def _training(content: ReportContent) -> str:
    rows = [row for row in content.curves if _value(row, "epoch") is not None]
    if not rows:
        return ""
    x = [float(row["epoch"]) for row in rows]
    keys = {key for row in rows for key in row if _value(row, key) is not None}
    mark = x.index(content.best_epoch) if content.best_epoch in x else None

    def lines(*names: tuple[str, str, bool]) -> list[Series]:
        return [Series(name, [_value(row, key) for row in rows], plain) for key, name, plain in names if key in keys]

    scores = [
        (f"{split}_{key}", f"{word} {name}", split == "train")
        for key, name in SCORES.items()
        for split, word in (("train", "training"), ("val", "validation"))
    ]
    small = (330, 190)
    charts = [
        line_chart("Loss", x, lines(("train_loss", "training", True), ("val_loss", "validation", False)), mark=mark),
        line_chart("Accuracy" if "val_top1" in keys else "Score", x, lines(*scores), percent, mark=mark),
    ]
    others = [
        line_chart("Learning rate", x, lines(("lr", "", False)), mark=mark, size=small),
        line_chart("Speed", x, lines(("images_per_second", "images/s", False)), mark=mark, size=small),
        line_chart("Waiting for data", x, lines(("data_wait", "", False)), percent, mark=mark, size=small),
    ]
    kept = f" Kept: {content.kept}." if content.kept else ""
    kept += "" if mark is None else f" The fine upright line is epoch {x[mark]:g}."
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key in keys]
    cells = [[number(_value(row, key)) for key in columns] for row in rows]
    epochs = tabled("Every epoch", [_column(key) for key in columns], cells, numeric=range(len(columns)))
    return (
        f'<p class="note">Point at a chart, or use the arrow keys, to read an epoch.{kept}</p>'
        f'<div class="charts two">{"".join(charts)}</div><div class="charts three">{"".join(others)}</div>'
        f"<details><summary>The same as a table</summary>{epochs}</details>"
    )


def _class_table(content: ReportContent) -> str:
    if not content.per_class:
        return ""
    columns = [key for key in ("support", "recall", "precision", "f1") if key in content.per_class]
    columns += [key for key in content.per_class if key not in columns]
    start = next((key for key in ("f1", "iou", "recall", "average_precision") if key in columns), columns[0])
    values = np.asarray(content.per_class[start], dtype=float)
    known = np.isfinite(values) & (np.asarray(content.per_class.get("support", values)) > 0)
    order = np.argsort(np.where(known, values, np.inf), kind="stable")  # classes without an image come last
    taken = content.confusion is not None
    head = '<th scope="col"><button type="button">Class</button></th>'
    for key in columns:
        sort = ' aria-sort="ascending"' if key == start else ""
        words = content.unit if key == "support" else _column(key)
        head += f'<th scope="col" class="num"{sort}><button type="button">{escape(words)}</button></th>'
    head += '<th scope="col"><button type="button">Most often taken for</button></th>' if taken else ""
    few = f" {number(MOST_CLASSES)} of {number(len(order))} classes, the worst" if len(order) > MOST_CLASSES else ""
    rows = []
    for c in order[:MOST_CLASSES]:
        cells = f'<th scope="row">{isolated(content.classes[c])}</th>'
        for key in columns:
            value = float(content.per_class[key][c])
            if key == "support":
                cells += f'<td class="num" data-v="{value:g}">{number(value)}</td>'
            elif math.isfinite(value):
                cells += f'<td class="num bar" data-v="{value:.6f}" style="--v:{value:.3f}">{percent(value)}</td>'
            else:
                cells += '<td class="num" data-v="">–</td>'
        if taken:
            other = taken_for(content.confusion, int(c))
            if other is None:
                cells += '<td data-v="0"></td>'
            else:
                words = f'{isolated(content.classes[other[0]])} <span class="muted">×{other[1]}</span>'
                cells += f'<td data-v="{other[1]}">{words}</td>'
        rows.append(f"<tr>{cells}</tr>")
    legend = " Recall: how many of the class were found. Precision: how many said to be of the class are."
    legend = legend if "recall" in columns else ""
    return (
        f'<p class="note">The weakest{few} first; a heading sorts by its column.{legend}</p>'
        '<p class="filter"><label>Find a class <input type="search" autocomplete="off" spellcheck="false"></label> '
        f'<span class="muted" aria-live="polite">{len(rows)} classes</span></p>'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Table of classes"><table class="classes" '
        f"data-sortable><caption>Every class</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        "</table></div>"
    )


def _confusion(content: ReportContent) -> str:
    matrix = content.confusion
    if matrix is None or not np.sum(matrix):
        return ""
    matrix = np.asarray(matrix)
    wrong = without_diagonal(matrix)
    flat = np.argsort(-wrong, axis=None, kind="stable")[:15]
    pairs = [(*divmod(int(i), len(matrix)), int(wrong.flat[i])) for i in flat if wrong.flat[i] > 0]
    rows = [
        [isolated(content.classes[r]), isolated(content.classes[c]), str(n), percent(n / matrix[r].sum())]
        for r, c, n in pairs
    ]
    heads = ["Labelled", "Predicted", "Images", "Of the class"]
    listed = "<p>None: no image was mistaken.</p>"
    if rows:
        listed = tabled("The most frequent confusions", heads, rows, numeric=(2, 3))
    merged = math.ceil(len(matrix) / LARGEST_DRAWN)
    summed = " Only mistakes are coloured." if len(matrix) > LARGEST_NAMED else ""
    summed += f" Each cell sums {merged} × {merged} classes, in their order." if merged > 1 else ""
    return (
        '<p class="note">A row is the label, a column what the model said; the stronger the colour, the larger the '
        f"share of the row.{summed} Point at a cell, or use the arrow keys, to read it.</p>"
        f"{heat_map(matrix, content.classes)}<h3>The most frequent confusions</h3>{listed}"
    )


def _calibration(content: ReportContent) -> str:
    table = content.reliability
    if table is None or not np.sum(table["count"]):
        return ""
    unit = "labels" if content.multi_label else "images"
    rows = [
        [f"{percent(b / len(table['count']), 0)} – {percent((b + 1) / len(table['count']), 0)}",
         percent(table["confidence"][b]), percent(table["accuracy"][b]), str(int(table["count"][b]))]
        for b in range(len(table["count"])) if table["count"][b]
    ]  # fmt: skip
    words = tabled("Calibration by bin", ["Bin", "Claimed", "Right", unit.capitalize()], rows, numeric=(1, 2, 3))
    error = content.figures.get("ece")
    sentence = "" if error is None else f" The average distance is the calibration error, {percent(error)}."
    return (
        f'<div class="side"><div>{reliability_chart(dict(table))}</div><div><p>Of the {unit} that the model is '
        f"90{THIN}% sure of, it should get 90{THIN}% right: then a bar reaches the dashed diagonal. Above it the "
        f"model is better than it claims, below it is worse.{sentence}</p>"
        f"<p>Few {unit} in a bin tell little: the fine upright line is its 95{THIN}% interval, and the row beneath "
        f"says how many there are.</p>"
        f"<details><summary>The same as a table</summary>{words}</details></div></div>"
    )


def _mistakes(content: ReportContent) -> str:
    if not content.mistakes:
        return ""
    return (
        '<p class="note">Wrong, and sure of it. These are worth a look first: some may be wrong labels rather than '
        f"wrong predictions.</p>{gallery(content.mistakes)}"
    )


def _hardest(content: ReportContent) -> str:
    if not content.hardest:
        return ""
    what = (
        "The labels that got the lowest probability" if content.multi_label else "The lowest probability of the label"
    )
    also = ", without the images above" if content.mistakes else ""
    pictures = gallery(content.hardest, "gave" if content.multi_label else "said")
    return f'<p class="note">{what}{also}.</p>{pictures}'


def _problems(content: ReportContent) -> str:
    found = content.problems
    parts = [f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in found.notes)}</ul>"] if found.notes else []
    for groups, title, words in (
        (found.leaked, "In more than one split", "The same picture is in two splits: what is measured on it flatters."),
        (
            found.conflicting,
            "With more than one label",
            "The same picture, labelled in different ways: which is right?",
        ),
        (found.duplicates, "Twice in one split", "The same picture counts more than once."),
    ):
        if groups:
            rows = [["<br>".join(escape(name) for name in group)] for group in groups]
            parts.append(folded(title, ["Files"], rows, f"<p>{words}</p>"))
    if found.unreadable:
        rows = [[escape(name), escape(reason)] for name, reason in found.unreadable]
        parts.append(folded("Not readable", ["File", "Reason"], rows))
    for title, places in found.listed.items():
        parts.append(folded(title, ["File"], [[escape(place)] for place in places]))
    return "".join(parts)


def _recipe(content: ReportContent) -> str:
    rows = [[f"<code>{escape(name)}</code>", escape(value), escape(why)] for name, value, why in content.recipe]
    return tabled("The options of this run", ["Option", "Value", "Why"], rows) if rows else ""


def _reproduce(content: ReportContent) -> str:
    parts = []
    if content.command:
        parts.append(
            f'<div class="command"><pre tabindex="0"><code>{escape(content.command)}</code></pre>'
            '<button type="button" data-copy>Copy</button></div>'
        )
    if content.versions:
        pairs = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in content.versions.items())
        parts.append(f'<dl class="versions">{pairs}</dl>')
    return "".join(parts)


def _column(key: str) -> str:
    return COLUMNS.get(key, key.replace("_", " ").capitalize())


def _value(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]
