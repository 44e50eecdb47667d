"""`--task spoof`: real runs on small images of invented people."""

import csv
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.support import SMALL, Command, differences, small_options
from vitrail.data.sources.faces import open_faces
from vitrail.errors import VitrailError
from vitrail.tasks import registry
from vitrail.tasks.planning import Facts
from vitrail.tasks.spoof.evaluate import scored_faces
from vitrail.tasks.spoof.metrics import attack_scores
from vitrail.training.config import TrainConfig
from vitrail.training.run import plan


def make_faces(root: Path, people: range, each: int = 4, kinds: tuple[str, ...] = ("live", "print")) -> Path:
    """A colour for each person; a print has stripes, a replay is bluer in its upper half."""
    rng = np.random.default_rng(people.start)
    for person in people:
        skin = rng.integers(80, 170, 3)
        for kind in kinds:
            for number in range(each):
                pixels = skin + rng.normal(0, 12, (16, 16, 3))
                pixels[::2] += 45 * (kind == "print")
                pixels[:8, :, 2] += 60 * (kind == "replay")
                path = root / kind / f"{person:04d}" / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("faces")
    make_faces(root / "train", range(8))
    make_faces(root / "test", range(20, 24), kinds=("live", "print", "replay"))
    return root


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    options = small_options(task="spoof", epochs=12, batch_size=16, out=out, lr=2e-3, model="vit_nano4")
    return vitrail.train(data, **options).folder


def test_it_tells_prints_of_strangers_and_says_so_in_the_terms_of_the_standard(data, run, tmp_path):
    page = tmp_path / "page.html"
    figures = vitrail.evaluate(run, data, report=page, device="cpu")
    assert figures["split"] == "test" and figures["n"] == 48 and figures["subjects"] == 4
    assert figures["apcer/print"] <= 0.25 and figures["bpcer"] <= 0.25
    assert figures["apcer"] == max(figures["apcer/print"], figures["apcer/replay"])
    assert figures["acer"] == pytest.approx((figures["apcer"] + figures["bpcer"]) / 2)
    assert any("(replay)" in note for note in figures["notes"])  # which it has not learned from
    assert 'id="subjects"' in page.read_text() and 'id="attacks"' in page.read_text()


def test_the_threshold_is_that_of_the_development_faces_and_goes_with_the_file(data, run):
    predictor = vitrail.load(run, device="cpu")
    assert predictor.about["task"] == "spoof" and predictor.labels == ["live", "print"]
    faces = open_faces(run / "split.csv", training=False).splits
    scores = {}
    for split in ("val", "test"):
        rows = torch.stack([one.values for one in predictor.stream(faces[split])])
        scores[split] = scored_faces(attack_scores(rows.numpy()), faces[split])
    assert predictor.about["threshold"] == pytest.approx(scores["val"].curve().threshold, abs=1e-4)
    found = vitrail.evaluate(run, data, device="cpu")
    assert found["threshold"] == predictor.about["threshold"]
    assert found["hter"] == pytest.approx(scores["test"].errors(found["threshold"])["hter"])
    assert found["eer"] == pytest.approx(scores["test"].curve().eer)


def test_a_run_keeps_who_was_kept_apart_and_shares_no_names(data, run):
    record = json.loads((run / "run.json").read_text())
    protocol = record["facts"]["protocol"]
    held_out = protocol["development_subjects"]
    with (run / "split.csv").open() as file:
        rows = list(csv.DictReader(file))
    people = {split: {row["subject"] for row in rows if row["split"] == split} for split in ("train", "val", "test")}
    assert people["val"] == set(held_out) and len(held_out) == 2
    assert people["test"] == {"0020", "0021", "0022", "0023"} and not people["train"] & (people["val"] | people["test"])
    assert protocol["overlap"] == {}
    about = vitrail.load(run, device="cpu").about
    assert about["protocol"] == {"protocol": "disjoint", "shared_subjects": {}}
    assert held_out[0] not in json.dumps({k: v for k, v in about.items() if k != "metrics"})
    report = (run / "report.html").read_text()
    assert 'id="scores"' in report and ", ".join(held_out) in report


