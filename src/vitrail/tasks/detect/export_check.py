"""Does an exported detector find what the model finds? Each of the model's boxes is looked for among the file's.

Which of two boxes comes first, and so which survives where they overlap or where the list ends, may hang on the last
bit of a score. So boxes are compared by what they are, not by their order, and a few may be missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models import Preprocessing
from vitrail.tasks.exporting import LIMIT, test_images
from vitrail.weights.onnx import OnnxModel

CORNER = 0.1  # pixels, up to which two boxes are the same; rounding moves a corner by less than a hundredth of one
CELL = 0.01  # the same for the chance of a cell of a mask
MISSING = 0.02  # the share of boxes that may hang on a last bit

Found = dict[str, Tensor]


@dataclass(frozen=True)
class Agreement:
    boxes: int  # of the model, or of the file where that has more
    same: int  # of those, found by both
    scores: float  # the largest difference among these
    pixels: float

    def words(self, path: Path) -> str:
        """What to say of it; more than a few missing boxes are an error."""
        if not self.same or self.boxes - self.same > max(1, MISSING * self.boxes):
            raise VitrailError(
                f"{path.name} was not kept: of the {self.boxes} boxes on the pictures of the check, the model and the"
                f" file find {self.same} alike; please report this, with the model's name."
            )
        return (
            f"{self.same} of {self.boxes} boxes are the model's. Largest difference of the scores: {self.scores:.1e},"
            f" of the corners: {self.pixels:.1e} pixels"
        )


@torch.no_grad()
def compare(model: Any, path: Path, pre: Preprocessing) -> Agreement:
    """Over a wide, a square and a tall image, with a threshold that lets through what is hardly a box: a model that
    was trained on something finds little on the blots of a check."""
    short, long = model.settings.image_size
    shapes = [(short, long), (short, short), (long, long // 3 + 5)]
    images = [test_images(1, shape, pre, seed)[0] for seed, shape in enumerate(shapes)]
    with threshold(model, 0.0):
        expected = [model([image])[0] for image in images]
    scores = torch.cat([each["scores"] for each in expected])
    least = np.array(scores.min().item() / 2 if len(scores) else 0.0, dtype=np.float32)
    found = OnnxModel(path, "cpu", {"score_threshold": least})(images)
    boxes, same, far, off = zip(*map(match, expected, found), strict=True)
    return Agreement(sum(boxes), sum(same), max(far), max(off))


def match(ours: Found, theirs: Found) -> tuple[int, int, float, float]:
    """The figures of an `Agreement` for one image."""
    count = max(len(ours["scores"]), len(theirs["scores"]))
    if not len(ours["scores"]) or not len(theirs["scores"]):
        return count, 0, 0.0, 0.0
    score = (ours["scores"][:, None] - theirs["scores"]).abs()
    corner = (ours["boxes"][:, None] - theirs["boxes"]).abs().amax(dim=-1)
    like = (score <= LIMIT) & (corner <= CORNER) & (ours["labels"][:, None] == theirs["labels"])
    # By both: an empty box at the edge may have the corners of another.
    nearest = (score / LIMIT + corner / CORNER).masked_fill(~like, float("inf")).argmin(dim=1)
    row = torch.arange(len(nearest))
    same = like[row, nearest]
    if "masks" in ours:
        same &= (ours["masks"] - theirs["masks"][nearest]).abs().amax(dim=(1, 2)) <= CELL
    row, nearest = row[same], nearest[same]
    if not len(row):
        return count, 0, 0.0, 0.0
    return count, len(row), score[row, nearest].max().item(), corner[row, nearest].max().item()


@contextmanager
def threshold(model: nn.Module, value: float) -> Iterator[None]:
    """The detector, with another least score for a while."""
    net: Any = model.net
    part = net if hasattr(net, "score_thresh") else net.roi_heads
    before, part.score_thresh = part.score_thresh, value
    try:
        yield
    finally:
        part.score_thresh = before
