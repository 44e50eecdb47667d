"""Public weights: where those of a catalog name lie, what of the hub is here, the classes that most of them know."""

import re
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models import resolve
from vitrail.models.catalog import change


def published(name: str) -> str:
    """Where the public weights of a catalog name lie: of that very model, not of one like it."""
    if name.endswith((".safetensors", ".pth", ".pt", ".bin", ".npz", ".onnx")):
        raise VitrailError(f"There is no file {name}.")
    try:
        entry, implied = resolve(name)
    except VitrailError as error:
        what = f"{name!r} is neither a file or folder nor a model name"
        raise VitrailError(str(error).replace(f"There is no model named {name!r}", what, 1)) from None
    hub = entry.hub or ""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and name != hub and not name.startswith(("ViT", "R50", "R26")):
        raise VitrailError(f"There is no file or folder {name}; for the hub write hf://{name}.")
    tag, recorded = name.partition(".")[2], hub.partition(".")[2]
    changed = {key: value for key, value in implied.items() if change(entry.settings, **{key: value}) != entry.settings}
    if not hub or changed or (tag and tag != recorded):
        what = f"{name} (another than {hub})" if hub else entry.name
        raise VitrailError(f"No public weights are recorded for {what}; give a file, a folder, or hf://org/name.")
    return f"hf://{hub}"


def imagenet_labels() -> list[str]:
    """The names of ImageNet's 1000 classes, in order, as torchvision keeps them beside its weights."""
    from torchvision.models import ViT_B_16_Weights

    return list(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])


def in_cache(name: str) -> Path | None:
    """The folder of `org/name[@revision]` in the hub's cache; nothing is downloaded."""
    from huggingface_hub import snapshot_download

    name, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (OSError, ValueError):
        return None
