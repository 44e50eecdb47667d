"""Many pictures through a segmenter or a detector: together where their sizes allow, with the answers of one by one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.dense_models import detector, seeing_colours, segmenter
from vitrail import VitrailError, evaluate
from vitrail.inference.size_batches import alike, in_batches
from vitrail.predict import Predictor

SIZES = [(40, 60), (50, 30), (40, 60), (50, 30), (40, 60), (64, 64)]  # height, width


def pictures() -> list[Image.Image]:
    noise = np.random.default_rng(0)
    small = [Image.fromarray(noise.integers(0, 256, (5, 5, 3), np.uint8)) for _ in SIZES]
    return [image.resize(size[::-1], Image.Resampling.BICUBIC) for image, size in zip(small, SIZES, strict=True)]


def telling() -> Predictor:
    """Of three classes, each somewhere: a head that starts near zero would say one alone."""
    torch.manual_seed(0)
    model = segmenter(3)
    torch.nn.init.normal_(model.head.output.weight)
    return Predictor(model, model.preprocessing, ["a", "b", "c"], "random", "cpu")


@pytest.mark.parametrize(
    ("fit", "window", "forwards"),
    [
        ("stretch", None, [4, 2]),
        ("pad", None, [4, 2]),
        ("native", None, [2, 2, 1, 1]),  # a batch of four has two of each size, one of two two sizes
        ("stretch", 50, [2, 2, 2, 1, 1, 1, 1, 1, 1]),  # 40×60 is two windows, 50×30 is one, 64×64 four
    ],
)
def test_masks_are_those_of_one_picture_at_a_time(fit: str, window: int | None, forwards: list[int]) -> None:
    predictor, images = telling(), pictures()
    predictor.preprocessing = replace(predictor.preprocessing, fit=fit)
    alone = [predictor.segment(image, window).mask for image in images]
    seen: list[int] = []
    predictor.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    together = [*predictor.segmentations(images, window, batch_size=4)]
    assert sorted(seen, reverse=True) == sorted(forwards, reverse=True)
    assert len({*np.concatenate([mask.ravel() for mask in alone])}) == 3
    for image, one, found in zip(images, alone, together, strict=True):
        assert found.image == image and found.mask.shape == (image.height, image.width)
        assert (found.mask == one).mean() > 0.999


@pytest.mark.parametrize("head", ["faster_rcnn", "mask_rcnn", "retinanet"])
def test_boxes_are_those_of_one_picture_at_a_time(head: str) -> None:
    torch.manual_seed(0)
    predictor, images = detector(head), pictures()
    alone = [predictor.detect(image, 0.0) for image in images]
    seen: list[int] = []
    predictor.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    together = [*predictor.detections(images, 0.0)]
    assert sorted(seen) == [1, 2, 3]
    for image, one, found in zip(images, alone, together, strict=True):
        assert found.image == image and len(found) == len(one) > 0
        assert np.allclose(found.found.boxes, one.found.boxes, atol=1e-2)
        assert np.allclose(found.found.scores, one.found.scores, atol=1e-5)


def test_answers_come_before_all_pictures_are_read() -> None:
    read: list[int] = []

    def coming() -> Iterator[Image.Image]:
        for number, image in enumerate(pictures()):
            read.append(number)
            yield image

    answers = telling().segmentations(coming(), batch_size=2)
    next(answers)
    assert read == [0, 1]
    next(answers), next(answers)
    assert read == [0, 1, 2, 3]


def test_a_batch_holds_fewer_pictures_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures()
    assert [len(batch) for batch in in_batches(images, 4)] == [4, 2]
    monkeypatch.setattr("vitrail.inference.size_batches.HELD", 3000)  # 40×60 and any other
    assert [len(batch) for batch in in_batches(images, 4)] == [2, 2, 2]
    assert [image for batch in in_batches(images, 4) for image in batch] == images
    with pytest.raises(VitrailError, match="batch_size must be at least 1, got 0"):
        next(in_batches(images, 0))


def test_a_model_gets_those_of_one_size_and_no_more_than_its_device_takes_at_once() -> None:
    sizes = [(256, 256), (512, 512), (256, 256), *[(256, 256)] * 4, (4096, 4096)]
    assert [*alike(sizes, "cpu")] == [[0, 2, 3, 4], [5, 6], [1], [7]]
    assert [*alike(sizes, "cuda")] == [[0, 2, 3, 4, 5, 6], [1], [7]]
    assert [len(part) for part in alike([(512, 512)] * 40, "cuda")] == [16, 16, 8]


def test_figures_do_not_depend_on_the_batch_and_unreadable_pictures_are_counted(tmp_path: Path) -> None:
    for number, image in enumerate(pictures()):
        for kind, each in (("images", image), ("masks", image.convert("L").point(lambda value: value // 128))):
            (tmp_path / kind).mkdir(exist_ok=True)
            each.save(tmp_path / kind / f"{number}.png")
    cut = tmp_path / "images" / "2.png"
    cut.write_bytes(cut.read_bytes()[:200])
    predictor, done = seeing_colours("stretch"), list[tuple[int, int]]()
    predictor.labels = ["class 0", "class 1"]
    one = evaluate(predictor, tmp_path, batch_size=1)
    many = evaluate(predictor, tmp_path, batch_size=4, progress=lambda _, *counts: done.append(counts))
    assert one == many and many["n"] == 5 and 0 < many["miou"] < 1 and "boundary_f1" in many
    assert many["skipped"] == 1 and many["problems"][0][0].endswith("2.png")
    assert done[-1] == (6, 6) and done == sorted(done)
