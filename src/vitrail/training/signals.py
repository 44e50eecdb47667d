"""Ctrl-C and SIGTERM: a run that is asked to stop ends after the step that it is in, with everything saved."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from vitrail.errors import VitrailError

T = TypeVar("T")


class Stopped(VitrailError):
    """The run was asked to stop, and its state has been saved: after a step, or before the validation of an epoch."""

    def __init__(self, epoch: int, step: int | None = None, steps: int = 0, resume: str = ""):
        place = f"before validating epoch {epoch + 1}"
        if step is not None:
            place = f"after step {step} of {steps} in epoch {epoch + 1}"
        again = f" To go on: {resume}" if resume else ""
        super().__init__(f"Stopped {place}; all is saved.{again}", code="stopped", epoch=epoch, step=step)
        self.epoch, self.step, self.steps = epoch, step, steps

    def with_command(self, resume: str) -> "Stopped":
        return Stopped(self.epoch, self.step, self.steps, resume)


class Interrupted(Exception):
    """Asked to stop inside of work that changes nothing, which is then left at once."""


@contextmanager
def naming_folder(folder: Path) -> Iterator[None]:
    """Whoever leaves at once, or where nothing waits for a step to end, is told what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        if not (folder / "last.pt").exists():
            raise
        raise KeyboardInterrupt(f"Stopped; --resume goes on from what was last saved in {folder}.") from None


class StopSignals:
    """`with signals:` counts the wish in `signals.asked` instead of ending the process. A second Ctrl-C is meant at
    once.

    Under torchrun (`alone` is False) it is not: Ctrl-C reaches every process, and torchrun, which is one of them, then
    sends SIGTERM to all the others.
    """

    def __init__(self, alone: bool = True):
        self.asked, self._alone, self._now = False, alone, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not in the main thread: someone else handles signals
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def interruptible(self, work: Callable[..., T]) -> Callable[..., T]:
        """The same work, left at once when asked to: for work that changes nothing and so need not be finished. Other
        processes may be waiting for its result, so only where there are none."""

        def working(*values: Any) -> T:
            self._now = self._alone
            try:
                if self._now and self.asked:
                    raise Interrupted
                return work(*values)
            finally:
                self._now = False

        return working

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked and number == signal.SIGINT, True
        if self._now:
            raise Interrupted
        if again and self._alone:
            raise KeyboardInterrupt
