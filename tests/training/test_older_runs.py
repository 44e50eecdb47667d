"""Runs that version 0.2.1 began: this version goes on with them and reads what they have left.

The record of a new run is rewritten as that version wrote it: the options of all tasks in one table, without those that
have come since; the teacher and the protocol beside them; `pictures` in place of `image_side`.
"""

import json
import shutil
from pathlib import Path

import pytest

import vitrail
from tests.training.support import differences, make_folder, rows, small_options, watch_steps
from vitrail import VitrailError
from vitrail.models import create_model
from vitrail.training.run_folder import read_record
from vitrail.training.signals import Stopped
from vitrail.weights import save_weights

TRAIN = {
    "model": None, "weights": "auto", "task": "classify", "head": None, "pyramid": None, "tune": "full",
    "adapter_width": 32, "adapter_place": "sequential", "lora_rank": 8, "lora_targets": "qkv,proj",
    "prompt_tokens": 10, "epochs": None, "batch_size": None, "image_size": None, "fit": None, "lr": None,
    "optimizer": "auto", "weight_decay": None, "layer_decay": None, "warmup": None, "drop_path": None,
    "augment": "auto", "flip": None, "mixup": None, "cutmix": None, "calm": 0, "label_smoothing": None,
    "teacher": None, "distill": None, "alpha": None, "temperature": None, "balance": "auto", "ema": None, "clip": 1.0,
    "micro_batch": None, "val": None, "refit": "auto", "protocol": "disjoint", "fold": None, "leave_out": None,
    "boxes": None, "margin": 0.3, "seed": 0, "out": None, "resume": False, "precision": "auto", "compile": "auto",
    "device": None, "workers": None, "cache": "auto", "wandb": False, "mlflow": False,
}  # fmt: skip
PRETRAIN = {
    "model": None, "weights": "none", "mask_ratio": 0.75, "norm_pix": True, "epochs": None, "batch_size": None,
    "image_size": None, "fit": None, "lr": None, "weight_decay": 0.05, "warmup": None, "crop": None, "flip": 0.5,
    "micro_batch": None, "val": 0.1, "seed": 0, "out": None, "resume": False, "precision": "auto", "compile": "auto",
    "device": None, "workers": None, "cache": "auto", "wandb": False, "mlflow": False,
}  # fmt: skip


def as_of_0_2_1(folder: Path) -> None:
    """Rewrites run.json."""
    record = json.loads((folder / "run.json").read_text())
    table = PRETRAIN if record["verb"] == "pretrain" else TRAIN
    for part in ("given", "recipe"):
        old = {name: record[part].get(name, default) for name, default in table.items()}
        record[part] = old | ({"clip": 1.0} if old.get("clip", 0) is None else {})
    record["model"]["pictures"] = record["model"].pop("image_side")
    facts = record.pop("facts")
    record |= {"teacher": facts.get("teacher", {}), "protocol": facts.get("protocol", {})}
    (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=48)


@pytest.fixture(scope="module")
def base(data, tmp_path_factory) -> Path:
    return vitrail.train(data, **small_options(epochs=2, out=tmp_path_factory.mktemp("runs") / "base")).folder


def begun(verb: str, data: Path, folder: Path, patch: pytest.MonkeyPatch, stop_in: int, **options) -> None:
    """A run that was stopped in that step, and has the record of an older version."""
    with patch.context() as patched, pytest.raises(Stopped):
        watch_steps(patched, stop_in=[stop_in])
        getattr(vitrail, verb)(data, **options, out=folder)
    as_of_0_2_1(folder)


