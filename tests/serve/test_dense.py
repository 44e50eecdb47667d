"""Runs that segment or detect in the Studio: the mask or the boxes over the picture are the model's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.dense_models import detector, seeing_colours
from vitrail import VitrailError
from vitrail.models.dense.detector import viewing_size
from vitrail.predict import Predictor
from vitrail.serve.answers import Asked, Studio
from vitrail.serve.views import Lens, View

from .conftest import served_here
from .test_page import Visit

BLUE, RED = (20, 20, 230), (230, 20, 20)


def halves(width: int = 64, height: int = 64) -> Image.Image:
    """Blue at the left, red at the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = BLUE, RED
    return Image.fromarray(pixels)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    halves().save(tmp_path / "halves.png")
    return tmp_path / "halves.png"


def view_of(predictor: Predictor, image: Image.Image, hidden: tuple[int, ...] = ()) -> View:
    lens = Lens(predictor)
    return View(lens, lens.fit(image, lens.own, "trained"), hidden)


def test_the_mask_of_a_view_is_what_the_whole_model_says_and_hidden_patches_change_it() -> None:
    predictor = seeing_colours("stretch")
    arrays, about = view_of(predictor, halves()).said
    assert arrays["mask"].shape == (32, 32)
    assert (arrays["mask"] == np.asarray(predictor.segment(halves(32, 32)).mask)).all()
    assert {row["label"]: row["probability"] for row in about["rows"]} == {"blue": 0.5, "red": 0.5}
    assert about["colours"] == [[230, 159, 0], [0, 92, 175]] and about["labels"] == ["blue", "red"]
    left = tuple(row * 16 + column for row in range(16) for column in range(8))
    grey, _ = view_of(predictor, halves(), left).said
    x = view_of(predictor, halves(), left).x
    assert x[..., :16].abs().max() == 0
    with torch.no_grad():
        assert np.array_equal(grey["mask"], predictor.model(x)[0].argmax(dim=0).numpy())


def test_a_margin_that_the_backbone_adds_says_nothing() -> None:
    predictor = seeing_colours("stretch")
    predictor.preprocessing = type(predictor.preprocessing)(**{**vars(predictor.preprocessing), "size": (31, 31)})
    arrays, _ = view_of(predictor, halves()).said
    assert arrays["mask"].shape == (32, 32)
    assert (arrays["mask"][31] == 255).all() and (arrays["mask"][:, 31] == 255).all()
    assert (arrays["mask"][:31, :31] < 2).all()


@pytest.mark.parametrize("head", ["retinanet", "mask_rcnn"])
def test_the_boxes_of_a_view_are_those_of_the_picture(head: str) -> None:
    predictor = detector(head)
    predictor.about["threshold"] = 0.0
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (100, 150, 3), dtype=np.uint8))
    view = view_of(predictor, image)
    assert tuple(view.x.shape[2:]) == viewing_size((100, 150), 64, 128) == (64, 96)
    arrays, about = view.said
    # The picture is sized by Pillow here and by the detector there: asked of the very same pixels, both agree.
    found = predictor.detect(view.fitted.image, threshold=0.0)
    assert len(about["rows"]) == len(found) > 0
    for row, one in zip(about["rows"], found, strict=True):
        assert row["label"] == one.label and row["probability"] == pytest.approx(one.probability, abs=1e-4)
        assert np.multiply(row["box"], [96, 64, 96, 64]) == pytest.approx(one.box, abs=0.01)
    assert ("objects" in arrays) == (head == "mask_rcnn")
    if head == "mask_rcnn":
        surest = arrays["objects"] == 1
        assert arrays["objects"].shape == (64, 96) and np.array_equal(surest, found[0].mask)
    assert predictor.model.net.transform.short_side == 64  # as it was


def test_a_classifier_is_asked_for_masks_in_vain_and_a_dense_one_shows_no_class_stage(picture: Path) -> None:
    dense = seeing_colours("stretch")
    studio = Studio([Lens(dense), Lens(dense.backbone)], [])
    name, _ = studio.pictures.add(picture.read_bytes())
    with pytest.raises(VitrailError, match="neither masks nor boxes"):
        studio.said(Asked(picture=name, model=1, size=32))
    first, second = (studio.look(Asked(picture=name, model=i, size=32)) for i in (0, 1))
    assert b'\\"key\\": \\"class\\"' not in first and b'\\"key\\": \\"class\\"' in second
    about = studio.lenses[0].about
    assert about["task"] == "segment" and about["head"] == "linear" and about["classes"] == 2


def pixel(visit: Visit, row: float, column: float) -> tuple[int, ...]:
    """Of the canvas, at shares of its height and width."""
    width, height = visit.page.locator(".stage canvas").first.evaluate("(c) => [c.width, c.height]")
    image = Image.frombytes("RGB", (width, height), visit.drawn())
    return image.getpixel((int(column * width), int(row * height)))


def test_the_page_shows_the_mask_its_legend_and_what_is_under_the_pointer(browser: Any, picture: Path) -> None:
    predictor = seeing_colours("stretch")
    predictor.about["colours"] = [[0, 200, 200], [250, 200, 0]]
    with served_here(predictor) as address:
        visit = Visit(browser, address)
        visit.show(picture)
        page = visit.page
        assert page.locator(".best").inner_text() == "2 classes"
        rows = [text.replace("\u202f", " ").split("\n") for text in page.locator(".classes li").all_inner_texts()]
        assert rows == [["blue", "50.0 %"], ["red", "50.0 %"]]
        assert page.locator("#overlays label:visible").all_inner_texts()[-1] == "Mask"
        assert page.locator("input[value=relevance]").locator("..").is_hidden()
        page.locator("#opacity").fill("100")
        page.wait_for_timeout(100)
        assert pixel(visit, 0.3, 0.2) == (0, 200, 200) and pixel(visit, 0.3, 0.8) == (250, 200, 0)
        assert "Here: blue. In all: blue 50.0 %, red 50.0 %." in visit.hover(2, 1)
        assert "Here: red" in visit.hover(2, 4)
        page.keyboard.press("1")  # attention of the backbone
        page.wait_for_timeout(200)
        assert "looks most at" in visit.readout()
        assert page.locator(".best").inner_text() == "2 classes"
        visit.close()


def test_the_page_draws_the_boxes_that_were_found(browser: Any, picture: Path) -> None:
    predictor = detector("retinanet")
    predictor.about["threshold"] = 0.0
    expected = view_of(predictor, halves()).said[1]["rows"]
    with served_here(predictor) as address:
        visit = Visit(browser, address)
        visit.show(picture)
        found = visit.page.locator(".classes li.found").all_inner_texts()
        assert visit.page.locator(".best").inner_text() == f"{len(expected)} objects"
        assert [text.split("\n")[0] for text in found] == [row["label"] for row in expected]
        with_boxes = visit.drawn()
        visit.page.keyboard.press("7")  # the picture alone
        visit.page.wait_for_timeout(200)
        assert visit.drawn() != with_boxes
        visit.close()
