"""The list of verbs and options, frozen: a change of it is a change for every user, and shows here."""

import inspect
import subprocess
import sys
from dataclasses import fields

import pytest

from vitrail.cli.data import inspect as data_inspect
from vitrail.cli.demo import demo
from vitrail.cli.doctor import doctor
from vitrail.cli.embed import embed
from vitrail.cli.evaluate import evaluate
from vitrail.cli.explain import explain
from vitrail.cli.export import export
from vitrail.cli.models import models
from vitrail.cli.predict import predict
from vitrail.cli.pretrain import pretrain
from vitrail.cli.studio import studio
from vitrail.cli.train import train
from vitrail.cli.training import parser_type
from vitrail.tasks import registry
from vitrail.training.config import TrainConfig

OPTIONS = {
    evaluate: [
        "data", "model", "split", "knn", "probe", "flip", "crops", "json", "report", "fit", "image_size", "boxes",
        "architecture", "batch_size", "device",
    ],
    predict: [
        "images", "model", "top", "csv", "json", "out", "window", "threshold", "flip", "crops", "fit", "architecture",
        "image_size", "batch_size", "device",
    ],
    embed: ["images", "out", "model", "flip", "crops", "fit", "architecture", "image_size", "batch_size", "device"],
    explain: [
        "images", "out", "model", "methods", "target", "layer", "faithfulness", "fit", "architecture", "image_size",
        "batch_size", "device",
    ],
    studio: ["run", "mae", "samples", "port", "host", "browser", "architecture", "device"],
    doctor: ["run", "data", "image_size", "images", "lr", "out", "json", "architecture", "device"],
    export: ["run", "to", "out", "architecture", "image_size"],
    data_inspect: ["data", "task", "image_size", "out", "json", "workers"],
    models: ["pattern"],
    demo: ["out"],
}  # fmt: skip
# Of `train` and `pretrain`, by the groups of their help.
COMMON = [
    "task", "model", "weights", "tune", "epochs", "batch_size", "image_size", "lr", "augment", "seed", "out", "resume",
    "config",
]  # fmt: skip
EVERY = {
    "loading": ["fit", "val", "workers", "cache"],
    "schedule": ["schedule", "warmup"],
    "optimizer": ["optimizer", "weight_decay", "layer_decay", "clip", "ema"],
    "machine": ["precision", "compile", "device", "micro_batch"],
    "logging": ["wandb", "mlflow"],
}
TUNING = ["adapter_width", "adapter_place", "lora_rank", "lora_targets", "prompt_tokens", "refit"]
IMAGE_LEVEL = {
    "tuning": TUNING, "augmentation": ["flip", "drop_path"], "mixing": ["mixup", "cutmix", "calm"],
    "labels": ["label_smoothing", "balance"],
}  # fmt: skip
TRAINING = {
    "classify": {
        "common": COMMON, **EVERY, **IMAGE_LEVEL, "distillation": ["teacher", "distill", "alpha", "temperature"],
    },
    "segment": {
        "common": COMMON, **EVERY, "segment": ["pyramid", "head", "label_smoothing", "balance"],
        "augmentation": ["flip", "drop_path"],
    },
    "detect": {
        "common": COMMON, **EVERY, "detect": ["pyramid", "head"], "augmentation": ["flip", "drop_path"],
    },
    "spoof": {
        "common": COMMON, **EVERY, **IMAGE_LEVEL, "spoof": ["protocol", "fold", "leave_out", "boxes", "margin"],
    },
    "regress": {
        "common": COMMON, **EVERY, "tuning": TUNING, "augmentation": ["flip", "drop_path"],
        "regress": ["columns", "loss"],
    },
    "reconstruct": {
        "common": [name for name in COMMON if name not in ("task", "tune", "augment")], **EVERY,
        "reconstruct": ["mask_ratio", "norm_pix", "crop", "flip"],
    },
}  # fmt: skip


def test_the_verbs_are_these():
    done = subprocess.run([sys.executable, "-m", "vitrail", "--help"], capture_output=True, text=True, check=True)
    assert "{train,pretrain,evaluate,predict,embed,explain,studio,doctor,export,data,models,demo}" in done.stdout


def test_the_options_of_every_verb_are_these():
    for verb, options in OPTIONS.items():
        assert list(inspect.signature(verb).parameters) == options


def test_every_task_is_here():
    assert {*TRAINING} == {*registry.BUILT_IN}


@pytest.mark.parametrize("task", TRAINING)
def test_the_options_of_training_are_these(task):
    verb = "pretrain" if task in registry.PRETRAINED else "train"
    shown = {group.name: group.default_factory for group in fields(parser_type(verb, task)) if group.name != "data"}
    assert {name: [option.name for option in fields(kind)] for name, kind in shown.items()} == TRAINING[task]


@pytest.mark.parametrize("task", TRAINING)
def test_python_has_the_same_options(task):
    """All but the two that only the command line has: --config is an argument of its own, and so is the task."""
    typed = {name for names in TRAINING[task].values() for name in names} - {"task", "config"}
    assert {*TrainConfig(task).defaults} == typed


def test_train_and_pretrain_take_what_their_task_has():
    assert not inspect.signature(train).parameters and not inspect.signature(pretrain).parameters
