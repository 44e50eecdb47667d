"""`vitrail.pretrain`: images without labels in, a masked autoencoder out."""

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

import vitrail
from tests.odd_files import photograph
from tests.training.support import Command, differences, make_folder, make_images, make_trainer, rows, watch_steps
from vitrail import VitrailError
from vitrail.data.sources.classification import open_pictures
from vitrail.explain import reconstruct
from vitrail.models import MaskedAutoencoder
from vitrail.reasons import Reason
from vitrail.tasks import registry
from vitrail.tasks.backbones import start_model
from vitrail.tasks.planning import Facts
from vitrail.tasks.reconstruct.objective import Reconstruct
from vitrail.tasks.reconstruct.plan import crops_and_flips
from vitrail.tasks.reconstruct.start import start_autoencoder
from vitrail.training.config import TrainConfig
from vitrail.training.run import plan
from vitrail.training.signals import Stopped

SMALL = {"model": "vit_nano2", "device": "cpu", "workers": 0, "cache": "memory", "batch_size": 8}
OPTIONS = [
    "--model", "vit_nano2", "--device", "cpu", "--workers", "1", "--cache", "memory", "--batch-size", "6", "--lr",
    "1e-3", "--epochs", "3", "--seed", "3",
]  # fmt: skip
STEP, FORWARD = "vitrail.training.trainer.Trainer.train_step", "vitrail.inference.forward.Forward._fitting"


def config(**options) -> TrainConfig:
    return TrainConfig(task="reconstruct", **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=60)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> vitrail.Run:
    return vitrail.pretrain(data, out=tmp_path_factory.mktemp("runs") / "mae", epochs=3, **SMALL)


# Learning.


def test_a_tiny_autoencoder_learns_a_few_images_by_heart():
    torch.manual_seed(0)
    model, images = start_autoencoder(config(model="vit_nano4"), 16, False).model, make_images(4, side=16)
    images.numbers = np.tile(images.numbers, 40)  # four images, ten steps of four masks each in an epoch
    trainer = make_trainer(
        model, images, objective=Reconstruct(), side=16, epochs=32, batch_size=16, lr=1e-3, warmup=2, betas=(0.9, 0.95)
    )
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
    images = sorted(data.rglob("*.png"))[:3]
    assert predictor.embed(images).shape == (3, 64)
    with pytest.raises(VitrailError, match="gives features"):
        predictor.predict(images)
    with pytest.raises(VitrailError, match="gives features"):
        vitrail.evaluate(run, data)
    found = reconstruct(predictor.model, torch.rand(2, 3, 8, 12))  # another size and aspect ratio than it learned from
    assert found.painted.shape == (2, 3, 8, 12) and found.mask.sum().item() == 2 * 18
    assert run.metrics.keys() == {"loss", "knn_top1", "probe_top1", "n"} and run.metrics["n"] == 6


def test_figures_images_and_report_follow_the_run(run):
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
    # Six images in two columns: the originals and the masks stay what they are, what is painted changes.
    for left, same in ((0, True), (132, True), (264, False)):
        box = (left, 20, left + 128, last.height)
        assert (first.crop(box).tobytes() == last.crop(box).tobytes()) is same
    page = (run.folder / "report.html").read_text()
    assert "After epoch 3" in page and "k-NN accuracy" in page
    assert f'<p class="value">{run.metrics["loss"]:.4f}<' in page  # a number, not a percentage


