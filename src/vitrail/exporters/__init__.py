"""Models for other programs: ONNX, or the dialect of another library, each checked before it is kept."""

import copy
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from vitrail.errors import VitrailError, nearest
from vitrail.exporters.onnx import require_onnx, write_onnx
from vitrail.exporters.read_back import read_back
from vitrail.predict import Predictor, load
from vitrail.weights import save_weights
from vitrail.weights.header import header_of, settings_of, unwrapped
from vitrail.weights.onnx import OnnxModel

__all__ = ["FORMATS", "Exported", "export"]

# What is added to the name of the model, by default, and which endings a name may have.
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnx": (".onnx", (".onnx",)),
    "timm": (".timm.safetensors", (".safetensors", ".pth", ".pt", ".bin")),
    "hf": ("-hf", ()),  # a folder
    "torchvision": (".torchvision.pth", (".safetensors", ".pth", ".pt", ".bin")),
}


@dataclass(frozen=True)
class Exported:
    path: Path
    to: str
    megabytes: float
    # The largest between the model and the file, absolute: of the logits, or the features where there are no classes,
    # or a detector's scores; None: unchecked.
    difference: float | None
    seconds: float
    notes: list[str] = field(default_factory=list)
    compared: str = ""  # what the check came to, in words


def export(
    run: str | PathLike[str] | Predictor,
    to: str = "onnx",
    out: str | PathLike[str] | None = None,
    check: bool = True,
    image_size: int | tuple[int, int] | None = None,
    model: str | None = None,
    told: Callable[[str], None] | None = None,
) -> Exported:
    """Writes a model for other programs: `to` is onnx, timm, hf (transformers) or torchvision; all in fp32.

    The file is read back, as ONNX by onnxruntime and else by our own reader, and asked about the same images as the
    model; if answers differ by more than 1e-3, or if one in fifty of a detector's boxes is another, nothing is kept.
    `out` defaults to a name beside the model's own.

    ONNX takes any batch and, but for Swin and for segmenters, any height and width; that of a detector, one image at
    a time, of any height and width. Labels, preprocessing and what the run said of itself travel in it, so that
    `vitrail.load("model.onnx")` is the run. `image_size` is the size it expects images in. `told` is
    called with a sentence before what may take a while.
    """
    start = time.perf_counter()
    if to not in FORMATS:
        raise VitrailError(f"to={to!r} is not a format: use {', '.join(FORMATS)}.{nearest(to, FORMATS)}")
    source = None if isinstance(run, Predictor) else os.fspath(run)
    if source is not None and source.endswith(".onnx"):
        raise VitrailError(f"{source} is an ONNX file already; name the run or checkpoint that it was exported from.")
    if to == "onnx":
        require_onnx()
    path = _target(source, to, out)
    predictor = run if isinstance(run, Predictor) else load(run, model, image_size, device="cpu")
    if told is not None and to == "onnx":
        told("writing and checking the graph: seconds, or a minute or two where it segments or detects.")
    with _beside(path) as part:
        written = part / path.name
        found, compared, notes = _write(predictor, to, written, check)
        megabytes = sum(file.stat().st_size for file in part.rglob("*") if file.is_file()) / 1e6
        _move(written, path)
    return Exported(path, to, megabytes, found, time.perf_counter() - start, notes, compared)


def _write(predictor: Predictor, to: str, path: Path, check: bool) -> tuple[float | None, str, list[str]]:
    task, name, labels = predictor.kind, predictor.name, predictor.labels or None
    model = unwrapped(predictor.model)
    if predictor.device.type != "cpu":
        model = copy.deepcopy(model).cpu()
    pre, notes = task.export_preprocessing(predictor.preprocessing)
    notes += task.export_notes(predictor.about)
    if to == "onnx":
        model, more = task.exported(model)
        notes += more
        graph = task.graph(copy.deepcopy(model).cpu().float(), pre.size)
        write_onnx(graph, path, header_of(settings_of(model), pre, labels, name, predictor.about))
    else:
        save_weights(model, path, to, labels, pre)
    if to in ("timm", "torchvision"):
        rest = "the labels and the preprocessing stay" if labels else "the preprocessing stays"
        notes.append(f"Weights alone: {rest} in the run.")
    if not check:
        return None, "", notes
    if to == "onnx":
        return *task.check_export(model, path, pre, OnnxModel(path, "cpu"), "onnxruntime"), notes
    other, more = read_back(path, settings_of(model), name)
    return *task.check_export(model, path, pre, other, "Vitrail"), notes + more


def _target(source: str | None, to: str, out: str | PathLike[str] | None) -> Path:
    """Where to write: as told, or beside the model under its own name."""
    own = None if source is None or source.startswith("hf://") else Path(source).expanduser()
    ending, allowed = FORMATS[to]
    if own is not None and own.is_dir():
        folder, stem = own, "model"
    elif own is not None and own.is_file():
        folder, stem = own.parent, own.stem
    else:
        folder, stem = Path(), (source or "model").rstrip("/").split("/")[-1].partition("@")[0]
    path = folder / f"{stem}{ending}" if out is None else Path(out).expanduser()
    if path.is_dir() and allowed:
        path = path / f"{stem}{ending}"
    if allowed and path.suffix not in allowed:
        raise VitrailError(f"The name of a file for {to} ends in {' or '.join(allowed)}; {path.name} does not.")
    if own is not None and own.exists():
        taken = {own.resolve(), *((own / name).resolve() for name in ("model.safetensors",) if own.is_dir())}
        if path.resolve() in taken or (not allowed and path.resolve() == own.parent.resolve()):
            raise VitrailError(f"{path} would overwrite the model itself; name another place with out.")
    return path


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A folder on the same disk, in which a file may fail without leaving anything behind."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".export-", dir=path.parent))
        yield part
    except OSError as error:
        raise VitrailError(f"{path} can't be written: {error.strerror or error}.") from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _move(written: Path, path: Path) -> None:
    """To its place, all at once; a folder file by file. The weights of a large ONNX file lie beside it and go first."""
    if written.is_dir():
        path.mkdir(exist_ok=True)
        for file in sorted(written.iterdir()):
            os.replace(file, path / file.name)
        return
    for file in sorted(written.parent.iterdir(), key=lambda file: file == written):
        os.replace(file, path.parent / file.name)
