"""`--tune adapter | lora | prompt | bias | head`: real runs on small images."""

import gc
import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.support import QUIET, SMALL, Command, differences, make_folder, rows, small_options
from tests.training.test_distributed import together
from vitrail.data.sources.classification import open_source
from vitrail.errors import VitrailError
from vitrail.models import VisionTransformer, create_model
from vitrail.models.tuning import PARTS, is_part, learns, tune
from vitrail.tasks.tuning_cost import cost_of
from vitrail.weights import save_weights

CHEAP = ("adapter", "lora", "prompt", "bias")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data"), count=48)


@pytest.fixture(scope="module")
def base(data, tmp_path_factory) -> Path:
    """Trained a little, on other classes."""
    out = tmp_path_factory.mktemp("base") / "run"
    other = make_folder(out.parent / "other", count=40, classes=4, start=100)
    vitrail.train(other, **small_options(epochs=3, batch_size=8, out=out))
    return out / "model.safetensors"


def options(base: Path, out: Path, **more) -> dict:
    return small_options(weights=str(base), epochs=2, batch_size=8, out=out, lr=3e-3) | {"model": None} | more


@pytest.mark.parametrize("kind", [*CHEAP, "head", "probe"])
def test_a_run_changes_only_what_may_learn_and_leaves_two_files(data, base, tmp_path, kind, capsys):
    out = tmp_path / "run"
    run = vitrail.train(data, **options(base, out, tune=kind))
    said = capsys.readouterr().out
    before, after = load_file(base), load_file(out / "model.safetensors")
    small = load_file(out / "adapter.safetensors")
    trained = "head" if kind == "probe" else kind

    for name, value in before.items():
        if not learns(name, trained) and not (kind == "lora" and name.endswith((".qkv.weight", ".proj.weight"))):
            assert torch.equal(value, after[name]), name
    assert {n for n in after if n not in before} == {n for n in after if is_part(n)}
    assert set(small) <= set(after) | {n for n in small if ".lora_" in n}

    # Both files are the model: the one by itself, the other on its base, found through the run.
    whole, parts = vitrail.load(out, device="cpu"), vitrail.load(out / "adapter.safetensors", device="cpu")
    images = [sample.where for sample in open_source(str(data)).splits["all"]][:12]
    one, other = whole.probabilities(images), parts.probabilities(images)
    assert (one - other).abs().max() < 1e-5
    assert whole.labels == parts.labels == [f"class {i}" for i in range(3)]
    assert parts.about["finished"] and parts.about["metrics"]["top1"] == run.metrics["top1"]
    assert f"{out / 'adapter.safetensors'}" in said and " MB" in said
    if kind in CHEAP:
        count = sum(t.numel() for n, t in small.items())
        assert f"{count:,}" in said and said.count("--tune full") == 2  # of its memory and of its speed


@pytest.mark.parametrize("kind", CHEAP)
def test_without_images_to_choose_by_all_that_was_learned_is_kept_and_lora_merged(data, base, tmp_path, kind):
    vitrail.train(data, **options(base, tmp_path, val=0.0, tune=kind, lora_targets="proj,mlp"))
    before, after, small = (
        load_file(p) for p in (base, tmp_path / "model.safetensors", tmp_path / "adapter.safetensors")
    )
    if kind != "lora":
        moved = [
            n for n in small if n not in before or (not n.startswith("head") and not torch.equal(before[n], small[n]))
        ]
        assert len(moved) == len(small) - 2 and all(small[n].any() for n in moved)
        return
    assert not any(is_part(name) for name in after)
    moved = {n for n in before if not n.startswith("head") and not torch.equal(before[n], after[n])}
    assert len(moved) == 4 * 3 and all(n.endswith((".proj.weight", ".fc1.weight", ".fc2.weight")) for n in moved)
    for name in moved:
        a, b = (small[name.replace("weight", f"lora_{x}")] for x in "ab")
        assert (after[name] - before[name] - b @ a).abs().max() < 1e-6


