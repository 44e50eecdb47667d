"""mAP by hand and by pycocotools, four pictures learnt by heart with every head, and what is drawn and written."""

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.boxed_shapes import CLASSES, shapes
from vitrail import VitrailError, create_model
from vitrail.data.augment.boxes import BoxAugmenter, BoxPolicy, viewed
from vitrail.data.sources.boxes import open_boxes
from vitrail.data.sources.boxes.outlines import to_runs
from vitrail.models.dense.detector import Detector
from vitrail.models.dense.settings import DETECT_HEADS
from vitrail.tasks.detect.drawing import Answer, beside, coco_results, colour, draw, write_coco
from vitrail.tasks.detect.metrics import Objects, Score, image_f1, matched, overlaps, there
from vitrail.tasks.detect.objective import Detect, find


def objects(*rows, scores=None, ignored=None) -> Objects:
    """Rows of (class, x0, y0, x1, y1)."""
    n = len(rows)
    return Objects(
        np.array([row[1:] for row in rows], float).reshape(-1, 4), np.array([row[0] for row in rows], int),
        np.ones(n) if scores is None else np.array(scores, float),
        np.zeros(n, bool) if ignored is None else np.array(ignored),
    )  # fmt: skip


def figures(*pairs, classes=("a", "b"), rounds=0) -> dict[str, float]:
    score = Score(classes)
    for truth, found in pairs:
        score.add(truth, found)
    return score.figures(rounds)


# -- the figure -----------------------------------------------------------------------------------------


def test_all_found_and_nothing_else_is_one():
    truth = objects((0, 10, 10, 50, 50), (1, 60, 60, 90, 90))
    found = figures((truth, truth), (objects(), objects()))
    assert found == {"map": 1.0, "map50": 1.0, "map75": 1.0, "ap/a": 1.0, "ap/b": 1.0, "n": 2}


def test_a_box_counts_up_to_its_overlap():
    """IoU 0.64: right at 0.50, 0.55 and 0.60, wrong at the seven above."""
    found = figures((objects((0, 0, 0, 100, 100)), objects((0, 0, 0, 64, 100))))
    assert found["map"] == pytest.approx(0.3) and found["map50"] == 1 and found["map75"] == 0
    assert "ap/b" not in found  # a class that is nowhere has no figure


def test_a_surer_mistake_costs_more_than_a_less_sure_one():
    truth = objects((0, 0, 0, 10, 10))
    wrong_first = objects((0, 50, 50, 60, 60), (0, 0, 0, 10, 10), scores=[0.9, 0.8])
    wrong_last = replace(wrong_first, scores=np.array([0.7, 0.8]))
    assert figures((truth, wrong_first))["map50"] == pytest.approx(0.5)
    assert figures((truth, wrong_last))["map50"] == pytest.approx(1.0)
    # On a picture where nothing is, too.
    assert figures((truth, truth), (objects(), objects((0, 1, 1, 9, 9), scores=[1.5])))["map50"] == pytest.approx(0.5)


def test_half_of_the_objects_found_is_the_first_half_of_the_recalls():
    truth = objects((0, 0, 0, 10, 10), (0, 50, 50, 60, 60))
    assert figures((truth, objects((0, 0, 0, 10, 10))))["map50"] == pytest.approx(51 / 101)


def test_what_is_to_be_ignored_is_neither_missed_nor_a_mistake():
    truth = objects((0, 0, 0, 10, 10), (0, 50, 50, 90, 90), ignored=[False, True])
    surer = objects((0, 50, 50, 90, 90), (0, 0, 0, 10, 10), scores=[0.9, 0.8])
    assert figures((truth, surer))["map"] == 1 and figures((truth, objects((0, 0, 0, 10, 10))))["map"] == 1


def test_nothing_found_is_zero_and_nothing_there_has_no_figure():
    assert figures((objects((0, 0, 0, 10, 10)), objects()))["map"] == 0
    assert figures((objects(), objects((0, 0, 0, 10, 10)))) == {"n": 1}


def random_score(pictures: int = 30, classes: int = 3) -> Score:
    random, score = np.random.default_rng(0), Score([f"c{i}" for i in range(classes)])
    for _ in range(pictures):
        n = int(random.integers(0, 7))
        corner, side = random.uniform(0, 300, (n, 2)), random.uniform(8, 120, (n, 2))
        truth = Objects(
            np.concatenate([corner, corner + side], 1),
            random.integers(0, classes, n),
            np.ones(n),
            random.random(n) < 0.1,
        )
        keep = random.random(n) < 0.8
        boxes = np.concatenate(
            [truth.boxes[keep] + random.normal(0, 5, (keep.sum(), 4)), random.uniform(0, 100, (3, 4))]
        )
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        labels = np.concatenate([truth.classes[keep], random.integers(0, classes, 3)])
        score.add(truth, Objects(boxes, labels, random.random(len(boxes)), np.zeros(len(boxes), bool)))
    return score


