"""A figure for each analysis: matplotlib `Figure`s, with nothing shared through pyplot, in one look that prints."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vitrail.explain.deletion_insertion import Comparison, Curves, area
from vitrail.explain.drawing import (
    Array,
    as_bytes,
    filter_mosaic,
    head_mosaic,
    head_names,
    nearly_even,
    over_pixels,
    overlay,
    pixels,
    position_mosaic,
)
from vitrail.explain.tokens import Reconstruction

INK, MUTED, RULE = "#1d1f26", "#63666f", "#e2dfd7"
# Glass: told apart in print and by most eyes, with dashes for the one that is no explanation.
COLOURS = {
    "relevance": "#2f4fb0",
    "grad_cam": "#b5475a",
    "rollout": "#c08a1e",
    "attention": "#2b8a7c",
    "random": "#8b8e97",
}
NAMES = {**{name: name.capitalize() for name in COLOURS}, "grad_cam": "Grad-CAM"}
SIZE = 9.0  # of letters, in points


def name_of(method: str) -> str:
    return NAMES.get(method, method)


def saliency_figure(
    picture: Array, maps: Mapping[str, Tensor], cells: Mapping[str, tuple[int, int]], title: str | None = None
) -> Figure:
    """The image, and each map over it, in a row."""
    figure, axes = _row(1 + len(maps))
    _show(axes[0], as_bytes(pixels(picture)), title or "Picture")
    for ax, (method, values) in zip(axes[1:], maps.items(), strict=True):
        even = ", nearly even" if nearly_even(values) else ""
        _show(ax, overlay(picture, values, cells[method]), name_of(method) + even)
    return figure


def heads_figure(
    picture: Array, layers: Sequence[Tensor], cells: Sequence[tuple[int, int]], numbers: Sequence[int] | None = None
) -> Figure:
    """What the class token (or the mean patch) attends to: a column per layer, a row per head, their mean below.
    `numbers` are those of the layers, where not all are shown, from 0; drawn are blocks and heads from 1."""
    tiles = head_mosaic(picture, layers, cells)
    height, width = tiles.shape[:2]
    inches = min(12.0, 0.95 * len(layers))
    figure = blank(inches + 0.6, inches * height / width + 0.3)
    ax = figure.subplots()
    _show(ax, tiles, "")
    rows = head_names(layers)
    across, down = (width + 4) / len(layers), (height + 4) / len(rows)
    ax.xaxis.tick_top()
    names = [f"block {i + 1}" for i in (range(len(layers)) if numbers is None else numbers)]
    ax.set_xticks([across * (i + 0.5) - 2 for i in range(len(layers))], names)
    ax.set_yticks([down * (i + 0.5) - 2 for i in range(len(rows))], rows)
    ax.tick_params(length=0, labelsize=SIZE, labelcolor=MUTED)
    return figure


def distance_figure(table: Tensor, uniform: float | None = None) -> Figure:
    """Mean attention distance: a dot per head, a line through the means; `uniform` is attending to all alike."""
    return _by_layer(table, "Mean attention distance, in pixels", uniform, "attending to all patches alike")


def entropy_figure(table: Tensor, most: float | None = None) -> Figure:
    """Attention entropy: a dot per head, a line through the means; `most` is log N."""
    return _by_layer(table, "Attention entropy, in nats", most, "all tokens alike: log N")


def _by_layer(table: Tensor, label: str, limit: float | None, limit_label: str) -> Figure:
    figure = blank(4.6, 3.0)
    ax = plain(figure.subplots())
    layers = np.arange(1, len(table) + 1)  # people count from 1
    values = table.numpy()
    if limit is not None:
        ax.axhline(limit, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
        ax.annotate(limit_label, (1, limit), (0, 3), textcoords="offset points", fontsize=SIZE - 1, color=MUTED)
    ax.plot(layers, np.nanmean(values, axis=1), color=COLOURS["relevance"], linewidth=1.6, zorder=2)
    for head in values.T:
        ax.plot(layers, head, "o", color=COLOURS["relevance"], alpha=0.7, markersize=4.5, markeredgewidth=0, zorder=3)
    top = max(np.nanmax(values), limit or 0)
    ax.set_ylim(0, 1.12 * top)
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= top])
    ax.set_xlim(0.6, len(table) + 0.4)
    ax.set_xticks(layers if len(layers) <= 16 else layers[::2])
    ax.set_xlabel("block", fontsize=SIZE, color=MUTED)
    ax.set_title(label, fontsize=SIZE + 1, color=INK, loc="left")
    return figure


def position_figure(similarity: Tensor, width: float = 5) -> Figure:
    """For every patch, in its place, the cosine of its position with all others."""
    return _image(position_mosaic(similarity), "Position similarity: a map for the patch at each place", width)


def filters_figure(filters: Tensor, share: Tensor) -> Figure:
    """The principal components of the patch embedding, the strongest first."""
    title = f"The first {len(filters)} components of the patch filters: {share.sum():.0%} of their variance"
    return _image(filter_mosaic(filters), title, 5)


def pca_figure(picture: Array, colours: Tensor, cell: tuple[int, int]) -> Figure:
    """The image, and its patch tokens coloured by their three principal components."""
    figure, axes = _row(2)
    light = pixels(picture)
    _show(axes[0], as_bytes(light), "Picture")
    _show(axes[1], as_bytes(over_pixels(colours.numpy(), cell, light.shape[:2])), "Tokens, as colours")
    return figure


def similarity_figure(picture: Array, values: Tensor, cell: tuple[int, int], token: tuple[int, int]) -> Figure:
    """The cosine of one patch's token with all others, below 0 drawn as 0; the patch is marked."""
    figure, axes = _row(2)
    _show(axes[0], as_bytes(pixels(picture)), "Picture")
    _show(axes[1], overlay(picture, values, cell), f"Similar to row {token[0] + 1}, column {token[1] + 1}")
    for ax in axes:
        place = (token[1] * cell[1] - 0.5, token[0] * cell[0] - 0.5)
        ax.add_patch(matplotlib.patches.Rectangle(place, cell[1], cell[0], fill=False, color="white", linewidth=1.6))
    return figure


