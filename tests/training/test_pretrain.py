"""`vitrail.pretrain`: pictures without labels in, a masked autoencoder out, and fine-tuning that starts from it."""

import csv
import itertools
import json
import re
import signal
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from vitrail.tasks.planning import Facts
from vitrail.training.plan import fill
from vitrail.training.pretrain.plan import fill_pretraining, policy_for
from vitrail.tasks.reconstruct.start import start_autoencoder

import vitrail
from tests.odd_files import photograph
from tests.training.support import Command, differences, make_folder, make_images, make_trainer, rows
from vitrail import VitrailError
from vitrail.data.sources.classification import open_pictures
from vitrail.explain import reconstruct
from vitrail.models import MaskedAutoencoder
from vitrail.models.heads import classifiers
from vitrail.tasks.backbones import start_model
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.reconstruct.objective import Reconstruct
from vitrail.training import PretrainRecipe, loop
from vitrail.training.optimization import linear
from vitrail.training.config import Recipe
from vitrail.weights import read_checkpoint

SMALL = {"model": "vit_nano2", "device": "cpu", "workers": 0, "cache": "memory", "batch_size": 8}
OPTIONS = [
    "--model", "vit_nano2", "--device", "cpu", "--workers", "1", "--cache", "memory", "--batch-size", "6", "--lr",
    "1e-3", "--epochs", "3", "--seed", "3",
]  # fmt: skip
STEP, FORWARD = "vitrail.training.trainer.Trainer._step", "vitrail.inference.forward.Forward._fitting"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("pictures"), count=60)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> vitrail.Run:
    return vitrail.pretrain(data, out=tmp_path_factory.mktemp("runs") / "mae", epochs=3, **SMALL)


# Learning.


def test_a_tiny_autoencoder_learns_a_few_images_by_heart():
    torch.manual_seed(0)
    model, images = start_autoencoder(PretrainRecipe(model="vit_nano4"), 16, False).model, make_images(4, side=16)
    images.numbers = np.tile(images.numbers, 40)  # four pictures, ten steps of four masks each in an epoch
    trainer = make_trainer(model, images, epochs=32, batch_size=16, lr=1e-3, warmup=2, betas=(0.9, 0.95))
    trainer.task, trainer.augmenter.size = Reconstruct(), (16, 16)
    trainer.run()
    losses = [row["train_loss"] for row in trainer.history]
    assert losses[0] > 0.8 and losses[-1] < 0.1


def test_a_run_keeps_a_complete_autoencoder(run, data):
    names = {path.name for path in run.folder.iterdir() if not path.name.startswith("events")}
    assert names == {
        "last.pt", "metrics.jsonl", "model.safetensors", "reconstruction.png", "reconstructions", "report.html",
        "run.json", "split.csv",
    }  # fmt: skip
    predictor = vitrail.load(run, device="cpu")
    assert isinstance(predictor.model, MaskedAutoencoder) and predictor.about["task"] == "reconstruct"
    assert predictor.about["recipe"]["mask_ratio"] == 0.75 and predictor.about["finished"]
    pictures = sorted(data.rglob("*.png"))[:3]
    assert predictor.embed(pictures).shape == (3, 64)
    with pytest.raises(VitrailError, match="has no classes to predict; it gives features"):
        predictor.predict(pictures)
    with pytest.raises(VitrailError, match="has no classes to measure; it gives features"):
        vitrail.evaluate(run, data)
    found = reconstruct(predictor.model, torch.rand(2, 3, 8, 12))  # another size and aspect ratio than it learned from
    assert found.painted.shape == (2, 3, 8, 12) and found.mask.sum().item() == 2 * 18
    assert run.metrics.keys() == {"loss", "knn_top1", "probe_top1", "n"} and run.metrics["n"] == 6


