import json
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.test_shards import shard
from tests.data.test_sources import fill, write_csv
from tests.odd_files import encoded, photograph, turned, write_hard_folder, write_odd_files
from vitrail.cli.data import inspect as data_inspect
from vitrail.cli.data import suited
from vitrail.data.inspect import inspect
from vitrail.data.inspect.sheet import picture
from vitrail.data.sources.classification import open_source
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing
from vitrail.tasks.backbones import start_model


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():  # Pillow's about damaged files
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hard") / "data"
    return folder, *write_hard_folder(folder)


def test_every_bad_file_is_listed_with_its_reason_and_no_good_one_is_lost(hard):
    folder, good, bad = hard
    assert len(good) + len(bad) == 500 and len(bad) >= 95
    source = open_source(folder)
    found = inspect(source)
    assert {one.name for one in found.unreadable} == set(bad)
    for one in found.unreadable:
        assert bad[one.name] in one.reason and str(folder) not in one.reason and "\n" not in one.reason
        assert one.labels == [one.name.split("/")[0]] and one.split == "all"
    seen = {s.name for s, look in zip(source.splits["all"], found.looks["all"], strict=True) if look}
    assert seen == set(good)
    assert sum(found.counts("all")) == len(good) == len(found.seen)


def test_one_of_every_odd_kind(tmp_path):
    good, bad = write_odd_files(tmp_path / "data" / "a")
    fill(tmp_path / "data", "b/1.jpg")
    source = open_source(tmp_path / "data")
    found = inspect(source, workers=1)
    assert {one.name.removeprefix("a/") for one in found.unreadable} == set(bad)
    pairs = zip(source.splits["all"], found.looks["all"], strict=True)
    looks = {s.name.removeprefix("a/"): look for s, look in pairs if look and s.name.startswith("a/")}
    assert {name: (look.height, look.width) for name, look in looks.items()} == good
    upright = looks["a_png_called.jpg"]
    assert upright.format == "PNG" and looks["a_jpeg_called.png"].format == "JPEG"
    for name in ("exif_6.png", " spaces and, commas .png", "animated.png", "bitmap.bmp", "compressed.tif"):
        assert looks[name].digest == upright.digest  # the same pixels in other clothes
    assert looks["exif_6.png"].turned and looks["exif_8.jpg"].turned and not looks["exif_1.jpg"].turned
    grey = {name for name, look in looks.items() if look.grey}
    expected = {"grey.jpg", "grey_alpha.png", "black_and_white.png", "floating_point.tiff", "sixteen_bits.png"}
    assert grey == expected | {"sixteen_bits.tif"}
    modes = {name: looks[name].mode for name in ("cmyk.jpg", "palette.png", "sixteen_bits.png", "alpha.png")}
    assert modes == {"cmyk.jpg": "CMYK", "palette.png": "P", "sixteen_bits.png": "I;16", "alpha.png": "RGBA"}


def test_counts_sizes_and_imbalance(tmp_path):
    for number in range(6):
        path = tmp_path / ("train/a" if number < 4 else "train/b") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, 10 * (number + 1), 30).save(path)
    fill(tmp_path, "test/b/9.png")
    (tmp_path / "train/b/broken.png").write_bytes(b"")
    seen = []
    found = inspect(open_source(tmp_path), workers=2, progress=lambda done, total: seen.append((done, total)))
    assert found.counts("train") == [4, 2] and found.counts("test") == [0, 1] and found.imbalance == 2
    assert found.sizes() == {"height": (8, 30, 60), "width": (10, 30, 30), "aspect": (0.5, 1.0, 3.0)}
    assert seen == [(i, 8) for i in range(1, 9)]
    content = json.loads(json.dumps(found.as_dict()))
    assert content["pictures"] == 8 and content["readable"] == 7 and content["formats"] == {"PNG": 7}
    assert content["counts"] == {"train": {"a": 4, "b": 2}, "test": {"a": 0, "b": 1}}
    assert content["unreadable"][0]["name"] == "train/b/broken.png"


