"""What a report shows of a presentation-attack detector: the scores, what either error costs, and whom it fails on."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.report.axes import Axes, Line, Readout
from vitrail.report.content import ImageCard
from vitrail.report.numbers import THIN, number, percent
from vitrail.report.page import PARTS, Section, name
from vitrail.tasks.spoof.metrics import LEVELS, Scored

MEANINGS = {
    "eer": ("EER", "where as many attacks pass as live faces are rejected; lower is better"),
    "hter": ("HTER", "mean of the two errors at the threshold, all attacks together"),
    "acer": ("ACER", "mean of the two errors at the threshold, of the worst attack type"),
    "apcer": ("APCER", "attacks accepted as live at the threshold, of the worst type"),
    "bpcer": ("BPCER", "live faces rejected at the threshold"),
    "auc": ("AUC", f"how often an attack scores above a live face; 50{THIN}% is chance"),
} | {
    f"bpcer_at_apcer_{round(100 * level)}": (
        f"BPCER at APCER {level:.0%}".replace("%", f"{THIN}%"),
        "live faces rejected where no attack type passes more often than that",
    )
    for level in LEVELS
}
SCORES = (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)  # ticks of the axis of scores
RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # ticks of the axes of errors
BINS = 36
MOST = 24  # images of errors
READ = 160  # points of a curve that can be read off
SIZE = (460, 300)


def spoof_content(scored: Scored, threshold: float, chosen: str) -> dict[str, Any]:
    """Parts of a `ReportContent`; `chosen` says where the threshold comes from. The cards want their images."""
    both = scored.live.any() and not scored.live.all()
    charts = score_chart(scored, threshold) + (det_chart(scored, threshold) if both else "")
    note = PARTS.note(
        f"A face is taken for an attack from a score of {number(threshold)} on, {chosen}. The score is 1 − P(live), "
        "on a scale of odds, so that both ends can be seen; point at a chart to read it."
    )
    body = note + Markup('<div class="charts two">{}</div>').format(charts)
    sections = [Section("scores", "Distribution of scores", body)]
    if len(scored.types) > 1:
        sections.append(Section("attacks", "Per attack type", _types(scored, threshold)))
    if rows := scored.by_subject(threshold):
        sections.append(Section("subjects", "Per subject", _subjects(rows)))
    return {"sections": sections, "mistakes": errors(scored, threshold), "meanings": MEANINGS}


def shown(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that stand at the head of a page; the others are in its tables."""
    keys = [key for figure in MEANINGS for key in (figure, f"{figure}_low", f"{figure}_high")]
    return {key: figures[key] for key in [*keys, "n"] if key in figures}


def errors(scored: Scored, threshold: float, count: int = MOST) -> list[ImageCard]:
    """The faces on the wrong side of the threshold, the farthest first."""
    taken = scored.scores >= threshold
    wrong = np.flatnonzero(taken == scored.live)
    far = np.abs(_odds(scored.scores[wrong]) - _odds(threshold))
    cards = []
    for place in wrong[np.argsort(-far, kind="stable")][:count].tolist():
        chance, live = float(scored.scores[place]), bool(scored.live[place])
        true, predicted = ("live", "attack") if live else (str(scored.attacks[place]), "live")
        cards.append(ImageCard(true, predicted, chance if live else 1 - chance, index=place))
    return cards


def score_chart(scored: Scored, threshold: float) -> Markup:
    """Two histograms over one axis, each of its own kind's share: attacks filled, live faces as a line."""
    end = float(_odds(SCORES[-1])) * 1.15
    edges = np.linspace(-end, end, BINS + 1)
    odds = np.clip(_odds(scored.scores), -end, end)
    attacks, live = (np.histogram(odds[kind], edges)[0] / max(1, kind.sum()) for kind in (~scored.live, scored.live))
    most, mark = max(float(attacks.max()), float(live.max()), 1e-9), float(_odds(threshold))
    axes = Axes.within(SIZE, (-end, end), (0, most), left=44)
    axes.ticks_y((0.0, most / 2, most), lambda share: percent(share, 0))
    axes.ticks_x(_odds(SCORES).tolist(), lambda odd: f"{_score(odd):g}")
    for share, start, stop in zip(attacks, edges, edges[1:], strict=False):
        if share:
            axes.bar("count", (start, stop), share)
    axes.path("line plain", edges.repeat(2)[1:-1], live.repeat(2))
    axes.upright("mark", mark)
    middles = (edges[1:] + edges[:-1]) / 2
    lines = [
        Line("attacks", [percent(share) for share in attacks], attacks),
        Line("live", [percent(share) for share in live], live, "line plain"),
    ]
    labels = [f"score {_short(_score(odd))}" for odd in middles]
    wrong = scored.errors(threshold)
    description = (
        f"Scores of {int(scored.live.sum())} live faces and {int((~scored.live).sum())} attacks; above the threshold "
        f"lie {percent(wrong['bpcer'])} of the live faces, below it {percent(wrong['apcer'])} of the attacks."
    )
    readout = Readout(middles, labels, lines, int(np.argmin(np.abs(middles - mark))))
    return axes.chart("Scores, as a share of each kind", description, SIZE, readout)


