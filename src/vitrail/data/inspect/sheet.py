"""An image of what the model will see: a few images of a source under each way to fit them."""

import math
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.data.inspect import Inspection
from vitrail.data.preprocess import fit_image
from vitrail.data.samples import Sample, Source
from vitrail.data.split import drawn
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing
from vitrail.whole import whole

FITS = {
    "crop": "the centre, edges lost",
    "pad": "all of it, the rest filled",
    "stretch": "all of it, out of shape",
}
KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".pdf": "pdf"}
_INK, _FAINT, _FRAME = "#1f2430", "#6b7280", "#e4572e"
_CELL, _DPI = 2.05, 110  # inches, pixels per inch


def picture(
    source: Source,
    path: str | Path,
    pre: Preprocessing | None = None,
    found: Inspection | None = None,
    rows: int = 6,
    seed: int = 0,
) -> Path:
    """Draws the widest, the tallest and the smallest image and some of different classes, beside their three fits.

    `pre` is how the model prepares its images. `found` is what `inspect` gave, and saves decoding again to find the
    extremes; without it, they are looked for among a hundred images. The file's suffix chooses its kind: .png, .jpg or
    .pdf.
    """
    from matplotlib.figure import Figure

    path = Path(path)
    pre = pre or Preprocessing()
    chosen = _choose(source, found, rows, seed)
    if not chosen:
        raise VitrailError(f"{source.name} holds no picture that can be read, so there is nothing to draw.")
    figure = Figure(figsize=(4.35 * _CELL + 0.5, 1.22 * _CELL * len(chosen) + 1.0), dpi=_DPI, facecolor="white")
    top = 1 - 0.95 / figure.get_figheight()
    grid = figure.add_gridspec(
        len(chosen), 4, width_ratios=[1.35, 1, 1, 1],
        left=0.02, right=0.98, top=top, bottom=0.5 / figure.get_figheight(), hspace=0.26, wspace=0.06,
    )  # fmt: skip
    for row, (sample, image, why) in enumerate(chosen):
        axes = [figure.add_subplot(grid[row, column]) for column in range(4)]
        label = ", ".join(source.words_of(sample)) or "no label"
        size = f"{image.width}×{image.height}" + (f", the {why}" if why else "")
        _draw_file(axes[0], image, pre, label if len(label) < 35 else label[:33] + "…", size)
        for ax, fit in zip(axes[1:], FITS, strict=True):
            _draw_fit(ax, image, replace(pre, fit=fit), fit)
    titles = {"the file": "frame: what crop keeps"} | {f"--fit {fit}": text for fit, text in FITS.items()}
    for column, (title, text) in enumerate(titles.items()):
        box = grid[0, column].get_position(figure)
        middle = (box.x0 + box.x1) / 2
        inch = 1 / figure.get_figheight()
        figure.text(middle, top + 0.27 * inch, title, ha="center", size=12, weight="bold", color=_INK)
        figure.text(middle, top + 0.09 * inch, text, ha="center", size=9, color=_FAINT)
    height, width = pre.size
    name = source.name if len(source.name) < 60 else "…" + source.name[-58:]
    heading = f"{name}: what a model of {width}×{height} pixels will see"
    figure.text(0.02, 1 - 0.12 / figure.get_figheight(), heading, va="top", size=13, color=_INK, parse_math=False)
    return _save(figure, path)


def kind_of(path: Path) -> str:
    """What a sheet is written as, by the suffix of its file: a kind that Matplotlib and Pillow both know."""
    kind = KINDS.get(path.suffix.lower() or ".png")
    if kind is None:
        raise VitrailError(f"{path} can't be drawn as {path.suffix}: use {', '.join(KINDS)}.")
    return kind


