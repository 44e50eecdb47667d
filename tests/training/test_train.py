"""`vitrail.train` as a person uses it: from odd folders, tables and old weights to a run that others can use."""

import csv
import gc
import html
import json
import re
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from vitrail.training.job import Job
from vitrail.tasks.planning import Facts
from vitrail.training.plan import fill
from vitrail.tasks.classify.plan import policy_of

import vitrail
from tests.odd_files import photograph, write_hard_folder
from tests.training.support import make_folder, rows, small_options
from vitrail.data.image_set import shrunk
from vitrail.data.sources.classification import open_source
from vitrail.data.loader import read_subset
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing, create_model
from vitrail.tasks.backbones import check_asked, start_model, suited
from vitrail.training.config import Recipe
from vitrail.training.trainer import Trainer
from vitrail.weights import read_checkpoint, save_weights


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("pictures"), count=60)


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


def test_every_good_picture_is_used(hard):
    folder, good, bad = hard
    samples = open_source(folder).splits["all"]
    images = read_subset(shrunk(samples, Preprocessing(size=(8, 8)), "memory"), Processes(), workers=1)
    assert {samples[number].name for number in images.numbers} == set(good)
    assert images.bad.keys() == bad.keys()


# Several labels, unequal classes.


def labelled_squares(folder: Path, count: int = 90) -> Path:
    """A square with a colour of its own for each label; some pictures have none, some all three."""
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


@pytest.mark.parametrize(
    ("largest", "gpu", "plain", "name"),
    [(8, True, False, "vit_nano4"), (32, False, False, "vit_mini4"), (32, True, False, "hybrid_mini4"),
     (64, True, False, "hybrid_mini8"), (64, True, True, "vit_mini8"), (300, True, False, "vit_s16"),
     (300, False, False, "deit_ti16")],
)  # fmt: skip
def test_a_model_that_suits_the_pictures_and_the_machine(largest, gpu, plain, name):
    assert suited(largest, gpu, plain) == name


def test_several_labels_per_image_from_a_table(tmp_path):
    table = labelled_squares(tmp_path / "squares")
    options = small_options(epochs=12, lr=3e-3, batch_size=8, augment="none", mixup=0.0, label_smoothing=0.0)
    run = vitrail.train(table, out=tmp_path / "run", **options)
    assert all("val_map" in row and "val_top1" not in row for row in rows(run.folder))
    assert run.metrics["map"] > 0.95 and run.metrics["n"] == 18
    predictor = vitrail.load(run, device="cpu")
    assert predictor.multi_label and len(predictor.about["thresholds"]) == 3
    assert predictor.thresholds != [0.5] * 3  # chosen on the held-out images, not assumed
    pictures = [tmp_path / "squares" / f"{number}.png" for number in range(8)]
    chances = predictor.probabilities(pictures)
    said = [{found.label for found in predictions} for predictions in predictor.predict(pictures)]
    for row, labels in zip(chances.tolist(), said, strict=True):
        reached = {"abc"[i] for i in range(3) if row[i] >= predictor.thresholds[i]}
        assert labels == reached
    truth = [{"abc"[label] for label in range(3) if (number >> label) % 2} for number in range(8)]
    assert sum(a == b for a, b in zip(said, truth, strict=True)) >= 7
    figures = vitrail.evaluate(run, table, device="cpu")
    assert figures["map"] == pytest.approx(run.metrics["map"], abs=1e-6) and figures["n"] == 18


@pytest.mark.parametrize("balance", ["weights", "sampling"])
def test_a_rare_class_is_found_when_classes_are_balanced(tmp_path, balance):
    """One class in ten, and pictures that hardly differ: unbalanced, the rare one is never said."""
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
        said[choice] = chances[:, 0].mean().item()  # of "rare", over all pictures
    assert said["none"] < 0.25 and 0.35 < said[balance] < 0.65


# From weights.


def test_a_model_named_beside_weights_has_to_be_theirs(run, data, tmp_path):
    options = {"weights": run, "tune": "probe", "device": "cpu", "workers": 0}
    words = r"holds vit_nano2 \(patch_size \(2, 2\)\), not vit_nano4 \(patch_size \(4, 4\)\): leave --model out"
    with pytest.warns(match="vit_nano4 was not followed"), pytest.raises(VitrailError, match=words):
        vitrail.train(data, model="vit_nano4", out=tmp_path / "other", **options)
    assert vitrail.train(data, model="vit_nano2", out=tmp_path / "same", **options).folder.is_dir()