def test_figures_pictures_and_report_follow_the_run(run):
    figures = rows(run.folder)
    assert [row["epoch"] for row in figures] == [1, 2, 3]
    assert all(0.5 < row["val_loss"] < 1.1 and 0 <= row["val_knn_top1"] <= 1 for row in figures)
    assert all(0 <= row["val_probe_top1"] <= 1 for row in figures)
    assert figures[-1]["train_loss"] < figures[0]["train_loss"]
    assert run.metrics["loss"] == pytest.approx(figures[-1]["val_loss"], rel=1e-6)
    sheets = sorted(path.name for path in (run.folder / "reconstructions").iterdir())
    assert sheets == ["epoch-0001.png", "epoch-0002.png", "epoch-0003.png"]
    latest = (run.folder / "reconstruction.png").read_bytes()
    assert latest == (run.folder / "reconstructions" / "epoch-0003.png").read_bytes()
    first, last = (Image.open(run.folder / "reconstructions" / f"epoch-000{i}.png").convert("RGB") for i in (1, 3))
    # Six pictures in two columns: the originals and the masks stay what they are, what is painted changes.
    for left, same in ((0, True), (132, True), (264, False)):
        box = (left, 20, left + 128, last.height)
        assert (first.crop(box).tobytes() == last.crop(box).tobytes()) is same
    page = (run.folder / "report.html").read_text()
    assert "After epoch 3: original, masked, reconstructed." in page and "k-NN accuracy" in page
    assert f'<p class="value">{run.metrics["loss"]:.4f}<' in page  # a number, not a percentage


def test_a_run_that_is_killed_or_stopped_ends_with_the_same_bits(data, tmp_path):
    whole, folder, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    command = Command("pretrain", data, *OPTIONS, "--out", whole, log=log)
    assert command.wait() == 0, command.said
    assert "positions" in command.said and "4 of 16 are seen" in command.said
    assert "The loss starts near 0.9" in command.said and "(from 0.9" in command.said
    points = [((STEP, 4), signal.SIGKILL, -9), ((STEP, 13), signal.SIGTERM, 130), ((FORWARD, 2), signal.SIGINT, 130)]
    for number, ((name, nth), kill, code) in enumerate(points):
        resume = ["--resume"] if number else OPTIONS
        command = Command("pretrain", data, *resume, "--out", folder, log=log, at=(name, nth, kill))
        assert command.wait() == code, command.said
    assert command.said.splitlines()[-1].endswith(f"To go on: vitrail pretrain {data} --out {folder} --resume")
    command = Command("pretrain", "--out", folder, "--resume", log=log)
    assert command.wait() == 0, command.said
    assert differences(whole, folder) == []
    assert (whole / "reconstruction.png").read_bytes() == (folder / "reconstruction.png").read_bytes()
    with pytest.raises(VitrailError, match="was begun by `vitrail pretrain`: --resume it with that"):
        vitrail.train(out=folder, resume=True)
    with pytest.raises(VitrailError, match=r"has mask_ratio 0\.75; --resume continues it exactly"):
        vitrail.pretrain(out=folder, resume=True, mask_ratio=0.5)
    assert vitrail.pretrain(out=folder, resume=True).metrics["n"] == 6  # finished already


# Data without labels.


def loose_pictures(folder: Path, sizes=((9, 30), (40, 12), (16, 16), (8, 9))) -> Path:
    folder.mkdir(parents=True)
    for number in range(24):
        height, width = sizes[number % len(sizes)]
        photograph(number, height, width, hue=number / 24).save(folder / f"{number}.jpg")
    return folder


def test_a_folder_of_pictures_of_any_size_is_enough(tmp_path, capsys):
    folder = loose_pictures(tmp_path / "album")
    (folder / "broken.jpg").write_bytes(b"no picture")
    run = vitrail.pretrain(folder, out=tmp_path / "run", epochs=2, mask_ratio=0.5, **SMALL)
    said = capsys.readouterr().out
    assert "no labels, 23 pictures to learn from, 2 to watch the loss on" in said
    assert "8 of 16 are seen" in said and "can't be read" in said
    assert set(rows(run.folder)[0]) == {"epoch", "train_loss", "lr", "images", "val_loss"}
    assert run.metrics.keys() == {"loss", "n"}
    model = vitrail.load(run, device="cpu").model
    assert model(torch.rand(2, 3, 8, 8)).mask.sum(1).tolist() == [8, 8]
    assert model(torch.rand(1, 3, 14, 6)).prediction.shape == (1, 21, 12)


@pytest.mark.parametrize(("lr", "hardly"), [(1e-6, True), (3e-3, False)])
def test_a_run_that_has_hardly_learned_anything_says_so(lr, hardly, tmp_path, capsys):
    vitrail.pretrain(loose_pictures(tmp_path / "album"), out=tmp_path / "run", epochs=10, val=0.25, lr=lr, **SMALL)
    hint = "give it more epochs, or more pictures, or begin with --weights vitrail_tiny_mae"
    words = f"(It has hardly learned anything yet: {hint}.)"
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert (words in capsys.readouterr().out) is (words[1:-1] in page) is hardly


def test_without_pictures_held_out_the_training_loss_is_all_there_is(tmp_path):
    run = vitrail.pretrain(loose_pictures(tmp_path / "album"), out=tmp_path / "run", epochs=1, val=0.0, **SMALL)
    assert run.metrics == {} and set(rows(run.folder)[0]) == {"epoch", "train_loss", "lr", "images"}
    assert (run.folder / "reconstruction.png").exists()


def test_labels_are_taken_where_they_are(tmp_path, data):
    assert open_pictures(data).classes == ["class 0", "class 1", "class 2"]
    loose = loose_pictures(tmp_path / "album")
    assert open_pictures(loose).classes == [] and len(open_pictures(loose)) == 24
    splits = tmp_path / "splits"
    loose_pictures(splits / "train")
    loose_pictures(splits / "val")
    source = open_pictures(splits)
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 24, "val": 24}
    assert source.splits["val"][0].name == "val/0.jpg" and source.splits["val"][0].labels == ()
    photograph(1, 8, 8).save(loose / "more.png")
    make_folder(loose / "inner", count=6)
    source = open_pictures(loose)
    assert len(source) == 31 and source.notes == [
        "Some pictures lie beside the folders, so the folders are not taken for labels."
    ]


# The plan.


@pytest.mark.parametrize(
    ("side", "gpu", "name", "patch"),
    [(8, False, "mae_vit_nano4", 4), (32, True, "mae_vit_mini4", 4), (64, True, "mae_vit_mini8", 8),
     (300, True, "mae_vit_s16", 16), (300, False, "mae_deit_ti16", 16)],
)  # fmt: skip
def test_small_pictures_get_small_patches(side, gpu, name, patch):
    start = start_autoencoder(PretrainRecipe(), side, gpu)
    settings = start.model.settings
    assert start.name == name and settings.patch_size == (patch, patch)
    assert (settings.position, settings.num_classes, settings.norm_pix) == ("sincos", 0, True)
    assert start.preprocessing.size == settings.image_size


def test_photographs_that_are_to_be_small_get_small_patches_too():
    start = start_autoencoder(PretrainRecipe(image_size=64), 500, False)
    assert start.name == "mae_vit_mini8" and start.preprocessing.size == (64, 64)
    start = start_model(None, "none", ["a", "b"], 32, None, 500, False)
    assert start.name == "vit_mini4" and start.preprocessing.size == (32, 32)


def test_the_schedule_is_the_papers_scaled_to_the_data():
    full, why = fill_pretraining(PretrainRecipe(batch_size=4096), 1_280_000, 224, True)
    assert (full.lr, full.weight_decay, full.crop, full.flip) == (2.4e-3, 0.05, 0.2, 0.5)
    assert full.warmup == full.epochs / 20 and why["batch_size"] == "as asked"
    small, why = fill_pretraining(PretrainRecipe(), 4_000, 32, False)
    assert (small.epochs, small.batch_size, small.val) == (800, 64, 0.1)
    assert small.lr == pytest.approx(3e-4) and "√(64/4096)" in why["lr"]
    assert policy_for(small).scale == (0.2, 1.0) and policy_for(small).randaugment is None
    assert fill_pretraining(PretrainRecipe(epochs=10), 4_000, 8, False)[0].warmup == 0.5


# Fine-tuning.


def test_fine_tuning_starts_from_the_very_weights_of_the_encoder(run):
    start = start_model(None, str(run.folder), ["a", "b"], None, None, 12, False)
    settings, state = start.model.settings, start.model.state_dict()
    assert (settings.position, settings.pool, settings.norm_after_pool) == ("sincos", "mean", True)
    assert start.masked and start.name == "vit_nano2" and "masked autoencoder" in start.why
    encoder = {
        name.removeprefix("encoder."): tensor
        for name, tensor in load_file(run.folder / "model.safetensors").items()
        if name.startswith("encoder.")
    }
    for name, tensor in encoder.items():
        assert torch.equal(state[name.replace("norm.", "norm_pool.") if name.startswith("norm.") else name], tensor)
    assert state.keys() - {n.replace("norm.", "norm_pool.") if n.startswith("norm.") else n for n in encoder} == {
        "head.output.weight", "head.output.bias",
    }  # fmt: skip


def test_training_goes_on_from_a_run_with_what_masked_autoencoders_want(run, data, tmp_path, capsys):
    options = {key: value for key, value in SMALL.items() if key not in ("model", "batch_size")}
    tuned = vitrail.train(data, weights=run, out=tmp_path / "run", epochs=20, **options)
    said = capsys.readouterr().out
    assert "Starts from the encoder in" in said and "a new head on the mean of its patches" in said
    assert re.search(r"layer decay +0\.75  MAE's paper", said) and re.search(r"lr .* MAE's paper", said)
    first = rows(tuned.folder)[1]
    assert first["epoch"] == 1 and first["train_loss"] < 1.5 * np.log(len(vitrail.load(tuned).labels))
    record = json.loads((tuned.folder / "run.json").read_text())
    assert record["recipe"]["layer_decay"] == 0.75 and record["model"]["masked"]
    assert tuned.metrics["top1"] > 0.5
    assert read_checkpoint(tuned.folder / "model.safetensors").settings.position == "sincos"
    larger = vitrail.train(data, weights=run, out=tmp_path / "large", image_size=12, tune="probe", **options)
    assert vitrail.load(larger, device="cpu").preprocessing.size == (12, 12)


def test_a_linear_classifier_that_is_not_lost_in_training_is_what_tuning_starts_from(run, data, tmp_path, capsys):
    options = {key: value for key, value in SMALL.items() if key not in ("model", "batch_size")}
    still = {"epochs": 1, "lr": 1e-9, "ema": 0.0, "refit": "off"}
    tuned = vitrail.train(data, weights=run, out=tmp_path / "tuned", **options, **still)
    probe = vitrail.train(data, weights=run, out=tmp_path / "probe", tune="probe", refit="off", **options)
    assert "begins_small" not in rows(tuned.folder)[0] and "small head" not in capsys.readouterr().out
    state = torch.load(tuned.folder / "last.pt", weights_only=True)["model"]
    solved = load_file(probe.folder / "model.safetensors")
    assert all(torch.allclose(state[name], solved[name], atol=1e-6) for name in solved)


@pytest.fixture
def lost(monkeypatch):
    """As where the linear classifier is lost in training, and tuning starts from a small head."""
    monkeypatch.setattr(linear, "FAR_OFF", 0.0)
    return {key: value for key, value in SMALL.items() if key not in ("model", "batch_size")}


def test_a_classifier_is_lost_where_it_does_far_worse_than_one_that_knows_nothing():
    images, classes = make_images(30, side=8), [str(number) for number in range(10)]
    model = vitrail.create_model("vit_nano2", num_classes=len(classes))
    small, unchanged = linear.heads(model), lambda pictures, *_: torch.stack([*pictures]).float() / 255
    pictures = images, unchanged, Classify(classes)
    assert not linear.is_lost(model, small, *pictures)
    with torch.no_grad():
        classifiers(model)[0].weight.mul_(1e4)
    assert linear.is_lost(model, small, *pictures)
    assert torch.equal(linear.heads(model)[0]["weight"], small[0]["weight"] * 1e4)  # it only looked


def test_whether_a_classifier_is_lost_is_seen_on_images_of_all_classes():
    """Also where classes come in turn, and every tenth image is of the same one."""
    images, classes, seen = make_images(30, classes=10, side=8), [str(number) for number in range(10)], []
    images.numbers = np.resize(images.numbers, 5000)
    model = vitrail.create_model("vit_nano2", num_classes=len(classes))

    def unchanged(pictures, numbers, *_):
        seen.extend(number % 10 for number in numbers)
        return torch.stack([*pictures]).float() / 255

    assert not linear.is_lost(model, linear.heads(model), images, unchanged, Classify(classes))
    assert len(seen) == 2 * linear.LOOKED_AT and min(np.bincount(seen, minlength=10)) > linear.LOOKED_AT / 10


def test_a_tuning_too_short_to_get_ahead_of_the_linear_classifier_keeps_it(run, data, tmp_path, capsys, lost):
    for refit in ("off", "on"):
        short, probe = (
            vitrail.train(data, weights=run, refit=refit, out=tmp_path / f"{name}-{refit}", **lost, **more)
            for name, more in (("short", {"epochs": 1, "lr": 1e-6}), ("probe", {"tune": "probe"}))
        )
        said = capsys.readouterr().out
        assert "tuning starts from a small head, and has to get ahead of it." in said
        assert "Kept: the linear classifier on frozen features" in said
        one, other = (load_file(each.folder / "model.safetensors") for each in (short, probe))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        assert short.metrics["top1"] == probe.metrics["top1"] and rows(short.folder)[0]["begins_small"]