def test_a_run_that_is_killed_or_stopped_ends_with_the_same_bits(data, tmp_path):
    whole, folder, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    command = Command("pretrain", data, *OPTIONS, "--out", whole, log=log)
    assert command.wait() == 0, command.said
    assert "positions" in command.said and re.search(r"patches +2×2 +4 of 16", command.said)
    assert "near 0.9" in command.said and "(from 0.9" in command.said
    points = [((STEP, 4), signal.SIGKILL, -9), ((STEP, 13), signal.SIGTERM, 130), ((FORWARD, 2), signal.SIGINT, 130)]
    for number, ((name, nth), kill, code) in enumerate(points):
        resume = ["--resume"] if number else OPTIONS
        command = Command("pretrain", data, *resume, "--out", folder, log=log, at=(name, nth, kill))
        assert command.wait() == code, command.said
    assert command.said.splitlines()[-1].endswith(f" vitrail pretrain {data} --out {folder} --resume")
    command = Command("pretrain", "--out", folder, "--resume", log=log)
    assert command.wait() == 0, command.said
    assert differences(whole, folder) == []
    assert (whole / "reconstruction.png").read_bytes() == (folder / "reconstruction.png").read_bytes()
    with pytest.raises(VitrailError) as info:
        vitrail.train(out=folder, resume=True)
    assert info.value.code == "other_verb"
    with pytest.raises(VitrailError) as info:
        vitrail.pretrain(out=folder, resume=True, mask_ratio=0.5)
    assert (info.value.code, info.value.fields["option"]) == ("not_the_same_run", "mask_ratio")
    assert vitrail.pretrain(out=folder, resume=True).metrics["n"] == 6  # finished already


# Data without labels.


def loose_images(folder: Path, sizes=((9, 30), (40, 12), (16, 16), (8, 9))) -> Path:
    folder.mkdir(parents=True)
    for number in range(24):
        height, width = sizes[number % len(sizes)]
        photograph(number, height, width, hue=number / 24).save(folder / f"{number}.jpg")
    return folder


def test_a_folder_of_images_of_any_size_is_enough(tmp_path, capsys):
    folder = loose_images(tmp_path / "album")
    (folder / "broken.jpg").write_bytes(b"no picture")
    run = vitrail.pretrain(folder, out=tmp_path / "run", epochs=2, mask_ratio=0.5, **SMALL)
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {split: text.split(" images")[0] for split, text in record["samples"].items()} == {"train": "23", "val": "2"}
    assert [Path(name).name for name in record["unreadable"]] == ["broken.jpg"]
    assert re.search(r"patches +2×2 +8 of 16", said) and "broken.jpg" in said
    assert set(rows(run.folder)[0]) == {"epoch", "train_loss", "lr", "images", "val_loss"}
    assert run.metrics.keys() == {"loss", "n"}
    model = vitrail.load(run, device="cpu").model
    assert model(torch.rand(2, 3, 8, 8)).mask.sum(1).tolist() == [8, 8]
    assert model(torch.rand(1, 3, 14, 6)).prediction.shape == (1, 21, 12)


@pytest.mark.parametrize(("lr", "hardly"), [(1e-6, True), (3e-3, False)])
def test_a_run_that_has_hardly_learned_anything_says_so(lr, hardly, tmp_path, capsys):
    vitrail.pretrain(loose_images(tmp_path / "album"), out=tmp_path / "run", epochs=10, val=0.25, lr=lr, **SMALL)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    hint = "--weights vitrail_tiny_mae"  # what to begin with instead
    assert (hint in capsys.readouterr().out) is (hint in page) is hardly


def test_without_images_held_out_the_training_loss_is_all_there_is(tmp_path):
    run = vitrail.pretrain(loose_images(tmp_path / "album"), out=tmp_path / "run", epochs=1, val=0.0, **SMALL)
    assert run.metrics == {} and set(rows(run.folder)[0]) == {"epoch", "train_loss", "lr", "images"}
    assert (run.folder / "reconstruction.png").exists()


def test_labels_are_taken_where_they_are(tmp_path, data):
    assert open_pictures(data).classes == ["class 0", "class 1", "class 2"]
    loose = loose_images(tmp_path / "album")
    assert open_pictures(loose).classes == [] and len(open_pictures(loose)) == 24
    splits = tmp_path / "splits"
    loose_images(splits / "train")
    loose_images(splits / "val")
    source = open_pictures(splits)
    assert {split: len(samples) for split, samples in source.splits.items()} == {"train": 24, "val": 24}
    assert source.splits["val"][0].name == "val/0.jpg" and source.splits["val"][0].labels == ()
    photograph(1, 8, 8).save(loose / "more.png")
    make_folder(loose / "inner", count=6)
    source = open_pictures(loose)
    assert len(source) == 31 and len(source.notes) == 1  # that the folders are not taken for labels


