"""A step as one CUDA graph trains the same weights as the steps by themselves."""

import gc

import numpy as np
import pytest
import torch

import vitrail
from tests.training.dense_data import make_masks
from tests.training.support import rows, small_options, watch_steps
from vitrail.training import setup
from vitrail.training.fast.cuda_graph import reason
from vitrail.training.signals import Stopped
from vitrail.training.trainer import Trainer

UNRECORDED = "kernel by kernel"  # of the note that steps can't be recorded
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def never_record(patch) -> None:
    patch.setattr(setup, "RecordedSteps", lambda *_: None)


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "noise.npz"
    np.savez(path, images=rng.integers(0, 256, (600, 16, 16, 3), dtype=np.uint8), labels=rng.integers(0, 4, 600))
    return path


@on_gpu
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_recorded_steps_give_the_losses_of_plain_ones_and_resume(compiled, images, tmp_path, monkeypatch):
    options = small_options(model="vit_nano4", epochs=4, batch_size=64, ema=0.9, drop_path=0.1, augment="medium")
    options |= {"compile": compiled, "device": "cuda", "weights": "none"}
    whole = vitrail.train(images, **options, out=tmp_path / "recorded")
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        recorded = watch_steps(patched, lambda trainer: trainer.recorded is not None, stop_in=[13])
        vitrail.train(images, **options, out=tmp_path / "stopped")
    assert all(recorded)
    vitrail.train(out=tmp_path / "stopped", resume=True)
    never_record(monkeypatch)
    plain = vitrail.train(images, **options, out=tmp_path / "plain")
    losses = {run: [row["train_loss"] for row in rows(run)] for run in (whole.folder, plain.folder)}
    assert losses[whole.folder] == pytest.approx(losses[plain.folder], abs=1e-4)
    stopped = [row["train_loss"] for row in rows(tmp_path / "stopped")]
    assert stopped == pytest.approx(losses[whole.folder], abs=1e-4)


@on_gpu
def test_a_run_that_was_begun_without_recording_goes_on_with_it(images, tmp_path, monkeypatch):
    """Its state comes from an optimizer whose steps were not to be recorded; class weights are read in every step."""
    options = small_options(model="vit_nano4", epochs=3, batch_size=64, balance="weights", weights="none")
    recorded = watch_steps(monkeypatch, lambda trainer: trainer.recorded is not None, stop_in=[5])
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        never_record(patched)
        vitrail.train(images, **options | {"compile": "off", "device": "cuda"}, out=tmp_path / "run")
    begun = len(recorded)
    vitrail.train(out=tmp_path / "run", resume=True, compile="on", device="cuda")
    assert not any(recorded[:begun]) and all(recorded[begun:]) and len(recorded) - begun > 4
    assert [row["epoch"] for row in rows(tmp_path / "run") if row["epoch"]] == [1, 2, 3]


@on_gpu
def test_what_can_not_be_recorded_goes_on_step_by_step(images, tmp_path, monkeypatch, capsys):
    """Here an update that waits for the GPU, in the middle of it."""
    options = small_options(model="vit_nano4", epochs=2, batch_size=64, drop_path=0.1, weights="none", device="cuda")
    gradients = Trainer.gradients

    def waiting(trainer, *args):
        loss = gradients(trainer, *args)
        assert loss.item() > 0
        return loss

    with monkeypatch.context() as patched:
        never_record(patched)
        plain = vitrail.train(images, **options, out=tmp_path / "plain")
    monkeypatch.setattr(Trainer, "gradients", waiting)
    run = vitrail.train(images, **options, out=tmp_path / "run")
    assert UNRECORDED in capsys.readouterr().out
    assert [row["train_loss"] for row in rows(run.folder)] == pytest.approx(
        [row["train_loss"] for row in rows(plain.folder)], abs=1e-5
    )


@on_gpu
@pytest.mark.parametrize(
    "name", ["vit_nano4", "swin_t", "deit_ti16", "hybrid_mini4", "cpvt_ti16", "tv:resnet18", "tv:efficientnet_b0"]
)
def test_the_step_of_every_family_can_be_recorded(name, images, tmp_path, capsys):
    options = small_options(model=name, epochs=1, batch_size=32, image_size=64, weights="none", device="cuda")
    vitrail.train(images, **options, out=tmp_path / "run")
    assert UNRECORDED not in capsys.readouterr().out


@on_gpu
@pytest.mark.parametrize("kind", ["head", "adapter", "lora", "prompt", "bias"])
def test_the_step_of_every_way_to_tune_can_be_recorded(kind, images, tmp_path, capsys):
    options = small_options(model="vit_nano4", epochs=1, batch_size=32, device="cuda")
    base = vitrail.train(images, **options, out=tmp_path / "base")
    vitrail.train(images, **options | {"weights": base, "tune": kind}, out=tmp_path / "run")
    assert UNRECORDED not in capsys.readouterr().out


@on_gpu
def test_the_step_with_muon_can_be_recorded_and_learns_as_without(images, tmp_path, monkeypatch, capsys):
    options = small_options(model="vit_nano4", epochs=2, batch_size=64, optimizer="muon", weights="none", device="cuda")
    whole = vitrail.train(images, **options, out=tmp_path / "recorded")
    assert UNRECORDED not in capsys.readouterr().out
    never_record(monkeypatch)
    plain = vitrail.train(images, **options, out=tmp_path / "plain")
    losses = [[row["train_loss"] for row in rows(run.folder)] for run in (whole, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@on_gpu
@pytest.mark.parametrize("head", ["linear", "fcn", "upernet"])
def test_the_step_of_a_segmenter_can_be_recorded(head, tmp_path, capsys):
    """But for the linear one they stand on a ViT-Adapter, whose attention depends on the sizes of its maps."""
    data = make_masks(tmp_path / "masks", {"train": 32, "val": 4})
    options = small_options(model="vit_nano4", task="segment", head=head, batch_size=4, image_size=32, epochs=1)
    vitrail.train(data, **options | {"device": "cuda"}, out=tmp_path / "run")
    assert UNRECORDED not in capsys.readouterr().out


@on_gpu
def test_the_memory_of_a_recorded_step_is_given_back(images, tmp_path):
    options = small_options(model="vit_nano4", epochs=1, batch_size=64, weights="none", device="cuda")
    kept = []
    gc.disable()  # a loop and its recorded step do not hold each other
    for number in range(3):
        vitrail.train(images, **options, out=tmp_path / f"run{number}")
        torch.cuda.empty_cache()
        kept.append(torch.cuda.memory_reserved())
    gc.enable()
    assert kept[2] <= kept[0]


def test_why_a_step_was_not_recorded_is_what_broke_it_and_not_how_that_ended():
    def broken(first: Exception) -> Exception:
        try:
            try:
                raise first
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        except RuntimeError as error:
            return error

    assert reason(broken(RuntimeError("not permitted\nwhen stream is capturing"))) == "not permitted"
    assert reason(broken(AssertionError())) == "AssertionError"
    assert reason(RuntimeError("no memory")) == "no memory"
