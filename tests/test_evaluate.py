"""Figures of a model on labelled images: which images count, and that the numbers are those of the model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import f1_score, roc_auc_score

import vitrail
from vitrail.data.samples import Source
from vitrail.tasks.scoring import class_indices

CLASSES = ["dark", "light", "red"]


def picture(name: str, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    low, high = {"dark": (0, 120), "light": (100, 255), "red": (60, 180)}[name]
    pixels = rng.integers(low, high, (12, 10, 3), dtype=np.uint8)
    if name == "red":
        pixels[..., 0] = 255
    return Image.fromarray(pixels)


def write(folder: Path, counts: dict[str, int], seed: int = 0) -> None:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            picture(name, seed + i).save(folder / name / f"{i}.png")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = vitrail.create_model("vit_nano2", num_classes=3)
    return vitrail.save_weights(model, tmp_path_factory.mktemp("model") / "model.safetensors", labels=CLASSES)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder / "train", dict.fromkeys(CLASSES, 12))
    write(folder / "test", {"dark": 8, "light": 5, "red": 7}, seed=100)
    return folder


def test_the_figures_are_those_of_the_probabilities_on_test(bundle, data):
    figures = vitrail.evaluate(bundle, data)
    paths = [path for name in CLASSES for path in sorted((data / "test" / name).iterdir())]
    truth = np.array([CLASSES.index(path.parent.name) for path in paths])
    chances = vitrail.load(bundle).probabilities(paths).numpy().astype(np.float64)
    assert (figures["split"], figures["n"], figures["skipped"]) == ("test", 20, 0)
    assert figures["top1"] == pytest.approx((chances.argmax(1) == truth).mean())
    assert figures["macro_f1"] == pytest.approx(f1_score(truth, chances.argmax(1), average="macro"))
    assert figures["auroc"] == pytest.approx(
        roc_auc_score(truth, chances / chances.sum(1, keepdims=True), multi_class="ovr"), abs=1e-6
    )
    assert figures["top1_low"] <= figures["top1"] <= figures["top1_high"]
    assert vitrail.evaluate(bundle, data, split="train")["n"] == 36


def test_means_over_classes_are_over_those_of_the_data_when_the_model_knows_more(bundle, data, tmp_path):
    shutil.copytree(data / "test", tmp_path / "two", ignore=shutil.ignore_patterns("red"))
    paths = [path for name in CLASSES[:2] for path in sorted((tmp_path / "two" / name).iterdir())]
    truth = np.array([CLASSES.index(path.parent.name) for path in paths])
    knows = vitrail.load(bundle)
    chances = knows.probabilities(paths)
    with torch.no_grad():  # so that half of the answers lie outside of the data
        knows.model.head.output.bias[2] += (chances[:, :2].amax(1) / chances[:, 2]).log().median()
    chances = knows.probabilities(paths).numpy().astype(np.float64)
    said = chances.argmax(1)
    assert (said == 2).any() and (said != 2).any()
    figures = vitrail.evaluate(knows, tmp_path / "two")
    assert figures["macro_f1"] == pytest.approx(f1_score(truth, said, labels=[0, 1], average="macro"))
    assert figures["macro_f1"] > f1_score(truth, said, average="macro", zero_division=0)
    areas = [roc_auc_score(truth == c, chances[:, c]) for c in (0, 1)]
    assert figures["auroc"] == pytest.approx(np.mean(areas), abs=1e-6)
    assert figures["macro_f1_low"] <= figures["macro_f1"] <= figures["macro_f1_high"]
    assert "has 2 of them: macro F1 and AUROC are means over these 2" in figures["notes"][0]
    assert not vitrail.evaluate(bundle, data)["notes"]


def test_features_are_worth_what_a_probe_and_neighbours_make_of_them(bundle, data):
    figures = vitrail.evaluate(bundle, data, knn=True, probe=True)
    assert figures["probe_top1"] == 1.0  # three colours that any features tell apart
    assert figures["knn_top1"] >= 0.9


def test_a_model_without_classes_is_scored_by_its_features_alone(data, tmp_path):
    weights = vitrail.save_weights(vitrail.create_model("vit_nano2", num_classes=0), tmp_path / "body.safetensors")
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        shutil.copytree(data / part, tmp_path / "data" / part)
    (tmp_path / "data" / "test" / "dark" / "broken.png").write_bytes(b"nothing")
    figures = vitrail.evaluate(weights, tmp_path / "data", knn=True)
    assert (figures["n"], figures["skipped"]) == (20, 1) and "top1" not in figures
    assert 1 / 3 < figures["knn_top1"] <= 1


def test_classes_are_found_by_name_whatever_its_spelling_or_by_number(bundle, tmp_path):
    write(tmp_path / "plain", {"dark": 2, "light": 2})
    (tmp_path / "plain" / "dark").rename(tmp_path / "plain" / "Dark")
    by_name = vitrail.evaluate(bundle, tmp_path / "plain")
    assert (by_name["split"], by_name["n"]) == ("all", 4)
    (tmp_path / "plain" / "Dark").rename(tmp_path / "plain" / "0")
    (tmp_path / "plain" / "light").rename(tmp_path / "plain" / "0001")
    assert vitrail.evaluate(bundle, tmp_path / "plain")["top1"] == by_name["top1"]
    (tmp_path / "plain" / "0").rename(tmp_path / "plain" / "cow")
    with pytest.raises(vitrail.VitrailError, match=r"cow.*dark, light, red"):
        vitrail.evaluate(bundle, tmp_path / "plain")


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (["sku-1", "sku_1", "sku-2"], ["sku-1", "sku_1"], [0, 1]),  # two classes, not two spellings of one
        (["sku-1", "sku_1", "sku-2"], ["SKU 2", "sku_1"], [2, 1]),
        (["sku-1", "sku_1", "sku-2"], ["SKU 1"], None),
        (["sku-1", "sku-2"], ["sku-1", "sku_1"], None),
        (["1", "2", "3"], ["1", "3"], [0, 2]),
        (["1", "2", "3"], ["0", "1", "2"], None),  # 0 is no label of a model that calls its classes by numbers
        (["crane", "crane", "cow"], ["Cow", "Crane"], [2, 0]),  # as ImageNet has it: a bird and a machine
        (["crane", "crane", "cow"], ["0", "1", "2"], [0, 1, 2]),
        (["crane", "crane", "cow"], ["0001", "0002"], [1, 2]),
        (["crane", "crane", "cow"], ["1", "2"], None),  # digits, perhaps, of which a model of animals knows nothing
    ],
)
def test_a_class_is_never_taken_for_another(tmp_path, labels, classes, expected):
    model = vitrail.create_model("vit_nano2", num_classes=len(labels))
    predictor = vitrail.load(vitrail.save_weights(model, tmp_path / "model.safetensors", labels=labels))
    source = Source(name="data", classes=classes, splits={})
    if expected is None:
        with pytest.raises(vitrail.VitrailError, match="classes that this model does not know"):
            class_indices(source, predictor)
    else:
        assert class_indices(source, predictor) == expected


def test_features_are_measured_where_the_head_knows_other_classes(data, tmp_path):
    model = vitrail.create_model("vit_nano2", num_classes=2)
    other = vitrail.save_weights(model, tmp_path / "model.safetensors", labels=["cow", "horse"])
    figures = vitrail.evaluate(other, data, knn=True, probe=True)
    assert figures["probe_top1"] == 1.0 and "top1" not in figures and figures["n"] == 20
    assert (
        "its own answers are not: " in figures["notes"][0] and "dark, light, red; it knows cow" in figures["notes"][0]
    )
    with pytest.raises(vitrail.VitrailError, match="classes that this model does not know"):
        vitrail.evaluate(other, data, knn=True, report=tmp_path / "report.html")  # which is about its answers


def test_images_that_trained_the_model_do_not_count(tmp_path, capsys):
    write(tmp_path / "plain", dict.fromkeys(CLASSES, 10))
    run = vitrail.train(tmp_path / "plain", model="vit_nano2", epochs=1, val=0.2, out=tmp_path / "run", device="cpu")
    figures = vitrail.evaluate(run, tmp_path / "plain")
    assert (figures["split"], figures["n"]) == ("held out in training", 6)
    assert "24 images" in figures["notes"][0]
    assert figures["top1"] == pytest.approx(run.metrics["top1"])
    assert vitrail.evaluate(vitrail.load(run), tmp_path / "plain") == figures  # it knows where it came from
    capsys.readouterr()


def test_images_of_the_refit_are_not_called_held_out(bundle, tmp_path, capsys):
    write(tmp_path / "plain", dict.fromkeys(CLASSES, 10))
    options = {"weights": bundle, "epochs": 1, "val": 0.2, "device": "cpu", "out": tmp_path / "run"}
    run = vitrail.train(tmp_path / "plain", **options, refit="on")
    assert "cross-validated on the 24 training" in capsys.readouterr().out  # beside the figure of so few images
    figures = vitrail.evaluate(run, tmp_path / "plain")
    assert (figures["split"], figures["n"]) == ("all", 30)
    assert figures["notes"][0].startswith("30 images") and figures["notes"][1].startswith("6 images")
    for name in CLASSES:
        picture(name, 500).save(tmp_path / "plain" / name / "new.png")
    figures = vitrail.evaluate(run, tmp_path / "plain")
    assert (figures["split"], figures["n"]) == ("new since training", 3)


def test_the_command_prints_writes_and_says_what_it_skipped(bundle, data, tmp_path):
    (tmp_path / "test").symlink_to(data / "test")
    broken = tmp_path / "other" / "dark"
    broken.mkdir(parents=True)
    (broken / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    picture("dark", 0).save(broken / "fine.png")
    for folder, code in ((data, 0), (tmp_path / "other", 1)):
        done = subprocess.run(
            [sys.executable, "-m", "vitrail", "evaluate", str(folder), "--model", str(bundle), "--json", "figures.json",
             "--report", "page.html", "--fit", "native"],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert done.stdout.endswith("Report: page.html\nFigures: figures.json\n")
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert all(isinstance(value, int | float | str) for value in figures.values())
        assert 0 <= figures["top1"] <= 1
        assert (tmp_path / "page.html").stat().st_size > 10_000
    assert figures["skipped"] == 1
    assert "broken.png" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["data", "--model", "model.safetensors", "--split", "tset"], 'Did you mean "test"'),
        (["nowhere", "--model", "model.safetensors"], "There is no nowhere"),
        (["data", "--model", "model.safetensors", "--json", "model.safetensors/f.json"], "can't be written"),
    ],
    ids=["split", "data", "json"],
)
def test_a_mistake_is_one_sentence(bundle, data, tmp_path, arguments, sentence):
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "model.safetensors").symlink_to(bundle)
    done = subprocess.run(
        [sys.executable, "-m", "vitrail", "evaluate", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_several_labels_are_not_scored_by_a_model_of_one(bundle, data, tmp_path):
    table = tmp_path / "labels.csv"
    paths = sorted((data / "test").rglob("*.png"))[:4]
    table.write_text("path,label\n" + "\n".join(f"{path},dark|light" for path in paths) + "\n")
    with pytest.raises(vitrail.VitrailError, match="several labels per image"):
        vitrail.evaluate(bundle, table)
