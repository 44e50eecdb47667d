"""`hf://org/name`, from a cache folder in huggingface_hub's own layout, without a network.

huggingface_hub reads its environment when it is imported, so each test asks a fresh interpreter.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

import vitrail
from tests.weights.small import FAMILIES, assert_equal_states, pth, small
from vitrail.weights import model_from, read_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def snapshot(cache: Path, name: str) -> Path:
    """The folder that huggingface_hub would have downloaded a repository to."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


def run(script: str, **environment: str) -> str:
    root = Path(__file__).resolve().parents[2]
    variables = {"PYTHONPATH": f"{root / 'src'}:{root}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**inherited, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


REFUSALS = """
import vitrail
from vitrail.weights import read_checkpoint
for name in {names!r}:
    try:
        read_checkpoint("hf://" + name)
    except vitrail.VitrailError as error:
        print(error)
"""


def test_cached_repositories_load_without_a_network(tmp_path):
    cache = tmp_path / "hub"
    model = small("vit")
    vitrail.save_weights(model, snapshot(cache, "org/folder"), dialect="hf")
    pickled = vitrail.save_weights(model, tmp_path / "timm.pth", dialect="timm")
    pth(snapshot(cache, "org/older") / "pytorch_model.bin", torch.load(pickled, weights_only=True))
    name, shape = FAMILIES["vit"]
    script = f"""
import vitrail
for repository in ("org/folder", "org/older", "org/folder@main"):
    model = vitrail.create_model({name!r}, **{shape!r})
    report = vitrail.load_weights(model, "hf://" + repository)
    vitrail.save_weights(model, {str(tmp_path)!r} + "/" + repository.replace("/", "-") + ".safetensors")
    print(report.dialect, report.used, report.notes)
"""
    count = len(model.state_dict())
    expected = [f"hf {count} []", f"timm {count} []", f"hf {count} []"]
    assert run(script, HF_HUB_CACHE=str(cache)).splitlines() == expected
    for repository in ("org-folder", "org-older", "org-folder@main"):
        assert_equal_states(model_from(read_checkpoint(tmp_path / f"{repository}.safetensors")), model)


def test_name_of_the_repository_hints_at_the_model_and_home_is_a_cache_too(tmp_path):
    folder = snapshot(tmp_path / "hub", "timm/deit_tiny_patch16_224.fb_in1k")
    model = vitrail.create_model("deit_ti16")
    vitrail.save_weights(model, folder / "model.safetensors", dialect="timm")
    script = """
import json, warnings
warnings.simplefilter("error")
from vitrail.weights import read_checkpoint
checkpoint = read_checkpoint("hf://timm/deit_tiny_patch16_224.fb_in1k")
print(json.dumps([checkpoint.name, checkpoint.preprocessing.mean]))
"""
    found = json.loads(run(script, HF_HOME=str(tmp_path)))
    assert found == ["deit_ti16", [0.485, 0.456, 0.406]]


def test_what_can_not_be_had_is_told_in_one_sentence_each(tmp_path):
    empty = snapshot(tmp_path / "hub", "org/empty")
    (empty / "README.md").write_text("no weights")
    names = ["org/nowhere", "org/empty", "nowhere", "org/name/more", "../etc", "org/na me", "", "org/empty@v2"]
    lines = run(REFUSALS.format(names=names), HF_HUB_CACHE=str(tmp_path / "hub")).splitlines()
    assert len(lines) == len(names)
    assert lines[0] == (
        "hf://org/nowhere can't be had: it is not in the local cache, and the hub can't be reached;"
        " give a local file or folder instead."
    )
    assert "holds no weights" in lines[1]
    for line in lines[2:7]:
        assert "is not of the form hf://org/name, or hf://org/name@revision." in line
    assert lines[7].startswith("hf://org/empty can't be had: it is not in the local cache")


def test_hub_that_does_not_answer_is_the_same_sentence(tmp_path):
    script = REFUSALS.format(names=["org/nowhere"])
    # A port that nothing listens on: the hub can't be reached, whatever the machine's network is.
    text = run(script, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9")
    assert "can't be had: it is not in the local cache, and the hub can't be reached" in text
    assert len(text.splitlines()) == 1
