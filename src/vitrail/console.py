"""What a person sees while a run goes on: a live line on a terminal, plain lines without one."""

import sys
import time
from typing import Any

import torch
from PIL import Image

from vitrail.console_image import half_blocks
from vitrail.training.trainer import Progress


class View:
    """Prints; `rich` draws the live line where there is a terminal. Silent in all processes but the first."""

    def __init__(self, active: bool = True, every: float = 10.0):
        self.active, self.every, self._last = active, every, time.monotonic()
        self.beside = ""  # beside a loss: what to expect of it
        self._live: Any = None
        self._console: Any = None
        if active and sys.stdout.isatty():
            from rich.console import Console

            self._console = Console(highlight=False)

    def line(self, text: str = "") -> None:
        if not self.active:
            return
        if self._console is not None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)

    @property
    def width(self) -> int:
        """Characters in a line of a terminal that can draw; 0 where there is none, or one without colours enough."""
        console = self._console
        draws = console is not None and not console.no_color and console.color_system in ("256", "truecolor")
        return console.width if draws else 0

    def picture(self, picture: Image.Image) -> None:
        """On a terminal that can draw."""
        if self.width:
            self._console.print(half_blocks(picture))

    def table(self, rows: list[tuple[str, str, str]]) -> None:
        """Name, value, reason."""
        names, values = (max(len(row[i]) for row in rows) for i in (0, 1))
        for name, value, reason in rows:
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
        if self._live is not None:
            self._live.stop()
            self._live = None

    def reading(self, what: str) -> Any:
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

    def step(self, now: Progress) -> None:
        share = now.step / now.steps
        score = "  ".join(f"{name} {value:.3f}" for name, value in now.score.items() if _told(name))
        wait = f"  waits for data {now.data_wait:.0%}" if now.data_wait >= 0.05 else ""
        left = None if now.seconds_left is None else f"{clock(now.seconds_left)} left"
        rate = None if left is None else f"{pace(now.images_per_second)}{wait}"
        loss = None if now.loss is None else f"loss {now.loss:.3f}"
        bar = "█" * round(20 * share) + "·" * (20 - round(20 * share))
        self.progress(
            fitting(
                (0, f"epoch {now.epoch}/{now.epochs}"),
                (8, bar if self._console else None),
                (3, f"step {now.step}/{now.steps}"),
                (2, left),
                (1, loss),
                (5, loss and self.beside.strip()),
                (6, score),
                (4, rate),
                (7, memory()),
                width=self._console.width if self._console else None,
            )
        )

    def epoch(self, row: dict[str, Any], epochs: int, is_best: bool, ahead: float | None = None) -> None:
        """`ahead` is what an earlier epoch validated at, if better: then "kept" needs a reason."""
        self.settle()
        score = "".join(
            f"  {name.replace('_', ' ')} {value:.4f}"
            for name, value in row.items()
            if name.startswith("val_") and not name.endswith("_error")
        )
        if epochs > 40 and row["epoch"] % (epochs // 20) and row["epoch"] != epochs:
            return  # metrics.jsonl has them all
        why = "" if ahead is None else f" for being later: {ahead:.4f} is ahead by less than a standard error"
        star = f"  kept{why}" if is_best and score and not self.beside else ""
        loss = f"train loss {row['train_loss']:.4f}{self.beside}"
        self.line(
            f"  epoch {row['epoch']:>{len(str(epochs))}}/{epochs}  {loss}{score}"
            f"  {pace(row['images_per_second'])}{star}"
        )


def _told(name: str) -> bool:
    return name != "val_loss" and not name.endswith("_error")


def fitting(*pieces: tuple[int, str | None], width: int | None) -> str:
    """One line of these pieces, in their order; where it is too long, those of the highest numbers are left out."""
    kept = [(number, text) for number, text in pieces if text]
    while width is not None and len(kept) > 1 and sum(2 + len(text) for _, text in kept) > width:
        kept.remove(max(kept))
    return "".join(f"  {text}" for _, text in kept)


def memory() -> str:
    if not torch.cuda.is_initialized():
        return ""
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"


def pace(images_per_second: float) -> str:
    return f"{images_per_second:,.{0 if images_per_second >= 10 else 1}f} images/s"


def clock(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