# The plan.


@pytest.mark.parametrize(
    ("side", "gpu", "name", "patch"),
    [(8, False, "mae_vit_nano4", 4), (32, True, "mae_vit_mini4", 4), (64, True, "mae_vit_mini8", 8),
     (300, True, "mae_vit_s16", 16), (300, False, "mae_deit_ti16", 16)],
)  # fmt: skip
def test_small_images_get_small_patches(side, gpu, name, patch):
    start = start_autoencoder(config(), side, gpu)
    settings = start.model.settings
    assert start.name == name and settings.patch_size == (patch, patch)
    assert (settings.position, settings.num_classes, settings.norm_pix) == ("sincos", 0, True)
    assert start.preprocessing.size == settings.image_size


def test_photographs_that_are_to_be_small_get_small_patches_too():
    start = start_autoencoder(config(image_size=64), 500, False)
    assert start.name == "mae_vit_mini8" and start.preprocessing.size == (64, 64)
    start = start_model(None, "none", ["a", "b"], 32, None, 500, False)
    assert start.name == "vit_mini4" and start.preprocessing.size == (32, 32)


def test_the_schedule_is_the_papers_scaled_to_the_data():
    task = registry.task("reconstruct")
    full, why = plan(task, config(batch_size=4096), Facts(1_280_000, 0, False, 224, own_val=True))
    assert (full.lr, full.weight_decay, full.crop, full.flip) == (2.4e-3, 0.05, 0.2, 0.5)
    assert (full.optimizer, full.ema, full.clip, full.layer_decay) == ("adamw", 0.0, 0.0, 1.0)
    assert full.warmup == full.epochs / 20 and why["batch_size"] == Reason("as_asked")
    assert full.val == 0.0 and why["val"] == Reason("own_val")
    small, why = plan(task, config(), Facts(4_000, 0, False, 32))
    assert (small.epochs, small.batch_size, small.val) == (800, 64, 0.1)
    assert small.lr == pytest.approx(3e-4)
    assert why["lr"] == Reason("batch_scaled", reason=Reason("mae_rate_scaled"), batch=64, usual=4096)
    assert crops_and_flips(small).scale == (0.2, 1.0) and crops_and_flips(small).randaugment is None
    assert plan(task, config(epochs=10), Facts(4_000, 0, False, 8))[0].warmup == 0.5


def test_the_optimizer_and_a_running_average_can_be_asked_for(data, tmp_path):
    run = vitrail.pretrain(data, out=tmp_path / "run", epochs=1, optimizer="muon", ema=0.9, clip=1.0, **SMALL)
    record = json.loads((run.folder / "run.json").read_text())
    assert {record["why"][name] for name in ("optimizer", "ema", "clip")} == {"as asked"}
    state = torch.load(run.folder / "last.pt", weights_only=True)
    assert state["average"] is not None and np.isfinite(run.metrics["loss"])


# Going on.


def test_pretraining_goes_on_from_an_autoencoder(run, data, tmp_path, capsys):
    start = start_autoencoder(config(weights=str(run.folder), mask_ratio=0.5), 12, False)
    assert start.model.settings.mask_ratio == 0.5 and start.pretrained and start.name == "mae_vit_nano2"
    kept = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in start.model.state_dict().items())
    vitrail.pretrain(data, weights=run, epochs=1, device="cpu", workers=0, out=tmp_path / "more")
    assert "The loss starts" not in capsys.readouterr().out