def test_the_second_time_on_all_images_starts_from_the_small_head_too(run, data, tmp_path, lost):
    """As one run on all of them does, of which none are held out."""
    options = lost | {"batch_size": 12, "epochs": 30}
    twice = vitrail.train(data, weights=run, refit="on", out=tmp_path / "twice", **options)
    about = read_checkpoint(twice.folder / "model.safetensors").about["metrics"]
    assert about["share"] == 1 and about["epoch"] > 0
    table = tmp_path / "all.csv"
    with (twice.folder / "split.csv").open() as file:
        split = list(csv.DictReader(file))
    lines = [
        f"{data / row['path']},{row['label']}" for name in ("train", "val") for row in split if row["split"] == name
    ]
    table.write_text("\n".join(["path,label", *lines]))
    once = vitrail.train(table, weights=run, refit="off", val=0.0, out=tmp_path / "once", **options)
    one, other = (load_file(each.folder / "model.safetensors") for each in (once, twice))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("nth", [3, 30 * 4 + 3])  # in the first time, and in the second on all images
def test_tuning_from_a_small_head_that_was_stopped_goes_on_to_the_bit(run, data, tmp_path, lost, monkeypatch, nth):
    options, whole, stopped = lost | {"batch_size": 12, "epochs": 30}, tmp_path / "whole", tmp_path / "stopped"
    vitrail.train(data, weights=run, refit="on", out=whole, **options)
    step, calls = loop.Trainer._step, itertools.count(1)

    def stopping(trainer, *batch):
        if next(calls) == nth:
            raise loop.Stopped("here.")
        return step(trainer, *batch)

    with monkeypatch.context() as patched, pytest.raises(loop.Stopped):
        patched.setattr(loop.Trainer, "_step", stopping)
        vitrail.train(data, weights=run, refit="on", out=stopped, **options)
    vitrail.train(out=stopped, resume=True)
    assert differences(whole, stopped) == []


def test_the_plan_after_masking_is_the_papers_whatever_frozen_features_do():
    facts = Facts(50_000, 10, True, 32, masked=True)
    full, why = fill(Recipe(), facts)
    assert (full.epochs, full.layer_decay, full.drop_path, full.mixup, full.cutmix) == (100, 0.75, 0.1, 0.8, 1.0)
    assert full.warmup == 5 and full.lr == pytest.approx(2e-3 * (256 / 1024) ** 0.5) and "MAE's paper" in why["lr"]
    assert why["mixup"] == "after MAE, 50,000 images" and not any("scratch" in reason for reason in why.values())
    assert fill(Recipe(), Facts(50_000, 10, False, 32))[1]["mixup"] == "from scratch, 50,000 images"
    usual, _ = fill(Recipe(), Facts(50_000, 10, True, 32))
    assert usual.lr is None and usual.epochs < full.epochs


def test_pretraining_goes_on_from_an_autoencoder(run, data, tmp_path, capsys):
    start = start_autoencoder(PretrainRecipe(weights=str(run.folder), mask_ratio=0.5), 12, False)
    assert start.model.settings.mask_ratio == 0.5 and start.pretrained and start.name == "mae_vit_nano2"
    kept = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in start.model.state_dict().items())
    vitrail.pretrain(data, weights=run, epochs=1, device="cpu", workers=0, out=tmp_path / "more")
    said = capsys.readouterr().out
    assert "Without what it knows already the loss would start near" in said and "The loss starts" not in said


