"""Public weights: where those of a catalog name lie, what of the hub is here, the classes that most of them know."""

import re
from pathlib import Path

from vitrail.errors import VitrailError, closest
from vitrail.models import list_models, resolve
from vitrail.models.registry import change
from vitrail.weights.files import FILES, like
from vitrail.weights.shipped import shipped_names


def published(name: str) -> str:
    """Where the public weights of a catalog name lie: of that very model, not of one like it."""
    if name.endswith(FILES):
        raise VitrailError(f"There is no file {name}.")
    try:
        entry, implied = resolve(name)
    except VitrailError as error:
        what = f"{name!r} is neither a file or folder nor a model name"
        if meant := _meant(name):
            raise VitrailError(f'{what}. Did you mean "{meant}"?') from None
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


def _meant(name: str) -> str:
    """What is like it beside the place that it names, or a model that ships inside; "" where the catalog is nearer."""
    if len(Path(name).parts) > 1:
        return like(name)
    found = closest(name, [*list_models(), *shipped_names()])
    return found if found in shipped_names() else "" if found else like(name)


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
