"""What a report shows of a detector of attacks: how the scores lie, what either error costs, and whom it fails on."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from vitrail.tasks.charts import THIN, escape, framed, number, percent
from vitrail.tasks.report import Picture
from vitrail.tasks.spoof.metrics import LEVELS, Scored

MEANINGS = {
    "eer": ("EER", "where as many attacks pass as live faces are turned away; lower is better"),
    "hter": ("HTER", "mean of the two errors at the threshold, all attacks together"),
    "acer": ("ACER", "mean of the two errors at the threshold, of the worst attack type"),
    "apcer": ("APCER", "attacks that pass for live at the threshold, of the worst type"),
    "bpcer": ("BPCER", "live faces that are turned away at the threshold"),
    "auc": ("AUC", f"how often an attack scores above a live face; 50{THIN}% is chance"),
} | {
    f"bpcer_at_apcer_{round(100 * level)}": (
        f"BPCER at APCER {level:.0%}".replace("%", f"{THIN}%"),
        "live faces turned away where no attack type passes more often than that",
    )
    for level in LEVELS
}
SCORES = (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)  # ticks of the axis of scores
RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # ticks of the axes of errors
BINS = 36
MOST = 24  # pictures of errors
READ = 160  # points of a curve that can be read off


def spoof_content(scored: Scored, threshold: float, chosen: str) -> dict[str, Any]:
    """Parts of a `ReportContent`; `chosen` says where the threshold comes from. The pictures want their images."""
    both = scored.live.any() and not scored.live.all()
    charts = score_chart(scored, threshold) + (det_chart(scored, threshold) if both else "")
    said = (
        f'<p class="note">A face is taken for an attack from a score of {number(threshold)} on, {escape(chosen)}. The '
        "score is 1 − P(live), drawn by its odds, so that both ends can be seen; point at a chart to read it.</p>"
    )
    sections = [("scores", "How the scores lie", f'{said}<div class="charts two">{charts}</div>')]
    if len(scored.types) > 1:
        sections.append(("attacks", "Attack by attack", _types(scored, threshold)))
    if rows := scored.by_subject(threshold):
        sections.append(("subjects", "Person by person", _subjects(rows)))
    return {"sections": sections, "mistakes": errors(scored, threshold), "meanings": MEANINGS}


def shown(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that stand at the head of a page; the others are in its tables."""
    keys = [key for name in MEANINGS for key in (name, f"{name}_low", f"{name}_high")]
    return {key: figures[key] for key in [*keys, "n"] if key in figures}


def errors(scored: Scored, threshold: float, count: int = MOST) -> list[Picture]:
    """The faces on the wrong side, the farthest first."""
    taken = scored.scores >= threshold
    wrong = np.flatnonzero(taken == scored.live)
    far = np.abs(_odds(scored.scores[wrong]) - _odds(np.array([threshold])))
    pictures = []
    for place in wrong[np.argsort(-far, kind="stable")][:count].tolist():
        chance, live = float(scored.scores[place]), bool(scored.live[place])
        true, said = ("live", "attack") if live else (str(scored.attacks[place]), "live")
        pictures.append(Picture(true, said, chance if live else 1 - chance, index=place))
    return pictures