def test_figures_are_those_that_pycocotools_sums_up():
    from vitrail.tasks.detect.metrics import _evaluated

    score = random_score()
    tool = _evaluated(score.truth, score.found, 3, "bbox")
    with contextlib.redirect_stdout(io.StringIO()):
        tool.accumulate()
        tool.summarize()
    found = score.figures(rounds=0)
    assert 0.05 < found["map"] < 0.9
    assert [found["map"], found["map50"], found["map75"]] == pytest.approx(tool.stats[:3].tolist(), abs=1e-9)
    for number in range(3):
        assert found[f"ap/c{number}"] == pytest.approx(tool.eval["precision"][:, :, number, 0, 2].mean(), abs=1e-9)


def test_intervals_enclose_the_figure_and_narrow_with_more_pictures():
    few, many = random_score(30).figures(rounds=100), random_score(200).figures(rounds=100)
    for found in (few, many):
        assert found["map_low"] < found["map"] < found["map_high"]
        assert found["map50_low"] < found["map50"] < found["map50_high"]
    assert many["map_high"] - many["map_low"] < 0.6 * (few["map_high"] - few["map_low"])


def test_a_draw_without_any_object_says_nothing():
    """Of 8 pictures 2 have one: a tenth of all draws has none."""
    truth, half = objects((0, 0, 0, 100, 100)), objects((0, 0, 0, 64, 100))
    found = figures((truth, truth), (truth, half), *[(objects(), objects())] * 6, rounds=200)
    assert 0 < found["map_low"] < found["map"] < found["map_high"] <= 1


def test_the_threshold_is_the_one_with_the_best_f1():
    truth = objects((0, 0, 0, 10, 10), (0, 50, 50, 60, 60))
    found = objects((0, 0, 0, 10, 10), (0, 50, 50, 60, 60), (0, 80, 80, 90, 90), scores=[0.9, 0.6, 0.2])
    score = Score(["a"])
    score.add(truth, found)
    assert score.best_threshold() == pytest.approx(0.4)
    assert score.per_class()["support"].tolist() == [2] and score.per_class()["ap50"].tolist() == [1]
    score.add(truth, objects())  # what was known so far is known no more
    assert score.per_class()["support"].tolist() == [4] and score.figures(0)["map"] == pytest.approx(51 / 101)


def test_overlaps_and_matches_by_hand():
    one, other = np.array([[0, 0, 10, 10.0]]), np.array([[5, 0, 15, 10.0], [20, 20, 30, 30], [0, 0, 10, 10]])
    assert overlaps(one, other) == pytest.approx(np.array([[1 / 3, 0, 1]]))
    truth = objects((0, 0, 0, 10, 10), (1, 20, 20, 30, 30))
    found = objects((0, 0, 0, 10, 10), (0, 0, 0, 10, 9), (0, 20, 20, 30, 30), scores=[0.8, 0.9, 0.7])
    known, right = matched(truth, found)
    assert known.tolist() == [True, False] and right.tolist() == [False, True, False]
    assert image_f1(truth, found) == pytest.approx(2 / 5)
    assert image_f1(objects(), objects()) == 1 and image_f1(objects(), found) == 0
    ignored = objects((0, 0, 0, 10, 10), ignored=[True])
    assert image_f1(ignored, objects((0, 0, 0, 10, 10))) == 1


# -- learning -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", DETECT_HEADS)
def test_every_head_learns_four_pictures_by_heart(head, tmp_path):
    side = 64
    samples = shapes(tmp_path, side=side)
    backbone = create_model("vit_ti16", num_classes=0, depth=2, width=48, heads=3, image_size=side)
    anchor = 2.0 if head == "retinanet" else 4.0  # 16 pixels and more
    model = Detector(
        backbone, head, len(CLASSES), pyramid_channels=32, hidden=128, short_side=side, long_side=side, proposals=100,
        regions=32, anchor=anchor,
    )  # fmt: skip
    pre, task = model.preprocessing, Detect(CLASSES, masks=head == "mask_rcnn")
    pictures = viewed(samples, side, side, None, cache="memory")
    augment = BoxAugmenter(BoxPolicy.named("none"), side, side, pre.mean, pre.std, seed=0, masks=task.masks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    steps, found = 80, {"map50": 0.0}
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.2)
    for step in range(steps):
        batch = augment([pictures[i] for i in range(4)], samples, np.arange(4), epoch=step)
        losses = task.loss(task.outputs(model.train(), batch), batch)
        assert losses.shape == (4,)
        optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 9 and step >= 29:
            found = task.score(model, pictures, range(4), pre).figures(rounds=0)
            if found["map50"] > 0.99 and found.get("mask_map50", 1) > 0.99:
                break
    assert found["map50"] > 0.95 and found["n"] == 4
    if task.masks:
        assert found["mask_map50"] > 0.95
    threshold = task.score(model, pictures, range(4), pre).best_threshold()
    seen = find(model, [pictures[i] for i in range(4)], pre)
    each = [image_f1(there(s, (side, side)), o, threshold) for s, o in zip(samples, seen, strict=True)]
    assert np.mean(each) > 0.6  # map50 forgives boxes that are too many, as long as they are less sure