def _choose(source: Source, found: Inspection | None, rows: int, seed: int) -> list[tuple[Sample, Image.Image, str]]:
    """(sample, image, what is extreme about it); the extremes only where they differ from the usual."""
    by_draw = sorted((s for samples in source.splits.values() for s in samples), key=lambda s: drawn(seed, s.name))
    shapes: dict[str, tuple[int, int]] = {}  # name → height, width
    if found:
        for split, samples in source.splits.items():
            for sample, look in zip(samples, found.looks[split], strict=True):
                if look:
                    shapes[sample.name] = (look.height, look.width)
    else:
        for sample in by_draw[:100]:
            with suppress(VitrailError):
                image = sample.decode()
                shapes[sample.name] = (image.height, image.width)
    readable = [sample for sample in by_draw if sample.name in shapes]
    if not readable:
        return []
    picked: dict[str, tuple[Sample, str]] = {}

    def aspect(sample: Sample) -> float:
        height, width = shapes[sample.name]
        return width / height

    def area(sample: Sample) -> int:
        return math.prod(shapes[sample.name])

    usual = sorted(map(aspect, readable))[len(readable) // 2]
    widest, tallest, smallest = max(readable, key=aspect), min(readable, key=aspect), min(readable, key=area)
    if aspect(widest) > 1.1 * usual:
        picked[widest.name] = (widest, "widest")
    if aspect(tallest) < usual / 1.1:
        picked.setdefault(tallest.name, (tallest, "tallest"))
    if area(smallest) < 0.8 * area(max(readable, key=area)):
        picked.setdefault(smallest.name, (smallest, "smallest"))
    extremes = list(picked.values())
    picked = {}
    shown: set[tuple[int, ...]] = set()
    for fresh in (True, False):  # classes not shown yet come first
        for sample in readable:
            taken = sample.name in picked or any(sample is extreme for extreme, _ in extremes)
            if len(picked) < rows - len(extremes) and not taken and (not fresh or sample.labels not in shown):
                picked[sample.name] = (sample, "")
                shown.add(sample.labels)
    return [(sample, sample.decode(), why) for sample, why in [*picked.values(), *extremes][:rows]]


def _draw_file(ax: Any, image: Image.Image, pre: Preprocessing, label: str, size: str) -> None:
    from matplotlib.patches import Rectangle

    kept_width, kept_height = _kept(image, pre)
    small = image.copy()
    small.thumbnail((640, 640))
    ax.imshow(small, extent=(0, image.width, image.height, 0))
    frame = ((image.width - kept_width) / 2, (image.height - kept_height) / 2)
    ax.add_patch(Rectangle(frame, kept_width, kept_height, fill=False, edgecolor="white", linewidth=3))
    ax.add_patch(Rectangle(frame, kept_width, kept_height, fill=False, edgecolor=_FRAME, linewidth=1.6))
    _finish(ax, label)
    ax.xaxis.label.set_weight("bold")
    ax.annotate(size, (0.5, 0), (0, -24), "axes fraction", "offset points", ha="center", size=9, color=_FAINT)


def _draw_fit(ax: Any, image: Image.Image, pre: Preprocessing, fit: str) -> None:
    height, width = pre.size
    try:
        ax.imshow(fit_image(image, pre), interpolation="nearest" if max(pre.size) < 100 else None)
    except VitrailError:  # only a crop refuses, a strip so long that covering the size would take gigabytes
        ax.imshow(Image.new("L", (width, height), 255), cmap="gray", vmin=0, vmax=255)
        ax.text(width / 2, height / 2, "too long\nto crop", ha="center", va="center", color=_FRAME)
        return _finish(ax, "")
    squeezed = (image.width / image.height) / (width / height)
    if fit == "crop":
        kept = math.prod(_kept(image, pre)) / (image.width * image.height)
        caption = f"{kept:.0%} of the image"
    elif fit == "pad":
        filled = 1 - min(squeezed, 1 / squeezed)
        caption = f"{filled:.0%} filling" if filled > 0.005 else "no filling"
    else:
        ratio = max(squeezed, 1 / squeezed)
        times = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
        caption = f"{times}× too {'narrow' if squeezed > 1 else 'wide'}" if ratio > 1.05 else "in shape"
    _finish(ax, caption)


def _kept(image: Image.Image, pre: Preprocessing) -> tuple[float, float]:
    """Width and height of the part that a crop keeps, in the image's own pixels."""
    height, width = pre.size
    scale = max(height / pre.crop / image.height, width / pre.crop / image.width)
    return width / scale, height / scale


def _finish(ax: Any, caption: str) -> None:
    ax.set(xticks=[], yticks=[], anchor="N")
    for spine in ax.spines.values():
        spine.set(color="#d1d5db", linewidth=0.8)
    ax.set_xlabel(caption, size=9, color=_INK, labelpad=3, parse_math=False)


def _save(figure: Any, path: Path) -> Path:
    kind = kind_of(path)
    with whole(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a class name in a script that the font lacks
        figure.savefig(part, format=kind)
    return path