def score_chart(scored: Scored, threshold: float, size: tuple[int, int] = (460, 300)) -> str:
    """Two histograms over one axis, each of its own kind's share: attacks filled, live faces as a line."""
    width, height = size
    left, right, top, bottom = 44, 12, 10, 30
    end = float(_odds(np.array([SCORES[-1]]))[0]) * 1.15
    edges = np.linspace(-end, end, BINS + 1)
    odds = np.clip(_odds(scored.scores), -end, end)
    shares = [np.histogram(odds[kind], edges)[0] / max(1, kind.sum()) for kind in (~scored.live, scored.live)]
    most = max(float(np.max(shares)), 1e-9)
    floor, step = height - bottom, (width - left - right) / BINS

    def across(value: float) -> float:
        return left + (width - left - right) * (min(max(value, -end), end) + end) / (2 * end)

    def down(share: float) -> float:
        return floor - (floor - top) * share / most

    parts = []
    for share in (0.0, most / 2, most):
        y = f"{down(share):.1f}"
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick end" x="{left - 6}" y="{y}" dy=".32em">{percent(share, 0)}</text>')
    for score in SCORES:
        x = across(float(_odds(np.array([score]))[0]))
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{height - 10}">{score:g}</text>')
    for b, share in enumerate(shares[0]):
        if share:
            tall = floor - down(share)
            place = f'x="{left + b * step + 0.5:.1f}" y="{floor - tall:.1f}"'
            parts.append(f'<rect class="count" {place} width="{step - 1:.1f}" height="{tall:.1f}"/>')
    outline = "".join(
        f"{'L' if b else 'M'}{left + b * step:.1f} {down(share):.1f}H{left + (b + 1) * step:.1f}"
        for b, share in enumerate(shares[1])
    )
    parts.append(f'<path class="line plain" d="{outline}"/>')
    mark = across(float(_odds(np.array([threshold]))[0]))
    parts.append(f'<line class="mark" x1="{mark:.1f}" x2="{mark:.1f}" y1="{top}" y2="{floor}"/>')
    middles = (edges[1:] + edges[:-1]) / 2
    points = {
        "x": [round(left + (b + 0.5) * step, 1) for b in range(BINS)],
        "labels": [f"score {_short(1 / (1 + math.exp(-odd)))}" for odd in middles],
        "rest": int(np.argmin(np.abs(middles - float(_odds(np.array([threshold]))[0])))),
        "series": [
            {"name": "attacks", "y": [round(down(s), 1) for s in shares[0]], "text": [percent(s) for s in shares[0]]},
            {"name": "live", "plain": True, "y": [round(down(s), 1) for s in shares[1]],
             "text": [percent(s) for s in shares[1]]},
        ],
    }  # fmt: skip
    wrong = scored.errors(threshold)
    description = (
        f"Scores of {int(scored.live.sum())} live faces and {int((~scored.live).sum())} attacks; above the threshold "
        f"lie {percent(wrong['bpcer'])} of the live faces, below it {percent(wrong['apcer'])} of the attacks."
    )
    return framed("Scores, as a share of each kind", description, size, "".join(parts), points, (top, floor))