def reconstruction_figure(found: Reconstruction) -> Figure:
    """A row per image: as it is, what the encoder saw, and what the decoder painted."""
    count = len(found.original)
    height, width = found.original.shape[2:]
    figure = blank(5.4, 0.3 + 1.8 * count * height / width)
    axes = figure.subplots(count, 3, squeeze=False)
    hidden = found.mask.float().mean()
    names = ("Picture", f"{hidden:.0%} hidden", "Painted")
    for i, row in enumerate(axes):
        for ax, stage, name in zip(row, (found.original, found.masked, found.painted), names, strict=True):
            _show(ax, as_bytes(pixels(stage[i])), name if i == 0 else "")
    return figure


def curves_figure(curves: Mapping[str, Curves]) -> Figure:
    """Deletion and insertion, a line per method, the mean over the images; areas in the legend."""
    down = {name: one.deletion.mean(dim=0) for name, one in curves.items()}
    up = {name: one.insertion.mean(dim=0) for name, one in curves.items()}
    return mean_curves_figure(down, up)


def comparison_figure(found: Comparison) -> Figure:
    """The mean curves of a `Comparison`."""
    return mean_curves_figure(found.deletion, found.insertion, found.n)


def mean_curves_figure(deletion: Mapping[str, Tensor], insertion: Mapping[str, Tensor], pictures: int = 1) -> Figure:
    """The same from curves [steps + 1] that are means already."""
    figure = blank(7.4, 4.1)
    figure.get_layout_engine().set(wspace=0.08)  # type: ignore[union-attr, call-arg]  # "100" is not to touch "0"
    panels = zip(figure.subplots(1, 2, sharey=True), (deletion, insertion), strict=True)
    words = (("Deletion: lower is better", "patches hidden, most salient first"),
             ("Insertion: higher is better", "patches shown, most salient first"))  # fmt: skip
    for (ax, lines), (title, label) in zip(panels, words, strict=True):
        plain(ax)
        for name, line in lines.items():
            across = np.linspace(0, 100, len(line))
            colour, dashes = COLOURS.get(name, INK), "--" if name == "random" else "-"
            text = f"{name_of(name)}  {float(area(line[None])[0]):.2f}"
            ax.plot(across, line.numpy(), dashes, color=colour, linewidth=1.7, label=text)
        ax.set_title(title, fontsize=SIZE + 1, color=INK, loc="left")
        ax.set_xlabel(f"% of {label}", fontsize=SIZE, color=MUTED)
        ax.set_xlim(0, 100)
        # Below the axis and its label, where no curve goes.
        below = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.2), "ncols": 2, "columnspacing": 1.2}
        legend = ax.legend(frameon=False, fontsize=SIZE - 1, labelcolor=INK, alignment="left", **below)
        legend.set_title("area under the curve", {"size": SIZE - 1})
        legend.get_title().set_color(MUTED)
    label = f"probability, mean of {pictures} pictures" if pictures > 1 else "probability of the class"
    figure.axes[0].set_ylabel(label, fontsize=SIZE, color=MUTED)
    figure.axes[0].set_ylim(bottom=0)
    return figure


def png(figure: Figure, dpi: int = 150) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.06)
    return file.getvalue()


def blank(width: float, height: float) -> Figure:
    """In inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _row(count: int) -> tuple[Figure, list[Axes]]:
    figure = blank(1.9 * count, 2.2)
    return figure, [*figure.subplots(1, count, squeeze=False)[0]]


def _image(picture: Array, title: str, width: float) -> Figure:
    figure = blank(width, 0.35 + width * picture.shape[0] / picture.shape[1])
    _show(figure.subplots(), picture, title)
    return figure


def _show(ax: Axes, picture: Array, title: str) -> None:
    ax.imshow(picture, interpolation="nearest" if max(picture.shape) < 600 else "antialiased")
    ax.set_title(title, fontsize=SIZE + 0.5, color=INK)
    ax.set(xticks=[], yticks=[])
    for side in ax.spines.values():
        side.set_visible(False)


def plain(ax: Any) -> Axes:
    """Lines across, and nothing else around a chart."""
    ax.grid(axis="y", color=RULE, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(length=0, labelsize=SIZE, labelcolor=MUTED)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax
