"""A run that segments or detects, in use: one picture in, its own size out; what does not apply is one sentence."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.dense_models import detector, seeing_colours, segmenter
from vitrail import VitrailError, load
from vitrail.data import fit_image
from vitrail.predict import Predictor
from vitrail.tasks.segment.results import enlarged_classes, pixel_classes


def picture(height: int, width: int, left: int) -> Image.Image:
    """Blue, and red from `left` on."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :left], pixels[:, left:] = (20, 20, 230), (230, 20, 20)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(("fit", "window"), [("stretch", None), ("pad", None), ("native", None), ("stretch", 32)])
def test_the_class_of_every_pixel_lies_where_it_is_in_the_picture(fit: str, window: int | None) -> None:
    predictor = seeing_colours(fit)
    found = predictor.segment(picture(50, 120, 70), window)
    assert found.mask.shape == (50, 120) and found.mask.dtype == np.uint8
    truth = (np.arange(120) >= 70).astype(np.uint8)[None].repeat(50, axis=0)
    assert (found.mask == truth).mean() > 0.95
    assert [one["label"] for one in found.shares] == ["blue", "red"]
    assert found.shares[0]["share"] == pytest.approx(70 / 120, abs=0.05)
    assert found.overlay().width >= 120


def test_a_picture_on_its_side_is_answered_upright(tmp_path: Path) -> None:
    image, exif = picture(60, 40, 20), Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    found = seeing_colours("stretch").segment(tmp_path / "turned.jpg")
    assert found.mask.shape == (40, 60) and found.image.size == (60, 40)
    assert found.mask[5].mean() < 0.1 < 0.9 < found.mask[-5].mean()


def test_classes_are_enlarged_in_bands_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 13, 17)
    whole = torch.nn.functional.interpolate(logits[None], (101, 67), mode="bilinear")[0].argmax(dim=0).numpy()
    assert (enlarged_classes(logits, (101, 67)) == whole).mean() > 0.999
    monkeypatch.setattr("vitrail.tasks.segment.results.ENLARGED", 5 * 67 * 7)  # seven rows at a time
    assert (enlarged_classes(logits, (101, 67)) == whole).mean() > 0.999


def test_a_native_picture_beyond_the_limit_goes_by_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.tasks.segment.results.LARGEST", 40 * 60)
    monkeypatch.setattr("vitrail.tasks.segment.results.WINDOW", 32)
    model, sizes = segmenter(2), []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape[2:])))
    pre = replace(model.preprocessing, fit="native")
    assert pixel_classes(model, [picture(40, 60, 30)], pre)[0].shape == (40, 60)
    assert sizes == [(40, 60)]
    assert pixel_classes(model, [picture(41, 60, 30)], pre)[0].shape == (41, 60)
    assert set(sizes[1:]) == {(32, 32)} and len(sizes) == 1 + 2 * 3


def test_a_segmenter_comes_back_from_its_file_with_labels_and_colours(tmp_path: Path) -> None:
    predictor = seeing_colours("stretch")
    predictor.about["colours"] = [[0, 0, 255], [255, 0, 0]]
    again = load(predictor.save(tmp_path / "model.safetensors"), device="cpu")
    found, expected = again.segment(picture(50, 70, 40)), predictor.segment(picture(50, 70, 40))
    assert again.task == "segment" and again.labels == ["blue", "red"]
    assert np.array_equal(found.mask, expected.mask)
    assert found.colours[1].tolist() == [255, 0, 0]
    mask, overlay, summary = found.save(tmp_path / "out", "a")
    assert np.array_equal(np.asarray(Image.open(mask)), found.mask)
    assert overlay.name == "a_overlay.png" and summary.name == "a.json"


@pytest.mark.parametrize("head", ["faster_rcnn", "mask_rcnn"])
def test_what_a_detector_finds_has_boxes_in_the_pictures_pixels(tmp_path: Path, head: str) -> None:
    predictor = load(detector(head).save(tmp_path / "model.safetensors"), device="cpu")
    found = predictor.detect(picture(90, 140, 60), threshold=0.0)
    assert predictor.task == "detect" and len(found) > 0
    probabilities = [one.probability for one in found]
    assert probabilities == sorted(probabilities, reverse=True)
    for one in found:
        x0, y0, x1, y1 = one.box
        assert 0 <= x0 < x1 <= 140 and 0 <= y0 < y1 <= 90
        assert one.label == predictor.labels[one.index]
        assert (one.mask is not None) == (head == "mask_rcnn")
    if head == "mask_rcnn":
        assert found[0].mask.shape == (90, 140)
    middle = probabilities[len(probabilities) // 2]
    assert len(found.above(middle)) == sum(p >= middle for p in probabilities)
    assert Image.open(found.save(tmp_path / "drawn.png")).width >= 140
    predictor.about["threshold"] = 1.1
    assert len(predictor.detect(picture(90, 140, 60))) == 0


def test_features_and_explanations_are_those_of_the_backbone() -> None:
    image = picture(64, 48, 20)
    for predictor in (seeing_colours("stretch"), detector("retinanet")):
        model = predictor.model.backbone
        pre = replace(predictor.preprocessing, size=model.settings.image_size, fit="stretch")
        x = predictor.normalised(torch.from_numpy(np.array(fit_image(image, pre)))[None])
        with torch.no_grad():
            expected = model.features(x, layers=())["pooled"]
        assert torch.equal(predictor.embed(image), expected)
        assert predictor.explain(image, faithfulness=False).target is None
        assert predictor.backbone.task == "classify" and predictor.backbone.backbone is predictor.backbone


def test_what_a_run_was_not_made_for_is_refused_with_what_to_use() -> None:
    image, dense, boxes = picture(32, 32, 9), seeing_colours("stretch"), detector("retinanet")
    backbone = Predictor(dense.model.backbone, dense.preprocessing, name="tiny", device="cpu")
    for asked, task, method in (
        (dense.predict, "segment", "segment"),
        (dense.detect, "segment", "segment"),
        (boxes.segment, "detect", "detect"),
        (backbone.segment, "classify", "predict"),
    ):
        with pytest.raises(VitrailError, match=f"`{method}`") as info:
            asked(image)
        assert (info.value.code, info.value.fields["task"]) == ("other_task", task)
    dense.preprocessing = replace(dense.preprocessing, fit="crop")
    with pytest.raises(VitrailError, match='"crop"'):
        dense.segment(image)
