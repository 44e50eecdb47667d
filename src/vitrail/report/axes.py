"""The frame that all charts share, as inline SVG: scales from values to pixels, marks drawn with them, the read-out.

No library and no script is needed to see a chart; its colours come from the page's style sheet. The read-out travels
as JSON in the page, which page.js shows at the pointer and for the arrow keys: the numbers are written here once, so
that what is read and what is drawn can't differ.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.report.numbers import THIN, known
from vitrail.report.page import PARTS

SEEN = 0.3  # pixels: points of a line that are closer can't be told apart

Values = Sequence[float | None] | np.ndarray


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` over the pixels from `start` to `end`; what lies beyond is put on the edge. `warp`
    makes steps even that are not: a logarithm, for factors."""

    low: float
    high: float
    start: float
    end: float
    warp: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        inside = min(max(value, min(self.low, self.high)), max(self.low, self.high))
        first, last = self.warp(self.low), self.warp(self.high)
        share = (self.warp(inside) - first) / (last - first) if first != last else 0.5
        return self.start + (self.end - self.start) * share

    @property
    def length(self) -> float:
        return abs(self.end - self.start)


@dataclass(frozen=True)
class Line:
    """What the read-out says of one line: a text at every place, and `y` where a dot follows on the chart. `kind` is
    the class of the sample in the legend, if there is one, and `hue` names its colour in the style sheet."""

    name: str
    text: Sequence[str]
    y: Values | None = None
    kind: str = "line"
    hue: str = ""


@dataclass(frozen=True)
class Readout:
    """The places of a chart that can be read: their `x`, their labels, and what each line says there."""

    x: Sequence[float] | np.ndarray
    labels: Sequence[str]
    lines: Sequence[Line]
    rest: int = 0  # the place that is shown while nobody points
    scattered: bool = False  # the nearest place is so in both directions


