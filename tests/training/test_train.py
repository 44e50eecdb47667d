"""`vitrail.train` as a person uses it: from odd folders, tables and old weights to a run that others can use."""

import csv
import gc
import html
import json
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.odd_files import photograph, write_hard_folder
from tests.training.support import make_folder, rows, small_options
from vitrail.data.image_set import shrunk
from vitrail.data.loader import read_subset
from vitrail.data.sources.classification import open_source
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing, create_model
from vitrail.training.trainer import Trainer
from vitrail.weights import read_checkpoint, save_weights


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=60)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> vitrail.Run:
    """From scratch, three epochs."""
    out = tmp_path_factory.mktemp("runs") / "three"
    return vitrail.train(data, out=out, **small_options(epochs=3, drop_path=0.2))


# Odd folders.


@pytest.fixture(scope="module")
def hard(tmp_path_factory) -> tuple[Path, dict[str, str], dict[str, str]]:
    folder = tmp_path_factory.mktemp("hard") / "data"
    return folder, *write_hard_folder(folder)


@pytest.mark.parametrize("cache", ["memory", "off"])
def test_a_folder_of_500_files_with_200_odd_or_damaged_ones_loses_no_good_one(hard, tmp_path, cache):
    folder, good, bad = hard
    assert len(good) + len(bad) == 500 and len(bad) >= 100
    run = vitrail.train(folder, out=tmp_path / "run", **small_options(epochs=2, cache=cache))
    listed = unreadable_in(run.folder / "report.html")
    if cache == "memory":  # else what is in a last, incomplete batch may not have been looked at
        assert listed.keys() == bad.keys()
        assert json.loads((run.folder / "run.json").read_text())["unreadable"].keys() == bad.keys()
    assert len(listed) > 0.9 * len(bad)
    for name, reason in listed.items():
        assert bad[name] in reason, name
    with (run.folder / "split.csv").open(newline="") as file:
        held_out = [
            Path(row["path"]).relative_to(folder).as_posix() for row in csv.DictReader(file) if row["split"] == "val"
        ]
    assert run.metrics["n"] == len([name for name in held_out if name in good])
    assert run.metrics["top1"] > 0.4  # of four classes, in two epochs


def unreadable_in(report: Path) -> dict[str, str]:
    """Name → reason, of the files that a report says were left out."""
    section = report.read_text(encoding="utf-8").split("Not readable")[-1].partition("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in section.split("<tr")]
    plain = [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in rows]
    return {row[0]: row[1] for row in plain if len(row) == 2}


def test_every_good_image_is_used(hard):
    folder, good, bad = hard
    samples = open_source(folder).splits["all"]
    images = read_subset(shrunk(samples, Preprocessing(size=(8, 8)), "memory"), Processes(), workers=1)
    assert {samples[number].name for number in images.numbers} == set(good)
    assert images.bad.keys() == bad.keys()


# Several labels, unequal classes.


def labelled_squares(folder: Path, count: int = 90) -> Path:
    """A square with a colour of its own for each label; some images have none, some all three."""
    folder.mkdir(parents=True)
    lines = ["path,label"]
    chance = np.random.default_rng(0)
    for number in range(count):
        pixels = chance.integers(0, 60, (8, 8, 3), np.uint8)
        labels = [label for label in range(3) if (number >> label) % 2]
        for label in labels:
            top, left = divmod(label, 2)
            pixels[4 * top : 4 * top + 4, 4 * left : 4 * left + 4, label] += 180
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'|'.join('abc'[label] for label in labels)}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder / "labels.csv"


def test_several_labels_per_image_from_a_table(tmp_path):
    table = labelled_squares(tmp_path / "squares")
    options = small_options(epochs=12, lr=3e-3, batch_size=8, augment="none", mixup=0.0, label_smoothing=0.0)
    run = vitrail.train(table, out=tmp_path / "run", **options)
    assert all("val_map" in row and "val_top1" not in row for row in rows(run.folder))
    assert run.metrics["map"] > 0.95 and run.metrics["n"] == 18
    predictor = vitrail.load(run, device="cpu")
    assert predictor.multi_label and len(predictor.about["thresholds"]) == 3
    assert predictor.thresholds != [0.5] * 3  # chosen on the held-out images, not assumed
    images = [tmp_path / "squares" / f"{number}.png" for number in range(8)]
    chances = predictor.probabilities(images)
    said = [{found.label for found in predictions} for predictions in predictor.predict(images)]
    for row, labels in zip(chances.tolist(), said, strict=True):
        reached = {"abc"[i] for i in range(3) if row[i] >= predictor.thresholds[i]}
        assert labels == reached
    truth = [{"abc"[label] for label in range(3) if (number >> label) % 2} for number in range(8)]
    assert sum(a == b for a, b in zip(said, truth, strict=True)) >= 7
    figures = vitrail.evaluate(run, table, device="cpu")
    assert figures["map"] == pytest.approx(run.metrics["map"], abs=1e-6) and figures["n"] == 18


@pytest.mark.parametrize("balance", ["weights", "sampling"])
def test_a_rare_class_is_found_when_classes_are_balanced(tmp_path, balance):
    """One class in ten, and images that hardly differ: unbalanced, the rare one is never said."""
    for number in range(100):
        label = "rare" if number % 10 == 0 else "usual"
        path = tmp_path / "data" / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, 8, 8, hue=0.52 if label == "rare" else 0.5).save(path)
    options = small_options(epochs=2, augment="none", mixup=0.0, lr=3e-4, val=0.2, batch_size=8)
    said = {}
    for choice in ("none", balance):
        run = vitrail.train(tmp_path / "data", out=tmp_path / choice, balance=choice, **options)
        chances = vitrail.load(run, device="cpu").probabilities(sorted((tmp_path / "data").rglob("*.png")))
        said[choice] = chances[:, 0].mean().item()  # of "rare", over all images
    assert said["none"] < 0.25 and 0.35 < said[balance] < 0.65


