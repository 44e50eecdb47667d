"""doctor.html: what was found, and the charts it is read from, in one file that asks for nothing from outside."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.doctor.findings import Finding
from vitrail.explain.charts import heads_chart
from vitrail.explain.drawing import LEAD, position_mosaic
from vitrail.explain.page import sharp
from vitrail.report.charts import Series, line_chart
from vitrail.report.numbers import known
from vitrail.report.page import Section, document, macros

HOW_COUNTED = "Blocks and heads count from 1; the names of tensors, like blocks.0.attention, and Python count from 0."
# The sign says it too: a colour alone says nothing to many, and nothing in print.
SIGNS = {"ok": "✓", "skipped": "–", "warn": "!", "fault": "✕"}
CAPTIONS = {
    "activations": "Root mean square of what leaves each block. Level is healthy; a fall or rise by thousands is not.",
    "gradients": "Norm over each block's weights, for one batch. Within a factor of ten is healthy.",
    "entropy": "A dot per head. On the dotted line a head attends to everything alike, at 0 to one token only.",
    "learning": "A copy of the model, eight images, made-up labels: anything that can learn learns these.",
    "positions": "Each square is the map of the patch in that place: how similar (bright) its position is to the rest.",
}

HTML = macros("doctor/page.html")


def page(name: str, verdict: str, findings: Sequence[Finding], charts: Mapping[str, Any]) -> str:
    """`charts` are the values that the checks have left, by the name of the check."""
    sections = [Section("findings", "Findings", HTML.findings(findings, SIGNS))]
    if drawn := [chart for chart in _charts(charts) if chart]:
        sections.append(Section("charts", "Behind the findings", HTML.charts(drawn)))
    return document(f"Doctor: {name}", sections, verdict, note=HOW_COUNTED)


def _charts(charts: Mapping[str, Any]) -> Iterator[Markup]:
    for name, title in (("activations", "Size of activations"), ("gradients", "Size of gradients")):
        if name in charts:
            yield _by_factor(title, charts[name], range(1, len(charts[name]) + 1), "block", CAPTIONS[name])
    if "entropy" in charts:
        entropy, most = charts["entropy"]
        title, words = "Attention entropy, in nats", "all tokens alike: log N"
        yield heads_chart(title, entropy, _two_digits, most, words, CAPTIONS["entropy"])
    if "learning" in charts:
        losses = charts["learning"]
        title = "Loss of one batch, memorised"
        yield _by_factor(title, losses, range(len(losses)), "step", CAPTIONS["learning"])
    if "positions" in charts:
        alike = charts["positions"]
        alt = f"Position similarity of {alike.shape[0]} by {alike.shape[1]} patches"
        yield sharp(position_mosaic(alike, between=LEAD), alt, "Positions", CAPTIONS["positions"])


def _by_factor(title: str, values: Sequence[float], x: range, x_name: str, note: str) -> Markup:
    """On a scale of factors: what vanishes or explodes does so by powers."""
    return line_chart(title, x, [Series("", values)], _two_digits, x_name, factors=True, note=note)


def _two_digits(value: float | None) -> str:
    return f"{value:.2g}" if known(value) else "–"