def test_a_classifier_finds_no_boxes():
    with pytest.raises(VitrailError, match="finds no boxes: pass a Detector"):
        find(torch.nn.Linear(1, 1), [], create_model("vit_ti16", depth=1).preprocessing)


def test_a_picture_that_cannot_be_read_is_left_out_of_the_score(tmp_path):
    samples = shapes(tmp_path)
    (tmp_path / "1.png").write_bytes(b"no picture")
    backbone = create_model("vit_ti16", num_classes=0, depth=1, width=48, heads=3)
    model = Detector(backbone, "retinanet", 2, pyramid="simple", pyramid_channels=16, short_side=96, long_side=96)
    pictures = viewed(samples, 96, 96, None, cache="off")
    assert Detect(CLASSES).score(model, pictures, range(4), model.preprocessing).figures(0)["n"] == 3
    assert [*pictures.bad] == [1]


# -- what is drawn and written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "drawn"), [((60, 40), (720, 480)), ((640, 480), (640, 480)), ((6000, 3000), (2400, 1200))]
)
def test_small_pictures_are_enlarged_and_large_ones_shrunk_so_that_words_can_be_read(size, drawn):
    width, height = size
    found = objects((0, 0.1 * width, 0.2 * height, 0.6 * width, 0.9 * height))
    page = draw(Image.new("RGB", size, "grey"), found, ["cat"])
    assert page.width == drawn[0] and drawn[1] < page.height < drawn[1] * 1.2
    pixels = np.asarray(page)
    edge = tuple(int(colour(0)[k : k + 2], 16) for k in (1, 3, 5))
    row = pixels[round(drawn[1] * 0.8)]
    columns = np.flatnonzero((row == edge).all(axis=1))
    assert columns.min() == pytest.approx(0.1 * drawn[0], abs=3) and columns.max() == pytest.approx(
        0.6 * drawn[0], abs=3
    )


def test_a_mask_tints_its_pixels_and_leaves_the_others():
    mask = np.zeros((480, 640), bool)
    mask[100:300, 100:200] = True
    found = replace(objects((1, 100, 100, 200, 300)), masks=[to_runs(mask)])
    pixels = np.asarray(draw(Image.new("RGB", (640, 480), "black"), found, ["a", "b"]))
    tint = 0.4 * np.array([int(colour(1)[k : k + 2], 16) for k in (1, 3, 5)])
    assert np.abs(pixels[250, 150] - tint).max() <= 1 and pixels[250, 300].max() == 0


def test_beside_shows_both_and_classes_have_their_own_colours():
    truth = objects((0, 10, 10, 50, 50))
    page = beside(Image.new("RGB", (200, 200)), truth, objects(), ["a"])
    assert page.width > 2 * 480
    assert len({colour(number) for number in range(60)}) == 60


def test_cocos_json_is_read_back_by_pycocotools_and_by_us(tmp_path):
    from pycocotools.coco import COCO

    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    mask = np.zeros((48, 64), bool)
    mask[10:20, 5:25] = True
    found = replace(objects((1, 5, 10, 25, 20), scores=[0.75]), masks=[to_runs(mask)])
    answers = [Answer("a.png", (48, 64), found, number=7)]
    path = write_coco(tmp_path / "boxes.json", answers, CLASSES, ids=[3, 9])
    content = json.loads(path.read_text())
    assert content == coco_results(answers, CLASSES, [3, 9])
    row = content["annotations"][0]
    assert (row["image_id"], row["category_id"], row["bbox"], row["score"]) == (7, 9, [5, 10, 20, 10], 0.75)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(path))
        results = coco.loadRes(content["annotations"])
    assert coco.annToMask(coco.anns[1]).sum() == 200 and results.anns[1]["score"] == 0.75
    source = open_boxes(path)
    assert source.classes == CLASSES and source.outlined
    assert source.splits["all"][0].boxes_on((48, 64)) == pytest.approx(found.boxes, abs=1e-3)