def straight_and_killed(command: list, data: Path, tmp_path: Path, step: int) -> tuple[Path, Path, str]:
    """The folders of a run, and of one that was killed at a step and went on; and what the first said."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    at = ("vitrail.training.trainer.Trainer.train_step", step, signal.SIGKILL)
    first = Command(*command, "--out", straight, log=tmp_path / "a.log")
    second = Command(*command, "--out", killed, log=tmp_path / "b.log", at=at)
    assert first.wait() == 0, first.said
    assert second.wait() == -signal.SIGKILL
    third = Command("train", data, "--out", killed, "--resume", log=tmp_path / "c.log")
    assert third.wait() == 0, third.said
    return straight, killed, first.said


@pytest.mark.parametrize(("kind", "more"), [("lora", []), ("head", ["--augment", "none"])])
def test_a_run_that_was_killed_goes_on_to_the_bit(data, base, tmp_path, kind, more):
    command = ["train", data, *SMALL, *QUIET, *more, "--model", "vit_nano2", "--weights", base, "--tune", kind]
    command += ["--epochs", "3", "--batch-size", "8", "--val", "0.2"]
    straight, killed, _ = straight_and_killed(command, data, tmp_path, 7)
    assert differences(straight, killed) == []
    one, other = (load_file(run / "adapter.safetensors") for run in (straight, killed))
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_an_image_that_only_the_features_found_damaged_stays_left_out_when_it_goes_on(base, tmp_path):
    data = make_folder(tmp_path / "data", count=40)
    (data / "class 1" / "004.png").write_bytes(b"nothing")
    command = ["train", data, *SMALL, *QUIET, "--cache", "off", "--weights", base, "--tune", "head"]
    command += ["--epochs", "3", "--batch-size", "4", "--val", "0.2", "--refit", "off"]
    straight, killed, said = straight_and_killed(command, data, tmp_path, 12)
    assert differences(straight, killed) == []
    # Of 40 images 8 are held out, and one of the others can't be read.
    assert rows(straight)[1]["images"] == 31 // 4 * 4 and "waited" not in said


@pytest.mark.parametrize(("kind", "more"), [("adapter", []), ("head", ["--augment", "none"])])
def test_two_processes_give_the_losses_of_one(data, base, tmp_path, kind, more):
    command = ["train", data, *SMALL, *QUIET, *more, "--weights", base, "--tune", kind, "--epochs", "2"]
    command += ["--batch-size", "8", "--refit", "off"]
    for count in (1, 2):
        together(count, *command, "--out", tmp_path / str(count), log=tmp_path / "log")
    for a, b in zip(rows(tmp_path / "1"), rows(tmp_path / "2"), strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-5)
        assert b["val_loss"] == pytest.approx(a["val_loss"], abs=1e-5)
    one, two = (load_file(tmp_path / count / "adapter.safetensors") for count in ("1", "2"))
    assert one.keys() == two.keys() and all((one[n] - two[n]).abs().max() < 1e-4 for n in one)


def test_a_head_learns_from_cached_features_as_it_does_from_images(data, base, tmp_path, monkeypatch):
    """With nothing drawn at random, both see the same inputs; the model itself sees each image once."""
    seen: list[int] = []
    embed = VisionTransformer.embed
    monkeypatch.setattr(VisionTransformer, "embed", lambda self, x: (seen.append(len(x)), embed(self, x))[1])
    still = {"tune": "head", "augment": "none", "mixup": 0.0, "cutmix": 0.0, "refit": "off", "label_smoothing": 0.0}
    vitrail.train(data, **options(base, tmp_path / "cached", **still))
    cached = rows(tmp_path / "cached")
    assert sum(seen) == 48 + 2  # and one image twice for the plan
    seen.clear()
    vitrail.train(data, **options(base, tmp_path / "slow", **still | {"mixup": 1e-6}))  # which draws, to no effect
    slow = rows(tmp_path / "slow")
    assert sum(seen) > 3 * 48
    assert [row["epoch"] for row in cached] == [0, 1, 2]
    for a, b in zip(cached, slow, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=0.02)
        assert a["val_loss"] == pytest.approx(b["val_loss"], abs=0.02)


def test_weights_that_hold_adapters_go_on_with_them(data, base, tmp_path):
    first = vitrail.train(data, **options(base, tmp_path / "a", tune="adapter", epochs=1))
    vitrail.train(data, **options(first.folder, tmp_path / "b", tune="adapter", epochs=1))
    before, after = (load_file(tmp_path / r / "model.safetensors") for r in "ab")
    frozen = [n for n in before if not learns(n, "adapter")]
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in frozen)
    hashes = [json.loads((tmp_path / r / "run.json").read_text())["model"]["base"]["hashes"] for r in "ab"]
    assert hashes[0] == hashes[1]  # one base, whichever file it was read from
    with pytest.raises(VitrailError, match=r"width 32 .* rank 8"):
        vitrail.train(data, **options(first.folder, tmp_path / "c", tune="lora"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"weights": "none", "model": "vit_nano2", "tune": "lora"}, ["--tune lora", "--weights"]),
        ({"tune": "lora", "lora_targets": "qkv,head"}, ["qkv, proj, mlp", "head"]),
        ({"tune": "adapter", "adapter_width": 0}, ["--adapter-width", " 0."]),
        ({"tune": "adapters"}, ["--tune adapters", "full, head, probe, adapter, lora, prompt, bias", '"adapter"']),
        ({"tune": "adapter", "adapter_place": "under"}, ["--adapter-place under", "sequential, parallel"]),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(data, base, tmp_path, more, words):
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, **options(base, tmp_path / "run", **more))
    assert all(word in str(info.value) for word in words) and "\n" not in str(info.value)
    assert "model" not in more or info.value.code == "nothing_to_tune"
    assert not (tmp_path / "run").exists()


def test_what_the_plan_measures_leaves_no_graph_behind():
    """It would be in the way of a recorded step. A weight's node lives as long as a graph that leads to it."""
    model = create_model("vit_nano4", num_classes=4)
    gc.collect()
    gc.disable()
    try:
        cost_of(model, "full", 8, torch.float32)
        nodes = [lambda p=p: p.view_as(p).grad_fn.next_functions[0][0].metadata for p in model.parameters()]
        for node in nodes:
            node()["seen"] = True
        assert not any("seen" in node() for node in nodes)
    finally:
        gc.enable()