def test_pretraining_goes_on_with_the_masks_and_the_targets_that_the_weights_had(data, tmp_path, capsys):
    first, odd = tmp_path / "first", ["--epochs", "1", "--mask-ratio", "0.5", "--no-norm-pix"]
    command = Command("pretrain", data, *OPTIONS, *odd, "--out", first, log=tmp_path / "log")
    assert command.wait() == 0, command.said
    assert re.search(r"mask ratio +0\.5", command.said) and re.search(r"target +colours", command.said)
    options = {"epochs": 1, "device": "cpu", "workers": 0}

    def went_on(**asked):
        folder = tmp_path / "-".join(["more", *asked])
        settings = vitrail.load(vitrail.pretrain(data, **options, **asked, out=folder), device="cpu").model.settings
        record = json.loads((folder / "run.json").read_text())
        assert (record["recipe"]["mask_ratio"], record["recipe"]["norm_pix"]) == (
            settings.mask_ratio,
            settings.norm_pix,
        )
        return settings.mask_ratio, settings.norm_pix, record["why"]

    had, asked = str(Reason("as_weights")), str(Reason("as_asked"))
    *kept, why = went_on(weights=first)
    assert kept == [0.5, False] and "The loss starts" not in capsys.readouterr().out
    assert (why["mask_ratio"], why["norm_pix"]) == (had, had)
    *changed, why = went_on(weights=first, mask_ratio=0.75)
    assert changed == [0.75, False] and (why["mask_ratio"], why["norm_pix"]) == (asked, had)
    *usual, why = went_on(model="vit_nano2")
    assert usual == [0.75, True]
    assert (why["mask_ratio"], why["norm_pix"]) == (str(Reason("paper")), str(Reason("better_features")))


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_from_before_the_masks_were_left_open_is_resumed(data, tmp_path, monkeypatch, saved):
    """Its record has them as if they had been asked for."""
    options, whole, stopped = SMALL | {"epochs": 2, "seed": 3}, tmp_path / "whole", tmp_path / "stopped"
    vitrail.pretrain(data, out=whole, **options)
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        watch_steps(patched, stop_in=[3])
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
    ("options", "code"),
    [
        ({"model": "swin_t"}, "no_patches"),
        ({"model": "tv:resnet18"}, "no_patches"),
        ({"model": "deit_ti16_distilled"}, "distillation_token"),
        ({"image_size": 2}, "too_few_patches"),
        ({"mask_ratoi": 3}, "unknown_option"),
        ({"tune": "lora"}, "option_of_another_task"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_its_code(options, code, data, tmp_path):
    with pytest.raises(VitrailError) as info:
        vitrail.pretrain(data, out=tmp_path / "run", epochs=1, **{**SMALL, **options})
    assert info.value.code == code
    assert "\n" not in str(info.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "cpvt_ti16"}, "'conditional'"),
        ({"model": "r50_vit_b16"}, "hybrid"),
        ({"model": "vit_xyz"}, "'vit_xyz'"),
        ({"mask_ratio": 1.0}, r"0\.05 to 0\.95"),
        ({"crop": 0.0}, r"0\.01 to 1"),
        ({"norm_pix": "yes"}, "'yes'"),
        ({"mask_ratoi": 3}, '"mask_ratio"'),
    ],
)
def test_a_refusal_names_what_was_found_or_what_is_possible(options, named, data, tmp_path):
    with pytest.raises(VitrailError, match=named) as info:
        vitrail.pretrain(data, out=tmp_path / "run", epochs=1, **{**SMALL, **options})
    assert "\n" not in str(info.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [("vit_nano4", r"patch_size \(2, 2\)"), ("vit_nano2:position=rotary", "sincos")],
)
def test_a_model_named_beside_an_autoencoder_has_to_be_its(model, words, run):
    assert start_autoencoder(config(weights=str(run.folder), model="vit_nano2"), 12, False).pretrained
    with pytest.warns() if model == "vit_nano4" else nullcontext(), pytest.raises(VitrailError, match=words):
        start_autoencoder(config(weights=str(run.folder), model=model), 12, False)


def test_bad_data_and_weights_are_refused(data, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitrailError, match="is empty"):
        vitrail.pretrain(tmp_path / "empty", out=tmp_path / "run", **SMALL)
    path = vitrail.save_weights(vitrail.create_model("vit_nano2"), tmp_path / "vit.safetensors")
    for given, options, code in (
        (None, {}, "no_data"),
        (tmp_path / "nowhere", {}, "data_missing"),
        (data, {"weights": path, "model": None}, "not_an_autoencoder"),
    ):
        with pytest.raises(VitrailError) as info:
            vitrail.pretrain(given, out=tmp_path / "run", **{**SMALL, **options})
        assert info.value.code == code
    assert not (tmp_path / "run").exists()