def det_chart(scored: Scored, threshold: float, size: tuple[int, int] = (460, 300)) -> str:
    """The detection error trade-off: both errors on axes where normally distributed scores give a straight line."""
    width, height = size
    left, right, top, bottom = 52, 12, 10, 30
    curve = scored.curve()
    low = max(RATES[0], min(0.02, 0.5 / max(1, len(scored))))
    high = RATES[-1]
    ticks = [rate for rate in RATES if rate >= low]
    ends = _deviate(low), _deviate(high)

    def along(rate: float) -> float:
        return (_deviate(min(max(rate, low), high)) - ends[0]) / (ends[1] - ends[0])

    def across(rate: float) -> float:
        return left + (width - left - right) * along(rate)

    def down(rate: float) -> float:
        return height - bottom - (height - top - bottom) * along(rate)

    parts = []
    for tick in ticks:
        x, y, label = f"{across(tick):.1f}", f"{down(tick):.1f}", f"{100 * tick:g}"
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<line class="grid" y1="{top}" y2="{height - bottom}" x1="{x}" x2="{x}"/>')
        parts.append(f'<text class="tick end" x="{left - 6}" y="{y}" dy=".32em">{label}{THIN}%</text>')
        parts.append(f'<text class="tick middle" x="{x}" y="{height - 10}">{label}</text>')
    corner = f'x1="{across(low):.1f}" y1="{down(low):.1f}" x2="{across(high):.1f}" y2="{down(high):.1f}"'
    parts.append(f'<line class="diagonal" {corner}/>')
    kinds = scored.types if len(scored.types) > 1 else []
    for kind in kinds:
        each = scored.curve(kind=kind)
        parts.append(f'<path class="line plain" d="{_steps(each.apcer, each.bpcer, across, down)}"/>')
    parts.append(f'<path class="line" d="{_steps(curve.apcer, curve.bpcer, across, down)}"/>')
    at = scored.place(threshold)
    parts.append(f'<circle class="point" cx="{across(curve.apcer[at]):.1f}" cy="{down(curve.bpcer[at]):.1f}" r="4"/>')
    inside = np.flatnonzero((curve.apcer >= low / 2) & (curve.apcer <= high))
    places = np.unique(np.r_[inside[:: max(1, len(inside) // READ)], at])
    points = {
        "x": [round(across(curve.apcer[i]), 1) for i in places],
        "labels": [f"threshold {_short(curve.thresholds[i])}" for i in places],
        "rest": int(np.flatnonzero(places == at)[0]),
        "series": [
            {"name": "attacks that pass", "bare": True, "y": None, "text": [percent(curve.apcer[i]) for i in places]},
            {"name": "live turned away", "bare": True, "y": [round(down(curve.bpcer[i]), 1) for i in places],
             "text": [percent(curve.bpcer[i]) for i in places]},
        ],
    }  # fmt: skip
    also = f" Dashed, each of {len(kinds)} attack types." if kinds else ""
    description = (
        f"Live faces turned away (BPCER) over attacks that pass (APCER). Equal at {percent(curve.eer)}; at the "
        f"threshold {percent(curve.apcer[at])} and {percent(curve.bpcer[at])}.{also}"
    )
    title = "BPCER over APCER (DET)"
    return framed(title, description, size, "".join(parts), points, (top, height - bottom))


def _steps(x: np.ndarray, y: np.ndarray, across: Any, down: Any) -> str:
    """A path that leaves out what can't be seen apart."""
    path: list[str] = []
    last = (math.inf, math.inf)
    for a, b in zip(x, y, strict=True):
        here = (across(a), down(b))
        if abs(here[0] - last[0]) + abs(here[1] - last[1]) > 0.3:
            path.append(f"{'L' if path else 'M'}{here[0]:.1f} {here[1]:.1f}")
            last = here
    return "".join(path)


def _types(scored: Scored, threshold: float) -> str:
    wrong = scored.errors(threshold)
    rows = []
    for kind in sorted(scored.types, key=lambda kind: -wrong[f"apcer/{kind}"]):
        curve = scored.curve(kind=kind)
        count = int((scored.attacks == kind).sum())
        cells = [escape(kind), number(count), percent(wrong[f"apcer/{kind}"])]
        cells += [percent(curve.eer), percent(curve.auc)] if scored.live.any() else ["–", "–"]
        rows.append(cells)
    return _table("Attack types", ["Attack", "Faces", "Pass for live (APCER)", "EER", "AUC"], rows)


def _subjects(rows: list[dict[str, Any]]) -> str:
    wrong = sum(row["errors"] > 0 for row in rows)
    said = f"{wrong} of {len(rows)} people with an error. An average hides whom a detector fails on: look at the rows."
    cells = [
        [f"<bdi>{escape(row['subject'])}</bdi>", number(row["live"]), percent(row["bpcer"]), number(row["attacks"]),
         percent(row["apcer"]), number(row["errors"])]
        for row in rows
    ]  # fmt: skip
    heads = ["Subject", "Live faces", "Turned away (BPCER)", "Attacks", "Pass for live (APCER)", "Errors"]
    return f'<p class="note">{said}</p>{_table("People", heads, cells)}'


def _table(caption: str, heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col" class="{"num" if i else ""}">{name}</th>' for i, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f'<td class="{"num" if i else ""}">{cell}</td>' for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll tall" tabindex="0" role="region" aria-label="{caption}"><table>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _odds(scores: np.ndarray) -> np.ndarray:
    """log(p / (1 − p)), finite."""
    p = np.clip(np.asarray(scores, np.float64), 1e-9, 1 - 1e-9)
    return np.log(p / (1 - p))


def _deviate(rate: float) -> float:
    return NormalDist().inv_cdf(rate)


def _short(score: float) -> str:
    """Digits where they are: 0.0003, 0.42, 0.9997."""
    return f"{score:.2g}" if score < 0.9 else f"{score:.4f}".rstrip("0") if score < 1 else "1"
