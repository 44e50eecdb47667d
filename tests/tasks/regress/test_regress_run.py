"""Regression from the table to the report, through the functions and the commands that a person uses."""

import csv
import json
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.tasks.commands import vitrail as command
from tests.tasks.regress.conftest import SCRATCH, SMALL
from vitrail.cli import main
from vitrail.data.sources.values import open_values
from vitrail.doctor import diagnose
from vitrail.errors import VitrailError
from vitrail.serve.views import Lens, View
from vitrail.training.config import TrainConfig
from vitrail.weights import read_checkpoint

KEYS = {f"{name}{end}" for name in ("r2", "mae", "rmse", "spearman") for end in ("", "_low", "_high")}
COLUMNS = ["light", "warmth"]


def said(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code or 0


@pytest.fixture(scope="module")
def predictor(run):
    return vitrail.load(run, device="cpu")


def test_figures_are_in_units_and_above_guessing(run, table):
    figures = run.metrics
    true = open_values(table).table("train")
    assert figures.keys() > KEYS and {f"mae/{name}" for name in COLUMNS} < figures.keys()
    assert figures["r2"] > 0.3 and figures["spearman"] > 0.5
    guess = np.abs(true - true.mean(axis=0)).mean(axis=0)
    for column, limit in zip(COLUMNS, guess, strict=True):  # years of four digits, and thousandths
        assert 0 < figures[f"mae/{column}"] < limit


def test_evaluate_writes_flat_figures_and_the_report_both_charts(run, table, tmp_path, capsys):
    words = ("evaluate", table, "--model", run.folder, "--json", tmp_path / "f.json", "--report", tmp_path / "r.html")
    assert said(*words) == 0
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures.keys() > KEYS and figures["split"] == "test" and figures["n"] == 14
    printed = capsys.readouterr().out
    assert f"{figures['mae/light']:.4g}" in printed and "%" not in printed.replace("95 % intervals", "")
    for page in (tmp_path / "r.html", run.folder / "report.html"):
        text = page.read_text()
        for column in COLUMNS:
            assert f"{column}: predicted over true" in text and f"{column}: error over true" in text
        assert text.count("data:image/") >= 10 and 'id="worst"' in text and 'id="columns"' in text


def test_predict_prints_and_writes_a_column_for_each_number(run, table, predictor, tmp_path, capsys):
    images = [table.parent / f"{number:02d}.png" for number in range(3)]
    files = ("--csv", tmp_path / "p.csv", "--json", tmp_path / "p.json")
    assert said("predict", *images, "--model", run.folder, *files) == 0
    rows = [*csv.reader((tmp_path / "p.csv").open())]
    assert rows[0] == ["path", *COLUMNS]
    values = predictor.values(images)
    np.testing.assert_allclose([[float(cell) for cell in row[1:]] for row in rows[1:]], values, rtol=1e-5)
    found = json.loads((tmp_path / "p.json").read_text())
    assert [one["label"] for one in found[0]["predictions"]] == COLUMNS
    assert f"{values[0, 0]:,.0f}" in capsys.readouterr().out


def test_a_predictor_gives_values_and_no_probabilities(predictor, table):
    (answer,) = predictor.predict(table.parent / "00.png")
    assert [(one.label, one.index) for one in answer] == [("light", 0), ("warmth", 1)]
    assert [one.value for one in answer] == pytest.approx(predictor.values(table.parent / "00.png")[0].tolist())
    assert not hasattr(answer[0], "probability")
    with pytest.raises(VitrailError) as info:
        predictor.probabilities(table.parent / "00.png")
    assert (info.value.code, info.value.fields["answer"]) == ("other_answer", "values")
    with pytest.raises(VitrailError) as info:
        predictor.predict(table.parent / "00.png", top=1)
    assert info.value.code == "option_of_another_task"


@pytest.mark.slow
def test_an_exported_graph_gives_the_same_values(run, table, predictor, tmp_path):
    pytest.importorskip("onnxruntime")
    from vitrail.exporters import export

    done = export(run.folder, "onnx", tmp_path / "model.onnx")
    assert done.difference < 1e-4 and any("deviations" in note for note in done.notes)
    images = [table.parent / f"{number:02d}.png" for number in range(4)]
    other = vitrail.load(done.path, device="cpu")
    np.testing.assert_allclose(other.values(images), predictor.values(images), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(run, table, tmp_path):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SCRATCH.items()]
    begun = ("train", table, "--out", tmp_path / "run", *options)
    assert command(*begun, cwd=tmp_path, kill_at=9) == -signal.SIGKILL
    again = vitrail.train(table, out=tmp_path / "run", resume=True, task="regress", device="cpu")
    one, other = (load_file(each.folder / "model.safetensors") for each in (run, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.metrics == run.metrics


@pytest.mark.parametrize("tune", ["probe", "head", "lora"])
def test_a_linear_probe_comes_first_where_there_are_weights(run, table, tmp_path, tune):
    options = {"augment": "none"} if tune == "head" else {}
    tuned = vitrail.train(
        table, weights=run, tune=tune, epochs=2, out=tmp_path / tune, refit="on", columns="warmth", loss="mse",
        **SMALL, **options,
    )  # fmt: skip
    assert tuned.metrics["r2"] > 0.5
    if tune != "probe":
        rows = [json.loads(line) for line in (tuned.folder / "metrics.jsonl").read_text().splitlines()]
        assert rows[0]["epoch"] == 0 and rows[-1]["epoch"] == 2 and {"val_r2", "val_r2_error"} < rows[-1].keys()
    about = read_checkpoint(tuned.folder / "model.safetensors").about
    train = [s for s in csv.DictReader((tuned.folder / "split.csv").open()) if s["split"] == "train"]
    # Of the first training, although the weights are those of the second, on all images.
    assert about["scale"]["mean"] == pytest.approx([np.mean([float(s["warmth"]) for s in train])])
    assert vitrail.evaluate(tuned, table)["r2"] > 0.5


def test_options_of_a_classifier_are_refused():
    for name, value in (("mixup", 0.2), ("label_smoothing", 0.1), ("teacher", "x"), ("balance", "weights")):
        with pytest.raises(VitrailError) as info:
            TrainConfig("regress", **{name: value})
        assert info.value.code == "option_of_another_task"


def test_what_says_nothing_of_numbers_is_refused_in_an_evaluation(run, table):
    for name in ("knn", "probe"):
        with pytest.raises(VitrailError) as info:
            vitrail.evaluate(run, table, **{name: True})
        assert info.value.fields["option"] == name


def test_the_studio_shows_the_number_and_where_it_lies_among_those_of_training(predictor, table):
    lens = Lens(predictor)
    view = View(lens, lens.fit(vitrail.data.to_image(table.parent / "00.png"), lens.own, "trained"), ())
    rows, values = view.classes([]), predictor.values(table.parent / "00.png")[0]
    assert [row["label"] for row in rows] == COLUMNS
    assert [row["value"] for row in rows] == pytest.approx(values.tolist(), rel=1e-4)
    scale = predictor.about["scale"]
    share = (values[0] - scale["low"][0]) / (scale["high"][0] - scale["low"][0])
    assert rows[0]["probability"] == pytest.approx(share.clamp(0, 1).item(), abs=1e-3)
    assert rows[0]["text"].replace(",", "").startswith("2")


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["with its data", "alone"])
def test_an_examination_finds_no_fault(run, table, named):
    found = diagnose(run.folder, table if named else None, images=24, device="cpu")
    assert [finding.code for finding in found.faults] == []


def test_an_inspection_tells_the_range_of_each_column(table, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert said("data", "inspect", table, "--task", "regress", "--out", out, "--json", tmp_path / "i.json") == 0
    ranges = json.loads((tmp_path / "i.json").read_text())["labels"]["ranges"]
    values = open_values(table).table("train")[:, 0]
    assert ranges["train"]["light"] == pytest.approx([values.min(), np.median(values), values.max()])
    assert f"{np.median(values):,.0f}" in capsys.readouterr().out and out.stat().st_size > 10_000
