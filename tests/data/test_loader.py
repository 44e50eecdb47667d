"""Batches, their order, and what is drawn for each image: functions of (seed, epoch, sample), whoever asks."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.odd_files import photograph
from vitrail.data.augment.images import Augmenter, Policy
from vitrail.data.image_set import shrunk
from vitrail.data.loader import Loader, epoch_order, occurrences
from vitrail.data.samples import Item, Sample
from vitrail.distributed import Processes
from vitrail.models import Preprocessing
from vitrail.tasks.classify.objective import sampling_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pictures():
    dataset = [(photograph(n, 20 + n % 5, 24), n % 3) for n in range(24)]
    samples = [Sample(f"{n}", Item(dataset, n), (label,)) for n, (_, label) in enumerate(dataset)]
    return shrunk(samples, Preprocessing(size=(16, 16)), "memory")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_with_their_numbers(pictures, workers):
    groups = [np.array([5, 1, 9]), np.array([0]), np.array([23, 22])]
    found = list(Loader(pictures, CPU, workers).batches(groups))
    assert [numbers.tolist() for numbers, _ in found] == [[5, 1, 9], [0], [23, 22]]
    for numbers, images in found:
        assert all(torch.equal(image, pictures[number]) for number, image in zip(numbers, images, strict=True))


@pytest.mark.parametrize("processes", [2, 3])
def test_each_image_is_augmented_alike_in_whatever_process_and_batch(pictures, processes):
    augmenter = Augmenter(Policy.named("strong"), (16, 16), (0.5,) * 3, (0.25,) * 3, seed=4)
    order = epoch_order(np.arange(24), seed=4, epoch=2)
    loader = Loader(pictures, CPU, 0)

    def augmented(groups):
        seen = {}
        for numbers, images in loader.batches(groups):
            for number, pixels in zip(numbers.tolist(), augmenter(images, numbers, 2, CPU), strict=True):
                seen[number] = pixels.clone()
        return seen

    alone = augmented([order[:12], order[12:]])
    shares = [
        Processes(rank, processes).share(order[start : start + 12]) for start in (0, 12) for rank in range(processes)
    ]
    apart = augmented(shares)
    assert alone.keys() == apart.keys() == set(range(24))
    assert all(torch.equal(alone[number], apart[number]) for number in alone)
    assert not torch.equal(alone[0], augmenter([pictures[0]], np.array([0]), 3, CPU)[0])  # another epoch


def test_the_order_is_another_in_each_epoch_and_takes_each_image_once():
    numbers = np.array([3, 5, 8, 13, 21, 34])
    orders = [epoch_order(numbers, seed=1, epoch=epoch).tolist() for epoch in range(5)]
    assert all(sorted(order) == numbers.tolist() for order in orders)
    assert len(set(map(tuple, orders))) > 1
    assert orders[2] == epoch_order(numbers, seed=1, epoch=2).tolist()
    assert orders[2] != epoch_order(numbers, seed=2, epoch=2).tolist()


def test_balanced_sampling_draws_each_class_equally_often():
    """One of 400, 80 and 20 images: a third each, within four standard errors; and within a class, alike."""
    labels = [(0,)] * 400 + [(1,)] * 80 + [(2,)] * 20
    weights = sampling_weights(labels, 3)
    counts, single, epochs = Counter(), Counter(), 40
    for epoch in range(epochs):
        order = epoch_order(np.arange(500), 0, epoch, weights)
        assert len(order) == 500
        counts.update(labels[n][0] for n in order)
        single.update(order.tolist())
    draws = 500 * epochs
    for label in range(3):
        assert counts[label] / draws == pytest.approx(1 / 3, abs=4 * (2 / 9 / draws) ** 0.5)
    rare = [single[n] for n in range(480, 500)]
    assert np.mean(rare) == pytest.approx(draws / 3 / 20, rel=0.02)
    assert max(abs(n - draws / 60) for n in rare) < 5 * (draws / 60) ** 0.5


def test_draws_with_replacement_do_not_share_numbers_with_the_augmentation():
    """The same hash for both would crop an image the more, the later in the order it is drawn."""
    from vitrail.data.augment.random_keys import uniforms

    order = epoch_order(np.arange(1000), 0, 0, np.ones(1000))
    crops = uniforms(0, 0, np.arange(1000), 1)[:, 0]
    assert abs(np.corrcoef(order, crops)[0, 1]) < 0.15


def test_repeats_in_an_order_are_counted():
    assert occurrences(np.array([3, 1, 3, 3, 2, 1])).tolist() == [0, 0, 1, 2, 0, 1]
    assert not occurrences(np.random.default_rng(0).permutation(50)).any()
