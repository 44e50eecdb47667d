"""Draws docs/figures/study_NAME.png from every record in records/studies/.

python recipes/plot.py                        all of them
python recipes/plot.py records/studies/positions.json --out docs/figures
"""

import argparse
import json
import textwrap
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

ROOT = Path(__file__).resolve().parents[1]
INK, MUTED, RULE = "#1d1f26", "#63666f", "#e2dfd7"
COLOURS = ("#2f4fb0", "#b5475a", "#c08a1e", "#2b8a7c", "#7a5aa6")


def points(found: dict[str, Any], figure: str) -> dict[str, list[tuple[str, float | None, list[float]]]]:
    """line → (variant, x, its figure for each seed), in the order of the record."""
    scale = 100 if "%" in found["axis"] else 1
    lines: dict[str, dict[str, tuple[float | None, list[float]]]] = {}
    for row in found["runs"]:
        if not row["means"] and figure in row.get("figures", {}):
            values = lines.setdefault(row["line"], {}).setdefault(row["variant"], (row["x"], []))[1]
            values.append(scale * row["figures"][figure])
    return {line: [(name, *rest) for name, rest in variants.items()] for line, variants in lines.items()}


def draw(found: dict[str, Any]) -> Figure:
    with matplotlib.rc_context({"font.size": 9, "axes.edgecolor": MUTED, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained", dpi=160)
        panels = [(found["figure"], found["axis"])]
        panels += [tuple(found["beside"])] if found.get("beside") and points(found, found["beside"][0]) else []
        if len(panels) > 1:
            figure.set_size_inches(10.0, 4.0)
        for ax, (name, axis) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            (_lines if found["x"] else _dots)(ax, points(found, name), found, axis)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
            ax.tick_params(color=MUTED, labelcolor=INK)
        figure.suptitle(
            textwrap.fill(found["question"], 82 if len(panels) == 1 else 120),
            x=0.01,
            ha="left",
            fontsize=10.5,
            color=INK,
            fontweight="bold",
        )
        notes = textwrap.fill(told(found), 110 if len(panels) == 1 else 155)
        figure.supxlabel(notes, x=0.01, ha="left", fontsize=7.8, color=MUTED)
        return figure


def told(found: dict[str, Any]) -> str:
    """One line under the question: what was run, and how often."""
    seeds = len({row["seed"] for row in found["runs"]})
    fewest = min(Counter(row["variant"] for row in found["runs"] if not row["means"]).values(), default=seeds)
    several = f"{fewest} to {seeds}" if fewest < seeds else f"{seeds}"
    spread = (
        "bars from the least to the greatest"
        if found["x"]
        else "standard deviation, and from the least to the greatest"
    )
    often = "one seed" if seeds == 1 else f"mean of {several} seeds{', ' if found['x'] else ' ± '}{spread}"
    often = often if found["data"] else "median of several calls"
    if found.get("scale") == "toy":
        return f"({often}; toy size, on digits)"
    return f"{found['notes']} ({often}; {found['versions']['hardware']})"


def _errors(several: list[list[float]]) -> np.ndarray | None:
    """From the mean down to the least and up to the greatest; nothing where there is one of each."""
    if max(map(len, several)) == 1:
        return None
    return np.array([(np.mean(values) - min(values), max(values) - np.mean(values)) for values in several]).T


def exponent(xs: list[float], means: list[float]) -> tuple[float, int]:
    """Of a power law over the larger half of the points, where what grows fastest has the say; and how many."""
    count = max(2, -(-len(xs) // 2))
    return float(np.polyfit(np.log(xs[-count:]), np.log(means[-count:]), 1)[0]), count


def _lines(ax: Axes, lines: dict[str, list], found: dict[str, Any], axis: str) -> None:
    for (line, variants), colour in zip(lines.items(), COLOURS * 3, strict=False):
        xs, means = [x for _, x, _ in variants], [float(np.mean(values)) for _, _, values in variants]
        label = line
        if found["logarithmic"] == "xy" and len(xs) > 1:
            power, count = exponent(xs, means)
            label = f"{line}: grows as side$^{{{power:.1f}}}$ over the largest {count}"
        errors = _errors([values for _, _, values in variants])
        ax.errorbar(
            xs, means, yerr=errors, color=colour, marker="o", markersize=4, linewidth=1.6, capsize=2, label=label
        )
    ax.set(xlabel=found["x"], ylabel=axis)
    if "x" in found["logarithmic"]:
        ax.set_xscale("log")
    ax.set_xticks(
        _apart(sorted({x for variants in lines.values() for _, x, _ in variants}), "x" in found["logarithmic"])
    )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 100 else f"{x:.3g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    if "y" in found["logarithmic"]:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(top=3 * ax.get_ylim()[1])  # room for the legend
    ax.grid(color=RULE, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=8.5)


def _dots(ax: Axes, lines: dict[str, list], found: dict[str, Any], axis: str) -> None:
    """A row for each variant. Dots and not bars: the axis starts where differences can be seen, and a bar would lie."""
    rows = [(name, line, values) for line, variants in lines.items() for name, _, values in variants]
    colours = dict(zip(lines, COLOURS * 3, strict=False))
    places = [*range(len(rows))][::-1]
    least, most = min(min(v) for *_, v in rows), max(max(v) for *_, v in rows)
    room = max(most - least, 0.02 * most)
    for place, (_, line, values) in zip(places, rows, strict=True):
        mean, colour = float(np.mean(values)), colours[line]
        ax.hlines(place, min(values), max(values), color=colour, linewidth=2, alpha=0.55)
        ax.plot(values, [place] * len(values), "o", color=colour, markersize=3.5, alpha=0.55, markeredgewidth=0)
        ax.plot(mean, place, "o", color=colour, markersize=7.5)
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        ax.annotate(
            f"{mean:.1f}{spread}", (max(values), place), (9, 0), textcoords="offset points", va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    ax.set_xlim(max(0.0, least - 0.15 * room), most + 0.45 * room)  # to the right of the dots stand their figures
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_yticks(places, [name for name, *_ in rows])
    ax.set_xlabel(axis)
    ax.grid(color=RULE, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    if len(lines) > 1:
        handles = [Line2D([], [], marker="o", linestyle="", color=colours[line], label=line) for line in lines]
        ax.legend(handles=handles, frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=3)


def _apart(xs: list[float], logarithmic: bool) -> list[float]:
    """Ticks at the values themselves, but for those that would touch the one before."""
    place = np.log if logarithmic else np.asarray
    kept = xs[:1]
    for x in xs[1:]:
        if place(x) - place(kept[-1]) > 0.09 * (place(xs[-1]) - place(xs[0])):
            kept.append(x)
    return kept


def main(arguments: list[str] | None = None) -> list[Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, help="by default beside the record; of those in records/, docs/figures")
    asked = parser.parse_args(arguments)
    written = []
    named = asked.records or [ROOT / "records" / "studies"]
    for path in chain.from_iterable(sorted(path.rglob("*.json")) if path.is_dir() else [path] for path in named):
        if not path.exists():
            raise SystemExit(f"There is no {path}: a study writes its record into records/studies, or into --out.")
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or "study" not in found or not points(found, found["figure"]):
            if path in asked.records:
                raise SystemExit(f"{path} is no study's record, or has no figures yet.")
            continue
        ours = path.resolve().is_relative_to(ROOT / "records")
        out = asked.out or (ROOT / "docs" / "figures" if ours else path.parent)
        out.mkdir(parents=True, exist_ok=True)
        small = "_small" if found.get("scale") == "small" else ""
        written.append(out / f"study_{found['study']}{small}.png")
        draw(found).savefig(written[-1])
        print(written[-1])
    if not written:
        raise SystemExit(f"No study's record lies in {', '.join(map(str, named))}.")
    return written


if __name__ == "__main__":
    main()
