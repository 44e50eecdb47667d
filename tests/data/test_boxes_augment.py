"""Boxes and masks go with the picture, and what happens belongs to the sample."""

import numpy as np
import pytest
import torch

from tests.boxed_shapes import shapes
from vitrail import VitrailError
from vitrail.data.augment.boxes import BoxAugmenter, BoxPolicy, viewed
from vitrail.data.sources.boxes.samples import Boxed

GROUND = torch.tensor([60, 70, 80]).view(3, 1, 1) / 255


def augmenter(policy: BoxPolicy, side: int = 96, masks: bool = True, seed: int = 0) -> BoxAugmenter:
    return BoxAugmenter(policy, side, side, (0.0,) * 3, (1.0,) * 3, seed, masks)


@pytest.mark.parametrize("name", ["none", "light", "medium", "strong"])
def test_every_box_still_encloses_its_shape(name, tmp_path):
    samples = shapes(tmp_path, 6)
    pictures = viewed(samples, 96, 96, None, cache="off")
    seen = 0
    for epoch in range(4):
        batch = augmenter(BoxPolicy.named(name))([pictures[i] for i in range(6)], samples, np.arange(6), epoch)
        for image, target in zip(batch.images, batch.targets, strict=True):
            coloured = (image - GROUND).abs().amax(dim=0) > 0.12
            for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
                red = image[0] > image[2]
                own = coloured & (red if label == 0 else ~red)
                (x0, y0), (x1, y1) = box[:2].floor().int().tolist(), box[2:].ceil().int().tolist()
                inside = torch.zeros_like(own)
                inside[y0:y1, x0:x1] = True
                area = (box[2] - box[0]) * (box[3] - box[1])
                # All but a rim of what the mask covers is of the shape's colour, and it fills the box.
                assert (mask.bool() & own).sum() > 0.88 * mask.sum()
                assert (mask.bool() & inside).sum() > 0.99 * mask.sum()
                rim = (box[2:] - box[:2]).sum()  # half a pixel all around
                assert (0.4 if label else 1.0) * area - rim < mask.sum() < area + rim
                seen += 1
    assert seen > 30


def test_scaled_up_pictures_are_cut_to_their_size_and_scaled_down_ones_are_smaller(tmp_path):
    samples = shapes(tmp_path, 1)
    pixels = [viewed(samples, 96, 96, None, cache="off")[0]]
    large = augmenter(BoxPolicy(0, (2.0, 2.0)))(pixels, samples, np.arange(1), 0)
    assert large.images[0].shape == (3, 96, 96)
    small = augmenter(BoxPolicy(0, (0.5, 0.5)))(pixels, samples, np.arange(1), 0)
    assert small.images[0].shape == (3, 48, 48)
    assert torch.allclose(small.targets[0]["boxes"], torch.from_numpy(samples[0].boxes_on((48, 48))), atol=1e-4)


def test_a_flip_is_a_mirror(tmp_path):
    samples = shapes(tmp_path, 1)
    pixels = [viewed(samples, 96, 96, None, cache="off")[0]]
    plain = augmenter(BoxPolicy.named("none"))(pixels, samples, np.arange(1), 0)
    flipped = augmenter(BoxPolicy(1.0, (1.0, 1.0)))(pixels, samples, np.arange(1), 0)
    assert torch.equal(plain.images[0].flip(2), flipped.images[0])
    assert torch.equal(plain.targets[0]["masks"].flip(2), flipped.targets[0]["masks"])
    boxes = plain.targets[0]["boxes"]
    assert torch.allclose(flipped.targets[0]["boxes"][:, [2, 0]], 96 - boxes[:, [0, 2]])


def test_what_is_drawn_depends_on_the_sample_not_on_the_batch(tmp_path):
    samples = shapes(tmp_path, 4)
    pictures = viewed(samples, 96, 96, None, cache="off")
    make = augmenter(BoxPolicy.named("strong"))
    whole = make([pictures[i] for i in range(4)], samples, np.arange(4), 3)
    alone = make([pictures[2]], [samples[2]], np.array([2]), 3)
    assert torch.equal(whole.images[2], alone.images[0])
    assert torch.equal(whole.targets[2]["boxes"], alone.targets[0]["boxes"])
    other = make([pictures[2]], [samples[2]], np.array([2]), 4)
    assert whole.images[2].shape != other.images[0].shape


