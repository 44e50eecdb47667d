"""doctor.html: what was found, and the drawings it rests on, in one file that asks for nothing from outside."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from vitrail.explain import figures
from vitrail.explain.drawing import LEAD, position_mosaic
from vitrail.explain.explanation import write
from vitrail.explain.page import document, escape, inline_image

if TYPE_CHECKING:
    from vitrail.doctor.examine import Diagnosis

HOW_COUNTED = "Blocks and heads count from 1; the names of tensors, like blocks.0.attention, and Python count from 0."
# The sign says it too: a colour alone says nothing to many, and nothing in print.
SIGNS = {"ok": "✓", "skipped": "–", "warn": "!", "fault": "✕"}
STYLE = """
.lines { margin: 0; padding: 0; list-style: none; }
.lines li { display: grid; grid-template-columns: 1.6em 9em minmax(0, 1fr); gap: 2px 12px; padding: 12px 0; }
.lines li { border-bottom: 1px solid var(--rule); }
.lines .sign { font-weight: 700; text-align: center; }
.lines .check { font-weight: 600; }
.lines p { margin: 0; }
.lines .more { color: var(--muted); font-size: 14px; margin-top: 4px; }
.ok .sign { color: var(--attention); } .warn .sign { color: var(--rollout); } .fault .sign { color: var(--grad-cam); }
.ok .check, .skipped { color: var(--muted); font-weight: 400; }
@media (max-width: 600px) {
  .lines li { grid-template-columns: 1.6em minmax(0, 1fr); }
  .lines .text { grid-column: 2; }
}
"""


def write_page(folder: Path, found: "Diagnosis") -> Path:
    return write(folder / "doctor.html", page(found))


def page(found: "Diagnosis") -> str:
    drawings = "".join(_drawings(found))
    sections = [f"<style>{STYLE}</style>", _lines(found)]
    if drawings:
        sections.append(
            '<section id="drawings" aria-labelledby="drawings-title"><h2 id="drawings-title">What it rests on</h2>'
            f'<div class="two">{drawings}</div></section>'
        )
    return document(f"Doctor: {found.name}", sections, found.verdict, note=HOW_COUNTED)


def _lines(found: "Diagnosis") -> str:
    items = []
    for finding in found.findings:
        more = "".join(
            f'<p class="more">{word}: {escape(text)}</p>'
            for word, text in (("Likely", finding.cause), ("Fix", finding.fix))
            if text
        )
        items.append(
            f'<li class="{finding.severity}"><span class="sign" role="img" aria-label="{finding.severity}">'
            f'{SIGNS[finding.severity]}</span><span class="check">{escape(finding.check)}</span>'
            f'<div class="text"><p>{escape(finding.seen)}</p>{more}</div></li>'
        )
    return (
        '<section id="findings" aria-labelledby="findings-title"><h2 id="findings-title">Findings</h2>'
        f'<ol class="lines">{"".join(items)}</ol></section>'
    )


def _drawings(found: "Diagnosis") -> Iterator[str]:
    charts = found.charts
    for name, title in (("activations", "Size of activations"), ("gradients", "Size of gradients")):
        if name in charts:
            yield _chart(by_block(charts[name], title), f"{title} by block: {_ends(charts[name])}.", CAPTIONS[name])
    if "entropy" in charts:
        entropy, most = charts["entropy"]
        low, high = np.nanmin(entropy), np.nanmax(entropy)
        words = f"Attention entropy by block, from {low:.2f} to {high:.2f} nats; log N is {most:.2f}"
        yield _chart(figures.entropy_figure(entropy, most), f"{words}. A dot per head.", CAPTIONS["entropy"])
    if "learning" in charts:
        losses = charts["learning"]
        drawn = by_block(losses, "Loss of one batch, learned by heart", "step")
        yield _chart(drawn, f"Loss by step: {_ends(losses)}.", CAPTIONS["learning"])
    if "positions" in charts:
        alike = charts["positions"]
        alt = f"Position similarity of {alike.shape[0]} by {alike.shape[1]} patches"
        picture = inline_image(position_mosaic(alike, between=LEAD), alt, "PNG")
        yield f"<figure>{picture}<figcaption><b>Positions</b>{CAPTIONS['positions']}</figcaption></figure>"


CAPTIONS = {
    "activations": "Root mean square of what leaves each block. Level is healthy; a fall or rise by thousands is not.",
    "gradients": "Norm over each block's weights, for one batch. Within a factor of ten is healthy.",
    "entropy": "A dot per head. On the dotted line a head attends to everything alike, at 0 to one token only.",
    "learning": "A copy of the model, eight pictures, made-up labels: anything that can learn learns these.",
    "positions": "Each square is the map of the patch in that place: how similar (bright) its position is to the rest.",
}


def _chart(figure: Figure, alt: str, caption: str) -> str:
    return f"<figure>{figures.inline_svg(figure, escape(alt))}<figcaption>{caption}</figcaption></figure>"


def by_block(values: list[float], title: str, across: str = "block") -> Figure:
    """A line over the blocks, on a scale of factors: what vanishes or explodes does so by powers."""
    figure = figures.blank(4.6, 3.0)
    ax = figures.plain(figure.subplots())
    known = np.array([value if np.isfinite(value) and value > 0 else np.nan for value in values], dtype=float)
    places = np.arange(len(values)) + (across == "block")  # blocks count from 1, and step 0 is before the first
    ax.plot(places, known, "o-", color=figures.COLOURS["relevance"], linewidth=1.6, markersize=4.5)
    if np.isfinite(known).any():
        low, high = np.nanmin(known), np.nanmax(known)
        middle = (low * high) ** 0.5
        ax.set_yscale("log")
        ax.set_ylim(min(low / 1.3, middle / 4), max(high * 1.3, middle * 4))  # a level line is to look level
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if high < 50 * low else (1.0,), numticks=8))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(across, fontsize=figures.SIZE, color=figures.MUTED)
    ax.set_title(title, fontsize=figures.SIZE + 1, color=figures.INK, loc="left")
    return figure


def _ends(values: list[float]) -> str:
    return f"from {values[0]:.2g} to {values[-1]:.2g}"
