"""Several commands at a time, each a process with a log of its own; one that stands still is begun again."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TRIES = 2
GRACE = 30.0  # seconds to save what it has, or to write down where it stands


@dataclass(frozen=True)
class Command:
    name: str
    words: list[str]
    log: Path
    ready: Callable[[], bool] = lambda: True  # is there what it needs?


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
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def last(log: Path) -> str:
    """Its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing").strip()


def run_all(
    commands: list[Command],
    jobs: int,
    environment: dict[str, str],
    end: float = float("inf"),
    patience: float = float("inf"),
) -> Iterator[tuple[Command, str]]:
    """In their order, but for those that are not ready yet. Yields each that is over, and what became of it: "done", or
    why not. None is begun after `end`, on the clock of `time.monotonic`. One that has not written a word for `patience`
    seconds is ended and begun once more; with `-X faulthandler` among its words, Python writes into the log where each
    of its threads stood. When nobody listens any more, or at a Ctrl-C, all are told to save and to leave."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no memory on the disk
    waiting, running = [(command, 1) for command in commands], list[Running]()

    def following() -> tuple[Command, int] | None:
        in_time = len(running) < jobs and time.monotonic() < end
        return next((one for one in waiting if one[0].ready()), None) if in_time else None

    try:
        while True:
            while (one := following()) is not None:
                waiting.remove(one)
                running.append(Running(*one, environment))
            if not running:
                return
            time.sleep(0.2)
            for now in [*running]:
                log = now.command.log
                if now.process.poll() is not None:
                    running.remove(now)
                    yield now.command, "done" if now.process.returncode == 0 else f"failed: {last(log)} ({log})"
                elif now.silent_for() > patience:
                    now.tell(signal.SIGABRT)
                    now.be_gone()
                    running.remove(now)
                    if again := now.tried < TRIES and time.monotonic() < end:
                        waiting.append((now.command, now.tried + 1))
                    what = "is begun again" if again else "was ended"
                    yield now.command, f"stood still for {patience:g} s and {what}: {log} says where"
    finally:
        for now in running:
            now.tell(signal.SIGTERM)
        for now in running:
            now.be_gone()
