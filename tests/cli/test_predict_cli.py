"""`vitrail predict` as a person meets it: tables, skipped pictures, exit codes, sentences."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import vitrail
from tests.parity.peers import shake
from vitrail.cli import main
from vitrail.cli.pictures import progress, writing
from vitrail.cli.predict import predict
from vitrail.models import Preprocessing


@pytest.fixture(scope="module")
def predictor():
    model = shake(vitrail.create_model("vit_ti16", depth=1, num_classes=3))
    return vitrail.Predictor(model, Preprocessing(), ["ant", "bee", "猫"], "vit_ti16", device="cpu")


@pytest.fixture
def photo():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 300, 3), dtype=np.uint8))


@pytest.fixture
def folder(predictor, photo, tmp_path, monkeypatch):
    """A run, and pictures of which two can't be used."""
    monkeypatch.chdir(tmp_path)
    predictor.save(tmp_path / "run" / "model.safetensors")
    pictures = tmp_path / "pictures"
    (pictures / ".thumbnails").mkdir(parents=True)
    photo.save(pictures / "a.png")
    photo.convert("L").save(pictures / "b.jpg")
    photo.save(pictures / ".thumbnails" / "a.png")
    (pictures / "broken.jpg").write_bytes(b"not a picture")
    (pictures / "notes.txt").write_text("no picture at all")
    Image.new("L", (1, 9000)).save(pictures / "line.png")
    return tmp_path


def run(*arguments):
    return tyro.cli(predict, args=[*map(str, arguments)])