@pytest.mark.parametrize(
    ("there", "asked", "words"),
    [
        ("tv:resnet18", "tv:resnet18", ""),  # whose stem its images have settled
        ("tv:resnet18", "tv:resnet34", "arch resnet34"),
        ("hybrid_mini4", "hybrid_mini4", ""),
        (
            "vit_mini4:width=64,heads=2,depth=1",
            "vit_mini4",
            r"width 64, depth 1\), not vit_mini4 \(width 192, depth 9\)",
        ),
        ("vit_nano2", "tv:resnet18", "arch None"),
        ("vit_nano2:position=rotary", "vit_nano2:position=rotary", ""),
        ("vit_nano2", "vit_nano2:position=rotary", r"position learned\), not vit_nano2:position=rotary"),
        ("vit_nano2:position=rotary", "vit_nano2", ""),  # which says nothing of positions
        ("vit_nano2", "vit_nano2_distilled", "distillation_token False"),
    ],
)
def test_only_what_shapes_a_model_is_compared_with_its_weights(there, asked, words, tmp_path):
    path = vitrail.save_weights(vitrail.create_model(there, num_classes=3), tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(path)
    with pytest.raises(VitrailError, match=words) if words else nullcontext():
        check_asked(asked, checkpoint, str(path))


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


def test_a_probe_is_the_linear_classifier_on_the_features(run, data, tmp_path):
    probe = vitrail.train(data, weights=run, tune="probe", out=tmp_path / "run", device="cpu", workers=0)
    assert [row["epoch"] for row in rows(probe.folder)] == [0]
    predictor, start = (vitrail.load(each, device="cpu") for each in (probe, run))
    pictures = sorted(data.rglob("*.png"))
    features = predictor.embed(pictures)
    assert torch.equal(features, start.embed(pictures))
    head = predictor.model.state_dict()
    logits = features @ head["head.output.weight"].T + head["head.output.bias"]
    torch.testing.assert_close(logits.softmax(dim=1), predictor.probabilities(pictures), rtol=0, atol=1e-5)


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


# The run that is left.


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
    assert record["why"]["epochs"] == "as asked" and set(record["versions"]) >= {"torch", "torchvision", "vitrail"}


def test_a_run_is_loaded_and_evaluated(run, data):
    predictor = vitrail.load(run, device="cpu")
    picture = data / "class 1" / "001.png"
    assert predictor.predict(picture, top=1)[0][0].label == "class 1"
    figures = vitrail.evaluate(run, data, device="cpu")
    assert figures["split"] == "held out in training" and figures["n"] == run.metrics["n"] == 12
    assert figures["top1"] == pytest.approx(run.metrics["top1"]) and figures["ece"] == pytest.approx(run.metrics["ece"])


def test_the_report_is_one_file_that_asks_for_nothing(run):
    text = (run.folder / "report.html").read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    for place in re.findall(r"""(?:src|href)=["']([^"']+)""", text):
        assert place.startswith(("data:", "#")), place
    assert "@import" not in text and "<link" not in text
    assert "drop_path" in text.replace("drop path", "drop_path")
    rows = re.findall(r"<td[^>]*><code>(\w+)</code></td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>", text)
    assert rows[:3] == [
        ("model", "vit_nano2", "0.1 M parameters"),
        ("images", "8×8", "fit crop"),
        ("device", "cpu", "float32: on a CPU"),
    ]
    assert "precision" not in [name for name, *_ in rows]


def test_a_second_run_has_a_folder_of_its_own(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = small_options(epochs=0)
    first, second = (vitrail.train(data, **options).folder for _ in range(2))
    assert (str(first), str(second)) == (f"runs/{data.name}", f"runs/{data.name}-2")
    assert "Those images also chose" not in capsys.readouterr().out  # nothing was chosen


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_that_another_run_took_meanwhile_is_left_to_it(data, tmp_path, monkeypatch, named):
    """Both looked for a free folder, then read their pictures; the second one was the first to be done."""
    monkeypatch.chdir(tmp_path)
    options = small_options(epochs=0) | ({"out": Path("mine")} if named else {})
    reading, others = Job.read, []

    def slow(job):
        reading(job)
        if not others:
            others.append(job)
            others.append(vitrail.train(data, **options, seed=5))

    monkeypatch.setattr(Job, "read", slow)
    with pytest.raises(VitrailError, match="was taken by another run while this one read its pictures"):
        vitrail.train(data, **options, seed=4)
    record = json.loads((others[1].folder / "run.json").read_text())
    assert record["recipe"]["seed"] == 5 and vitrail.load(others[1]).labels


def test_a_run_that_can_not_begin_leaves_nothing_behind(data, tmp_path, monkeypatch):
    def interrupted(job, path, samples):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Job, "write_split", interrupted)
        vitrail.train(data, **small_options(epochs=0), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    vitrail.train(data, **small_options(epochs=0), out=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")) == []


def test_pictures_no_larger_than_what_a_model_learned_from_are_not_enlarged(tmp_path):
    model = create_model("vit_nano4", num_classes=3, image_size=16)
    pre = replace(model.preprocessing, size=(24, 24))
    path = save_weights(model, tmp_path / "model.safetensors", preprocessing=pre)
    sizes = [start_model(None, str(path), ["a", "b"], None, None, side, False).preprocessing.size for side in (16, 17)]
    assert sizes == [(16, 16), (24, 24)]
    assert start_model(None, str(path), ["a", "b"], 24, None, 16, False).preprocessing.size == (24, 24)


def test_options_beside_a_recipe_have_the_last_word(data, tmp_path):
    recipe = Recipe(**small_options(epochs=0, out=tmp_path / "run", seed=3))
    run = vitrail.train(data, recipe, seed=4)
    record = json.loads((run.folder / "run.json").read_text())
    assert record["recipe"]["seed"] == 4 and record["recipe"]["model"] == "vit_nano2"
    with pytest.raises(VitrailError, match="'sede' is not an option of train"):
        vitrail.train(data, recipe, sede=4)


def test_a_batch_of_more_images_than_there_are_is_all_of_them_and_the_rate_is_for_that(data, tmp_path, capsys):
    options = {name: value for name, value in small_options(epochs=1, batch_size=1024).items() if name != "lr"}
    run = vitrail.train(data, **options, out=tmp_path / "run")
    assert re.search(r"batch size +48  all images at once: there are no more", capsys.readouterr().out)
    recipe, held_out = (json.loads((run.folder / "run.json").read_text())[key] for key in ("recipe", "samples"))
    assert recipe["batch_size"] == 48 and held_out["train"].startswith("48 images")
    assert recipe["lr"] == pytest.approx(2e-3 * (48 / 8) ** 0.5, rel=0.01)  # the usual batch of 60 images is 8


def test_where_nothing_is_held_out_nothing_is_promised(data, run, tmp_path, capsys):
    tuned = vitrail.train(data, weights=run, epochs=1, val=0, device="cpu", workers=0, out=tmp_path / "run")
    assert re.search(r"refit +off  nothing is held out", capsys.readouterr().out)
    assert not (tuned.folder / "again").exists()
    own = tmp_path / "own"
    for split in ("train", "val"):
        make_folder(own / split, count=12)
    with pytest.raises(VitrailError, match=r"own has a val/ of its own, so nothing is held out: leave --val out\."):
        vitrail.train(own, **small_options(val=0.5))


def test_what_is_frozen_is_not_dropped_and_the_plan_says_so():
    facts = Facts(images=2_000, classes=10, pretrained=True, side=64)
    for tune in ("head", "probe", "lora"):
        recipe, why = fill(Recipe(tune=tune), facts)
        assert recipe.drop_path == 0.0 and why["drop_path"] == "what is frozen is not to be dropped"
        with pytest.raises(VitrailError, match=rf"--drop-path is for what learns, and with --tune {tune} the blocks"):
            fill(Recipe(tune=tune, drop_path=0.3), facts)
    assert fill(Recipe(), facts)[0].drop_path == 0.1


def test_thresholds_of_several_labels_stay_with_the_weights_they_were_chosen_with():
    facts = Facts(images=2_000, classes=10, pretrained=True, side=64)
    assert fill(Recipe(), facts)[0].refit == "on"
    recipe, why = fill(Recipe(), replace(facts, multi_label=True))
    assert recipe.refit == "off" and why["refit"].startswith("the thresholds belong to the weights")
    assert fill(Recipe(refit="on"), replace(facts, multi_label=True))[0].refit == "on"


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_a_loop_and_its_memory_are_gone_when_it_is_done(data, tmp_path, monkeypatch, verb):
    """Its optimizer's moments would lie beside those of the second time, on all images."""
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


def test_small_images_are_moved_and_the_plan_says_so():
    for side, moved in ((16, False), (32, True), (64, False)):
        facts = Facts(images=20_000, classes=10, pretrained=False, side=side)
        recipe, why = fill(Recipe(), facts)
        policy = policy_of(recipe, (side, side))
        assert (policy.border > 0) == moved == ("moved, not cropped" in why["augment"])
        assert policy.scale == (1.0, 1.0) or not moved
    assert policy_of(recipe, (24, 32)).ratio == (4 / 3, 4 / 3)  # of the images that the model sees
    assert policy_of(replace(recipe, augment="none"), (32, 32)).scale is None


@pytest.mark.parametrize("tune", ["probe", "head"])
def test_unreadable_files_are_said_and_not_counted_whenever_they_are_found(tmp_path, capsys, tune):
    """A probe looks at each picture once, so that it finds them late."""
    data = make_folder(tmp_path / "data", count=24)
    (data / "class 1" / "broken.png").write_bytes(b"no picture")
    model = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "model.safetensors")
    options = small_options(weights=model, tune=tune, epochs=1, refit="on", out=tmp_path / "run")
    del options["model"]
    vitrail.train(data, **options)
    said = capsys.readouterr().out
    assert said.count("picture can't be read and is left out") == 1
    assert "Once more, on all 24 images:" in said