def test_copies_are_found_within_and_across_splits_and_under_other_labels(tmp_path):
    image = [photograph(i, 12, 16) for i in range(4)]
    files = {
        "train/a/0.png": encoded(image[0], "PNG"),
        "train/a/0 saved anew.bmp": encoded(image[0], "BMP"),  # within a split
        "train/a/1.png": encoded(image[1], "PNG"),
        "test/a/1 turned.png": turned(image[1], 6, "PNG"),  # across splits
        "train/a/2.png": encoded(image[2], "PNG"),
        "train/b/2.tif": encoded(image[2], "TIFF"),  # under another label
        "train/b/3.png": encoded(image[3], "PNG"),
        "test/b/3 mirrored.png": encoded(image[3].transpose(Image.Transpose.FLIP_LEFT_RIGHT), "PNG"),  # not a copy
        "test/b/3 small.png": encoded(image[3].resize((15, 12)), "PNG"),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = inspect(open_source(tmp_path))
    kinds = {tuple(sorted(one.names)): (one.across, one.conflicting) for one in found.duplicates}
    assert kinds == {
        ("train/a/0 saved anew.bmp", "train/a/0.png"): (False, False),
        ("test/a/1 turned.png", "train/a/1.png"): (True, False),
        ("train/a/2.png", "train/b/2.tif"): (False, True),
    }
    assert next(one for one in found.duplicates if one.conflicting).labels == [["a"], ["b"]]


def test_tar_members_and_tables_are_inspected_too(tmp_path):
    found = inspect(open_source(shard(tmp_path / "x.tar", 0, 1, 1)))
    assert found.counts("all") == [1, 2] and found.as_dict()["formats"] == {"PNG": 3}
    fill(tmp_path, "1.jpg", "2.jpg")
    found = inspect(open_source(write_csv(tmp_path / "t.csv", "path,label", "1.jpg,a|b", "2.jpg,", "3.jpg,b")))
    assert found.counts("all") == [1, 1] and found.unreadable[0].reason == "was not found: check the path."


def varied(folder):
    """Images of many shapes."""
    for number, (height, width) in enumerate([(60, 80), (80, 60), (64, 64), (20, 300), (300, 20), (8, 8), (70, 90)]):
        path = folder / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, height, width).save(path)
    return open_source(folder)


@pytest.mark.parametrize("inspected", [True, False])
def test_the_sheet_shows_extremes_and_classes(tmp_path, inspected):
    from vitrail.data.inspect.sheet import _choose

    source = varied(tmp_path / "data")
    (tmp_path / "data/a/bad.png").write_bytes(b"bad")
    source = open_source(tmp_path / "data")
    found = inspect(source) if inspected else None
    chosen = _choose(source, found, rows=6, seed=0)
    assert [why for _, _, why in chosen] == ["", "", "", "widest", "tallest", "smallest"]
    assert [image.size for _, image, _ in chosen[3:]] == [(300, 20), (20, 300), (8, 8)]
    assert len({sample.labels for sample, _, _ in chosen[:3]}) == 3  # one of each class
    assert [s.name for s, _, _ in _choose(source, found, 6, 0)] == [s.name for s, _, _ in chosen]
    out = picture(source, tmp_path / "deep" / "sheet.png", Preprocessing(size=(48, 64)), found=found)
    drawn = np.asarray(Image.open(out).convert("RGB"))
    assert drawn.shape[1] > 900 and drawn.shape[0] > drawn.shape[1] and drawn.std() > 20
    assert [path.name for path in out.parent.iterdir()] == ["sheet.png"]


def test_a_sheet_that_cannot_be_drawn_is_one_sentence(tmp_path):
    source = varied(tmp_path / "data")
    with pytest.raises(VitrailError, match=r"can't be drawn as \.docx: use \.png"):
        picture(source, tmp_path / "sheet.docx")
    (tmp_path / "file").touch()
    with pytest.raises(VitrailError, match="can't be written"):
        picture(source, tmp_path / "file" / "sheet.png")
    for path in (tmp_path / "data").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(VitrailError, match="no picture that can be read"):
        picture(open_source(tmp_path / "data"), tmp_path / "sheet.png")


def test_the_verb_prints_what_is_there_and_what_is_wrong(tmp_path, capsys):
    fill(
        tmp_path / "data", *(f"train/{label}/{i}.jpg" for label in ("cat", "[dog]") for i in range(3)), "test/cat/9.jpg"
    )
    (tmp_path / "data/test/cat/9.jpg").write_bytes((tmp_path / "data/train/cat/0.jpg").read_bytes())
    (tmp_path / "data/train/cat/readme.txt").touch()
    out, written = tmp_path / "sheet.png", tmp_path / "report.json"
    assert data_inspect(str(tmp_path / "data"), image_size=32, out=out, json=written) == 0
    text = capsys.readouterr().out
    assert re.search(r"7 pictures in train, test, 2 classes", text)
    assert re.search(r"class +train +test +together\n\[dog\] +3 +0 +3\ncat +3 +1 +4\nall +6 +1 +7\n", text)
    assert "train/cat/0.jpg (train) = test/cat/9.jpg (test)" in text and "1 file without a picture's suffix" in text
    assert f"What the model will see: {out}" in text and out.stat().st_size > 10_000
    assert json.loads(written.read_text())["duplicates"][0]["across_splits"]

    (tmp_path / "data/train/cat/empty.jpg").touch()
    assert data_inspect(str(tmp_path / "data"), image_size=32, out=out) == 1
    text = capsys.readouterr().out
    assert "8 pictures in train, test, 1 of which can't be read, 2 classes" in text
    assert "train/cat/empty.jpg is empty (0 bytes): replace or remove it." in text


def test_the_sheet_lies_among_the_runs_and_a_picture_under_two_labels_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data", "cat/0.png", "dog/1.png")
    (tmp_path / "data/dog/0.png").write_bytes((tmp_path / "data/cat/0.png").read_bytes())
    assert data_inspect("data") == 0
    text = capsys.readouterr().out
    assert "\npictures with more than one label: 1\n  cat/0.png (cat) = dog/0.png (dog)\n" in text
    assert "What the model will see: runs/inspection.png" in text and (tmp_path / "runs/inspection.png").is_file()