def test_pretraining_goes_on_with_the_masks_and_the_targets_that_the_weights_had(data, tmp_path, capsys):
    first, odd = tmp_path / "first", ["--epochs", "1", "--mask-ratio", "0.5", "--no-norm-pix"]
    command = Command("pretrain", data, *OPTIONS, *odd, "--out", first, log=tmp_path / "log")
    assert command.wait() == 0, command.said
    assert re.search(r"mask ratio +0\.5 +as asked", command.said)
    assert re.search(r"target +colours +as asked", command.said)
    options = {"epochs": 1, "device": "cpu", "workers": 0}

    def went_on(**asked):
        folder = tmp_path / "-".join(["more", *asked])
        settings = vitrail.load(vitrail.pretrain(data, **options, **asked, out=folder), device="cpu").model.settings
        recipe = json.loads((folder / "run.json").read_text())["recipe"]
        assert (recipe["mask_ratio"], recipe["norm_pix"]) == (settings.mask_ratio, settings.norm_pix)
        return settings.mask_ratio, settings.norm_pix, capsys.readouterr().out

    *kept, said = went_on(weights=first)
    assert kept == [0.5, False] and "The loss starts" not in said
    assert re.search(r"mask ratio +0\.5 +as the weights had it", said)
    assert re.search(r"target +colours +as the weights had it", said)
    *asked, said = went_on(weights=first, mask_ratio=0.75)
    assert asked == [0.75, False] and re.search(r"mask ratio +0\.75 +as asked", said)
    *usual, said = went_on(model="vit_nano2")
    assert usual == [0.75, True] and re.search(r"mask ratio +0\.75 +the paper's", said)
    assert re.search(r"target +norm_pix +better features", said)


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_from_before_the_masks_were_left_open_is_resumed(data, tmp_path, monkeypatch, saved):
    """Its record has them as if they had been asked for."""
    options, whole, stopped = SMALL | {"epochs": 2, "seed": 3}, tmp_path / "whole", tmp_path / "stopped"
    vitrail.pretrain(data, out=whole, **options)
    step, calls = loop.Trainer._step, itertools.count(1)

    def stopping(trainer, *batch):
        if next(calls) == 3:
            trainer.leave.asked = True
        return step(trainer, *batch)

    with monkeypatch.context() as patched, pytest.raises(loop.Stopped):
        patched.setattr(loop.Trainer, "_step", stopping)
        vitrail.pretrain(data, out=stopped, **options)
    record = json.loads((stopped / "run.json").read_text())
    record["given"] |= {"mask_ratio": 0.75, "norm_pix": True}
    record["why"].pop("norm_pix", None)
    (stopped / "run.json").write_text(json.dumps(record))
    if not saved:
        (stopped / "last.pt").unlink()
    vitrail.pretrain(out=stopped, resume=True)
    assert differences(whole, stopped) == []


# Refusals.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "swin_t"}, "swin_t can't be pre-trained by masking"),
        ({"model": "cpvt_ti16"}, "needs positions that are added to them, not 'conditional'"),
        ({"model": "deit_ti16_distilled"}, "has a distillation token, which nobody would teach here"),
        ({"model": "r50_vit_b16"}, "a hybrid's stem would look behind the mask"),
        ({"model": "vit_xyz"}, "There is no model named 'vit_xyz'"),
        ({"model": "tv:resnet18"}, "is a convolutional network, which has no patches to leave out"),
        ({"image_size": 2}, "are 1 patch of 2, too few to hide 75%"),
        ({"mask_ratio": 1.0}, r"--mask-ratio must be from 0\.05 to 0\.95, got 1\.0"),
        ({"crop": 0.0}, r"--crop must be from 0\.01 to 1, got 0\.0"),
        ({"norm_pix": "yes"}, "--norm-pix can't be 'yes'"),
        ({"mask_ratoi": 3}, r"'mask_ratoi' is not an option of pretrain\. Did you mean"),
    ],
)
def test_what_can_not_be_meant_is_one_sentence(options, sentence, data, tmp_path):
    with pytest.raises(VitrailError, match=sentence) as error:
        vitrail.pretrain(data, out=tmp_path / "run", epochs=1, **{**SMALL, **options})
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [("vit_nano4", r"patch_size \(2, 2\)"), ("vit_nano2:position=rotary", "position sincos")],
)
def test_a_model_named_beside_an_autoencoder_has_to_be_its(model, words, run):
    assert start_autoencoder(PretrainRecipe(weights=str(run.folder), model="vit_nano2"), 12, False).pretrained
    with pytest.warns() if model == "vit_nano4" else nullcontext(), pytest.raises(VitrailError, match=words):
        start_autoencoder(PretrainRecipe(weights=str(run.folder), model=model), 12, False)


def test_bad_data_and_weights_are_one_sentence(data, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitrailError, match="is empty: expected pictures, in folders or not"):
        vitrail.pretrain(tmp_path / "empty", out=tmp_path / "run", **SMALL)
    with pytest.raises(VitrailError, match="Name the data: pictures in folders"):
        vitrail.pretrain(**SMALL)
    with pytest.raises(VitrailError, match=r"There is no .*nowhere"):
        vitrail.pretrain(tmp_path / "nowhere", **SMALL)
    path = vitrail.save_weights(vitrail.create_model("vit_nano2"), tmp_path / "vit.safetensors")
    with pytest.raises(VitrailError, match="is no masked autoencoder; --weights of pretrain continues one"):
        vitrail.pretrain(data, weights=path, out=tmp_path / "run", **{**SMALL, "model": None})
