"""The folder that a run leaves: what is in it, what it tells, and whose it is."""

import json
import re
from pathlib import Path

import pytest

import vitrail
from tests.training.support import make_folder, small_options
from vitrail.errors import VitrailError
from vitrail.reasons import Reason
from vitrail.tasks.classify.task import ClassifyTask
from vitrail.training import run as running
from vitrail.training.config import TrainConfig
from vitrail.weights import read_checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=60)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> vitrail.Run:
    """From scratch, three epochs."""
    out = tmp_path_factory.mktemp("runs") / "three"
    return vitrail.train(data, out=out, **small_options(epochs=3, drop_path=0.2))


def test_the_file_to_ship_tells_where_it_comes_from(run, data):
    kept = read_checkpoint(run.folder / "model.safetensors")
    about = kept.about
    assert kept.labels == ["class 0", "class 1", "class 2"]
    assert kept.preprocessing.size == (8, 8) and kept.name == "vit_nano2"
    assert about["task"] == "classify" and about["multi_label"] is False and about["data"] == data.name
    assert about["recipe"]["epochs"] == 3 and about["recipe"]["lr"] == 1e-3
    assert None not in [about["recipe"][name] for name in ("batch_size", "augment", "mixup", "warmup", "ema", "val")]
    assert about["metrics"]["top1"] == run.metrics["top1"] and about["metrics"]["epoch"] in (1, 2, 3)
    record = json.loads((run.folder / "run.json").read_text())
    assert record["recipe"].items() >= about["recipe"].items() and "out" not in about["recipe"]  # a place of ours
    assert record["given"]["epochs"] == 3
    assert record["why"]["epochs"] == str(Reason("as_asked")) and set(record["versions"]) >= {
        "torch",
        "torchvision",
        "vitrail",
    }


def test_a_run_is_loaded_and_evaluated(run, data):
    predictor = vitrail.load(run, device="cpu")
    image = data / "class 1" / "001.png"
    assert predictor.predict(image, top=1)[0][0].label == "class 1"
    figures = vitrail.evaluate(run, data, device="cpu")
    assert "held out" in figures["split"] and figures["n"] == run.metrics["n"] == 12
    assert figures["top1"] == pytest.approx(run.metrics["top1"]) and figures["ece"] == pytest.approx(run.metrics["ece"])


def test_the_report_is_one_file_that_asks_for_nothing(run):
    text = (run.folder / "report.html").read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    for place in re.findall(r"""(?:src|href)=["']([^"']+)""", text):
        assert place.startswith(("data:", "#")), place
    assert "@import" not in text and "<link" not in text
    assert "drop_path" in text.replace("drop path", "drop_path")
    rows = re.findall(r"<td[^>]*><code>(\w+)</code></td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>", text)
    assert [row[:2] for row in rows[:3]] == [("model", "vit_nano2"), ("images", "8×8"), ("device", "cpu")]
    assert rows[0][2].startswith("0.1 M") and rows[2][2].startswith("float32")
    assert "precision" not in [name for name, *_ in rows]


def test_a_second_run_has_a_folder_of_its_own(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = small_options(epochs=0)
    first, second = (vitrail.train(data, **options).folder for _ in range(2))
    assert (str(first), str(second)) == (f"runs/{data.name}", f"runs/{data.name}-2")


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_that_another_run_took_meanwhile_is_left_to_it(data, tmp_path, monkeypatch, named):
    """Both looked for a free folder, then read their images; the second one was the first to be done."""
    monkeypatch.chdir(tmp_path)
    options = small_options(epochs=0) | ({"out": Path("mine")} if named else {})
    reading, others = running.read_images, []

    def slow(ctx):
        reading(ctx)
        if not others:
            others.append(ctx)
            others.append(vitrail.train(data, **options, seed=5))

    monkeypatch.setattr(running, "read_images", slow)
    with pytest.raises(VitrailError, match="--out") as info:
        vitrail.train(data, **options, seed=4)
    assert info.value.code == "folder_taken"
    record = json.loads((others[1].folder / "run.json").read_text())
    assert record["recipe"]["seed"] == 5 and vitrail.load(others[1]).labels


def test_a_run_that_can_not_begin_leaves_nothing_behind(data, tmp_path, monkeypatch):
    def interrupted(task, ctx, path, samples):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ClassifyTask, "write_split", interrupted)
        vitrail.train(data, **small_options(epochs=0), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    vitrail.train(data, **small_options(epochs=0), out=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")) == []


def test_options_beside_a_configuration_have_the_last_word(data, tmp_path):
    config = TrainConfig(**small_options(epochs=0, out=tmp_path / "run", seed=3))
    run = vitrail.train(data, config, seed=4)
    record = json.loads((run.folder / "run.json").read_text())
    assert record["recipe"]["seed"] == 4 and record["recipe"]["model"] == "vit_nano2"
    with pytest.raises(VitrailError, match='"seed"') as info:
        vitrail.train(data, config, sede=4)
    assert (info.value.code, info.value.fields) == ("unknown_option", {"option": "sede"})


def test_a_batch_of_more_images_than_there_are_is_all_of_them_and_the_rate_is_for_that(data, tmp_path, capsys):
    options = {name: value for name, value in small_options(epochs=1, batch_size=1024).items() if name != "lr"}
    run = vitrail.train(data, **options, out=tmp_path / "run")
    assert re.search(rf"batch size +48  {Reason('whole_batch')}", capsys.readouterr().out)
    recipe, samples = (json.loads((run.folder / "run.json").read_text())[key] for key in ("recipe", "samples"))
    assert recipe["batch_size"] == 48 and samples["train"].startswith("48 images")
    assert recipe["lr"] == pytest.approx(2e-3 * (48 / 8) ** 0.5, rel=0.01)  # the usual batch of 60 images is 8


def test_where_nothing_is_held_out_nothing_is_promised(data, run, tmp_path, capsys):
    tuned = vitrail.train(data, weights=run, epochs=1, val=0, device="cpu", workers=0, out=tmp_path / "run")
    record = json.loads((tuned.folder / "run.json").read_text())
    assert record["recipe"]["refit"] == "off" and record["why"]["refit"] == str(Reason("nothing_held_out"))
    assert str(Reason("nothing_held_out")) in capsys.readouterr().out
    own = tmp_path / "own"
    for split in ("train", "val"):
        make_folder(own / split, count=12)
    with pytest.raises(VitrailError, match="--val") as info:
        vitrail.train(own, **small_options(val=0.5))
    assert info.value.code == "own_val"
