"""`open_boxes`: images with boxes, from COCO's JSON, Pascal VOC's XML or YOLO's text files, whichever is there.

What is wrong with an annotation costs no more than itself: it is clipped or left out, counted in the source's notes and
listed in its `problems`.
"""

import os
from pathlib import Path

from vitrail.data.existence import check_exists
from vitrail.data.kinds import BOXES
from vitrail.data.sources.boxes.coco import json_files, open_coco
from vitrail.data.sources.boxes.samples import Boxed, BoxSource
from vitrail.data.sources.boxes.voc import annotation_folder, open_voc
from vitrail.data.sources.boxes.yolo import is_yolo, open_yolo
from vitrail.errors import VitrailError

__all__ = ["BoxSource", "Boxed", "open_boxes"]


def open_boxes(data: str | Path, images: str | Path | None = None) -> BoxSource:
    """The classes, splits and samples of DATA.

    heads_train.json                    COCO; images beside it, in images/, or in the folder of the split
    DATA/annotations/instances_*.json   COCO, one file for each split; also DATA/train/_annotations.coco.json
    DATA/Annotations, DATA/JPEGImages   Pascal VOC, with the lists of ImageSets/Main where they are
    DATA/images, DATA/labels            YOLO, with data.yaml or classes.txt; also DATA/train/images and labels

    Without splits in the source all is in "all". `images` is where COCO's file names start, if nowhere near.
    """
    check_exists(data, BOXES, by_name=False)
    path, name = Path(data).expanduser(), os.fspath(data)
    folder = Path(images).expanduser() if images is not None else None
    if path.is_file() and path.suffix.lower() == ".json":
        return open_coco([path], name, folder)
    if path.is_file() and path.suffix.lower() in (".yaml", ".yml"):
        return open_yolo(path.parent, name, path)
    if not path.is_dir():
        raise VitrailError(f"{name} is no source of boxes: expected {BOXES}.")
    try:
        kinds = {
            "Pascal VOC's XML": annotation_folder(path) is not None,
            "YOLO's text files": is_yolo(path),
            "COCO's JSON": bool(json_files(path)),
        }
    except OSError as error:
        raise VitrailError(f"The folder {name} can't be read ({error.strerror or error}).") from None
    found = [kind for kind, there in kinds.items() if there]
    if not found:
        raise VitrailError(f"{name} holds no boxes: expected {BOXES}.")
    if len(found) > 1:
        raise VitrailError(f"{name} holds {' and '.join(found)}: keep one kind, or pass the JSON or data.yaml itself.")
    if found == ["COCO's JSON"]:
        return open_coco(json_files(path), name, folder, path)
    return open_voc(path, name) if found[0].startswith("Pascal") else open_yolo(path, name)
