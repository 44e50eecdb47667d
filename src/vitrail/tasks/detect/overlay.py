"""What a detector finds on an image of the Studio's page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.models.dense.detector import Detector, paste
from vitrail.tasks.detect.drawing import colour

MOST = 100  # boxes that a page draws


def boxes_over(predictor: Any, x: Tensor, frame: tuple[int, int]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and words for the Studio. The model sees exactly what the page shows: its size, and its hidden patches."""
    whole, size = predictor, (x.shape[2], x.shape[3])
    with as_it_is(whole.model, size):
        (found,) = whole.model([x[0]])
    assert isinstance(found, dict)
    threshold = float(whole.about.get("threshold", 0.5))
    kept = (found["scores"] >= threshold).nonzero().flatten()[:MOST]
    found = {name: values[kept] for name, values in found.items()}
    across = found["boxes"].new_tensor([frame[1], frame[0]] * 2)
    rows = [
        {"label": whole.labels[index], "index": index, "probability": score, "box": box}
        for index, score, box in zip(
            found["labels"].tolist(), found["scores"].tolist(), (found["boxes"] / across).tolist(), strict=True
        )
    ]
    arrays = {"objects": _objects(found, size, frame)} if "masks" in found else {}
    colours = [[int(colour(i)[k : k + 2], 16) for k in (1, 3, 5)] for i in range(len(whole.labels))]
    return arrays, {"rows": rows, "colours": colours, "labels": list(whole.labels), "threshold": threshold}


def _objects(found: dict[str, Tensor], size: tuple[int, int], frame: tuple[int, int]) -> np.ndarray:
    """uint8 [h, w]: which row of the list a pixel belongs to, from 1 on; the surest on top, 0 for none."""
    objects = np.zeros(frame, np.uint8)
    masks = [mask.cpu().numpy() for mask in paste(found, size)]
    for number in range(len(masks), 0, -1):
        objects[: size[0], : size[1]][masks[number - 1]] = number
    return objects


@contextmanager
def as_it_is(model: Detector, size: tuple[int, int]) -> Iterator[None]:
    """For an image that has been sized already."""
    frame: Any = model.net.transform
    sides = frame.short_side, frame.long_side
    frame.short_side, frame.long_side = min(size), max(size)
    try:
        yield
    finally:
        frame.short_side, frame.long_side = sides
