"""Ctrl-C and SIGTERM: asked to leave, a run ends after the step that it is in, with everything saved."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from vitrail.errors import VitrailError


class Stopped(VitrailError):
    """The run was asked to leave, and its state has been saved."""


class Interrupted(Exception):
    """Asked to leave inside `at_once`."""


@contextmanager
def telling(folder: Path) -> Iterator[None]:
    """Whoever leaves at once, or where nothing waits for a step to end, is told what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        if not (folder / "last.pt").exists():
            raise
        raise KeyboardInterrupt(f"Stopped; --resume goes on from what was last saved in {folder}.") from None


class Leave:
    """`with leave:` counts the wish in `leave.asked` instead of dying of it. A second Ctrl-C is meant at once.

    Under torchrun (`alone` is False) it is not: whoever presses Ctrl-C reaches every process, and torchrun, which is
    one of them, then sends SIGTERM to all the others.
    """

    def __init__(self, alone: bool = True):
        self.asked, self._alone, self._now = False, alone, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Leave":
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not in the main thread: someone else handles signals
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work that changes nothing and so need not be finished. Other processes may be waiting for its result,
        so only where there are none."""
        self._now = self._alone
        try:
            if self._now and self.asked:
                raise Interrupted
            yield
        finally:
            self._now = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked and number == signal.SIGINT, True
        if self._now:
            raise Interrupted
        if again and self._alone:
            raise KeyboardInterrupt
