"""Detections are compared by what they are, in any order; what only one side has is counted."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitrail import VitrailError
from vitrail.tasks.detect.export_check import Agreement, match

COUNT = 60


def found(masks: bool = False) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    corner = 100 * torch.rand(COUNT, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 50 * torch.rand(COUNT, 2, generator=generator)], dim=1)
    scores = torch.linspace(0.9, 0.1, COUNT)
    each = {"boxes": boxes, "scores": scores, "labels": torch.arange(COUNT) % 3}
    return each | ({"masks": torch.rand(COUNT, 28, 28, generator=generator)} if masks else {})


@pytest.mark.parametrize("masks", [False, True])
def test_order_and_rounding_make_no_difference(masks: bool) -> None:
    ours, order = found(masks), torch.randperm(COUNT)
    theirs = {name: values[order] for name, values in ours.items()}
    theirs["boxes"] = theirs["boxes"] + 0.004
    theirs["scores"] = theirs["scores"] - 3e-5
    boxes, same, score, corner = match(ours, theirs)
    assert (boxes, same) == (COUNT, COUNT)
    assert score == pytest.approx(3e-5, abs=1e-7) and corner == pytest.approx(0.004, abs=1e-4)


def test_another_place_class_score_or_mask_is_another_box() -> None:
    ours = found(masks=True)
    theirs = {name: values.clone() for name, values in ours.items()}
    theirs["boxes"][0, 2] += 1
    theirs["labels"][1] += 1
    theirs["scores"][2] -= 0.01
    theirs["masks"][3, 5, 5] += 0.1
    assert match(ours, theirs)[:2] == (COUNT, COUNT - 4)
    shorter = {name: values[:-6] for name, values in ours.items()}
    assert match(ours, shorter)[:2] == match(shorter, ours)[:2] == (COUNT, COUNT - 6)
    nothing = {name: values[:0] for name, values in ours.items()}
    assert match(ours, nothing) == match(nothing, ours) == (COUNT, 0, 0.0, 0.0)
    theirs["scores"][:] = float("nan")
    assert match(ours, theirs)[1] == 0


def test_a_few_missing_boxes_are_said_and_more_are_refused() -> None:
    path = Path("m.onnx")
    assert Agreement(300, 295, 1e-6, 1e-4).words(path).startswith("295 of 300 boxes are the model's. Largest")
    for boxes, same in ((300, 293), (20, 18), (1, 0), (0, 0)):
        with pytest.raises(VitrailError, match=r"^m.onnx was not kept: of the \d+ boxes .*, with the model's name\.$"):
            Agreement(boxes, same, 0.0, 0.0).words(path)