def test_the_costs_are_those_of_the_arithmetic():
    """Full: a forward and two products backward for each; frozen weights spare one of the two, a head alone both."""
    model = create_model("vit_nano4", num_classes=3)
    full, head = (cost_of(model, kind, 8, torch.float32) for kind in ("full", "head"))
    assert full.learning == sum(p.numel() for p in model.parameters()) and head.learning == 3 * 65
    assert full.work / head.work == pytest.approx(3, rel=0.1)
    assert all(p.grad is None for p in model.parameters())
    for kind in PARTS:
        tuned = tune(create_model("vit_nano4", num_classes=3), kind)
        own, all_of_it = (cost_of(tuned, k, 8, torch.float32) for k in (kind, "full"))
        assert 1.3 < all_of_it.work / own.work < 1.7
        assert own.memory < all_of_it.memory
    # Plain forward kept nothing: what stays is the weights, and a gradient and three averages for each of the head's.
    weights = sum(p.numel() for p in model.parameters())
    assert head.memory == pytest.approx(weights * 4 + head.learning * 16, rel=0.1)


def test_a_swin_is_tuned_like_a_vit(data, tmp_path):
    torch.manual_seed(0)
    model = create_model("swin_t", depths=(1, 1), heads=(2, 4), width=16, image_size=16, patch_size=2, num_classes=0)
    path = save_weights(model, tmp_path / "swin.safetensors")
    for kind in CHEAP:
        vitrail.train(data, **options(path, tmp_path / kind, tune=kind, epochs=1, refit="off"))
        before, after = load_file(path), load_file(tmp_path / kind / "model.safetensors")
        assert all(torch.equal(before[n], after[n]) for n in before if not learns(n, kind) and kind != "lora")
        x = torch.randn(2, 3, 16, 16)
        whole, parts = (vitrail.load(tmp_path / kind / f, device="cpu").model for f in ("", "adapter.safetensors"))
        with torch.no_grad():
            assert (whole(x) - parts(x)).abs().max() < 1e-5
