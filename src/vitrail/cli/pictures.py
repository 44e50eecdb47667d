"""What the verbs that go through images share: finding them, progress, skipping bad ones, and writing tables."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any

MODELS = {".safetensors", ".onnx", ".pt", ".pth", ".ckpt"}  # how files of weights end


def needed(model: str | None) -> str:
    """The model that was named, or the one that ships inside; which is said, out of the way of a pipe."""
    from vitrail.weights.shipped import default_model

    if model is None:
        model = default_model()
        words = "which ships inside and has 200 names for things; --model names another."
        print(f"vitrail: with {model}, {words}", file=sys.stderr)
    return model


def collect(given: list[Path]) -> list[Path]:
    """Files as they are given, folders as the images inside them."""
    from vitrail.data.samples import PICTURES
    from vitrail.data.sources.folders import pictures_below
    from vitrail.errors import VitrailError

    if not given:
        raise VitrailError("No pictures were given: name some, or a folder of them.")
    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = pictures_below(path)
            if not inside:
                raise VitrailError(f"The folder {path} holds no pictures ({', '.join(sorted(PICTURES))}).")
            paths += inside
        elif path.suffix.lower() in MODELS:
            raise VitrailError(f"{path} is a model, not a picture: put it behind --model.")
        elif path.exists():
            paths.append(path)
        else:
            raise VitrailError(f"There is no picture or folder {path}.")
    return paths


def report_skipped(bad: list[str], total: int, file: Path | None = None) -> int:
    """Names the images that could not be used, and gives the exit code: 1 if there are any. Of none that could, no
    `file` is made."""
    from vitrail.data.samples import plural
    from vitrail.errors import VitrailError

    for line in bad:
        print(f"vitrail: skipped: {line}", file=sys.stderr)
    if bad:
        print(f"vitrail: {len(bad):,} of {plural(total, 'picture')} could not be used.", file=sys.stderr)
    if file is not None and len(bad) == total:
        raise VitrailError(f"Not one of the pictures can be used; {file} was not written.")
    return 1 if bad else 0


@contextmanager
def progress(total: int, burst: int = 1, every: float = 5.0) -> Iterator[Callable[[], None]]:
    """Gives a function to call after each image. A bar on a terminal, else a line every few seconds; both on the
    error stream, out of the way of a pipe, and for a job of moments neither. Images that come in a `burst`, as those
    of a batch do, have all taken their time when the first of them is there: a line waits for the last."""
    start = last = time.monotonic()
    done = 0
    bar: Any = None

    def advance() -> None:
        nonlocal done, last, bar
        done += 1
        now = time.monotonic()
        rate = done / max(now - start, 1e-9)
        if sys.stderr.isatty():
            if bar is None and now - start > 1:
                bar = _bar(total)
                bar.start()
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done, rate=pace(rate))
        elif now - last >= every and done % burst == 0 and done < total:  # at the end the answer itself says so
            last = now
            left = (total - done) / rate
            line = f"vitrail: {done:,} of {total:,} pictures, {pace(rate)}, {left:,.0f} s left"
            print(line, file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def pace(rate: float) -> str:
    return f"{rate:,.{0 if rate >= 10 else 1}f} pictures/s" if rate >= 1 else f"{1 / rate:,.0f} s for each"


def _bar(total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    # What is printed meanwhile goes above the bar, unless it goes into a file.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
    bar.add_task("", total=total, rate="")
    return bar


@contextmanager
def writing(path: Path | None, mode: str = "w", rows: Sized = ()) -> Iterator[IO[Any] | None]:
    """A file that appears under its name when all is written, and not at all if something fails. Whoever interrupts
    keeps the `rows` that there are already, beside that name, and is told so."""
    from vitrail.data.samples import plural
    from vitrail.errors import VitrailError

    if path is None:
        yield None
        return
    aside = path.is_file() or not path.exists()  # not for /dev/stdout
    part = path.with_name(path.name + ".part") if aside else path
    text = {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open(mode, **text) as file:  # type: ignore[call-overload]
            yield file
        if aside:
            os.replace(part, path)
    except KeyboardInterrupt as stopped:
        if not aside:
            raise
        if not rows:
            raise KeyboardInterrupt(str(stopped) or f"Stopped; {path} was not written.") from None
        aside = False  # and so it stays
        others = str(stopped).removesuffix(".")  # of this call, which have the same rows
        said = f"{others} and" if others else f"Stopped; {plural(len(rows), 'row')} kept in"
        raise KeyboardInterrupt(f"{said} {part}.") from None
    except BrokenPipeError:  # of the terminal, not of this file
        raise
    except OSError as error:
        raise VitrailError(f"{path} can't be written: {error.strerror}.") from None
    finally:
        if aside:
            with suppress(OSError):
                part.unlink()


@contextmanager
def to_the_end(files_wanted: bool = True) -> Iterator[None]:
    """The reader of a pipe may leave early, as `head` does: where files are wanted, what is left to say is said to
    nobody, and the work goes on."""
    if not files_wanted:
        yield
        return
    speaker = _Speaker(sys.stdout)
    with redirect_stdout(speaker):  # type: ignore[type-var]
        try:
            yield
        finally:
            speaker.flush()


class _Speaker:
    """A stream that does not mind when nobody listens any more."""

    def __init__(self, stream: Any):
        self.stream = stream

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[..., Any], *words: str) -> None:
        try:
            act(*words)
        except BrokenPipeError:
            to_nobody(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def to_nobody(stream: Any) -> None:
    """From here on, and to the end of the process, what the stream has still to say goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
