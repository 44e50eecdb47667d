"""`vitrail predict` with runs that segment or detect: what lies in --out, and one sentence for what does not apply."""

import json
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image

from tests.dense_models import detector, seeing_colours
from vitrail import VitrailError
from vitrail.cli.predict import predict
from vitrail.data.sources.boxes import open_boxes
from vitrail.tasks import registry
from vitrail.tasks.dense.writing import places_in


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    seeing_colours("stretch").save("segment/model.safetensors")
    detector("mask_rcnn").save("detect/model.safetensors")
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :15], pixels[:, 15:] = (20, 20, 230), (230, 20, 20)
    for name in ("a.png", "sub/a.png", "sub/a.bmp"):
        Path("pictures", name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(Path("pictures", name))
    Path("pictures/broken.jpg").write_bytes(b"no picture")
    return tmp_path


def run(*arguments: object) -> int:
    return tyro.cli(predict, args=[*map(str, arguments), "--device", "cpu"])


def test_masks_overlays_and_json_lie_where_the_pictures_lay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pictures", "--model", "segment", "--out", "out", "--json", "all.json") == 1
    text = capsys.readouterr()
    assert text.out.count("75.0%  ███████████████       red") == 3
    assert text.out.splitlines()[-1].endswith("3 in out")
    assert "broken.jpg" in text.err and "1 of 4" in text.err
    files = sorted(str(path.relative_to("out")) for path in Path("out").rglob("*.*"))
    stems = ["a", "sub/a", "sub/a_2"]
    assert files == sorted(f"{stem}{end}" for stem in stems for end in (".json", "_mask.png", "_overlay.png"))
    mask = np.asarray(Image.open("out/sub/a_mask.png"))
    assert mask.shape == (40, 60) and mask[20, 5] == 0 and mask[20, 50] == 1
    said = json.loads(Path("out/sub/a_2.json").read_text())
    assert said["path"] == "pictures/sub/a.png" and said["classes"][0]["label"] == "red"
    assert json.loads(Path("all.json").read_text())[0]["path"] == "pictures/a.png"


def test_boxes_are_drawn_and_written_as_coco_that_is_read_back(folder: Path) -> None:
    assert run("pictures", "--model", "detect", "--out", "out", "--threshold", 0) == 1
    assert {path.name for path in Path("out").rglob("*.png")} == {"a_boxes.png", "a_2_boxes.png"}
    found = json.loads(Path("out/predictions.json").read_text())
    assert found["images"][0]["file_name"] == "pictures/a.png"
    assert len(found["annotations"]) > 0 and {"bbox", "score", "segmentation"} <= found["annotations"][0].keys()
    source = open_boxes("out/predictions.json", images=".")
    assert source.classes == ["cat", "dog"] and len(source) == 3
    assert run("pictures/a.png", "--model", "detect", "--threshold", 1, "--json", "none.json") == 0
    assert json.loads(Path("none.json").read_text())["annotations"] == []


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_whoever_interrupts_keeps_the_answers_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch, task) -> None:
    kind = type(registry.task(task))
    answers = kind.answers

    def interrupted(*arguments: object, **options: object):
        yield next(answers(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"1 row .*all\.json\.part"):
        run("pictures", "--model", task, "--json", "all.json")
    found = json.loads(Path("all.json.part").read_text())
    rows = found["images"] if task == "detect" else found
    assert len(rows) == 1 and not Path("all.json").exists()


def test_a_file_of_no_answers_is_refused(folder: Path) -> None:
    with pytest.raises(VitrailError, match=r"all\.json"):
        run("pictures/broken.jpg", "--model", "segment", "--json", "all.json")
    assert not Path("all.json").exists()


def test_windows_and_sizes_reach_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pictures/a.png", "--model", "segment", "--window", 16) == 0
    assert "75.0%" in capsys.readouterr().out
    assert run("pictures/a.png", "--model", "segment", "--image-size", 64, "--fit", "pad") == 0
    assert run("pictures/a.png", "--model", "detect", "--image-size", 96) == 0
    with pytest.raises(VitrailError, match="whole"):
        run("pictures/a.png", "--model", "detect", "--fit", "crop")


@pytest.mark.parametrize(
    ("task", "option", "value"), [("segment", "csv", "o.csv"), ("segment", "top", 3), ("detect", "window", 64)]
)
def test_options_of_another_task_are_refused_and_nothing_is_written(folder: Path, task, option, value) -> None:
    with pytest.raises(VitrailError) as info:
        run("pictures", "--model", task, f"--{option}", value, "--json", "o.json")
    assert info.value.code == "option_of_another_task"
    assert (info.value.fields["option"], info.value.fields["task"]) == (option, task)
    assert not Path("o.csv").exists() and not Path("o.json").exists()


def test_a_threshold_and_a_folder_that_can_not_be_are_refused(folder: Path) -> None:
    with pytest.raises(VitrailError, match=r"from 0 to 1, got 7\."):
        run("pictures", "--model", "detect", "--threshold", 7)
    with pytest.raises(VitrailError, match="--out"):
        run("pictures", "--model", "detect", "--out", "pictures/a.png")


def test_files_of_one_name_do_not_meet() -> None:
    places = places_in(Path("o"), [Path("x/a.jpg"), Path("x/A.png"), Path("x/y/a.jpg")])
    assert places == [Path("o/a"), Path("o/A_2"), Path("o/y/a")]