@pytest.mark.parametrize(("tune", "augment"), [("head", "none"), ("adapter", "auto")])
def test_tuned_cheaply_the_small_file_knows_the_threshold_too(data, run, tmp_path, tune, augment):
    """Head: from features that are made once; the figure that chooses is still AUC."""
    options = {"weights": str(run), "model": None, "epochs": 2, "batch_size": 16, "tune": tune, "augment": augment}
    vitrail.train(data, **small_options(task="spoof", out=tmp_path / "run", **options))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all({"val_auc", "val_auc_error", "val_eer", "val_loss"} <= row.keys() for row in rows) and len(rows) == 3
    whole, small = (
        vitrail.load(tmp_path / "run" / f, device="cpu") for f in ("model.safetensors", "adapter.safetensors")
    )
    assert whole.about["threshold"] == small.about["threshold"] and small.about["task"] == "spoof"
    face = next((data / "test" / "print").rglob("*.png"))
    assert torch.allclose(whole.probabilities(face), small.probabilities(face), atol=1e-5)


def test_a_prediction_is_the_answer_at_the_threshold(run):
    predictor = vitrail.load(run, device="cpu")
    for live, threshold, first in (
        (0.7, 0.25, "print"),
        (0.7, 0.35, "live"),
        (0.4, 0.55, "print"),
        (0.4, 0.65, "live"),
    ):
        predictor.about["threshold"] = threshold
        ranked = predictor.ranked(torch.tensor([live, 1 - live]))
        assert ranked[0].label == first and {p.label for p in ranked} == {"live", "print"}
    predictor.about["threshold"] = 1e-9  # 1 − P(live) would be 0 in float32
    assert predictor.ranked(torch.tensor([1.0, 2e-9]))[0].label == "print"


def test_an_explanation_is_of_the_attack_also_on_a_live_face(data, run):
    predictor = vitrail.load(run, device="cpu")
    live = next((data / "test" / "live").rglob("*.png"))
    found = predictor.explain(live, methods=["relevance"], faithfulness=False)
    assert found.target == "print"
    assert predictor.explain(live, target="live", methods=["relevance"], faithfulness=False).target == "live"


def test_the_official_protocol_goes_on_and_records_whom_it_shares(tmp_path, capsys):
    make_faces(tmp_path / "data" / "train", range(6), each=2)
    make_faces(tmp_path / "data" / "test", range(2), each=2)
    options = small_options(task="spoof", epochs=1, batch_size=8, out=tmp_path / "run", model="vit_nano4")
    with pytest.raises(VitrailError, match="--protocol official"):
        vitrail.train(tmp_path / "data", **options | {"seed": 1})
    assert not (tmp_path / "run").exists()
    vitrail.train(tmp_path / "data", **options, protocol="official")
    overlap = json.loads((tmp_path / "run" / "run.json").read_text())["facts"]["protocol"]["overlap"]
    assert sum(map(len, overlap.values())) == 2 and "flatter" in capsys.readouterr().out
    shared = vitrail.load(tmp_path / "run", device="cpu").about["protocol"]["shared_subjects"]
    assert shared == {pair: len(people) for pair, people in overlap.items()}


def test_how_many_people_are_held_out_can_be_said(tmp_path):
    data = make_faces(tmp_path / "data", range(8), each=2)
    options = small_options(task="spoof", epochs=1, batch_size=8, out=tmp_path / "run", model="vit_nano4")
    vitrail.train(data, **options, val=0.5)
    samples = json.loads((tmp_path / "run" / "run.json").read_text())["samples"]
    assert {split: words.split(" images")[0] for split, words in samples.items()} == {"train": "16", "val": "16"}


def test_a_fold_is_tested_on_by_evaluate_without_being_told(tmp_path):
    data = make_faces(tmp_path / "data", range(6), each=2)
    options = small_options(task="spoof", epochs=1, batch_size=8, out=tmp_path / "run", model="vit_nano4")
    vitrail.train(data, **options, fold="2/3")
    figures = vitrail.evaluate(tmp_path / "run", data, device="cpu")
    tested = {face.subject for face in open_faces(data, fold="2/3").splits["test"]}
    assert (figures["split"], figures["n"], figures["subjects"]) == ("test", 8, len(tested))
    assert figures["notes"] == []  # nobody of these trained it


