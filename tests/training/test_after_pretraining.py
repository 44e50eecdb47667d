"""Fine-tuning that starts from a masked autoencoder: its encoder, the plan that such weights want, and the head."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.support import differences, make_folder, make_images, rows, watch_steps
from vitrail.data.loader import Subset
from vitrail.models.heads import classifiers
from vitrail.reasons import Reason
from vitrail.tasks import linear_probe, registry
from vitrail.tasks.backbones import start_model
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.image_level import AugmentImages
from vitrail.tasks.planning import Facts
from vitrail.training.config import TrainConfig
from vitrail.training.run import plan
from vitrail.training.signals import Stopped
from vitrail.weights import read_checkpoint

OPTIONS = {"device": "cpu", "workers": 0, "cache": "memory"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), count=60)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> vitrail.Run:
    options = OPTIONS | {"model": "vit_nano2", "batch_size": 8, "epochs": 3}
    return vitrail.pretrain(data, out=tmp_path_factory.mktemp("runs") / "mae", **options)


def test_fine_tuning_starts_from_the_very_weights_of_the_encoder(run):
    start = start_model(None, str(run.folder), ["a", "b"], None, None, 12, False)
    settings, state = start.model.settings, start.model.state_dict()
    assert (settings.position, settings.pool, settings.norm_after_pool) == ("sincos", "mean", True)
    assert start.masked and start.name == "vit_nano2"
    assert start.reasons == [Reason("start_encoder", source=str(run.folder))]
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


def test_training_goes_on_from_a_run_with_what_masked_autoencoders_want(run, data, tmp_path):
    tuned = vitrail.train(data, weights=run, out=tmp_path / "run", epochs=20, **OPTIONS)
    first = rows(tuned.folder)[1]
    assert first["epoch"] == 1 and first["train_loss"] < 1.5 * np.log(len(vitrail.load(tuned).labels))
    record = json.loads((tuned.folder / "run.json").read_text())
    assert record["recipe"]["layer_decay"] == 0.75 and record["model"]["masked"]
    assert record["why"]["layer_decay"] == str(Reason("mae_paper"))
    assert tuned.metrics["top1"] > 0.5
    assert read_checkpoint(tuned.folder / "model.safetensors").settings.position == "sincos"
    larger = vitrail.train(data, weights=run, out=tmp_path / "large", image_size=12, tune="probe", **OPTIONS)
    assert vitrail.load(larger, device="cpu").preprocessing.size == (12, 12)


def test_a_linear_probe_that_holds_on_augmented_images_is_what_tuning_starts_from(run, data, tmp_path):
    still = {"epochs": 1, "lr": 1e-9, "ema": 0.0, "refit": "off"}
    tuned = vitrail.train(data, weights=run, out=tmp_path / "tuned", **OPTIONS, **still)
    probe = vitrail.train(data, weights=run, out=tmp_path / "probe", tune="probe", refit="off", **OPTIONS)
    assert "begins_small" not in rows(tuned.folder)[0]
    state = torch.load(tuned.folder / "last.pt", weights_only=True)["model"]
    solved = load_file(probe.folder / "model.safetensors")
    assert all(torch.allclose(state[name], solved[name], atol=1e-6) for name in solved)


@pytest.fixture
def bad_start(monkeypatch):
    """As where the linear probe fails on augmented images, and tuning starts from an untrained head."""
    monkeypatch.setattr(linear_probe, "FAR_OFF", 0.0)


class Unchanged:
    """In the place of augmentation; remembers whom it was shown."""

    size, mean = (8, 8), (0.5,) * 3

    def __init__(self):
        self.seen: list[int] = []

    def __call__(self, images, numbers, *_):
        self.seen.extend(numbers.tolist())
        return torch.stack([*images]).float() / 255


def unchanged(images: Subset, classes: int) -> AugmentImages:
    objective = Classify([str(number) for number in range(classes)])
    return AugmentImages(Unchanged(), objective, images, [sample.labels for sample in images.samples])


def test_a_linear_probe_is_a_bad_start_where_it_does_far_worse_than_a_head_that_knows_nothing():
    model, augment = vitrail.create_model("vit_nano2", num_classes=10), unchanged(make_images(30, side=8), 10)
    untrained = linear_probe.heads_of(model)
    assert not linear_probe.is_bad_start(model, untrained, augment)
    with torch.no_grad():
        classifiers(model)[0].weight.mul_(1e4)
    assert linear_probe.is_bad_start(model, untrained, augment)
    assert torch.equal(linear_probe.heads_of(model)[0]["weight"], untrained[0]["weight"] * 1e4)  # it only looked


def test_whether_a_probe_is_a_bad_start_is_seen_on_images_of_all_classes():
    """Also where classes come in turn, and every tenth image is of the same one."""
    images = make_images(30, classes=10, side=8)
    images.numbers = np.resize(images.numbers, 5000)
    model, augment = vitrail.create_model("vit_nano2", num_classes=10), unchanged(images, 10)
    assert not linear_probe.is_bad_start(model, linear_probe.heads_of(model), augment)
    seen = np.array(augment.augmenter.seen) % 10
    looked_at = linear_probe.LOOKED_AT
    assert len(seen) == 2 * looked_at and min(np.bincount(seen, minlength=10)) > looked_at / 10


def test_a_tuning_too_short_to_get_ahead_of_the_linear_probe_keeps_it(run, data, tmp_path, bad_start):
    for refit in ("off", "on"):
        short, probe = (
            vitrail.train(data, weights=run, refit=refit, out=tmp_path / f"{name}-{refit}", **OPTIONS, **more)
            for name, more in (("short", {"epochs": 1, "lr": 1e-6}), ("probe", {"tune": "probe"}))
        )
        assert read_checkpoint(short.folder / "model.safetensors").about["metrics"]["epoch"] == 0
        one, other = (load_file(each.folder / "model.safetensors") for each in (short, probe))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        assert short.metrics["top1"] == probe.metrics["top1"] and rows(short.folder)[0]["begins_small"]


def test_the_refit_on_all_images_starts_from_the_untrained_head_too(run, data, tmp_path, bad_start):
    """As one run on all of them does, of which none are held out."""
    options = OPTIONS | {"batch_size": 12, "epochs": 30}
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


@pytest.mark.parametrize("nth", [3, 30 * 4 + 3])  # in the first training, and in the refit on all images
def test_tuning_from_an_untrained_head_that_was_stopped_goes_on_to_the_bit(
    run, data, tmp_path, bad_start, monkeypatch, nth
):
    options, whole, stopped = OPTIONS | {"batch_size": 12, "epochs": 30}, tmp_path / "whole", tmp_path / "stopped"
    vitrail.train(data, weights=run, refit="on", out=whole, **options)
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        watch_steps(patched, stop_in=[nth])
        vitrail.train(data, weights=run, refit="on", out=stopped, **options)
    vitrail.train(out=stopped, resume=True)
    assert differences(whole, stopped) == []


def test_the_plan_after_masking_is_the_papers_whatever_frozen_features_do():
    def planned(**facts):
        return plan(registry.task("classify"), TrainConfig(), Facts(50_000, 10, side=32, **facts))

    full, why = planned(pretrained=True, masked=True)
    assert (full.epochs, full.layer_decay, full.drop_path, full.mixup, full.cutmix) == (100, 0.75, 0.1, 0.8, 1.0)
    assert full.warmup == 5 and full.lr == pytest.approx(2e-3 * (256 / 1024) ** 0.5)
    assert why["lr"] == Reason("batch_scaled", reason=Reason("mae_rate", batch=1024), batch=256, usual=1024)
    assert why["mixup"] == Reason("after_mae_images", n=50_000)
    assert not any("scratch" in str(reason) for reason in why.values())
    assert planned(pretrained=False)[1]["mixup"] == Reason("scratch_images", n=50_000)
    usual, _ = planned(pretrained=True)
    assert usual.lr is None and usual.epochs < full.epochs
