"""Every study at toy size: its variants run, its record has their figures, its plot is drawn."""

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import ledger
import measure
import numpy as np
import plot
import pytest
import scales
import study
from PIL import Image
from variants import slug

import vitrail
from vitrail.models.cost import cost
from vitrail.models.registry import model_settings
from vitrail.training.config import TrainConfig

RECIPES = Path(study.__file__).parent
# Of each study what is different about it: all variants would take a minute.
CHOSEN = {
    "positions": ["none", "rotary"],
    "data_amount": ["vit-10000", "mae-2000"],
    "model_size": ["vit-96×6", "resnet18"],
    "robustness": ["ViT, augmented"],
    "pretraining": ["MAE, probe"],
    "distillation": ["hard"],
    "few_labels": ["mae-2000"],
    "resolution": ["not resized, 48", "resized, 24", "new head, 28", "fine-tuned, 48"],
    "pooling": ["attention"],
    "stems": ["hybrid"],
    "optimizers": ["adamw, 0.001", "muon, 0.001"],
    "scaling": ["vit_s16-128", "vit_s16-224", "swin_t-128", "swin_t-224"],
}


def test_there_is_a_study_for_each_file_that_has_one():
    scripts = {path.stem for path in RECIPES.glob("*.py") if "STUDY = Study(" in path.read_text(encoding="utf-8")}
    assert scripts == CHOSEN.keys()


def test_the_overview_has_a_line_for_each_study(capsys):
    study.overview()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(CHOSEN)
    assert "21 runs, 12 minutes planned" in lines[sorted(CHOSEN).index("positions")]


@pytest.mark.parametrize("name", CHOSEN)
def test_all_variants_can_be_built_and_have_what_they_need(name):
    found = importlib.import_module(name).STUDY
    assert found.name == name and found.minutes > 0 and found.order()
    for variant in found.variants:
        if not variant.model.startswith("tv:"):
            model_settings(variant.named, num_classes=10)
        assert callable(getattr(measure, variant.measure)) and vars(scales._toy(variant))
        options = {key: value for key, value in variant.options.items() if not str(value).startswith("run:")}
        if variant.verb == "train":
            TrainConfig(**options, **({"teacher": "x"} if "teacher" in variant.options else {}))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_study_runs_at_toy_size_and_is_drawn(name, tmp_path, capfd):
    found = importlib.import_module(name).STUDY
    arguments = ["--toy", "--seeds", "0", "--device", "cpu", "--work", str(tmp_path), "--only", *CHOSEN[name]]
    record = study.main(found, arguments)
    said = capfd.readouterr().out
    assert f"  {slug(CHOSEN[name][0])}-0: done in " in said and "epoch 1/1" not in said  # which is in the run's log
    rows = {row["variant"]: row for row in record["runs"]}
    assert set(CHOSEN[name]) <= rows.keys() and record["scale"] == "toy"
    assert record["data"]["test"] == scales.TOY_TEST if name != "scaling" else record["data"] is None
    for variant in CHOSEN[name]:
        value = rows[variant]["figures"][found.figure]
        assert value > 0 if name == "scaling" else value * 800 == pytest.approx(round(value * 800)) and value <= 1
        assert name in ("scaling", "resolution") or rows[variant]["recipe"]["epochs"] == 1
        if name == "few_labels":  # and those that the autoencoder inside has learned from
            assert rows[variant]["images_seen"] == 97_792 * 150 + 32
    assert record["missing"] == [f"{slug(variant.name)}-0" for variant in found.variants if variant.name not in rows]
    (picture,) = plot.main([str(tmp_path / f"{name}.json"), "--out", str(tmp_path / "figures")])
    assert picture.name == f"study_{name}.png" and Image.open(picture).size[1] == 640
    before = (tmp_path / f"{slug(CHOSEN[name][0])}-0.json").stat().st_mtime_ns
    again = study.main(found, arguments)  # what is done is kept
    assert again["runs"] == record["runs"]
    assert (tmp_path / f"{slug(CHOSEN[name][0])}-0.json").stat().st_mtime_ns == before


