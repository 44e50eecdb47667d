"""The one way to print and to show progress: a live line on a terminal, plain lines without one."""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from PIL import Image

from vitrail.console_image import half_blocks


class Console:
    """Prints; `rich` draws the live line where there is a terminal. Silent in all processes but the first."""

    def __init__(self, active: bool = True, every: float = 10.0):
        self.active, self.every, self._last = active, every, time.monotonic()
        self._live: Any = None
        self._console: Any = None
        if active and sys.stdout.isatty():
            from rich.console import Console as Terminal

            self._console = Terminal(highlight=False)

    def line(self, text: str = "") -> None:
        if not self.active:
            return
        if self._console is not None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)

    @property
    def columns(self) -> int | None:
        """Characters in a line of the terminal; None where there is none."""
        return self._console.width if self._console is not None else None

    @property
    def width(self) -> int:
        """The same of a terminal that can draw; 0 where there is none, or one without colours enough."""
        console = self._console
        draws = console is not None and not console.no_color and console.color_system in ("256", "truecolor")
        return console.width if draws else 0

    def image(self, image: Image.Image) -> None:
        """On a terminal that can draw."""
        if self.width:
            self._console.print(half_blocks(image))

    def table(self, rows: Iterable[tuple[str, str, object]]) -> None:
        """Name, value, reason."""
        written = [(name, value, str(reason)) for name, value, reason in rows]
        names, values = (max(len(row[i]) for row in written) for i in (0, 1))
        for name, value, reason in written:
            self.line(f"  {name:<{names}}  {value:>{values}}  {reason}".rstrip())

    def progress(self, text: str, finished: bool = False) -> None:
        """A line that replaces the one before on a terminal; elsewhere at most one every few seconds."""
        if not self.active:
            return
        if self._console is None:
            now = time.monotonic()
            if now - self._last >= self.every and not finished:
                self._last = now
                print(text, flush=True)
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        from rich.text import Text

        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))  # one line, however narrow
        if finished:
            self.settle()

    def settle(self) -> None:
        """Ends the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def reading(self, what: str) -> Callable[[int, int], None]:
        """A progress function (done, total) for work over files."""
        start = time.monotonic()

        def show(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - start, 1e-9)
            left = (total - done) / max(rate, 1e-9)
            if done == total or not done % 32:
                self.progress(
                    f"  {what}: {done:,} of {total:,}, {pace(rate)}, {clock(left)} left", finished=done == total
                )

        return show


def fitting(*pieces: tuple[int, str | None], width: int | None) -> str:
    """One line of these pieces, in their order; where it is too long, those of the highest numbers are left out."""
    kept = [(number, text) for number, text in pieces if text]
    while width is not None and len(kept) > 1 and sum(2 + len(text) for _, text in kept) > width:
        kept.remove(max(kept))
    return "".join(f"  {text}" for _, text in kept)


def pace(images_per_second: float) -> str:
    return f"{images_per_second:,.{0 if images_per_second >= 10 else 1}f} images/s"


def clock(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
