"""Is DATA there at all? Asked without torch, so that a slip of the fingers is answered at once."""

import os
from pathlib import Path

from vitrail.data.samples import NAMED
from vitrail.data.sources.named_datasets import torchvision_name, torchvision_names
from vitrail.errors import VitrailError, nearest

# What each task learns from; "" where only the model knows its task.
EXPECTED = {
    "": "labelled pictures, as the model was trained on",
    "classify": "class folders, a .csv or .parquet table, .tar shards, an .npz, or the name of a data set",
    "pretrain": "pictures in folders, a .csv or .parquet table, .tar shards, an .npz, or the name of a data set",
    "segment": "images/ beside masks/, a table path,mask, or COCO's JSON",
    "detect": "COCO's JSON, Annotations/NAME.xml (Pascal VOC), or labels/NAME.txt (YOLO)",
    "spoof": "a folder with live/ and attack folders, a .csv table, or a folder of lists",
}
OF_FILES = ("segment", "detect", "spoof")  # the others also take data sets by name, and shards {000..009}


def check_exists(data: str | Path, task: str = "classify") -> None:
    """Refuses what is neither on the disk nor called like a data set, with the nearest that is."""
    name, path = os.fspath(data), Path(data).expanduser()
    if not name:
        raise VitrailError(f"Name the data: {EXPECTED[task]}.")
    by_name = task not in OF_FILES
    if path.exists() or (by_name and (name.startswith(NAMED) or "{" in name or torchvision_name(name))):
        return
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = nearest(path.name, beside)
    if not hint and by_name and path.name == name:
        hint = nearest(name, torchvision_names())
    raise VitrailError(f"There is no {name}: expected {EXPECTED[task]}.{hint}")
