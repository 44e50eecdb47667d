"""Options: from Python, from the command line and from a file; which are refused, and what is told of them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.support import SMALL, Command, differences, make_folder, rows, small_options
from vitrail import VitrailError
from vitrail.cli.options import registry
from vitrail.cli.training import parse
from vitrail.training.config import TrainConfig, concerning, from_dict, kinds_of, machine_options, made


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=24)


# Refusals.


def test_an_unknown_option_is_answered_with_the_nearest(data, tmp_path):
    command = Command("train", data, "--epohcs", 3, log=tmp_path / "log")
    assert command.wait() == 2
    assert "--epochs" in command.said and "Traceback" not in command.said
    with pytest.raises(VitrailError, match='"epochs"') as info:
        vitrail.train(data, epohcs=3)
    assert (info.value.code, info.value.fields) == ("unknown_option", {"option": "epohcs"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": -1}, ["--epochs", " 0", " -1."]),
        ({"epochs": "ten"}, ["--epochs", "'ten'"]),
        ({"epochs": True}, ["--epochs", "True"]),
        ({"batch_size": 2.5}, ["--batch-size", " 2.5."]),
        ({"lr": float("nan")}, ["--lr", " nan."]),
        ({"layer_decay": 1.5}, ["--layer-decay", "0 to 1", " 1.5."]),
        ({"weights": "none", "epochs": 2, "calm": 3}, ["--calm 3", " 2 "]),
        ({"seed": -3}, ["--seed", f"0 to {2**63 - 1}", " -3."]),
        ({"seed": 2**64}, ["--seed", f" {2**64}."]),
        ({"augment": "lite"}, ["--augment lite", "auto, none, light, medium, strong", '"light"']),
        ({"fit": "stretched"}, ["--fit stretched", "crop, pad, stretch", '"stretch"']),
        ({"schedule": "step"}, ["--schedule step", "cosine, linear, constant, wsd"]),
        ({"resume": "yes"}, ["--resume", "'yes'"]),
        ({"device": "gpu"}, ["--device gpu", "cpu", "cuda"]),
        ({"device": "meta"}, ["--device meta", "cpu", "cuda"]),
        ({"tune": "probe", "weights": "none"}, ["--tune probe", "--weights"]),
        ({"weights": "none", "model": "vit_nnao2"}, ["'vit_nnao2'", '"vit_nano2"']),
        ({"task": "clasify"}, ["--task clasify", '"classify"']),
    ],
)
def test_options_that_can_not_be_meant(data, tmp_path, options, words):
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, **{"out": tmp_path / "run", **options})
    assert all(word in str(info.value) for word in words), str(info.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "options", "tasks"),
    [
        ("classify", {"margin": 0.3}, ["spoof"]),
        ("classify", {"pyramid": "simple"}, ["segment", "detect"]),
        ("segment", {"mixup": 0.2}, ["classify"]),
        ("segment", {"teacher": "x"}, ["classify"]),
        ("reconstruct", {"refit": "off"}, ["classify", "spoof"]),
    ],
)
def test_an_option_of_another_task_is_answered_with_the_tasks_that_have_it(task, options, tasks):
    with pytest.raises(VitrailError) as info:
        TrainConfig(task, **options)
    assert info.value.code == "option_of_another_task"
    fields = info.value.fields
    assert (fields["option"], fields["task"]) == (*options, task) and set(tasks) <= set(fields["tasks"])


# What a configuration is.


def test_a_configuration_becomes_a_table_and_comes_back(tmp_path):
    config = TrainConfig("segment", epochs=3, out=tmp_path / "run", head="fcn", weights=tmp_path / "w.safetensors")
    values = json.loads(json.dumps(config.to_dict()))
    assert values["task"] == "segment" and values["out"] == str(tmp_path / "run")
    assert from_dict(values) == config and from_dict(values).task == "segment"
    assert "out" not in config.shared() and config.shared()["weights"] == "w.safetensors"  # no places of this machine
    assert config.replace(epochs=4).epochs == 4 and config.epochs == 3


def test_the_groups_of_a_task_share_no_name():
    for task in ("classify", "segment", "detect", "spoof", "reconstruct"):
        every = [name for kind in kinds_of(task) for name in kind.__dataclass_fields__]
        assert len(every) == len(set(every)), task


def test_where_and_how_fast_a_run_runs_may_differ_when_it_is_resumed():
    assert machine_options(TrainConfig()) == {
        "out", "resume", "device", "workers", "cache", "wandb", "mlflow", "compile", "micro_batch", "teacher",
    }  # fmt: skip


def test_keywords_come_before_a_file_and_a_file_before_a_configuration(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("epochs: 2\nbatch-size: 16\nlr: 1.0e-3\n")
    config = made(None, {"epochs": 3}, TrainConfig(epochs=1, seed=5, batch_size=8), file)
    assert (config.epochs, config.batch_size, config.lr, config.seed) == (3, 16, 1e-3, 5)


@pytest.mark.parametrize(
    ("task", "options", "there", "absent"),
    [
        ("classify", {}, {"tune", "seed", "cache"}, {"adapter_width", "lora_rank", "prompt_tokens", "wandb", "lr"}),
        ("classify", {"tune": "lora", "lr": 1e-3}, {"lora_rank", "lora_targets", "lr"}, {"adapter_width", "resume"}),
        ("spoof", {}, {"protocol", "margin"}, {"fold", "lora_rank"}),
        ("classify", {"lora_rank": 4, "wandb": True}, {"lora_rank", "wandb"}, {"lora_targets", "mlflow"}),
    ],
)
def test_a_reader_is_told_only_of_options_that_concern_the_run(task, options, there, absent):
    told = concerning(TrainConfig(task, **options)).keys()
    assert there <= told and not absent & told


# --config FILE


QUICK = small_options(epochs=2, batch_size=8, seed=3, schedule="wsd", drop_path=0.2, mixup=0.2)


def test_the_record_of_a_run_given_as_configuration_gives_the_identical_run(data, tmp_path):
    first = vitrail.train(data, **QUICK, out=tmp_path / "first")
    record = first.folder / "run.json"
    vitrail.train(data, config=record, out=tmp_path / "python")
    command = Command("train", data, "--config", record, "--out", tmp_path / "typed", log=tmp_path / "log")
    assert command.wait() == 0, command.said
    for name in ("python", "typed"):
        assert differences(first.folder, tmp_path / name) == []
        one, other = (json.loads((folder / "run.json").read_text()) for folder in (first.folder, tmp_path / name))
        for part in ("given", "recipe"):
            assert {**one[part], "out": None} == {**other[part], "out": None}
        assert one["why"] == other["why"]


def test_a_yaml_file_counts_more_than_defaults_and_what_is_typed_more_than_the_file(data, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(
        "model: vit_nano2\nweights: none\nepochs: 2\nbatch-size: 8\nlr: 0.002\nschedule: linear\ndevice: cpu\n"
        "workers: 0\ncache: memory\n"
    )
    arguments = ["--config", file, "--epochs", 1, "--out", tmp_path / "run"]
    command = Command("train", data, *arguments, log=tmp_path / "log")
    assert command.wait() == 0, command.said
    given = json.loads((tmp_path / "run" / "run.json").read_text())["given"]
    assert (given["epochs"], given["batch_size"], given["lr"], given["schedule"]) == (1, 8, 0.002, "linear")
    assert given["seed"] == 0 and given["weights"] == "none"
    vitrail.train(data, file, epochs=1, out=tmp_path / "python")
    assert differences(tmp_path / "run", tmp_path / "python") == []
    assert len(rows(tmp_path / "run")) == 1


def test_a_file_may_name_the_task_whose_options_it_has(data, tmp_path):
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"task": "segment", "head": "fcn", "epochs": 0}))
    assert made(None, {}, None, file).task == "segment" and made(None, {}, None, file).head == "fcn"
    command = Command("train", tmp_path / "nothing", "--config", file, log=tmp_path / "log")
    assert command.wait() == 2
    assert "--head" not in command.said and "nothing" in command.said  # the options are fine; there is no data


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "epohcs: 2\n", ["'epohcs'", '"epochs"']),
        ("a.json", '{"margin": 0.3}', ["--margin", "spoof"]),
        ("a.yaml", "epochs: ten\n", ["--epochs", "'ten'"]),
        ("a.yaml", "epochs: [1\n", ["--config", "a.yaml"]),
        ("a.json", "{", ["--config", "a.json"]),
        ("a.yaml", "- 1\n", ["--config", "a.yaml"]),
        (None, "", ["--config", "a.yaml"]),
    ],
)
def test_a_file_that_can_not_be_meant_is_refused(data, tmp_path, name, text, words):
    if name is not None:
        (tmp_path / name).write_text(text)
    file = tmp_path / (name or "a.yaml")
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, config=file, out=tmp_path / "run")
    assert all(word in str(info.value) for word in words), str(info.value)
    command = Command("train", data, *SMALL, "--config", file, "--out", tmp_path / "run", log=tmp_path / "log")
    assert command.wait() == 2 and "Traceback" not in command.said
    assert all(word in command.said for word in words)
    assert not (tmp_path / "run").exists()


def test_the_record_of_a_pretraining_gives_the_identical_pretraining(data, tmp_path):
    options = {"model": "vit_nano4", "epochs": 1, "batch_size": 8, "device": "cpu", "workers": 0, "image_size": 16}
    first = vitrail.pretrain(data, **options, out=tmp_path / "first")
    vitrail.pretrain(data, config=first.folder / "run.json", out=tmp_path / "second")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_numbers_and_words_in_yaml_are_those_of_the_options(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1e-4\ncache: off\nrefit: on\nval: .2\nwandb: false\n")
    config = made(None, {}, None, file)
    assert (config.lr, config.cache, config.refit, config.val, config.wandb) == (1e-4, "off", "on", 0.2, False)


def test_what_is_typed_counts_over_the_file_also_the_task_and_defaults(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("task: segment\nseed: 3\nepochs: 5\n")
    data, config = parse("train", "", "", ["seed", "--config", str(file), "--task", "detect"], registry())
    assert (data, config.task, config.seed, config.epochs) == ("seed", "detect", 3, 5)
    assert parse("train", "", "", ["x", "--config", str(file), "--seed", "0"], registry())[1].seed == 0


def test_the_record_of_an_older_pretraining_keeps_its_options(tmp_path):
    record = {"verb": "pretrain", "given": {"weights": "none", "mask_ratio": 0.6, "out": "runs/x"}, "recipe": {}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    config = made("reconstruct", {}, None, tmp_path / "run.json")
    assert (config.mask_ratio, config.out) == (0.6, None)


def test_a_name_that_is_no_option_is_not_replaced():
    with pytest.raises(AttributeError, match="epoch"):
        TrainConfig(epochs=3).replace(epoch=9)


def test_another_task_is_not_resumed(data, tmp_path):
    run = vitrail.train(data, **small_options(epochs=1, out=tmp_path / "run"))
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, task="detect", out=run.folder, resume=True)
    assert info.value.code == "not_the_same_run" and info.value.fields["option"] == "task"