def test_what_is_cut_away_is_no_longer_asked_for():
    boxes = np.array([[0.0, 0.0, 0.2, 0.2], [0.4, 0.4, 0.6, 0.6]], np.float32)
    sample = Boxed("a", None, (0,), boxes, np.array([0, 1]), np.zeros(2, bool), (None, None))
    image = torch.zeros(3, 100, 100, dtype=torch.uint8)
    make = augmenter(BoxPolicy(0, (2.0, 2.0)), side=100, masks=False)
    kept = {len(make([image], [sample], np.array([key]), 0).targets[0]["labels"]) for key in range(40)}
    assert kept == {0, 1, 2} or kept == {1, 2}
    for key in range(40):
        batch = make([image], [sample], np.array([key]), 0)
        sides = batch.targets[0]["boxes"][:, 2:] - batch.targets[0]["boxes"][:, :2]
        assert (sides.prod(dim=1) >= 0.25 * 40 * 40 - 1e-3).all()


def test_crowds_are_not_learnt_from_and_a_negative_example_has_no_boxes():
    ignored = Boxed("a", None, (), np.array([[0, 0, 0.5, 0.5]], np.float32), np.array([0]), np.ones(1, bool), (None,))
    batch = augmenter(BoxPolicy())([torch.zeros(3, 64, 64, dtype=torch.uint8)], [ignored], np.arange(1), 0)
    assert batch.targets[0]["boxes"].shape == (0, 4) and batch.targets[0]["labels"].dtype == torch.int64
    assert batch.targets[0]["masks"].shape == (0, *batch.images[0].shape[1:])


def test_a_batch_is_split_as_a_tensor_is(tmp_path):
    samples = shapes(tmp_path, 5)
    pictures = viewed(samples, 96, 96, None, cache="off")
    batch = augmenter(BoxPolicy())([pictures[i] for i in range(5)], samples, np.arange(5), 0)
    assert [len(part) for part in batch.split(2)] == [2, 2, 1]
    assert batch.split(2)[2].targets[0] is batch.targets[4]


def test_training_keeps_pictures_little_larger_than_they_are_looked_at(tmp_path):
    samples = shapes(tmp_path, 2, side=200)
    assert viewed(samples, 64, 64, 1.25, cache="memory")[0].shape == (3, 80, 80)
    assert viewed(samples, 64, 64, None, cache="off")[0].shape == (3, 200, 200)
    assert viewed(samples, 190, 190, 1.25, cache="off")[0].shape == (3, 200, 200)  # never enlarged


def test_a_picture_of_another_size_than_its_boxes_are_for_is_left_out(tmp_path):
    from dataclasses import replace

    sample = replace(shapes(tmp_path, 1)[0], size=(96, 50))
    pictures = viewed([sample], 96, 96, None, cache="off")
    with pytest.raises(VitrailError, match=r"0\.png is 96×96 pixels, and its boxes are for 50×96"):
        pictures[0]
    assert [*pictures.bad] == [0]


def test_a_box_without_outline_and_a_wrong_policy_are_refused():
    sample = Boxed("a.png", None, (0,), np.array([[0, 0, 1, 1]], np.float32), np.array([0]), np.zeros(1, bool), (None,))
    with pytest.raises(VitrailError, match=r"a\.png has a box without an outline"):
        augmenter(BoxPolicy.named("none"))([torch.zeros(3, 64, 64, dtype=torch.uint8)], [sample], np.arange(1), 0)
    with pytest.raises(VitrailError, match='Did you mean "medium"'):
        BoxPolicy.named("mediun")
    with pytest.raises(VitrailError, match="scale is"):
        BoxPolicy(scale=(1.2, 0.8))
