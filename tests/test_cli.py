"""The list of verbs and options, frozen: a change of it is a change for every user, and shows here."""

import inspect
import subprocess
import sys
from dataclasses import fields

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
from vitrail.training import PretrainRecipe, Recipe

OPTIONS = {
    train: ["data", "options"],
    pretrain: ["data", "options"],
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
TRAIN = [
    "model", "weights", "task", "head", "pyramid", "tune", "adapter_width", "adapter_place", "lora_rank",
    "lora_targets", "prompt_tokens", "epochs", "batch_size", "image_size", "fit", "lr", "optimizer", "weight_decay",
    "layer_decay", "warmup", "drop_path", "augment", "flip", "mixup", "cutmix", "calm", "label_smoothing",
    "teacher", "distill", "alpha", "temperature", "balance", "ema", "clip", "micro_batch", "val", "refit",
    "protocol", "fold", "leave_out", "boxes", "margin", "seed", "out",
    "resume", "precision", "compile", "device", "workers", "cache", "wandb", "mlflow",
]  # fmt: skip

PRETRAIN = [
    "model", "weights", "mask_ratio", "norm_pix", "epochs", "batch_size", "image_size", "fit", "lr", "weight_decay",
    "warmup", "crop", "flip", "micro_batch", "val", "seed", "out", "resume", "precision", "compile", "device",
    "workers", "cache", "wandb", "mlflow",
]  # fmt: skip


def test_the_verbs_are_these():
    done = subprocess.run([sys.executable, "-m", "vitrail", "--help"], capture_output=True, text=True, check=True)
    assert "{train,pretrain,evaluate,predict,embed,explain,studio,doctor,export,data,models,demo}" in done.stdout


def test_the_options_of_every_verb_are_these():
    for verb, options in OPTIONS.items():
        assert list(inspect.signature(verb).parameters) == options


def test_the_options_of_training_are_these():
    assert [field.name for field in fields(Recipe)] == TRAIN


def test_the_options_of_pretraining_are_these():
    assert [field.name for field in fields(PretrainRecipe)] == PRETRAIN


def test_what_both_ways_to_train_are_told_about_the_machine_is_written_alike():
    """Declared twice, at the end of both: fields that were inherited would come first on the command line."""
    ends = [
        inspect.getsource(kind).partition("    out: ")[2].partition("    def ")[0] for kind in (Recipe, PretrainRecipe)
    ]
    assert ends[0] == ends[1] and ends[0].count(" = ") == 9
