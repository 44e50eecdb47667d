"""From a source to named tensors: safetensors, `.pth`, `.npz`; a file, a folder, or `hf://org/name`.

Nothing here executes what it reads. `.pth` files go through torch's restricted loader with a short list of inert types.
"""

import argparse
import json
import pathlib
import pickle
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from vitrail.errors import VitrailError
from vitrail.weights.rules import State

# Found inside training checkpoints, and only data: options, paths, and NumPy numbers under their old and new names.
_scalar = np.float64(0).__reduce__()[0]
INERT: list[Any] = [
    argparse.Namespace,
    np.dtype,
    np.ndarray,
    _scalar,
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    *(type(np.dtype(t)) for t in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")),
    *(
        (getattr(pathlib, name), f"{module}.{name}")
        for name in ("Path", "PosixPath", "PurePosixPath")
        for module in ("pathlib", "pathlib._local")
    ),
    (pathlib.PurePosixPath, "pathlib.WindowsPath"),
    (pathlib.PurePosixPath, "pathlib._local.WindowsPath"),
]
WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "module", "teacher", "net")
FILE_NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "model.pth", "checkpoint.pth")


@dataclass
class RawFile:
    """Tensors under the names of the file, and what lies beside them."""

    path: Path
    state: State
    metadata: dict[str, str] = field(default_factory=dict)  # the header of a safetensors file
    config: dict[str, Any] = field(default_factory=dict)  # config.json
    preprocessor: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json


def read_source(source: str | Path) -> RawFile:
    """Reads a file, a folder, or `hf://org/name`."""
    text = str(source)
    path = from_hub(text.removeprefix("hf://")) if text.startswith("hf://") else Path(source).expanduser()
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        found = [path / name for name in FILE_NAMES if (path / name).is_file()] or sorted(path.glob("*.safetensors"))
        if not found:
            raise VitrailError(f"The folder {path} holds no weights; expected one of {', '.join(FILE_NAMES)}.")
        path = found[0]
    if not path.is_file():
        raise VitrailError(f"There is no file or folder {source}; give a checkpoint, a folder, or hf://org/name.")
    raw = read_file(path)
    raw.config, raw.preprocessor = read_json(folder / "config.json"), read_json(folder / "preprocessor_config.json")
    return raw


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VitrailError(f"{path} is not readable as JSON: {error}.") from None
    return content if isinstance(content, dict) else {}


def read_file(path: Path) -> RawFile:
    if path.name.endswith(".index.json"):
        names = sorted(set(read_json(path).get("weight_map", {}).values()))
        parts = [read_safetensors(path.parent / Path(name).name) for name in names]
        return RawFile(path, {key: tensor for part in parts for key, tensor in part.state.items()})
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise VitrailError(f"{path} is empty (0 bytes).")
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return read_safetensors(path)
    if path.suffix == ".npz":
        return read_npz(path)
    return read_pickle(path)


def read_safetensors(path: Path) -> RawFile:
    if not path.is_file():
        raise VitrailError(f"{path} is missing, though the index beside it names it.")
    try:
        with safe_open(path, framework="pt") as file:
            return RawFile(path, {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        reason = "it is cut off or damaged" if "Metadata" in str(error) or "Header" in str(error) else str(error)
        raise VitrailError(f"{path} can't be read as safetensors: {reason}; copy or download it again.") from None


def read_npz(path: Path) -> RawFile:
    try:
        with np.load(path, allow_pickle=False) as file:
            return RawFile(path, {key: torch.from_numpy(np.array(file[key])) for key in file.files})
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise VitrailError(f"{path} can't be read as .npz: {error}.") from None


def read_pickle(path: Path) -> RawFile:
    try:
        with torch.serialization.safe_globals(INERT):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if refused := re.search(r"(?:GLOBAL|global|class|type) ['\"]?([\w.]+)['\"]? was not an allowed", str(error)):
            raise VitrailError(
                f"{path} was not loaded: it asks to run {refused[1]}, and a checkpoint may hold only tensors and plain values;"
                " save the state_dict alone, best as safetensors."
            ) from None
        raise VitrailError(f"{path} was not loaded: it is not a checkpoint, or is damaged.") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile):
        raise VitrailError(f"{path} can't be read as a PyTorch checkpoint: it is cut off, damaged, or something else.") from None
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    state = {k: v for k, v in content.items() if isinstance(v, torch.Tensor)} if isinstance(content, dict) else {}
    if not state:
        raise VitrailError(f"{path} holds no tensors by name; expected a state_dict.")
    return RawFile(path, {re.sub(r"^((module|_orig_mod|backbone)\.)+", "", key): tensor for key, tensor in state.items()})


def from_hub(name: str) -> Path:
    """The folder of `org/name[@revision]` in the local cache, downloaded when it can be."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = name.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise VitrailError(f"hf://{name} is not of the form hf://org/name, or hf://org/name@revision.")
    wanted = ["*.json", "*.safetensors"]
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
        if not any((folder / file).exists() for file in FILE_NAMES):
            folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "pytorch_model.bin"]))
    except (LocalEntryNotFoundError, OSError, HfHubHTTPError, HFValidationError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = {401: "it is private or does not exist", 403: "access to it must be asked for", 404: "it does not exist"}.get(
            status, "it is not in the local cache, and the hub can't be reached"
        )
        raise VitrailError(f"hf://{name} could not be fetched: {reason}; give a local file or folder instead.") from None
    return folder