def rows_of(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_tables_are_written_and_the_pictures_that_had_to_be_skipped_are_named(folder, predictor, photo, capsys):
    code = run("pictures", "--model", "run", "--top", 2, "--csv", "o.csv", "--json", "o.json", "--batch-size", 1)
    printed = capsys.readouterr()
    assert code == 1
    assert "skipped: pictures/broken.jpg is not an image" in printed.err
    assert "skipped: pictures/line.png" in printed.err
    assert "2 of 4 pictures could not be used" in printed.err
    rows = rows_of(folder / "o.csv")
    assert list(rows[0]) == ["path", "label", "index", "probability"]
    assert [row["path"] for row in rows] == ["pictures/a.png", "pictures/b.jpg"]
    (best, *_) = predictor.predict(photo)[0]
    assert (rows[0]["label"], rows[0]["index"]) == (best.label, str(best.index))
    assert float(rows[0]["probability"]) == pytest.approx(best.probability, abs=1e-5)
    content = json.loads((folder / "o.json").read_text(encoding="utf-8"))
    assert [len(item["predictions"]) for item in content] == [2, 2]
    assert printed.out.count("%") == 4
    assert sorted(p.name for p in folder.iterdir()) == ["o.csv", "o.json", "pictures", "run"]


@pytest.mark.parametrize("times", [1, 60], ids=["less", "more"])  # than the buffer of what is printed takes
@pytest.mark.parametrize(("wanted", "code"), [(["--csv", "o.csv"], 1), ([], 141)])
def test_where_a_table_is_wanted_it_is_whole_though_nobody_reads_what_is_printed(folder, wanted, code, times):
    """`vitrail predict … --csv o.csv | head`. The code is 1 for the pictures that had to be skipped."""
    words = [sys.executable, "-m", "vitrail", "predict", *["pictures"] * times, "--model", "run", *wanted]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as running:
        running.stdout.close()
        said = running.stderr.read()
    assert running.returncode == code and "Traceback" not in said and "Exception" not in said
    assert not wanted or len(rows_of(folder / "o.csv")) == 2 * times


def test_the_exit_code_tells_skipped_from_good_and_from_mistaken(folder, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line changes
    codes = []
    for arguments in (
        ["pictures/a.png", "--model", "run"],
        ["pictures", "--model", "run"],
        ["pictures/a.png", "--model", "no"],
    ):
        with pytest.raises(SystemExit) as end:
            main(["predict", *arguments])
        codes.append(end.value.code)
    assert codes == [0, 1, 2]
    process = [sys.executable, "-m", "vitrail", "predict", "pictures", "--model", "run", "--crops", "4"]
    done = subprocess.run(process, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_views_and_fit_are_those_of_the_predictor(folder, photo, capsys):
    options = ["--flip", "--crops", 5, "--fit", "pad", "--image-size", 96]
    assert run("pictures/a.png", "--model", "run/model.safetensors", "--json", "o.json", *options) == 0
    (found,) = json.loads((folder / "o.json").read_text(encoding="utf-8"))
    expected = vitrail.load(folder / "run", image_size=96, fit="pad", device="cpu").predict(photo, flip=True, crops=5)
    assert [p["probability"] for p in found["predictions"]] == pytest.approx([p.probability for p in expected[0]])


def test_several_labels_share_a_row_and_may_be_none(predictor, folder, capsys):
    for name, thresholds in (("some", [0.01, 1.0, 0.01]), ("none", [1.0] * 3)):
        about = {"multi_label": True, "thresholds": thresholds}
        vitrail.save_weights(predictor.model, f"{name}.safetensors", labels=predictor.labels, about=about)
    assert run("pictures/a.png", "--model", "some.safetensors", "--csv", "some.csv", "--top", 3) == 0
    assert capsys.readouterr().out.count("%") == 3
    (row,) = rows_of(folder / "some.csv")
    values = vitrail.load("some.safetensors", device="cpu").probabilities("pictures/a.png")[0]
    order = sorted((0, 2), key=lambda i: -values[i].item())
    assert row["label"] == "|".join(predictor.labels[i] for i in order)
    assert row["index"] == "|".join(map(str, order))
    assert row["probability"] == "|".join(f"{values[i].item():.6f}" for i in order)
    assert run("pictures/a.png", "--model", "none.safetensors", "--csv", "none.csv") == 0
    assert "no class reaches its threshold" in capsys.readouterr().out
    assert rows_of(folder / "none.csv") == [{"path": "pictures/a.png", "label": "", "index": "", "probability": ""}]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.jpg", "--model", "run"], "There is no picture or folder nothing.jpg"),
        (["run", "--model", "run"], "The folder run holds no pictures"),
        (["pictures", "--model", "nothing.pth", "--top", "0"], "--top must be at least 1"),
        (["pictures", "--model", "nothing.pth"], "There is no file nothing.pth"),
        (["--model", "run"], "No pictures were given"),
        (["pictures/a.png", "--model", "run", "--device", "gpu"], "The device 'gpu' can't be used"),
        (["pictures/a.png", "--model", "run", "--image-size", "0"], "image_size must be"),
        (["pictures/a.png", "--model", "run", "--csv", "run/model.safetensors/o.csv"], "o.csv can't be written"),
        (["pictures/broken.jpg", "--model", "run", "--csv", "o.csv"], "Not one of the pictures can be used; o.csv was"),
        (["pictures/broken.jpg", "--model", "run", "--json", "o.json"], "can be used; o.json was not written"),
        (["pictures/a.png", "--model", "nothing.pth", "--csv", "o.csv"], "There is no file"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_file(arguments, sentence, folder):
    with pytest.raises(vitrail.VitrailError) as error:
        run(*arguments)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(p.name for p in folder.iterdir()) == ["pictures", "run"]


def test_a_table_that_was_there_is_kept_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "o.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt, match=r"Stopped; .*o\.csv was not written\."), writing(path) as file:
        file.write("half of the n")
        raise KeyboardInterrupt
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
    with writing(path) as file:
        file.write("new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["new"]
    with writing(None) as file:
        assert file is None


@pytest.mark.parametrize(("after", "said"), [
    (0, "Stopped; new/o.csv was not written."), (1, "Stopped; 1 row kept in o.json.part and new/o.csv.part."),
])  # fmt: skip
def test_whoever_interrupts_keeps_the_rows_there_are(folder, capsys, monkeypatch, after, said):
    stream = vitrail.Predictor.stream

    def interrupted(*arguments, **options):
        yield from itertools.islice(stream(*arguments, **options), after)
        raise KeyboardInterrupt

    monkeypatch.setattr(vitrail.Predictor, "stream", interrupted)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    (folder / "o.json").write_text("old")
    with pytest.raises(SystemExit) as left:
        main(["predict", "pictures", "--model", "run", "--csv", "new/o.csv", *(["--json", "o.json"] if after else [])])
    assert left.value.code == 130 and capsys.readouterr().err == f"vitrail: {said}\n"
    assert (folder / "o.json").read_text() == "old"
    assert [p.name for p in (folder / "new").iterdir()] == ["o.csv.part"] * after
    if after:
        assert [row["path"] for row in rows_of(folder / "new" / "o.csv.part")] == ["pictures/a.png"]
        (kept,) = json.loads((folder / "o.json.part").read_text(encoding="utf-8"))
        assert kept["path"] == "pictures/a.png" and len(kept["predictions"]) == 3


def test_a_folder_means_what_it_means_in_training(folder, capsys):
    (folder / "album" / "@eaDir").mkdir(parents=True)
    Image.new("RGB", (30, 30)).save(folder / "album" / "@eaDir" / "thumb.jpg")  # a disk station's
    (folder / "album" / "linked").symlink_to(folder / "pictures")
    (folder / "album" / "linked too").symlink_to(folder / "pictures")
    assert run("album", "--model", "run") == 1
    assert re.findall(r"^album.*", capsys.readouterr().out, re.M) == ["album/linked/a.png", "album/linked/b.jpg"]


def test_progress_is_plain_lines_away_from_a_terminal_and_only_for_long_jobs(capsys):
    with progress(3) as advance:
        for _ in range(3):
            advance()
    assert capsys.readouterr().err == ""
    with progress(3, every=0) as advance:
        for _ in range(3):
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"vitrail: {i} of 3 pictures" for i in (1, 2)]  # not when done
    assert all("pictures/s" in line and line.endswith(" s left") for line in lines)


def test_a_line_of_progress_waits_for_the_last_picture_of_a_batch(folder, capsys, monkeypatch):
    clock = itertools.count(0, 6)  # seconds, at each look: a line would be due after every picture
    monkeypatch.setattr("vitrail.cli.pictures.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert run(*["pictures/a.png"] * 5, "--model", "run", "--batch-size", 2) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [  # of 12 and 24 seconds
        "vitrail: 2 of 5 pictures, 6 s for each, 18 s left", "vitrail: 4 of 5 pictures, 6 s for each, 6 s left",
    ]  # fmt: skip


def test_threads_decode_while_the_model_works_and_the_order_stays(folder, predictor, capsys):
    """Eighty pictures of different sizes in batches of seven come out as one by one."""
    generator = np.random.default_rng(1)
    (folder / "many").mkdir()
    for i in range(80):
        size = tuple(generator.integers(20, 60, 2))
        Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / "many" / f"{i:02}.png")
    assert run("many", "--model", "run", "--csv", "o.csv", "--batch-size", 7, "--image-size", 32) == 0
    rows = rows_of(folder / "o.csv")
    assert [row["path"] for row in rows] == [f"many/{i:02}.png" for i in range(80)]
    small = vitrail.load(folder / "run", image_size=32, device="cpu")
    alone = torch.stack([small.probabilities(folder / row["path"])[0].max() for row in rows[::9]])
    together = torch.tensor([float(row["probability"]) for row in rows[::9]])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