def det_chart(scored: Scored, threshold: float) -> Markup:
    """The detection error trade-off: both errors on axes where normally distributed scores give a straight line."""
    curve = scored.curve()
    low, high = max(RATES[0], min(0.02, 0.5 / max(1, len(scored)))), RATES[-1]
    ticks = [rate for rate in RATES if rate >= low]
    deviate = NormalDist().inv_cdf
    axes = Axes.within(SIZE, (low, high), (low, high), warp_x=deviate, warp_y=deviate)
    axes.ticks_y(ticks, lambda rate: f"{100 * rate:g}{THIN}%")
    axes.ticks_x(ticks, lambda rate: f"{100 * rate:g}", grid=True)
    axes.line("diagonal", (low, high), (low, high))
    kinds = scored.types if len(scored.types) > 1 else []
    for kind in kinds:
        each = scored.curve(kind=kind)
        axes.path("line plain", each.apcer, each.bpcer)
    axes.path("line", curve.apcer, curve.bpcer)
    at = scored.place(threshold)
    axes.point(curve.apcer[at], curve.bpcer[at], radius=4)
    inside = np.flatnonzero((curve.apcer >= low / 2) & (curve.apcer <= high))
    places = np.unique(np.r_[inside[:: max(1, len(inside) // READ)], at])
    apcer, bpcer = curve.apcer[places], curve.bpcer[places]
    lines = [
        Line("attacks accepted", [percent(rate) for rate in apcer], kind=""),
        Line("live rejected", [percent(rate) for rate in bpcer], bpcer, kind=""),
    ]
    labels = [f"threshold {_short(curve.thresholds[i])}" for i in places]
    also = f" Dashed, each of {len(kinds)} attack types." if kinds else ""
    description = (
        f"Live faces rejected (BPCER) over attacks accepted (APCER). Equal at {percent(curve.eer)}; at the threshold "
        f"{percent(curve.apcer[at])} of the attacks and {percent(curve.bpcer[at])} of the live faces.{also}"
    )
    readout = Readout(apcer, labels, lines, int(np.flatnonzero(places == at)[0]))
    return axes.chart("BPCER over APCER (DET)", description, SIZE, readout)


def _types(scored: Scored, threshold: float) -> Markup:
    wrong = scored.errors(threshold)
    rows = []
    for kind in sorted(scored.types, key=lambda kind: -wrong[f"apcer/{kind}"]):
        curve = scored.curve(kind=kind)
        cells = [name(kind), number(int((scored.attacks == kind).sum())), percent(wrong[f"apcer/{kind}"])]
        rows.append([*cells, *(map(percent, (curve.eer, curve.auc)) if scored.live.any() else "––")])
    heads = ["Attack", "Faces", "Accepted as live (APCER)", "EER", "AUC"]
    return PARTS.table("Attack types", heads, rows, numeric=range(1, 5), tall=True)


def _subjects(rows: list[dict[str, Any]]) -> Markup:
    wrong = sum(row["errors"] > 0 for row in rows)
    note = f"{wrong} of {len(rows)} subjects with an error. An average hides whom a detector fails on: see the rows."
    cells = [
        [name(row["subject"]), number(row["live"]), percent(row["bpcer"]), number(row["attacks"]),
         percent(row["apcer"]), number(row["errors"])]
        for row in rows
    ]  # fmt: skip
    heads = ["Subject", "Live faces", "Rejected (BPCER)", "Attacks", "Accepted as live (APCER)", "Errors"]
    return PARTS.note(note) + PARTS.table("Subjects", heads, cells, numeric=range(1, 6), tall=True)


def _odds(scores: Any) -> np.ndarray:
    """log(p / (1 − p)), finite."""
    p = np.clip(np.asarray(scores, np.float64), 1e-9, 1 - 1e-9)
    return np.log(p / (1 - p))


def _score(odds: float) -> float:
    return round(1 / (1 + math.exp(-odds)), 9)


def _short(score: float) -> str:
    """Digits where they are: 0.0003, 0.42, 0.9997."""
    return f"{score:.2g}" if score < 0.9 else f"{score:.4f}".rstrip("0") if score < 1 else "1"
