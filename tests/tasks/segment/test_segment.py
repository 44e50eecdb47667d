"""The loss and the figures of segmentation against counting by hand; pictures with the pixels that they should have."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitrail.data.sources.masks.pairs import IGNORE
from vitrail.errors import VitrailError
from vitrail.tasks.segment.drawing import (
    case,
    coloured,
    legend,
    mask_image,
    named,
    overlay,
    palette,
    save_segmentation,
    shares,
    summary,
)
from vitrail.tasks.segment.objective import Segment, accuracy, balancing_weights, boundary_f1, confusion, iou, miou

NAMES = ["ground", "cat", "dog"]


def hard(labels: torch.Tensor, classes: int = 3) -> torch.Tensor:
    """Logits that are sure of these classes."""
    return 50.0 * F.one_hot(labels.long(), classes).permute(0, 3, 1, 2).float()


# Loss


def test_cross_entropy_is_the_mean_over_the_pixels_of_an_image_that_count():
    logits, masks = torch.randn(3, 3, 9, 7), torch.randint(0, 3, (3, 9, 7), dtype=torch.uint8)
    masks[0, :4], masks[2] = IGNORE, IGNORE
    loss = Segment(NAMES, dice=0.0).loss(logits, masks)
    for i in range(2):
        wanted = F.cross_entropy(logits[i : i + 1], masks[i : i + 1].long(), ignore_index=IGNORE)
        assert torch.allclose(loss[i], wanted, atol=1e-6)
    assert loss[2] == 0  # nothing is known of it
    weights = torch.tensor([1.0, 2.0, 5.0])
    smooth = Segment(NAMES, dice=0.0, smoothing=0.1).loss(logits, masks)[1]
    assert torch.allclose(smooth, F.cross_entropy(logits[1:2], masks[1:2].long(), label_smoothing=0.1), atol=1e-6)
    weighted = Segment(NAMES, dice=0.0, class_weights=weights).loss(logits, masks)[1]
    each = F.cross_entropy(logits[1:2], masks[1:2].long(), reduction="none")
    assert torch.allclose(weighted, (each * weights[masks[1:2].long()]).mean(), atol=1e-6)


def test_dice_is_that_of_one_hots_over_the_classes_that_are_there():
    logits, masks = torch.randn(2, 3, 8, 8), torch.randint(0, 2, (2, 8, 8), dtype=torch.uint8)
    masks[0, :, :3] = IGNORE
    both = Segment(NAMES, dice=1.0).loss(logits, masks) - Segment(NAMES, dice=0.0).loss(logits, masks)
    for i in range(2):
        known = masks[i] != IGNORE
        p, y = logits[i].softmax(0)[:, known], F.one_hot(masks[i][known].long(), 3).T.float()
        dice = 2 * (p * y).sum(1) / (p.sum(1) + y.sum(1))
        assert torch.allclose(both[i], 1 - dice[:2].mean(), atol=1e-6)  # class 2 is nowhere


def test_a_perfect_answer_costs_nothing_and_ignored_pixels_get_no_gradient():
    masks = torch.randint(0, 3, (2, 6, 6), dtype=torch.uint8)
    assert Segment(NAMES).loss(hard(masks), masks).abs().max() < 1e-5
    masks[:, :2] = IGNORE
    logits = torch.randn(2, 3, 6, 6, requires_grad=True)
    Segment(NAMES).loss(logits, masks).sum().backward()
    assert (logits.grad[:, :, :2] == 0).all() and (logits.grad[:, :, 2:] != 0).any()
    logits = torch.randn(1, 3, 6, 6, requires_grad=True)
    Segment(NAMES).loss(logits, torch.full((1, 6, 6), IGNORE, dtype=torch.uint8)).sum().backward()
    assert (logits.grad == 0).all()


def test_balancing_weights_have_mean_one_over_all_pixels():
    pixels = np.array([900, 90, 10])
    weights = balancing_weights(pixels)
    assert math.isclose((weights * pixels / pixels.sum()).sum(), 1)
    assert math.isclose(weights[2] / weights[0], math.sqrt(90))


# Figures


def test_figures_of_a_case_counted_by_hand():
    """Truth: 4 ground, 4 cat, 1 ignored. Said: one cat pixel for ground, one ground for dog."""
    truth = torch.tensor([[[0, 0, 0], [0, 1, 1], [1, 1, IGNORE]]], dtype=torch.uint8)
    said = torch.tensor([[[0, 0, 2], [0, 0, 1], [1, 1, 2]]])
    counts = confusion(said, truth, 3)
    assert counts.tolist() == [[[3, 0, 1], [1, 3, 0], [0, 0, 0]]]
    total = counts[0].numpy()
    assert iou(total).tolist() == [3 / 5, 3 / 4, 0.0]
    assert math.isclose(miou(total), (0.6 + 0.75 + 0) / 3)
    assert accuracy(total) == 6 / 8
    task = Segment(NAMES)
    found = task.figures(task.rows(hard(said), truth), rounds=20)
    assert found["iou/cat"] == 0.75 and math.isclose(found["miou"], 0.45) and found["pixel_accuracy"] == 0.75
    assert found["n"] == 1 and math.isclose(found["miou_low"], 0.45) and math.isclose(found["miou_high"], 0.45)
    # A class that is neither there nor said has no figure, and does not count.
    task = Segment([*NAMES, "cow"])
    found = task.figures(task.rows(hard(said, 4), truth), rounds=20)
    assert "iou/cow" not in found and math.isclose(found["miou"], 0.45)
    table = task.per_class(task.rows(hard(said, 4), truth))
    assert table["precision"][:3].tolist() == [0.75, 1.0, 0.0] and table["support"].tolist() == [4, 4, 0, 0]


def test_rows_add_up_in_any_order_to_what_a_loop_counts():
    task, rng = Segment(NAMES), np.random.default_rng(0)
    truth = torch.from_numpy(rng.integers(0, 3, (7, 12, 10)).astype(np.uint8))
    truth[torch.rand(truth.shape) < 0.1] = IGNORE
    logits = torch.randn(7, 3, 12, 10)
    rows = torch.cat([task.rows(logits[part], truth[part]) for part in ([3, 4, 5, 6], [0], [1, 2])])
    assert rows.shape == (7, task.width()) and rows.dtype == torch.float64
    said, pairs = logits.argmax(1).numpy(), np.zeros((3, 3), int)
    for t, s in zip(truth.numpy().ravel(), said.ravel(), strict=True):
        if t != IGNORE:
            pairs[t, s] += 1
    assert (task.counts(rows).sum(0) == pairs).all()
    score = task.score(rows)
    assert math.isclose(
        score["miou"], np.mean([pairs[c, c] / (pairs[c].sum() + pairs[:, c].sum() - pairs[c, c]) for c in range(3)])
    )
    assert math.isclose(score["loss"], task.loss(logits, truth).mean().item(), rel_tol=1e-6)
    order = task.worst_first(rows)
    each = [miou(one) for one in task.counts(rows)]
    assert sorted(order) == [*range(7)] and each[order[0]] == min(each) and each[order[-1]] == max(each)


def near_by_hand(said, truth, label, radius):
    """Precision and recall of a boundary, by looking at every pair of pixels."""

    def edge(labels):
        places = []
        for y, x in np.argwhere(labels == label):
            around = labels[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
            if ((around != label) & (around != IGNORE)).any():
                places.append((y, x))
        return np.array(places).reshape(-1, 2)

    ours, theirs = edge(np.where(truth == IGNORE, IGNORE, said)), edge(truth)
    if not len(ours) and not len(theirs):
        return math.nan
    if not len(ours) or not len(theirs):
        return 0.0
    distance = np.hypot(*(ours[:, None] - theirs[None]).transpose(2, 0, 1))
    precision, recall = (distance.min(1) <= radius).mean(), (distance.min(0) <= radius).mean()
    return 2 * precision * recall / max(precision + recall, 1e-12)


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.12])
def test_boundary_f1_is_that_of_every_pair_of_pixels(tolerance):
    rng = np.random.default_rng(1)
    coarse = rng.integers(0, 3, (3, 5, 6)).astype(np.uint8)
    truth = coarse.repeat(6, 1).repeat(5, 2)
    said = np.roll(truth, (1, 2), (1, 2))
    truth[0, :6, :9] = IGNORE
    truth[2], said[2] = 0, 0  # one class all over: no boundary anywhere
    found = boundary_f1(torch.from_numpy(said).long(), torch.from_numpy(truth), 3, tolerance)
    radius = max(1, round(tolerance * math.hypot(30, 30)))
    for image in range(3):
        for label in range(3):
            wanted = near_by_hand(said[image], truth[image], label, radius)
            got = found[image, label].item()
            assert (math.isnan(wanted) and math.isnan(got)) or math.isclose(wanted, got, abs_tol=1e-9)


def test_boundary_f1_forgives_a_shift_within_the_tolerance_and_not_beyond():
    """At 256×256 the tolerance is 3 pixels, and a shift by 2 down and across is one of 2.8."""
    truth = torch.zeros(1, 256, 256, dtype=torch.uint8)
    truth[:, 64:192, 64:192] = 1
    for shift, least, most in ((0, 1, 1), (2, 1, 1), (4, 0.0, 0.1)):
        f1 = boundary_f1(truth.roll(shift, 1).roll(shift, 2).long(), truth, 2)[0]
        assert ((f1 >= least) & (f1 <= most)).all(), (shift, f1)


def test_intervals_narrow_with_more_images():
    task, widths = Segment(NAMES), []
    for n in (16, 512):
        truth = torch.randint(0, 3, (n, 8, 8), dtype=torch.uint8)
        noise = torch.rand(n, 1, 1, 1) * 12
        rows = task.rows(hard(truth) / 10 + noise * torch.randn(n, 3, 8, 8), truth)
        found = task.figures(rows, rounds=200)
        widths.append(found["miou_high"] - found["miou_low"])
        assert found["miou_low"] < found["miou"] < found["miou_high"]
    assert widths[1] < widths[0] / 2


# Pictures


def scene() -> tuple[Image.Image, np.ndarray]:
    labels = np.zeros((40, 60), np.uint8)
    labels[10:30, 10:30], labels[:, 50:], labels[:, 58:] = 1, 2, IGNORE
    return Image.new("RGB", (60, 40), (200, 180, 160)), labels


def test_colours_are_all_different_and_given_ones_stay():
    for count in (3, 16, 150):
        table = palette(count)
        assert len({tuple(colour) for colour in table[:count].tolist()}) == count
    assert palette(3, [(1, 2, 3)])[0].tolist() == [1, 2, 3]


def test_a_mask_comes_back_from_its_file_with_its_classes_and_colours(tmp_path):
    image, labels = scene()
    paths = save_segmentation(tmp_path, "a", image, labels, NAMES, palette(3))
    assert [path.name for path in paths] == ["a_mask.png", "a_overlay.png", "a.json"]
    back = Image.open(paths[0])
    assert back.mode == "P" and (np.asarray(back) == labels).all()
    assert back.getpalette()[:9] == palette(3)[:3].ravel().tolist()
    content = json.loads(paths[2].read_text())
    assert content["width"] == 60 and content["height"] == 40
    total = 40 * 58
    wanted = [("ground", 40 * 50 - 400), ("cat", 400), ("dog", 320)]
    assert [(one["label"], one["pixels"]) for one in content["classes"]] == wanted
    assert content["classes"][1]["share"] == round(400 / total, 6)
    assert content == summary(labels, NAMES, "a")


def test_an_overlay_has_the_colours_of_the_classes_over_the_picture_and_a_legend_below():
    image, labels = scene()
    drawn = np.asarray(coloured(image, labels, palette(3)))
    assert drawn.shape == (40, 60, 3)
    inside, outside = drawn[20, 20].astype(int), drawn[35, 5].astype(int)
    assert np.abs(inside - outside).max() > 40
    assert (drawn[9, 20] < 40).all()  # the line between two classes
    shown = overlay(image, labels, NAMES, palette(3))
    assert shown.width == 360 and shown.height > 240
    swatch = np.asarray(shown)[240:].reshape(-1, 3)
    for colour in palette(3)[:3]:
        assert (swatch == colour).all(axis=1).any()
    assert legend(shares(labels, NAMES), palette(3), 200).height > legend(shares(labels, NAMES), palette(3), 380).height


def test_a_very_large_picture_is_drawn_smaller_and_its_mask_is_not():
    image, labels = scene()
    image, labels = image.resize((3000, 2000)), labels.repeat(50, 0).repeat(50, 1)
    assert overlay(image, labels, NAMES, palette(3)).width == 2048
    assert mask_image(labels, palette(3)).size == (3000, 2000)


def test_a_case_stands_beside_its_truth():
    image, labels = scene()
    drawn = case(image, labels, np.roll(labels, 4, 1), NAMES, palette(3), "a picture with a name far too long for it")
    assert drawn.width == 3 * 240 + 12


def test_the_legends_of_a_report_keep_the_order_of_the_classes():
    few = np.array([[2, 2, 2, 0, 1, 1]], np.uint8)
    assert [(one["label"], one["share"]) for one in named(few, NAMES)] == [(name, None) for name in NAMES]
    many = np.repeat(np.arange(30), np.arange(1, 31)).astype(np.uint8)[None]
    told = [one["index"] for one in named(many, [f"class {i}" for i in range(30)])]
    assert told[:24] == [*range(6, 30)] and len(told) == 30  # the largest are named


def test_what_does_not_fit_is_refused():
    image, labels = scene()
    with pytest.raises(VitrailError, match="one size"):
        coloured(image, labels[:, :-1], palette(3))
    with pytest.raises(VitrailError, match="uint8"):
        mask_image(labels.astype(np.int64), palette(3))
