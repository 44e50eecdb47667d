"""A step as one CUDA graph trains the same weights as the steps by themselves."""

import gc

import numpy as np
import pytest
import torch

import vitrail
from tests.training.dense_data import make_masks
from tests.training.support import rows, small_options
from vitrail.training import loop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "noise.npz"
    np.savez(path, images=rng.integers(0, 256, (600, 16, 16, 3), dtype=np.uint8), labels=rng.integers(0, 4, 600))
    return path


@pytest.mark.parametrize("compiled", ["on", "off"])
def test_recorded_steps_give_the_losses_of_plain_ones_and_resume(compiled, pictures, tmp_path, monkeypatch):
    options = small_options(model="vit_nano4", epochs=4, batch_size=64, ema=0.9, drop_path=0.1, augment="medium")
    options |= {"compile": compiled, "device": "cuda", "weights": "none"}
    whole = vitrail.train(pictures, **options, out=tmp_path / "recorded")
    step, done = loop.Trainer._step, []

    def stopping(trainer, *args):
        done.append(trainer)
        assert trainer.recorded is not None
        trainer.leave.asked = len(done) == 13
        return step(trainer, *args)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_step", stopping)
        with pytest.raises(loop.Stopped):
            vitrail.train(pictures, **options, out=tmp_path / "stopped")
    vitrail.train(out=tmp_path / "stopped", resume=True)
    monkeypatch.setattr(loop, "Recorded", lambda *_: None)
    plain = vitrail.train(pictures, **options, out=tmp_path / "plain")
    losses = {run: [row["train_loss"] for row in rows(run)] for run in (whole.folder, plain.folder)}
    assert losses[whole.folder] == pytest.approx(losses[plain.folder], abs=1e-4)
    stopped = [row["train_loss"] for row in rows(tmp_path / "stopped")]
    assert stopped == pytest.approx(losses[whole.folder], abs=1e-4)


def test_a_run_that_was_begun_without_recording_goes_on_with_it(pictures, tmp_path, monkeypatch):
    """Its state comes from an optimizer whose steps were not to be recorded; class weights are read in every step."""
    options = small_options(model="vit_nano4", epochs=3, batch_size=64, balance="weights", weights="none")
    step, recorded = loop.Trainer._step, []

    def stopping(trainer, *args):
        recorded.append(trainer.recorded is not None)
        trainer.leave.asked = len(recorded) == 5
        return step(trainer, *args)

    monkeypatch.setattr(loop.Trainer, "_step", stopping)
    with monkeypatch.context() as patched, pytest.raises(loop.Stopped):
        patched.setattr(loop, "Recorded", lambda *_: None)
        vitrail.train(pictures, **options | {"compile": "off", "device": "cuda"}, out=tmp_path / "run")
    begun = len(recorded)
    vitrail.train(out=tmp_path / "run", resume=True, compile="on", device="cuda")
    assert not any(recorded[:begun]) and all(recorded[begun:]) and len(recorded) - begun > 4
    assert [row["epoch"] for row in rows(tmp_path / "run") if row["epoch"]] == [1, 2, 3]


def test_what_can_not_be_recorded_goes_on_step_by_step(pictures, tmp_path, monkeypatch, capsys):
    """Here an update that waits for the GPU, in the middle of it."""
    options = small_options(model="vit_nano4", epochs=2, batch_size=64, drop_path=0.1, weights="none", device="cuda")
    gradients = loop.Trainer._gradients

    def waiting(trainer, *args):
        loss = gradients(trainer, *args)
        assert loss.item() > 0
        return loss

    with monkeypatch.context() as patched:
        patched.setattr(loop, "Recorded", lambda *_: None)
        plain = vitrail.train(pictures, **options, out=tmp_path / "plain")
    monkeypatch.setattr(loop.Trainer, "_gradients", waiting)
    run = vitrail.train(pictures, **options, out=tmp_path / "run")
    assert "kernel by kernel" in capsys.readouterr().out
    assert [row["train_loss"] for row in rows(run.folder)] == pytest.approx(
        [row["train_loss"] for row in rows(plain.folder)], abs=1e-5
    )


@pytest.mark.parametrize(
    "name", ["vit_nano4", "swin_t", "deit_ti16", "hybrid_mini4", "cpvt_ti16", "tv:resnet18", "tv:efficientnet_b0"]
)
def test_the_step_of_every_family_can_be_recorded(name, pictures, tmp_path, capsys):
    options = small_options(model=name, epochs=1, batch_size=32, image_size=64, weights="none", device="cuda")
    vitrail.train(pictures, **options, out=tmp_path / "run")
    assert "kernel by kernel" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["head", "adapter", "lora", "prompt", "bias"])
def test_the_step_of_every_way_to_tune_can_be_recorded(kind, pictures, tmp_path, capsys):
    options = small_options(model="vit_nano4", epochs=1, batch_size=32, device="cuda")
    base = vitrail.train(pictures, **options, out=tmp_path / "base")
    vitrail.train(pictures, **options | {"weights": base, "tune": kind}, out=tmp_path / "run")
    assert "kernel by kernel" not in capsys.readouterr().out


def test_the_step_with_muon_can_be_recorded_and_learns_as_without(pictures, tmp_path, monkeypatch, capsys):
    options = small_options(model="vit_nano4", epochs=2, batch_size=64, optimizer="muon", weights="none", device="cuda")
    whole = vitrail.train(pictures, **options, out=tmp_path / "recorded")
    assert "kernel by kernel" not in capsys.readouterr().out
    monkeypatch.setattr(loop, "Recorded", lambda *_: None)
    plain = vitrail.train(pictures, **options, out=tmp_path / "plain")
    losses = [[row["train_loss"] for row in rows(run.folder)] for run in (whole, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.parametrize("head", ["linear", "fcn", "upernet"])
def test_the_step_of_a_segmenter_can_be_recorded(head, tmp_path, capsys):
    """But for the linear one they stand on a ViT-Adapter, whose attention depends on the sizes of its maps."""
    data = make_masks(tmp_path / "masks", {"train": 32, "val": 4})
    options = small_options(model="vit_nano4", task="segment", head=head, batch_size=4, image_size=32, epochs=1)
    vitrail.train(data, **options | {"device": "cuda"}, out=tmp_path / "run")
    assert "kernel by kernel" not in capsys.readouterr().out


def test_the_memory_of_a_recorded_step_is_given_back(pictures, tmp_path):
    options = small_options(model="vit_nano4", epochs=1, batch_size=64, weights="none", device="cuda")
    kept = []
    gc.disable()  # a loop and its recorded step do not hold each other
    for number in range(3):
        vitrail.train(pictures, **options, out=tmp_path / f"run{number}")
        torch.cuda.empty_cache()
        kept.append(torch.cuda.memory_reserved())
    gc.enable()
    assert kept[2] <= kept[0]