def run_a_copy(folder, old, new, only):
    """Of pooling.py, with one thing changed, at toy size and two runs at a time."""
    text = (RECIPES / "pooling.py").read_text(encoding="utf-8").replace(old, new, 1)
    (folder / "mine.py").write_text(text, encoding="utf-8")
    words = ["--toy", "--jobs", "2", "--seeds", "0", "--device", "cpu", "--work", "work", "--only", only]
    return subprocess.run(
        [sys.executable, "mine.py", *words], cwd=folder, env=os.environ | {"PYTHONPATH": str(RECIPES)},
        capture_output=True, text=True,
    )  # fmt: skip


def test_a_copy_is_a_study_of_its_own_with_several_runs_at_a_time_too(tmp_path):
    """Whatever its name says: each run is a process, of the file that was started."""
    done = run_a_copy(tmp_path, '"mean"', '"mine"', only="mine")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "work" / "pooling.json").read_text())
    assert [row["variant"] for row in record["runs"]] == ["mine"], done.stdout
    assert record["command"].startswith("python recipes/mine.py --toy")


def test_what_fails_is_told_of_with_its_reason_and_by_the_exit(tmp_path):
    done = run_a_copy(tmp_path, '"pool": "mean"', '"pol": "mean"', only="mean")
    assert done.returncode == 1 and done.stderr == "mean-0 failed: see above.\n"
    assert "mean-0: failed: 'pol' is not a setting of ViT models. Did you mean" in done.stdout
    assert "Traceback" not in (tmp_path / "work" / "mean-0.log").read_text()


def test_pictures_that_are_none_are_told_of_and_leave_nothing_behind(tmp_path):
    found = importlib.import_module("pooling").STUDY
    (tmp_path / "notes.md").write_text("no pictures")
    for data, words in (("nothing.npz", "is not there"), (".", "is a folder: name"), ("notes.md", "notes.md")):
        with pytest.raises(SystemExit, match=words):
            study.main(found, ["--data", str(tmp_path / data), "--work", str(tmp_path / "w"), "--out", str(tmp_path)])
        assert not (tmp_path / "w").exists()