@pytest.mark.parametrize(("side", "chosen"), [(8, 16), (28, 32), (60, 64), (100, 224)])
def test_the_size_is_the_one_that_training_would_choose(side, chosen, tmp_path, capsys):
    for name in ("a/0.png", "a/1.png", "b/2.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), (9 * side % 255, int(name[2]), 7)).save(tmp_path / "data" / name)
    assert data_inspect(str(tmp_path / "data"), out=tmp_path / "sheet.png") == 0
    assert f"3 with a side below {chosen} pixels" in capsys.readouterr().out
    start = start_model(None, "none", ["a", "b"], None, None, side, gpu=False)
    assert start.preprocessing.size == (chosen, chosen)
    drawn_as = suited(inspect(open_source(tmp_path / "data")), None)
    assert drawn_as == start.preprocessing and drawn_as.crop == (0.9 if side == 100 else 1)


def test_pictures_without_labels_are_inspected_for_pretraining_and_refused_for_classes(tmp_path, capsys):
    fill(tmp_path / "data", "a.png", "b.png", "c.png")
    (tmp_path / "data/c.png").write_bytes((tmp_path / "data/a.png").read_bytes())
    with pytest.raises(VitrailError, match=r"`vitrail data inspect --task pretrain`"):
        data_inspect(str(tmp_path / "data"), out=tmp_path / "sheet.png")
    written = tmp_path / "found.json"
    assert data_inspect(str(tmp_path / "data"), "pretrain", out=tmp_path / "sheet.png", json=written) == 0
    text = capsys.readouterr().out
    assert "3 pictures, no labels" in text and "a.png = c.png" in text and "imbalance" not in text
    assert json.loads(written.read_text())["imbalance"] is None and (tmp_path / "sheet.png").stat().st_size > 10_000


def test_a_long_list_of_classes_is_cut_in_the_middle(tmp_path, capsys):
    for number in range(60):
        fill(tmp_path / "data", *(f"{number:02d}/{i}.png" for i in range(1 + (number == 30) * 3)))
    assert data_inspect(str(tmp_path / "data"), out=tmp_path / "sheet.png") == 0
    text = capsys.readouterr().out
    table = text.split("imbalance")[0]
    assert "… 20 classes of a size between …" in table and table.count("\n") < 50
    assert re.search(r"class +pictures\n30 +4\n", table) and "4.0×, the largest class over the smallest" in text


def test_a_bad_option_or_place_is_told_before_the_work(tmp_path):
    fill(tmp_path / "data", "a/1.jpg", "b/2.jpg")
    (tmp_path / "file").touch()
    with pytest.raises(VitrailError, match="--image-size must be at least 1"):
        data_inspect(str(tmp_path / "data"), image_size=0)
    with pytest.raises(VitrailError, match="can't be written"):
        data_inspect(str(tmp_path / "data"), out=tmp_path / "file" / "sheet.png")
    for task, out in (("classify", "sheet.xyz"), ("segment", "sheet.xyz"), ("classify", "sheet.svg")):
        said = f"{out} can't be drawn as {Path(out).suffix}: use .png, .jpg, .jpeg, .pdf"
        with pytest.raises(VitrailError, match=re.escape(said)):
            data_inspect(str(tmp_path / "data"), task=task, out=tmp_path / out, json=tmp_path / "found.json")
    with pytest.raises(VitrailError, match="is empty"):
        (tmp_path / "nothing").mkdir()
        data_inspect(str(tmp_path / "nothing"), out=tmp_path / "sheet.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file", "nothing"]


def test_what_was_found_is_written_even_where_no_sheet_can_be_drawn(tmp_path, capsys):
    modes = ("RGB", "L", "P", "1", "RGBA", "LA", "CMYK", "I;16")
    fill(tmp_path / "data", "a/1.jpg", "b/2.jpg")
    for mode in modes:
        Image.new(mode, (9, 9)).save(tmp_path / "data" / "a" / f"{mode}.{'tif' if mode == 'CMYK' else 'png'}")
    (tmp_path / f".sheet.png.{os.getpid()}.part").mkdir()  # where it would be written before it has its name
    with pytest.raises(VitrailError, match="can't be written"):
        data_inspect(str(tmp_path / "data"), out=tmp_path / "sheet.png", json=tmp_path / "found.json")
    text = capsys.readouterr().out
    assert text.endswith(f"\nAll of this as JSON: {tmp_path / 'found.json'}\n")
    assert json.loads((tmp_path / "found.json").read_text())["pictures"] == 10
    assert re.search(r"files  2 JPEG RGB, (1 \w+ \S+, ){6}1 \w+ \S+ and 1 more\n", text)


@pytest.mark.data
def test_real_pictures_are_all_readable(real_data):
    source = open_source(real_data / "imagenette_mini")
    part = replace(source, splits={split: samples[::10] for split, samples in source.splits.items()})
    found = inspect(part)
    assert len(found.seen) == 180 and found.unreadable == [] and found.sizes()["height"] == (160, 160, 160)
    assert 0 < sum(look.grey for look in found.seen) < 20