# From weights.


def test_a_model_named_beside_weights_has_to_be_theirs(run, data, tmp_path):
    options = {"weights": run, "tune": "probe", "device": "cpu", "workers": 0}
    with pytest.warns(match="vit_nano4"), pytest.raises(VitrailError, match="--model") as info:
        vitrail.train(data, model="vit_nano4", out=tmp_path / "other", **options)
    assert info.value.fields == {"differs": {"patch_size": ((2, 2), (4, 4))}}
    assert vitrail.train(data, model="vit_nano2", out=tmp_path / "same", **options).folder.is_dir()


def test_tuning_the_head_leaves_the_backbone_alone(run, data, tmp_path):
    other = make_folder(tmp_path / "data", count=40, classes=4)
    tuned = vitrail.train(
        other,
        weights=run,
        tune="head",
        epochs=2,
        out=tmp_path / "run",
        device="cpu",
        workers=0,
        ema=0.5,
        lr=1e-2,
    )
    before, after = (vitrail.load(each, device="cpu").model.state_dict() for each in (run, tuned))
    state = torch.load(tuned.folder / "last.pt", weights_only=True)
    for name, value in before.items():
        if not name.startswith("head"):
            assert torch.equal(after[name], value) and torch.equal(state["model"][name], value)
    assert set(state["average"]["average"]) == {"head.output.weight", "head.output.bias"}
    assert after["head.output.weight"].shape == (4, 64)
    rates = [read_checkpoint(each.folder / "model.safetensors").settings.drop_path for each in (run, tuned)]
    assert rates == [0.2, 0.0]  # what is frozen is not dropped either
    assert [row["epoch"] for row in rows(tuned.folder)] == [0, 1, 2]


def test_a_probe_is_a_linear_classifier_on_the_features(run, data, tmp_path):
    probe = vitrail.train(data, weights=run, tune="probe", out=tmp_path / "run", device="cpu", workers=0)
    assert [row["epoch"] for row in rows(probe.folder)] == [0]
    predictor, start = (vitrail.load(each, device="cpu") for each in (probe, run))
    images = sorted(data.rglob("*.png"))
    features = predictor.embed(images)
    assert torch.equal(features, start.embed(images))
    head = predictor.model.state_dict()
    logits = features @ head["head.output.weight"].T + head["head.output.bias"]
    torch.testing.assert_close(logits.softmax(dim=1), predictor.probabilities(images), rtol=0, atol=1e-5)


def test_a_larger_image_size_resizes_the_table_of_positions(run, data, tmp_path):
    large = vitrail.train(data, weights=run, image_size=16, epochs=1, out=tmp_path / "run", device="cpu", workers=0)
    before, after = (read_checkpoint(each.folder / "model.safetensors") for each in (run, large))
    assert (before.settings.image_size, after.settings.image_size) == ((8, 8), (16, 16))
    assert (before.state["position.table"].shape, after.state["position.table"].shape) == ((1, 17, 64), (1, 65, 64))
    assert after.preprocessing.size == (16, 16)
    assert vitrail.load(large, device="cpu").predict(photograph(0), top=1)[0][0].probability > 1 / 3
    # At the start, before any step, the new table is the old one, enlarged: the same mean, and nearly the same values.
    probe = vitrail.train(
        data, weights=run, image_size=16, tune="probe", out=tmp_path / "probe", device="cpu", workers=0
    )
    table = read_checkpoint(probe.folder / "model.safetensors").state["position.table"][0, 1:].view(8, 8, 64)
    old = before.state["position.table"][0, 1:].view(4, 4, 64)
    pooled = table.view(4, 2, 4, 2, 64).mean(dim=(1, 3))
    assert torch.corrcoef(torch.stack([pooled.flatten(), old.flatten()]))[0, 1] > 0.95


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_a_trainer_and_its_memory_are_gone_when_it_is_done(data, tmp_path, monkeypatch, verb):
    """Its optimizer's moments would lie beside those of the refit."""
    there, running = [], Trainer.run

    def watched(trainer, *args):
        there.append((weakref.ref(trainer), sum(one() is not None for one, _ in there)))
        return running(trainer, *args)

    monkeypatch.setattr(Trainer, "run", watched)
    small = {name: value for name, value in small_options(epochs=2).items() if name != "weights"}
    start = vitrail.pretrain(data, **small, out=tmp_path / "start")
    gc.disable()
    try:
        if verb == "train":
            del small["model"]
            vitrail.train(data, **small, weights=start, refit="on", out=tmp_path / "run")
        assert [before for _, before in there] == [0] * len(there) and len(there) == (3 if verb == "train" else 1)
        assert all(one() is None for one, _ in there)
    finally:
        gc.enable()


@pytest.mark.parametrize("tune", ["probe", "head"])
def test_unreadable_files_are_told_of_once_and_not_counted_whenever_they_are_found(tmp_path, capsys, tune):
    """A probe looks at each image once, so that it finds them late."""
    data = make_folder(tmp_path / "data", count=24)
    (data / "class 1" / "broken.png").write_bytes(b"no image")
    model = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "model.safetensors")
    options = small_options(weights=model, tune=tune, epochs=1, refit="on", out=tmp_path / "run")
    del options["model"]
    vitrail.train(data, **options)
    said = capsys.readouterr().out
    assert said.count("broken.png") == 1
    assert "all 24 images" in said