@dataclass
class Axes:
    """Two scales and the marks that were drawn with them; every method takes values, not pixels."""

    x: Scale
    y: Scale
    marks: list[Markup] = field(default_factory=list)

    @classmethod
    def within(
        cls,
        size: tuple[int, int],
        x: tuple[float, float],
        y: tuple[float, float],
        left: float = 52,
        bottom: float = 30,
        warp_x: Callable[[float], float] = float,
        warp_y: Callable[[float], float] = float,
    ) -> "Axes":
        """Axes that fill a chart of this size but for the margins where their labels stand."""
        width, height = size
        return cls(Scale(*x, left, width - 12, warp_x), Scale(*y, height - bottom, 10, warp_y))

    def draw(self, tag: str, kind: str, words: object = None, **attributes: Any) -> None:
        self.marks.append(element(tag, kind, words, **attributes))

    def line(self, kind: str, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.draw("line", kind, x1=self.x(x[0]), x2=self.x(x[1]), y1=self.y(y[0]), y2=self.y(y[1]))

    def level(self, kind: str, y: float) -> None:
        """A line across at one height."""
        self.line(kind, (self.x.low, self.x.high), (y, y))

    def upright(self, kind: str, x: float) -> None:
        self.line(kind, (x, x), (self.y.low, self.y.high))

    def bar(self, kind: str, x: tuple[float, float], y: float, gap: float = 1) -> None:
        """A bar from the floor up to `y`, with a gap of some pixels to its neighbours."""
        left, right, top, floor = self.x(x[0]), self.x(x[1]), self.y(y), self.y(self.y.low)
        self.draw("rect", kind, x=left + gap / 2, y=top, width=right - left - gap, height=floor - top)

    def path(self, kind: str, x: Values, y: Values, hue: str = "") -> None:
        """A line through the points, with a gap where one is None or NaN."""
        steps, pen = [], "M"
        last = (math.inf, math.inf)
        for across, up in zip(x, y, strict=True):
            if not known(across) or not known(up):
                pen = "M"
                continue
            here = (self.x(across), self.y(up))
            if pen == "M" or abs(here[0] - last[0]) + abs(here[1] - last[1]) > SEEN:
                steps.append(f"{pen}{here[0]:.1f} {here[1]:.1f}")
                pen, last = "L", here
        self.draw("path", kind, d="".join(steps), **_hue(hue))

    def dots(self, kind: str, x: Values, y: Values, hue: str = "") -> None:
        """Dots as one path of no length, whose round ends are what is seen: thousands make a small page."""
        places = [(across, up) for across, up in zip(x, y, strict=True) if known(across) and known(up)]
        path = "".join(f"M{self.x(across):.1f} {self.y(up):.1f}h0" for across, up in places)
        self.draw("path", kind, d=path, **_hue(hue))

    def point(self, x: float, y: float, radius: float = 3, hue: str = "") -> None:
        self.draw("circle", "point", cx=self.x(x), cy=self.y(y), r=radius, **_hue(hue))

    def text(self, kind: str, words: object, x: float, y: float, dx: float = 0, dy: float = 0) -> None:
        self.draw("text", kind, words, x=self.x(x) + dx, y=self.y(y) + dy)

    def ticks_y(self, ticks: Sequence[float], write: Callable[[float], str]) -> None:
        """A fine line across and a label for each; of labels that read alike, as of values too close, one."""
        before = ""
        for tick in ticks:
            self.level("grid", tick)
            label = write(tick).replace(f".0{THIN}", THIN)
            if label != before:
                self.draw("text", "tick end", label, x=self.x.start - 8, y=self.y(tick), dy=".32em")
            before = label

    def ticks_x(self, ticks: Sequence[float], write: Callable[[float], str], grid: bool = False) -> None:
        for tick in ticks:
            if grid:
                self.upright("grid", tick)
            self.draw("text", "tick middle", write(tick), x=self.x(tick), y=self.floor + 20)

    def name_x(self, name: str) -> None:
        """What the ticks of x count, in the corner to their left."""
        self.draw("text", "tick end", name, x=self.x.start - 8, y=self.floor + 20)

    @property
    def floor(self) -> float:
        return max(self.y.start, self.y.end)

    @property
    def ceiling(self) -> float:
        return min(self.y.start, self.y.end)

    def chart(
        self,
        title: str,
        description: str,
        size: tuple[int, int],
        readout: Readout,
        below: "Axes | None" = None,
        stacked: bool = False,
        note: str = "",
    ) -> Markup:
        """The chart with its title, its legend, which is also the read-out (beneath the title if `stacked`), and a
        description for those who can't see it. `below` are axes that stand under these, over the same x."""
        marks, floor = self.marks, self.floor
        if below is not None:
            marks, floor = self.marks + below.marks, below.floor
        data = {
            "x": [round(self.x(value), 1) for value in readout.x],
            "labels": readout.labels,
            "rest": readout.rest,
            "scattered": readout.scattered,
            "series": [{"y": self._heights(line.y), "text": line.text} for line in readout.lines],
        }
        extent = (self.ceiling, floor)
        return PARTS.chart(title, description, size, Markup("").join(marks), readout, data, extent, stacked, note)

    def _heights(self, values: Values | None) -> list[float | None] | None:
        return None if values is None else [round(self.y(v), 1) if known(v) else None for v in values]


def element(tag: str, kind: str, words: object = None, **attributes: Any) -> Markup:
    """An SVG element of this class: pixels to one digit, everything else escaped."""
    named = {"class": kind} | {key.replace("_", "-"): value for key, value in attributes.items()}
    inside = Markup("").join(
        Markup(' {}="{}"').format(key, f"{value:.1f}" if isinstance(value, float) else value)
        for key, value in named.items()
    )
    if words is None:
        return Markup("<{}{}/>").format(tag, inside)
    return Markup("<{}{}>{}</{}>").format(tag, inside, words, tag)


def _hue(name: str) -> dict[str, str]:
    return {"style": f"--hue:var(--{name})"} if name else {}


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`; from zero where that costs little of the height."""
    if low > 0 and low < 0.4 * high:
        low = 0.0
    if high - low <= 1e-12 * abs(high) or high - low < 1e-100:  # all alike, perhaps all nothing
        low, high = low - abs(low) / 2, high + (abs(high) / 2 if abs(high) > 1e-100 else 1.0)
    rough = (high - low) / about
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, max(12, 3 - exponent)) for i in range(start, stop + 1)]


def whole_ticks(first: float, last: float, most: int) -> list[int]:
    """Whole numbers between the two, the first and, where there is room, the last among them."""
    first_, last_ = math.ceil(first), math.floor(last)
    if last_ <= first_:
        return [first_]
    steps = (10**power * factor for power in range(9) for factor in (1, 2, 5))
    step = next(step for step in steps if last_ - first_ <= step * most)
    ticks = [first_] + [i for i in range(first_ - first_ % step, last_ + 1, step) if i > first_]
    if len(ticks) > 1 and ticks[1] - first_ < 0.6 * step:
        del ticks[1]
    return ticks


def factor_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between the two, both above 0, with 2 and 5 between them where they are few."""
    factors = (1, 2, 5) if high < 100 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
