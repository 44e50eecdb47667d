"""`studio`: models, samples and a socket, and the server that brings them together."""

import errno
import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.data.split import read_split
from vitrail.errors import VitrailError, extra
from vitrail.predict import Predictor, load
from vitrail.serve.pictures import Sample, find_samples, offered
from vitrail.training.run_folder import read_record
from vitrail.weights.files import read_source
from vitrail.weights.header import HEADER
from vitrail.weights.shipped import AUTOENCODER, shipped

if TYPE_CHECKING:
    from vitrail.serve.views import Lens

MOST_CONNECTIONS = 128  # a browser opens six


def studio(
    models: Sequence[str | PathLike[str] | Predictor],
    port: int = 7860,
    host: str = "127.0.0.1",
    samples: Path | None = None,
    architecture: str | None = None,
    device: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
    mae: str | PathLike[str] | None = None,
) -> None:
    """Serves the page for these models until it is interrupted; `ready` gets its address. Port 0 is any free one.

    `architecture` is what the bare checkpoints among `models` are, where they could be several.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError:
        raise VitrailError(f"The Studio needs fastapi and uvicorn: {extra('studio')}.") from None
    from vitrail.serve.app import make_app
    from vitrail.serve.views import Lens

    pictures = (
        find_samples(samples) if samples else samples_of([*models, *([mae] if mae else [])]) or find_samples(None)
    )
    listener = listen(host, port)  # before the models: that a port is taken is better known at once
    try:
        found = [m if isinstance(m, Predictor) else opened(m, architecture, device) for m in models]
        lenses = [Lens(one, name) for one, name in zip(found, called(models, found), strict=True)]
        if mae is None and not any(lens.whole.kind.self_supervised for lens in lenses):
            mae = shipped(AUTOENCODER)
        if mae is not None:
            lenses.append(painter(mae, device))
        if not lenses:
            raise VitrailError("The Studio needs a model to look into.")
        app = make_app(lenses, pictures, host)
        options: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
        config = uvicorn.Config(
            app, **options, lifespan="off", timeout_graceful_shutdown=2, limit_concurrency=MOST_CONNECTIONS
        )
        ready(address(host, listener.getsockname()[1]))
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()


def opened(model: str | PathLike[str], architecture: str | None, device: str | None) -> Predictor:
    """A run, a bundle and a catalog name say themselves what they are: they are not told."""
    source = os.fspath(model)
    if architecture and (source.startswith("hf://") or Path(source).expanduser().exists()):
        told = None if HEADER in read_source(source).metadata else architecture
        return load(source, told, device=device)
    return load(source, device=device)


def painter(mae: str | PathLike[str], device: str | None) -> "Lens":
    """A model that can paint what it does not see."""
    from vitrail.serve.views import Lens

    found = load(mae, device=device)
    if not found.kind.self_supervised:
        raise VitrailError(
            f"{os.fspath(mae)} is no masked autoencoder: --mae takes a run of `vitrail pretrain`, and any other model "
            "is named before the options."
        )
    return Lens(found, called([mae], [found])[0])


def called(models: Sequence[str | PathLike[str] | Predictor], found: Sequence[Predictor]) -> list[str]:
    """How a page tells them apart: a run by its folder, the others by the name that they carry."""
    own = [one.name or type(one.model).__name__ for one in found]
    places = [None if isinstance(model, Predictor) else Path(model).expanduser() for model in models]
    names = [
        f"{place.resolve().name} ({name})" if place and place.is_dir() else name
        for place, name in zip(places, own, strict=True)
    ]
    # Where two would still be called the same, each also says what it was asked for by.
    return [
        f"{place} ({name})" if place and names.count(short) > 1 else short
        for place, name, short in zip(places, own, names, strict=True)
    ]


def samples_of(models: Sequence[str | PathLike[str] | Predictor]) -> list[Sample]:
    """Images of the first run, if they are still where they were: those that it was not trained on, if there are."""
    first = None if not models or isinstance(models[0], Predictor) else Path(models[0]).expanduser()
    if first is None or not first.is_dir():
        return []
    try:
        record = read_record(first)
        if not (data := record.data):
            return []
        if held := _held_out(first / "split.csv", record.recipe.get("refit") == "on"):
            return offered(held, Path(data).resolve())
        # Where masks lie beside the images, they are no samples.
        places = ("test/images", "val/images", "images/test", "images/val", "test", "val", "images", "JPEGImages")
        folders = (Path(data) / place for place in places)
        return find_samples(next((folder for folder in folders if folder.is_dir()), Path(data)))
    except (VitrailError, OSError):
        return []


def _held_out(table: Path, refitted: bool) -> list[Path]:
    """Files of test, else of val, unless the run has learned from that in the end."""
    if not table.is_file():
        return []
    split_of = read_split(table, ("test",) if refitted else ("test", "val"))
    there = [(Path(place), split) for place, split in split_of.items() if Path(place).is_file()]
    return [path for path, split in there if split == "test"] or [path for path, _ in there]


def listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise VitrailError(f"--port is from 0 to 65535, got {port}.")
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise VitrailError(f"There is no place to listen called {host}:{port} ({error}).") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(128)  # a browser that is opened now waits, and is not turned away
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise VitrailError(
                f"Port {port} is in use, perhaps by another Studio: choose another with --port, or 0 for any free one."
            ) from None
        raise VitrailError(f"{host}:{port} can't be listened on: {error.strerror}.") from None
    return listener


def address(host: str, port: int) -> str:
    """What to type into a browser on this machine."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def open_browser(where: str) -> None:
    """In a window, where there is one: a text browser would take over the terminal."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(where)
