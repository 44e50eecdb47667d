"""From a source to named tensors: safetensors, `.pth`, `.npz`; a file, a folder, or `hf://org/name`.

Nothing here executes what it reads. `.pth` files go through torch's restricted loader with a short list of inert types.
"""

import argparse
import json
import os
import pathlib
import pickle
import re
import warnings
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from vitrail.errors import VitrailError, closest
from vitrail.weights.rules import State
from vitrail.weights.shipped import shipped

# Found inside training checkpoints, and only data: options, NumPy numbers under their old and new names, and paths,
# which become pure ones, since a file may come from another operating system.
_scalar = np.float64(0).__reduce__()[0]
INERT: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *(type(np.dtype(t)) for t in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")),
    *(
        (pathlib.PureWindowsPath if "Windows" in kind else pathlib.PurePosixPath, f"{module}.{kind}")
        for kind in ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
        for module in ("pathlib", "pathlib._local")
    ),
]
WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "module", "teacher", "net")
FILE_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pth",
    "checkpoint.pth",
)
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
FILES = (*SUFFIXES, ".onnx")  # that a model may lie in
# What DataParallel, torch.compile, self-supervised trainers and Lightning put in front of the names of a model.
WRAPPED = re.compile(r"^((module|_orig_mod|backbone|model)\.)+")


@dataclass
class RawFile:
    """Tensors under the names of the file, and what lies beside them."""

    path: Path
    state: State
    metadata: dict[str, str] = field(default_factory=dict)  # the header of a safetensors file
    config: dict[str, Any] = field(default_factory=dict)  # config.json
    preprocessor: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    names: list[str] = field(
        default_factory=list
    )  # of the file, its folder, its repository: they may hint at the model


def read_source(source: str | os.PathLike[str]) -> RawFile:
    """Reads a file, a folder, `hf://org/name`, or the name of a model that ships inside."""
    text = os.fspath(source)
    hub = text.removeprefix("hf://") if text.startswith("hf://") else None
    path = Path(text).expanduser().absolute() if hub is None else from_hub(hub)
    if not path.exists():
        path = shipped(text) or path
    if path.is_dir():
        path = find_weights(path)
    elif not path.is_file():
        hint = f' Did you mean "{found}"?' if (found := like(text)) else ""
        raise VitrailError(f"There is no file or folder {text}; give a checkpoint, a folder, or hf://org/name.{hint}")
    raw = read_file(path)
    raw.config |= read_json(path.parent / "config.json")
    raw.preprocessor = read_json(path.parent / "preprocessor_config.json")
    raw.names = [path.stem, path.parent.name, *([] if hub is None else [hub.partition("@")[0]])]
    return raw


def like(name: str) -> str:
    """What is called nearly so at the place that is named: a folder, or a file that may be a model; "" for none."""
    place, there = Path(name).expanduser(), list[str]()
    with suppress(OSError):  # no such place, or its names are not for everyone
        there = [path.name for path in place.parent.iterdir() if path.suffix in FILES or path.is_dir()]
    found = closest(place.name, there)
    return str(place.with_name(found)) if found else ""


