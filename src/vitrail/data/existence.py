"""Is DATA there at all? Asked without torch, so that a slip of the fingers is answered at once."""

import os
from pathlib import Path

from vitrail.data.kinds import LABELLED
from vitrail.data.samples import NAMED
from vitrail.data.sources.named_datasets import torchvision_name, torchvision_names
from vitrail.errors import VitrailError, nearest


def check_exists(data: str | Path, expected: str = LABELLED, by_name: bool = True) -> None:
    """Refuses what is neither on the disk nor, with `by_name`, called like a data set, with the nearest that is."""
    name, path = os.fspath(data), Path(data).expanduser()
    if not name:
        raise VitrailError(f"Name the data: {expected}.", code="no_data")
    if path.exists() or (by_name and (name.startswith(NAMED) or "{" in name or torchvision_name(name))):
        return
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = nearest(path.name, beside)
    if not hint and by_name and path.name == name:
        hint = nearest(name, torchvision_names())
    raise VitrailError(f"There is no {name}: expected {expected}.{hint}", code="data_missing", data=name)
