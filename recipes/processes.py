"""Several commands at a time, each a process with a log of its own; one that stands still is begun again."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TRIES = 2
GRACE = 30.0  # seconds to save what it has, or to write down where it stands


@dataclass(frozen=True)
class Command:
    name: str
    words: list[str]
    log: Path
    ready: Callable[[], bool] = lambda: True  # is there what it needs?


class Outcome(NamedTuple):
    command: Command
    words: str
    failed: bool = False


class Running:
    """A command under way, with all the processes that it starts. They are a group of their own: a Ctrl-C is for
    whoever watches them, who then ends them."""

    def __init__(self, command: Command, tried: int, environment: dict[str, str]):
        self.command, self.tried = command, tried
        with command.log.open("a") as log:
            self.process = subprocess.Popen(
                command.words, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._written, self._since = -1, time.monotonic()

    def silent_for(self) -> float:
        """Seconds since it last wrote a word."""
        if (written := self.command.log.stat().st_size) != self._written:
            self._written, self._since = written, time.monotonic()
        return time.monotonic() - self._since

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def be_gone(self) -> None:
        """After a while for what it was told; then nothing of it is left."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self.kill()
        self.process.wait()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def last(log: Path) -> str:
    """Its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing").strip()


@contextmanager
def as_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """These signals interrupt as a Ctrl-C does, so that what is under way is told to leave."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def without_core_files() -> Iterator[None]:
    """Of what is begun inside: the memory of one that is made to say where it stands is not written to the disk."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def run_all(
    commands: list[Command],
    jobs: int,
    environment: dict[str, str],
    end: float = float("inf"),
    patience: float = float("inf"),
) -> Iterator[Outcome]:
    """In their order, but for those that are not ready yet. Yields each that is over, and what became of it. None is
    begun after `end`, on the clock of `time.monotonic`. One that has not written a word for `patience` seconds is ended
    and at once begun once more; with `-X faulthandler` among its words, Python writes into the log where each of its
    threads stood. When nobody listens any more, or at a Ctrl-C, all are told to save and to leave."""
    waiting, running = [*commands], list[Running]()

    def begin(command: Command, tried: int = 1) -> None:
        with without_core_files():
            running.append(Running(command, tried, environment))

    try:
        while True:
            while len(running) < jobs and time.monotonic() < end:
                if (following := next((one for one in waiting if one.ready()), None)) is None:
                    break
                waiting.remove(following)
                begin(following)
            if not running:
                return
            time.sleep(0.2)
            for now in [*running]:
                log = now.command.log
                if now.process.poll() is not None:
                    running.remove(now)
                    failed = now.process.returncode != 0
                    yield Outcome(now.command, f"failed: {last(log)} ({log})" if failed else "done", failed)
                elif now.silent_for() > patience:
                    now.tell(signal.SIGABRT)
                    now.be_gone()
                    running.remove(now)
                    if again := now.tried < TRIES and time.monotonic() < end:
                        begin(now.command, now.tried + 1)
                    what = "is begun again" if again else "was ended"
                    yield Outcome(
                        now.command, f"stood still for {patience:g} s and {what}: {log} says where", not again
                    )
    finally:
        for now in running:
            now.tell(signal.SIGTERM)
        try:
            for now in running:
                now.be_gone()
        finally:  # a second Ctrl-C waits for none
            for now in running:
                now.kill()