def find_weights(folder: Path) -> Path:
    """The file of weights in a folder: by its usual name, or because it is the only one."""
    for name in FILE_NAMES:
        if (folder / name).is_file():
            return folder / name
    if all((folder / name).is_file() for name in ("last.pt", "metrics.jsonl")):
        raise VitrailError(f"The run {folder} has kept no model yet: let it finish an epoch (vitrail train --resume).")
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise VitrailError(f"The folder {folder} holds no weights; expected one of {', '.join(FILE_NAMES)}.")
    if len(found) > 1:
        raise VitrailError(f"The folder {folder} holds {', '.join(path.name for path in found[:4])}; name one of them.")
    return found[0]


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise VitrailError(f"{path} is not readable as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise VitrailError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return content


def read_file(path: Path) -> RawFile:
    """Reads one file, of the kind that its first bytes and its name tell; an index leads to its parts."""
    if path.name.endswith(".index.json"):
        return read_parts(path)
    if path.suffix == ".onnx":
        raise VitrailError(
            f"{path} is an ONNX file, which can predict and embed but has no weights to take out; name the run or the"
            " checkpoint that it was exported from."
        )
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise VitrailError(f"{path} can't be opened: {error.strerror or error}.") from None
    if not head:
        raise VitrailError(f"{path} is empty (0 bytes).")
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        raw = read_safetensors(path)
    else:
        raw = read_npz(path) if path.suffix == ".npz" else read_pickle(path)
    raw.state = {WRAPPED.sub("", name): tensor for name, tensor in raw.state.items()}
    return raw


def read_parts(index: Path) -> RawFile:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise VitrailError(f"{index} names no parts; expected a weight_map.")
    paths = [index.parent / Path(name).name for name in sorted(set(names.values()))]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise VitrailError(f"{index} names {missing[0]}, which is not beside it; copy or download it again.")
    return RawFile(index, {key: tensor for path in paths for key, tensor in read_file(path).state.items()})


def read_safetensors(path: Path) -> RawFile:
    try:
        with safe_open(path, framework="pt") as file:
            return RawFile(path, {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        raise VitrailError(
            f"{path} is not a whole safetensors file: it is cut off or damaged; copy it again."
        ) from None


def read_npz(path: Path) -> RawFile:
    try:
        with np.load(path, allow_pickle=False) as file:
            return RawFile(path, {key: torch.from_numpy(np.array(file[key])) for key in file.files})
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise VitrailError(f"{path} can't be read as .npz: {error}.") from None


def read_pickle(path: Path) -> RawFile:
    """A `.pth` file: its tensors, and, as a config, the architecture that a training script may have noted in it."""
    try:
        with torch.serialization.safe_globals(INERT), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*TorchScript")  # said below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if refused := re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", str(error)):
            raise VitrailError(
                f"{path} was not loaded: it asks to run {refused[1]}, and a checkpoint may hold only tensors and plain"
                " values; save the state_dict alone, best as safetensors."
            ) from None
        raise VitrailError(f"{path} was not loaded: it is not a PyTorch checkpoint, or is damaged.") from None
    except Exception as error:  # whatever bytes that were never meant for it make the loader stumble over
        if "TorchScript" in str(error):
            raise VitrailError(
                f"{path} is a TorchScript program, and a checkpoint may hold only tensors and plain values; save the"
                " state_dict of the model that it was made from."
            ) from None
        raise VitrailError(f"{path} can't be read as a PyTorch checkpoint: it is cut off or damaged.") from None
    outer = content if isinstance(content, dict) else {}
    inner = next((outer[name] for name in WRAPPERS if isinstance(outer.get(name), dict)), outer)
    state = {key: value for key, value in inner.items() if isinstance(key, str) and isinstance(value, torch.Tensor)}
    if not state:
        raise VitrailError(f"{path} holds no tensors by name; expected a state_dict.")
    architecture = outer.get("arch") or getattr(outer.get("args"), "model", None)
    return RawFile(path, state, config={"architecture": architecture} if isinstance(architecture, str) else {})


def from_hub(name: str) -> Path:
    """The folder of `org/name[@revision]` in the local cache, downloaded when it can be."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    name, _, revision = name.partition("@")
    malformed = f"hf://{name} is not of the form hf://org/name, or hf://org/name@revision."
    if name.count("/") != 1:
        raise VitrailError(malformed)
    folder = Path()
    try:
        for weights in ("*.safetensors", "pytorch_model*.bin"):  # the second only where the first is not offered
            folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=["*.json", weights]))
            if any(folder.glob(weights)):
                break
    except HFValidationError:
        raise VitrailError(malformed) from None
    except OSError as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        reason = {
            401: "it is private or does not exist",
            403: "access to it must be asked for",
            404: "it does not exist",
        }.get(status, "it is not in the local cache, and the hub can't be reached")
        raise VitrailError(f"hf://{name} can't be had: {reason}; give a local file or folder instead.") from None
    return folder