def test_what_is_done_is_not_taken_for_another_variant_or_other_pictures(tmp_path):
    """By its name it would be: a variant that has been changed, and the same study of other pictures."""
    found = importlib.import_module("pooling").STUDY
    arguments = ["--toy", "--seeds", "0", "--device", "cpu", "--work", str(tmp_path), "--only", "mean"]
    study.main(found, arguments)
    mean = found.find("mean")
    changed = replace(mean, settings=mean.settings | {"layer_scale": 0.1})
    with pytest.raises(SystemExit, match='is of another "mean" than that of today'):
        study.main(replace(found, variants=[changed]), arguments)
    with pytest.raises(SystemExit, match='There is no variant "maen": pooling has "class token", "mean"'):
        study.main(found, [*arguments[:-1], "maen"])
    ledger.keep_versions(tmp_path / "work", "cpu", scales.toy_data(tmp_path / "a.npz"))
    ledger.keep_versions(tmp_path / "work", "cpu", tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", train_labels=np.zeros(3))
    with pytest.raises(SystemExit, match=r"has runs of other pictures than .*b\.npz"):
        ledger.keep_versions(tmp_path / "work", "cpu", tmp_path / "b.npz")


def test_a_small_study_takes_a_tenth_of_pictures_of_any_name(tmp_path):
    data = scales.toy_data(tmp_path / "digits.npz")
    own = replace(importlib.import_module("pooling").STUDY, data="digits.npz")
    assert {variant.images for variant in scales.small(own, data).variants} == {scales.TOY_TRAIN // 10}


def test_what_is_no_record_of_a_study_is_not_drawn(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"run\.json is no study's record"):
        plot.main([str(tmp_path / "run.json")])
    with pytest.raises(SystemExit, match="No study's record lies in"):
        plot.main([str(tmp_path)])


def test_what_a_study_says_of_itself_is_about_the_pictures_that_it_is_given(tmp_path):
    study = importlib.import_module("pooling").STUDY
    data = scales.toy_data(tmp_path / "cells.npz")
    found = scales.told(scales.small(study, data), data)
    assert found.notes.startswith("cells from scratch") and f"{scales.TOY_TRAIN // 10} training images" in found.notes
    assert scales.told(study, Path("far/cifar10.npz")).notes == study.notes


def test_a_small_study_asks_the_same_with_less_of_everything():
    with pytest.raises(SystemExit, match="scaling has no small form"):
        scales.small(importlib.import_module("scaling").STUDY)
    with pytest.raises(SystemExit, match="few_labels has no small form: vitrail_tiny_mae has the size that it has"):
        scales.small(importlib.import_module("few_labels").STUDY)
    for name in CHOSEN.keys() - {"scaling", "few_labels"}:
        whole = importlib.import_module(name).STUDY
        small, kept = scales.small(whole), [v for v in whole.variants if not v.model.startswith("tv:")]
        assert small.seeds == (0, 1, 2) and small.data == whole.data and "50,000" not in small.question
        assert small.order()  # nothing needs what was left out, or what has another name now
        for one, other in zip(small.variants, kept, strict=True):
            if other.verb not in scales.TRAINED:
                assert one == other
                continue
            assert "compile" not in one.options and one.options.keys() >= other.options.keys() - {"compile"}
            assert one.images == (other.images or {"cifar10": 50_000, "tiny_imagenet": 100_000}[whole.data[:-4]]) // 10
            assert one.options["batch_size"] <= (one.images // 4 if other.images else 256)
            assert one.x == (one.images if other.x and other.x == other.images else other.x)
            mine, its = (model_settings(variant.named, num_classes=10) for variant in (one, other))
            assert mine.width < its.width / 2 and mine.depth <= (its.depth + 1) / 2
            assert mine.position == its.position and mine.pool == its.pool and mine.grid == its.grid
            assert cost(mine).multiply_adds < cost(its).multiply_adds / 10  # a teacher's convolutions, too
    sizes, amounts = (scales.small(importlib.import_module(name).STUDY) for name in ("model_size", "data_amount"))
    assert [v.name for v in sizes.variants][:4] == ["vit-32×3", "vit-64×5", "vit-96×5", "vit-128×5"]
    assert [v.name for v in amounts.variants if v.line == "ViT"] == ["vit-50", "vit-200", "vit-1000", "vit-5000"]
    assert "no ResNets" in sizes.notes and "up to 5,000" in amounts.notes


def test_a_small_study_and_the_whole_lie_beside_each_other(tmp_path, capsys):
    data, options = scales.toy_data(tmp_path / "digits.npz"), {"epochs": 1, "batch_size": 128, "workers": 0}
    found = study.Study("tiny", "?", [study.Variant("one", "vit_nano2", options=options)], 1)
    words = ["--data", str(data), "--device", "cpu", "--work", str(tmp_path / "w"), "--out", str(tmp_path / "out")]
    words += ["--seeds", "1"]
    small, whole = study.main(found, [*words, "--small"]), study.main(found, words)
    assert (small["scale"], whole["scale"]) == ("small", "full") and capsys.readouterr().out.count("1 runs to do") == 2
    assert [record["runs"][0]["recipe"]["batch_size"] for record in (small, whole)] == [4, 128]
    assert small["runs"][0]["parameters"] < 20_000 < whole["runs"][0]["parameters"]
    records = [str(tmp_path / "out" / place / "tiny.json") for place in ("small", "")]
    assert [path.name for path in plot.main([*records, "--out", str(tmp_path)])] == [
        "study_tiny_small.png", "study_tiny.png",
    ]  # fmt: skip
    assert study.main(found, [*words, "--small", "--list"]) is None and "0 runs to do" in capsys.readouterr().out


def test_runs_may_be_processes_and_one_that_was_stopped_is_resumed(tmp_path, capsys):
    def run(*more):
        words = ["--toy", "--seeds", "0", "--only", "mean", "--device", "cpu", "--work", str(tmp_path), *more]
        return study.main(importlib.import_module("pooling").STUDY, words)["runs"]

    assert run("--minutes", "1e-9") == [] and not [*tmp_path.glob("mean*")]
    (row,) = run("--jobs", "2")
    assert "mean-0: done" in capsys.readouterr().out and "epoch 1/1" in (tmp_path / "mean-0.log").read_text()
    assert row["call"].startswith("vitrail.train('digits.npz', weights='none', epochs=1")
    assert "/" not in row["call"]
    (tmp_path / "mean-0.json").unlink()  # stopped before its figures were written
    (resumed,) = run()
    assert resumed["resumed"] and resumed["figures"] == row["figures"]
    assert row["jobs"] == [2] and resumed["jobs"] == [2, 1] and resumed["seconds"] == row["seconds"]


def test_the_first_seed_of_all_comes_first_and_the_record_is_written_after_each_run(tmp_path, monkeypatch):
    small = {"epochs": 1, "batch_size": 32, "workers": 0}
    base = study.Variant("base", "vit_nano2:depth=1", options=small)
    after = study.Variant("after", options=small | {"weights": "run:base", "refit": "off"})
    other = study.Variant("other", "vit_nano2:depth=1", options=small | {"lr": 1e-4})
    data, done, whole = scales.toy_data(tmp_path / "digits.npz"), [], study.run_one

    def stopping(found, variant, seed, *more):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append((variant.name, seed))
        return whole(found, variant, seed, *more)

    monkeypatch.setattr(study, "run_one", stopping)
    words = ["--data", str(data), "--device", "cpu", "--work", str(tmp_path / "w"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="The same command goes on"):
        study.main(study.Study("small", "?", [after, other, base], 1, seeds=(0, 1)), words)
    assert done == [("other", 0), ("base", 0), ("after", 0), ("other", 1)]
    record = json.loads((tmp_path / "small.json").read_text())
    assert {(row["variant"], row["seed"]) for row in record["runs"]} == {*done}
    assert sorted(record["missing"]) == ["after-1", "base-1"]


def test_several_at_a_time_come_in_that_order_too_and_say_where_they_stood(tmp_path, monkeypatch):
    found, told = importlib.import_module("data_amount").STUDY, []

    def heard(commands, *rest):
        told.append((commands, rest))
        yield from ()

    monkeypatch.setattr(study, "run_all", heard)
    work = tmp_path / "w"
    words = ["--toy", "--jobs", "3", "--device", "cpu", "--work", str(work), "--seeds", "0", "1"]
    study.main(found, [*words, "--minutes", "5"])
    ((commands, (jobs, environment, end, patience)),) = told
    assert jobs == 3 and end < time.monotonic() + 300 and int(environment["OMP_NUM_THREADS"]) >= 1
    assert patience == float("inf")  # a CPU may take its time
    names = [command.name for command in commands]
    assert names.index("mae-50000-0") < names.index("vit-500-1") and len(names) == 2 * len(found.variants)
    (mae,) = (command for command in commands if command.name == "mae-500-0")
    assert mae.words[1:3] == ["-X", "faulthandler"] and mae.words[-3:] == ["--one", "mae-500", "0"]
    assert not mae.ready()
    found.find("pretraining-500").result(work, 0).touch()
    assert mae.ready() and commands[0].ready()
    asked = study.options(found).parse_args(["--device", "cuda", "--data", "x.npz"])
    study._at_once(found, [], asked, work, end, dict)
    assert told[1][1][-1] == study.PATIENCE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])  # of a machine that goes down, and of a terminal
def test_a_study_that_is_ended_takes_its_runs_along(tmp_path, number):
    words = ["--toy", "--jobs", "2", "--seeds", "0", "--device", "cpu", "--work", str(tmp_path)]
    watching = subprocess.Popen(
        [sys.executable, str(RECIPES / "pooling.py"), *words], stderr=subprocess.PIPE, text=True
    )
    assert in_time(lambda: len(processes_of(tmp_path)) == 3, 60)
    watching.send_signal(number)
    assert watching.communicate(timeout=60)[1].startswith("Stopped; what was under way has saved what it had.")
    assert watching.returncode == 1
    assert in_time(lambda: processes_of(tmp_path) == [], 10)  # what is killed takes a moment to be gone


def in_time(true, seconds):
    began = time.monotonic()
    while not true() and time.monotonic() - began < seconds:
        time.sleep(0.1)
    return true()


def processes_of(work):
    """What runs with this folder among its words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] * (str(work).encode() in path.read_bytes())
    return found


def test_what_a_record_has_is_not_run_again_unless_it_was_told_otherwise_or_its_weights_are_wanted(tmp_path, capsys):
    small = {"epochs": 1, "batch_size": 32, "workers": 0}
    base = study.Variant("base", "vit_nano2:depth=1", options=small)
    after = study.Variant("after", options=small | {"weights": "run:base", "refit": "off"})
    data = scales.toy_data(tmp_path / "digits.npz")

    def run(work, *variants, seeds=("0",)):
        words = ["--data", str(data), "--device", "cpu", "--work", str(tmp_path / work), "--out", str(tmp_path)]
        found = study.main(study.Study("small", "?", [*variants], 1), [*words, "--seeds", *seeds])
        begun = int(re.search(r"(\d+) runs to do", capsys.readouterr().out)[1])
        return begun, {(row["variant"], row["seed"]): row for row in found["runs"]}

    begun, first = run("one", base, after, seeds=("0", "1"))
    assert begun == 4
    assert run("two", base, after) == (0, first)  # where nothing has run, and the other seed is not lost
    assert run("three", replace(base, images=160), seeds=("1",))[0] == 1
    slower = replace(base, options=small | {"lr": 3e-4})
    begun, second = run("four", slower)
    assert begun == 1 and second["base", 0]["recipe"]["lr"] == 3e-4
    begun, third = run("five", slower, after)  # begins with the weights of one that was told something else
    assert begun == 2 and third["base", 0]["figures"] == second["base", 0]["figures"]
    once = replace(base, once=True)
    run("six", once, after)
    assert run("seven", once, after, seeds=("0", "1"))[0] == 2  # one of them for its weights
    with np.load(data) as arrays:
        changed = {**arrays, "test_labels": arrays["test_labels"][::-1]}
    np.savez(data, **changed)
    with pytest.raises(SystemExit, match="other pictures"):
        run("eight", base)


def test_runs_of_another_version_are_never_taken_for_ones_of_this(tmp_path):
    data, work = scales.toy_data(tmp_path / "digits.npz"), tmp_path / "work"
    options = {"epochs": 1, "batch_size": 32, "workers": 0}
    found = study.Study("small", "?", [study.Variant("base", "vit_nano2:depth=1", options=options)], 1)

    def run(out):
        study.main(found, ["--data", str(data), "--device", "cpu", "--work", str(work), "--out", str(tmp_path / out)])

    run("one")
    run("two")  # the same version
    path = work / "versions.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vitrail": "0.0.1"}))
    with pytest.raises(SystemExit, match=r"another version \(vitrail is .* here and was 0\.0\.1\).*--work"):
        run("three")
    path.unlink()  # as it was before folders said so
    with pytest.raises(SystemExit, match="--work"):
        run("three")


def test_a_row_has_the_time_and_the_images_of_all_its_epochs_and_of_what_it_started_from(tmp_path):
    found = importlib.import_module("data_amount").STUDY
    words = ["--toy", "--seeds", "0", "--device", "cpu", "--work", str(tmp_path), "--only", "vit-50000", "mae-50000"]
    rows = {row["variant"]: row for row in study.main(found, words)["runs"]}
    for name, row in rows.items():
        epochs = [json.loads(line) for line in (tmp_path / f"{name}-0" / "metrics.jsonl").read_text().splitlines()]
        assert row["seconds"] == pytest.approx(sum(epoch.get("seconds", 0) for epoch in epochs), abs=0.051)
        assert epochs[-1]["images_per_second"] == pytest.approx(epochs[-1]["images"] / epochs[-1]["seconds"])
        assert row["jobs"] == [1]
    # One epoch each, of whole batches of 32: what is held out of 160 is not learned from.
    assert {name: row["images_seen"] for name, row in rows.items()} == {
        "vit-50000": 128, "pretraining-50000": 128, "mae-50000": 256,
    }  # fmt: skip
    looks = importlib.import_module("resolution").STUDY
    assert looks.find("resized, 24").starts == {"base"} == looks.find("fine-tuned, 48").starts
    assert importlib.import_module("distillation").STUDY.find("hard").starts == set()  # a teacher's eyes are its own


def test_the_size_of_a_model_is_that_of_the_run_and_buffers_are_no_parameters(tmp_path):
    found = importlib.import_module("model_size").STUDY
    words = ["--toy", "--seeds", "0", "--device", "cpu", "--work", str(tmp_path), "--only", "resnet18"]
    (row,) = study.main(found, words)["runs"]
    model = vitrail.load(tmp_path / "resnet18-0", device="cpu").model
    assert row["parameters"] == sum(p.numel() for p in model.parameters())
    assert sum(t.numel() for t in model.state_dict().values()) > row["parameters"]  # BatchNorm's means and variances
    assert row["x"] == pytest.approx(row["parameters"] / 1e6, abs=6e-4)


def test_an_exponent_is_that_of_the_larger_half():
    xs = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    power, count = plot.exponent(xs, [x**2 if x >= 8 else 64.0 for x in xs])
    assert power == pytest.approx(2) and count == 3
    assert plot.exponent(xs[:2], [3.0, 24.0]) == (pytest.approx(3), 2)


def test_a_part_of_the_data_has_of_every_class_its_share(tmp_path):
    data = scales.toy_data(tmp_path / "digits.npz")
    small, smaller = (study.part(data, count, tmp_path / "parts") for count in (60, 20))
    with np.load(small) as one, np.load(smaller) as two, np.load(data) as whole:
        counts = np.bincount(one["train_labels"])
        assert counts.sum() == 60 and counts.min() >= 5 and counts.max() <= 7
        assert np.bincount(two["train_labels"]).tolist() == [2] * 10
        assert np.array_equal(one["test_images"], whole["test_images"])
        larger = {image.tobytes() for image in one["train_images"]}
        assert all(image.tobytes() in larger for image in two["train_images"])  # each part contains the smaller ones


def test_images_are_moved_as_told():
    x = np.zeros((1, 16, 16, 3), np.uint8)
    x[0, 4:8, 4:8] = 200  # a square, its middle at (6, 6)

    def middle(images):
        ys, xs = np.nonzero(images[0, :, :, 0] > 100)
        return ys.mean() + 0.5, xs.mean() + 0.5, len(ys)

    assert np.array_equal(measure.moved(x), x)
    assert middle(measure.moved(x, shift=0.25)) == (10, 10, 16)
    assert middle(measure.moved(x, angle=90)) == (10, 6, 16)  # against the clock: from top left to bottom left
    y, xx, area = middle(measure.moved(x, scale=2.0))
    assert (y, xx) == (4, 4) and area == 64


def test_the_share_of_right_answers_is_that_of_evaluate(tmp_path):
    data = scales.toy_data(tmp_path / "digits.npz")
    run = vitrail.train(data, model="vit_nano2", weights="none", epochs=4, flip=0.0, device="cpu", out=tmp_path / "run")
    figures = vitrail.evaluate(run, data, device="cpu")
    assert measure.accuracy(run, data, "cpu")["top1"] == pytest.approx(figures["top1"])
    # At the size it was trained at, a table that is not resized is the table.
    assert measure.not_resized(run, data, "cpu", 8)["top1"] == pytest.approx(figures["top1"])
    images, labels, classes = measure.held_out(data)
    found = measure.robustness(run, data, "cpu")
    predictor = vitrail.load(run, device="cpu")
    turned = measure.moved(images, angle=20)
    answers = [predictor.labels[i] for i in predictor.probabilities(turned).argmax(1).tolist()]
    right = np.mean([answer == classes[label] for answer, label in zip(answers, labels, strict=True)])
    assert found["rotate 20°"] == pytest.approx(right) and found["top1"] == pytest.approx(figures["top1"])
    assert found["moved"] == pytest.approx(np.mean([found[name] for name in measure.MOVES]))