KINDS = {
    "scratch": {"drop_path": 0.3, "augment": "strong", "mixup": 0.4, "cutmix": 1.0, "calm": 1, "ema": 0.9},
    "tuned": {"model": None, "lr": None},  # with a linear probe, and a refit at the end
    "lora": {"model": None, "tune": "lora", "lora_rank": 4},
    "taught": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_goes_on_to_the_bit_and_predicts(data, base, tmp_path, monkeypatch, kind):
    options = small_options(epochs=2, batch_size=8) | KINDS[kind]
    options |= {"taught": {"teacher": base}, "scratch": {}}.get(kind, {"weights": base})
    whole = vitrail.train(data, **options, out=tmp_path / "whole")
    begun("train", data, tmp_path / "run", monkeypatch, 6, **options)
    run = vitrail.train(out=tmp_path / "run", resume=True)
    assert differences(whole.folder, run.folder) == []
    image = data / "class 1" / "001.png"
    one, other = (vitrail.load(each, device="cpu").probabilities([image]) for each in (whole, run))
    assert one.equal(other)
    assert vitrail.load(run, device="cpu").predict(image, top=1)[0][0].label == "class 1"
    assert vitrail.evaluate(run, data, device="cpu") == vitrail.evaluate(whole, data, device="cpu")


def test_a_pretraining_that_was_stopped_goes_on_to_the_bit(data, tmp_path, monkeypatch):
    options = {"model": "vit_nano4", "epochs": 2, "batch_size": 16, "device": "cpu", "workers": 0, "image_size": 16}
    whole = vitrail.pretrain(data, **options, out=tmp_path / "whole")
    begun("pretrain", data, tmp_path / "run", monkeypatch, 3, **options)
    with pytest.raises(VitrailError, match="vitrail pretrain") as info:
        vitrail.train(out=tmp_path / "run", resume=True)
    assert info.value.code == "other_verb"
    run = vitrail.pretrain(out=tmp_path / "run", resume=True)
    assert differences(whole.folder, run.folder) == []


def test_the_teacher_of_an_older_record_still_may_move_but_not_change(data, base, tmp_path, monkeypatch):
    shutil.copytree(base, tmp_path / "teacher")
    options = small_options(epochs=1, batch_size=8, teacher=tmp_path / "teacher")
    begun("train", data, tmp_path / "run", monkeypatch, 2, **options)
    labels = [f"class {index}" for index in range(3)]
    other = save_weights(create_model("vit_nano2", num_classes=3), tmp_path / "other.safetensors", labels=labels)
    with pytest.raises(VitrailError) as info:
        vitrail.train(out=tmp_path / "run", resume=True, teacher=other)
    assert info.value.code == "teacher_changed"
    vitrail.train(out=tmp_path / "run", resume=True, teacher=base)
    assert [row["epoch"] for row in rows(tmp_path / "run")] == [1]


def test_a_finished_run_is_told_as_such_and_what_it_is_may_not_change(data, base, tmp_path, capsys):
    folder = shutil.copytree(base, tmp_path / "run")
    as_of_0_2_1(folder)
    with pytest.raises(VitrailError) as info:
        vitrail.train(out=folder, resume=True, batch_size=4)
    assert (info.value.code, info.value.fields) == ("not_the_same_run", {"option": "batch_size"})
    with pytest.raises(VitrailError) as info:  # which that version had not: it had the cosine alone
        vitrail.train(out=folder, resume=True, schedule="linear")
    assert info.value.fields == {"option": "schedule"}
    metrics = vitrail.load(base, device="cpu").about["figures"]
    assert vitrail.train(out=folder, resume=True).metrics == metrics
    assert "epoch" not in capsys.readouterr().out


def test_an_older_record_keeps_its_protocol_its_images_and_its_reasons(data, base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "run")
    as_of_0_2_1(folder)
    saved = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(saved | {"protocol": {"leak": 0}, "verb": "train"}))
    record = read_record(folder)
    assert record.facts == {"protocol": {"leak": 0}} and record.task == "classify"
    assert record.start().image_side == 15 and record.start().why == saved["model"]["why"]
    assert {name: str(reason) for name, reason in record.reasons().items()} == saved["why"]
    del saved["verb"]  # there was a time with `train` alone
    (folder / "run.json").write_text(json.dumps(saved))
    assert read_record(folder).verb == "train" and read_record(folder).facts == {}


def test_an_option_that_no_task_has_is_refused(base, tmp_path):
    """As of a record that a later version has written."""
    folder = shutil.copytree(base, tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    record["recipe"]["sharpness"] = 2
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(VitrailError) as info:
        vitrail.train(out=folder, resume=True)
    assert (info.value.code, info.value.fields) == ("unknown_option", {"option": "sharpness"})
