"""`vitrail data inspect --task segment|detect`: how much of each class, what is lost, and a picture to look at."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.cli.data import inspect as data_inspect
from vitrail.data.inspect import inspect
from vitrail.data.sources.boxes import open_boxes
from vitrail.data.sources.masks import open_masks
from vitrail.errors import VitrailError
from vitrail.tasks.data_sheet import data_sheet, varied


@pytest.fixture
def masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four pairs of 30×20, of which one mask is of another size; class 1 has a quarter of the first picture."""
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        for folder in ("images", "masks"):
            Path("pairs", folder).mkdir(parents=True, exist_ok=True)
        mask = np.zeros((20, 30), np.uint8)
        mask[:10, :15] = 1 if number == 0 else 0
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"pairs/images/{number}.png")
        Image.fromarray(mask).save(f"pairs/masks/{number}.png")
    Image.new("L", (9, 9)).save("pairs/masks/3.png")
    Path("pairs/classes.txt").write_text("ground\nthing\n")
    return tmp_path


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((80, 60), 60).save("a.png")
    Image.effect_noise((80, 60), 50).save("b.png")
    rows = [(1, 1, [10, 10, 20, 20]), (1, 2, [40, 30, 20, 20]), (1, 1, [100, 0, 5, 5])]
    content = {
        "images": [{"id": i, "file_name": f"{n}.png", "width": 80, "height": 60} for i, n in enumerate("ab", 1)],
        "categories": [{"id": 1, "name": "square"}, {"id": 2, "name": "disc"}],
        "annotations": [
            {"id": i, "image_id": image, "category_id": kind, "bbox": box} for i, (image, kind, box) in enumerate(rows)
        ],
    }
    Path("boxes.json").write_text(json.dumps(content))
    return tmp_path


def test_the_pixels_of_each_class_are_counted_and_lost_pairs_listed(
    masks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert data_inspect("pairs", task="segment", out=Path("seen.png"), json=Path("seen.json")) == 1
    text = capsys.readouterr().out
    assert "3 pictures, 2 classes" in text and "thing" in text and "8.3%" in text  # a quarter of one of three
    assert "pairs left out: 1" in text and "The mask of images/3.png is 9×9" in text
    found = json.loads(Path("seen.json").read_text())["labels"]
    assert found["unit"] == "pixels" and found["amounts"] == {"all": [3 * 600 - 150, 150]}
    assert Image.open("seen.png").width > 800
    Path("pairs/images/3.png").unlink()
    Path("pairs/masks/3.png").unlink()
    assert data_inspect("pairs", task="segment", out=Path("seen.png")) == 0


def test_boxes_are_counted_with_their_sides_and_lost_ones_listed(
    boxes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert data_inspect("boxes.json", task="detect", out=Path("seen.png"), json=Path("seen.json")) == 1
    text = capsys.readouterr().out
    assert "0 to 2 on a picture, median 1" in text
    assert "boxes that are empty or outside of their picture, and left out: 1\n" in text
    assert "pictures without a box, kept as negative examples: 1\n" in text and "b.png" in text
    found = json.loads(Path("seen.json").read_text())["labels"]
    assert found["amounts"] == {"all": [1, 1]}
    assert found["facts"]["box sides"].startswith(f"{20 / (80 * 60) ** 0.5:.1%} to")
    assert Image.open("seen.png").height > 300


def test_a_picture_without_a_box_alone_is_no_fault(boxes: Path) -> None:
    content = json.loads(Path("boxes.json").read_text())
    content["annotations"].pop()
    Path("boxes.json").write_text(json.dumps(content))
    found = inspect(open_boxes("boxes.json"))
    assert found.labelled is not None and list(found.labelled.problems) and not found.labelled.flawed


def test_the_sheet_shows_every_class_first_and_refuses_a_kind_it_cannot_draw(masks: Path) -> None:
    source = open_masks("pairs")
    order = varied(source, seed=0)
    assert {label for sample in order[:2] for label in sample.labels} == {0, 1} and len(order) == 3
    with pytest.raises(VitrailError, match=r"can't be drawn as \.svg"):
        data_sheet(source, "seen.svg")
