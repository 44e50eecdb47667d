"""Draws docs/figures/study_NAME.png from every record in records/studies/.

python recipes/plot.py                        all of them
python recipes/plot.py records/studies/positions.json --out docs/figures
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

ROOT = Path(__file__).parents[1]
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
            (_lines if found["x"] else _bars)(ax, points(found, name), found, axis)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
            ax.tick_params(color=MUTED, labelcolor=INK)
        figure.suptitle(found["question"], x=0.01, ha="left", fontsize=10.5, color=INK, fontweight="bold")
        figure.supxlabel(told(found), x=0.01, ha="left", fontsize=7.8, color=MUTED)
        return figure


def told(found: dict[str, Any]) -> str:
    """One line under the question: what was run, and how often."""
    seeds = len({row["seed"] for row in found["runs"]})
    often = "one seed" if seeds == 1 else f"mean of {seeds} seeds, bars from the least to the greatest"
    where = "toy size, on digits" if found["toy"] else found["versions"]["hardware"]
    return f"{'' if found['toy'] else found['notes'] + ' '}({often}; {where})"


def _errors(several: list[list[float]]) -> np.ndarray | None:
    """From the mean down to the least and up to the greatest; nothing where there is one of each."""
    if max(map(len, several)) == 1:
        return None
    return np.array([(np.mean(values) - min(values), max(values) - np.mean(values)) for values in several]).T


def _lines(ax: Axes, lines: dict[str, list], found: dict[str, Any], axis: str) -> None:
    for (line, variants), colour in zip(lines.items(), COLOURS * 3, strict=False):
        xs, means = [x for _, x, _ in variants], [float(np.mean(values)) for _, _, values in variants]
        label = line
        if found["logarithmic"] == "xy" and len(xs) > 1:
            # Over the larger half, where what grows fastest has the say.
            half = len(xs) // 2
            power = np.polyfit(np.log(xs[half - 1 :]), np.log(means[half - 1 :]), 1)[0]
            label = f"{line}: grows as side$^{{{power:.1f}}}$ at the end"
        errors = _errors([values for _, _, values in variants])
        ax.errorbar(
            xs, means, yerr=errors, color=colour, marker="o", markersize=4, linewidth=1.6, capsize=2, label=label
        )
    ax.set(xlabel=found["x"], ylabel=axis)
    if "x" in found["logarithmic"]:
        ax.set_xscale("log")
    ax.set_xticks(sorted({x for variants in lines.values() for _, x, _ in variants}))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    if "y" in found["logarithmic"]:
        ax.set_yscale("log")
    ax.grid(color=RULE, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=8.5)


def _bars(ax: Axes, lines: dict[str, list], found: dict[str, Any], axis: str) -> None:
    """Lying down, so that names are read; the axis starts where the differences can be seen, and every bar says its
    value."""
    rows = [(name, line, values) for line, variants in lines.items() for name, _, values in variants]
    colours = dict(zip(lines, COLOURS * 3, strict=False))
    places = np.arange(len(rows))[::-1]
    means = [float(np.mean(values)) for _, _, values in rows]
    errors = _errors([values for *_, values in rows])
    ax.barh(
        places, means, xerr=errors, color=[colours[line] for _, line, _ in rows], height=0.62, alpha=0.92,
        error_kw={"ecolor": INK, "capsize": 2.5, "linewidth": 1},
    )  # fmt: skip
    least, most = min(min(v) for *_, v in rows), max(max(v) for *_, v in rows)
    room = max(most - least, 0.02 * most)
    ax.set_xlim(max(0.0, least - 0.8 * room), most + 0.35 * room)
    for place, mean, (*_, values) in zip(places, means, rows, strict=True):
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        ax.text(max(values) + 0.02 * room, place, f" {mean:.1f}{spread}", va="center", fontsize=8.5, color=INK)
    ax.set(yticks=places, yticklabels=[name for name, *_ in rows], xlabel=axis)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=RULE, linewidth=0.7)
    ax.set_axisbelow(True)
    if len(lines) > 1:
        handles = [matplotlib.patches.Patch(color=colours[line], label=line) for line in lines]
        ax.legend(handles=handles, frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=3)


def main(arguments: list[str] | None = None) -> list[Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    asked = parser.parse_args(arguments)
    written = []
    for path in asked.records or sorted((ROOT / "records" / "studies").glob("*.json")):
        found = json.loads(path.read_text())
        if "study" not in found or not points(found, found["figure"]):
            continue
        asked.out.mkdir(parents=True, exist_ok=True)
        written.append(asked.out / f"study_{found['study']}.png")
        draw(found).savefig(written[-1])
        print(written[-1])
    return written


if __name__ == "__main__":
    main()
