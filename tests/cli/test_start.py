"""How soon the command line answers: help and slips of the fingers never wait for torch, nor for what draws, serves or
exports. And how its threads wait for each other."""

import os
import re
import subprocess
import sys

import pytest

from tests import test_cli as cli
from vitrail.cli import VERBS
from vitrail.cli.data import inspect as data_inspect
from vitrail.data.kinds import ANY
from vitrail.tasks import registry

HEAVY = {
    "torch", "torchvision", "matplotlib", "PIL", "numpy", "safetensors", "huggingface_hub", "datasets", "sklearn",
    "pyarrow", "onnx", "onnxruntime", "fastapi", "uvicorn", "pycocotools", "triton",
}  # fmt: skip

PROGRAM = """
import sys
from vitrail.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def call(*arguments, cwd=None):
    """What was printed, by which exit code, and the packages that were imported for it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, cwd=cwd)
    *said, imported = done.stderr.splitlines()
    assert "vitrail" in imported.split()
    return done.stdout + "\n".join(said), done.returncode, HEAVY & {*imported.split()}


EXPECTED = {task: registry.expects(task) for task in registry.BUILT_IN}
OPTIONS = {"data inspect" if verb is data_inspect else verb.__name__: names for verb, names in cli.OPTIONS.items()}
for verb, tasks in (("train", ["classify"]), ("pretrain", ["reconstruct"])):
    OPTIONS[verb] = ["data", *(name for task in tasks for names in cli.TRAINING[task].values() for name in names)]
OPTIONS |= {
    f"train --task {task}": [name for names in cli.TRAINING[task].values() for name in names]
    for task in registry.TRAINED
}
OPTIONS |= {"data": [], "": []}
POSITIONAL = {"data", "images", "run", "pattern"}
WORDS = {
    "": ["{train,pretrain,evaluate,predict,embed,explain,studio,doctor,export,data,models,demo}"],
    "train": [*registry.TRAINED, EXPECTED["classify"], "Rank of LoRA's matrices."],
    "pretrain": ["--mask-ratio FLOAT", "else 0.75", EXPECTED["reconstruct"]],
    "predict": ["by default the model that ships inside."],  # in the source a line ends there
    "data": ["{inspect}", "inspect"],
}
USAGE = {
    "train": " [DATA]", "pretrain": " [DATA]", "evaluate": " DATA", "predict": " IMAGES ...", "embed": " IMAGES ...",
    "explain": " IMAGES ...", "studio": " [RUN ...]", "doctor": " [RUN] [DATA]", "export": " [RUN]",
    "data inspect": " DATA", "models": " [PATTERN]",
}  # fmt: skip


@pytest.mark.parametrize("verb", OPTIONS, ids=lambda verb: verb or "vitrail")
def test_help_is_whole_and_needs_nothing_heavy(verb):
    told, code, heavy = call(*verb.split(), "--help")
    assert code == 0 and not heavy
    options = [f"--{name.replace('_', '-')}" for name in OPTIONS[verb] if name not in POSITIONAL]
    assert [words for words in options + WORDS.get(verb, []) if words not in told] == []
    assert "None" not in told and "(default: )" not in told and "(default: '')" not in told
    # Without the options, which stand there where they are few.
    usage = re.sub(r" \[--[^]]*\]", "", told.splitlines()[0])
    assert usage.endswith(USAGE.get(verb, ""))


def test_the_help_of_every_verb_is_looked_at():
    assert {verb.split()[0] for verb in OPTIONS if verb} == {*VERBS}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trian pets", 'Did you mean "train"?'),
        ("--modle x", "A command comes first"),
        ("train pets --epoch 3", "--epochs"),
        ("pretrain pets --mask-ration 0.5", "--mask-ratio"),
        ("predict cat.jpg --modle run", "--model STR"),
        ("train pets --mixup -1", "--mixup must be at least 0"),
        ("models vit_b61", "No model is named like 'vit_b61'. Did you mean \"vit_b16\"?"),
    ],
)
def test_a_slip_is_answered_without_anything_heavy(arguments, sentence, tmp_path):
    told, code, heavy = call(*arguments.split(), cwd=tmp_path)
    assert code == 2 and sentence in told and not heavy


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("train", EXPECTED["classify"]),
        ("train pest", f'no pest: expected {EXPECTED["classify"]}. Did you mean "pets"?'),
        ("train CIFAR11", 'Did you mean "CIFAR10'),
        ("train pest --task segment", f"no pest: expected {EXPECTED['segment']}"),
        ("train CIFAR10 --task detect", f"no CIFAR10: expected {EXPECTED['detect']}"),
        ("train pest --task spoof", f"no pest: expected {EXPECTED['spoof']}"),
        ("pretrain pest", f"no pest: expected {EXPECTED['reconstruct']}"),
        ("evaluate pest", f'no pest: expected {ANY}. Did you mean "pets"?'),
        ("doctor vitrail_tiny pest", f"no pest: expected {ANY}"),
        ("data inspect pest", f"no pest: expected {EXPECTED['classify']}"),
        ("data inspect CIFAR10 --task segment", f"no CIFAR10: expected {EXPECTED['segment']}"),
        ("predict cat.jpg", "cat.jpg"),
        ("embed cat.jpg --out e.npz", "cat.jpg"),
        ("explain cat.jpg", "cat.jpg"),
    ],
)
def test_what_is_not_there_is_said_without_torch(arguments, named, tmp_path):
    (tmp_path / "pets").mkdir()
    told, code, heavy = call(*arguments.split(), cwd=tmp_path)
    assert code == 2 and named in told and heavy <= {"PIL", "numpy"}


def test_the_catalog_is_listed_without_anything_heavy():
    told, code, heavy = call("models")
    assert code == 0 and not heavy and told.count("\n") > 75


@pytest.mark.parametrize(
    ("given", "set_to"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_threads_do_not_spin_for_long_unless_they_were_told_to(given, set_to):
    script = """
import os
from vitrail.cli import main
try:
    main(["--version"])
except SystemExit:
    print(os.environ.get("GOMP_SPINCOUNT"))
"""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", script], env=clean | given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == set_to