def test_killed_and_resumed_it_is_the_same_to_the_bit_and_evaluated_from_the_command_line(tmp_path):
    data = make_faces(tmp_path / "data", range(6), each=3)
    options = [*SMALL, "--task", "spoof", "--fold", "1/3", "--epochs", "3", "--batch-size", "8"]
    options[options.index("vit_nano2")] = "vit_nano4"
    killed = Command("train", data, *options, "--out", tmp_path / "killed", log=tmp_path / "killed.log",
                     at=("vitrail.training.trainer.Trainer.train_step", 5, signal.SIGKILL))  # fmt: skip
    assert killed.wait() == -signal.SIGKILL
    whole = Command("train", data, *options, "--out", tmp_path / "whole", log=tmp_path / "whole.log")
    assert whole.wait() == 0, whole.said
    again = Command("train", data, "--out", tmp_path / "killed", "--resume", log=tmp_path / "again.log")
    assert again.wait() == 0, again.said
    assert differences(tmp_path / "killed", tmp_path / "whole") == []
    assert re.search(r"balance +sampling", whole.said) and "EER: " in whole.said
    measured = Command(
        "evaluate", data, "--model", tmp_path / "killed", "--device", "cpu", "--json", tmp_path / "f.json",
        log=tmp_path / "evaluate.log",
    )  # fmt: skip
    assert measured.wait() == 0, measured.said
    figures = json.loads((tmp_path / "f.json").read_text())
    names = {"eer", "hter", "acer", "apcer", "bpcer", "auc", "bpcer_at_apcer_5", "eer_low", "n", "split"}
    assert names <= figures.keys()
    assert re.search(rf"EER +{100 * figures['eer']:.1f} %", measured.said)
    assert f"(threshold {figures['threshold']:.4g}, " in measured.said


def test_what_is_chosen_leaves_the_evidence_of_an_attack_alone():
    task = registry.task("spoof")
    full, why = plan(task, TrainConfig(task="spoof"), Facts(4_000, 2, True, 224, True))
    assert (full.balance, full.augment, full.mixup, full.cutmix, full.refit) == ("sampling", "light", 0.0, 0.0, "off")
    assert (why["balance"].code, why["augment"].code, why["mixup"].code) == (
        "spoof_sampling", "spoof_light", "spoof_evidence",
    )  # fmt: skip
    policy = task.policy(full, (224, 224))
    assert policy.scale == (0.6, 1.0) and policy.randaugment is None and policy.colour == policy.erasing == 0
    scratch, _ = plan(task, TrainConfig(task="spoof"), Facts(40_000, 2, False, 224, True))
    assert (scratch.mixup, scratch.cutmix, scratch.augment) == (0.0, 0.0, "light")
    assert plan(registry.task("classify"), TrainConfig(), Facts(4_000, 2, True, 224))[0].balance == "none"


@pytest.mark.parametrize(
    ("options", "code", "tasks"),
    [
        ({"fold": "1/3"}, "option_of_another_task", ["spoof"]),
        ({"leave_out": "msu"}, "option_of_another_task", ["spoof"]),
        ({"task": "spoof", "teacher": "x"}, "option_of_another_task", ["classify"]),
    ],
)
def test_options_of_other_tasks_are_refused_with_the_tasks_that_have_them(options, code, tasks):
    with pytest.raises(VitrailError) as info:
        TrainConfig(**options)
    assert info.value.code == code and info.value.fields["tasks"] == tasks


def test_a_second_training_on_all_images_is_refused_before_anything_is_read(tmp_path):
    """It would change the weights after their threshold was chosen."""
    data = make_faces(tmp_path / "data", range(1), each=1)
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, **small_options(task="spoof", refit="on", out=tmp_path / "run"))
    assert info.value.code == "threshold_before_refit" and not (tmp_path / "run").exists()


def test_a_margin_has_a_range():
    with pytest.raises(VitrailError, match="from 0 to 3"):
        TrainConfig(task="spoof", margin=-1.0)


def test_a_face_without_a_development_set_of_both_kinds_is_refused_before_anything_is_made(tmp_path):
    make_faces(tmp_path / "data" / "train", range(4), each=1)
    make_faces(tmp_path / "data" / "dev", range(8, 10), each=1, kinds=("live",))
    command = Command(
        "train", tmp_path / "data", *SMALL, "--task", "spoof", "--out", tmp_path / "run", log=tmp_path / "log"
    )
    assert command.wait() == 2
    assert "(2)" in command.said.splitlines()[-1]  # live faces alone choose no threshold
    assert not (tmp_path / "run").exists()
