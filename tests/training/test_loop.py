"""The loop on small real tensors: it learns, accumulates, makes do with little memory, and knows when to stop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from vitrail.tasks.classify.plan import policy_of

import vitrail
from tests.odd_files import photograph
from tests.training.support import Narrow, make_folder, make_images, make_trainer, rows, small_options
from vitrail import VitrailError
from vitrail.data.augment.crop import Canvas
from vitrail.data.augment.mixing import mix
from vitrail.models import create_model
from vitrail.tasks.classify.objective import Classify
from vitrail.training import batches, job, loop


def test_a_handful_of_images_is_learnt_by_heart(tmp_path):
    """Labels that have nothing to do with the pictures: whatever is wrong on the way from file to weight shows."""
    for number, label in enumerate("abbaabab"):
        path = tmp_path / "data" / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, 8, 8).save(path)
    run = vitrail.train(
        tmp_path / "data", out=tmp_path / "run", val=0.0, epochs=60, batch_size=4, augment="none", mixup=0.0,
        drop_path=0.0, label_smoothing=0.0, ema=0.0, weight_decay=0.0, warmup=5.0, **small_options(lr=3e-3),
    )  # fmt: skip
    losses = [row["train_loss"] for row in rows(run.folder)]
    assert losses[0] > 0.5
    assert losses[-1] < 2e-3
    predictor = vitrail.load(run, device="cpu")
    for path in (tmp_path / "data").rglob("*.png"):
        (best,) = predictor.predict(path, top=1)[0]
        assert best.label == path.parent.name and best.probability > 0.995


def gradients(micro_batch: int) -> dict[str, torch.Tensor]:
    trainer = make_trainer(micro_batch=micro_batch)
    _, images = next(trainer.train.loader.batches([trainer.train.numbers]))
    pixels = trainer.augmenter(images, trainer.train.numbers, 0, "cpu")
    trainer._accumulate(pixels, trainer.task.targets(trainer.train.labels()))
    return {name: parameter.grad for name, parameter in trainer.model.named_parameters()}


def test_four_times_eight_images_make_the_gradient_of_thirty_two():
    parts, whole = gradients(8), gradients(32)
    assert max(value.abs().max().item() for value in whole.values()) > 0.01
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6)


def weights_after(micro_batch: int, **settings) -> dict[str, torch.Tensor]:
    trainer = make_trainer(micro_batch=micro_batch, **{"lr": 1e-4, "clip": 1.0, **settings})
    trainer.run()
    return trainer.model.state_dict()


@pytest.mark.parametrize("micro_batch", [8, 5, 1])
def test_accumulation_ends_with_the_same_weights(micro_batch):
    whole, parts = weights_after(32), weights_after(micro_batch)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6)


def test_out_of_memory_halves_the_micro_batch_and_goes_on():
    torch.manual_seed(1)
    model = Narrow(create_model("vit_nano2", depth=2, num_classes=4), room=9)
    said: list[str] = []
    trainer = make_trainer(model, make_images(64), note=said.append, epochs=2, batch_size=32, lr=1e-4, clip=1.0)
    torch.manual_seed(1)
    trainer.run()
    assert model.asked[:7] == [32, 16, 8, 8, 8, 8, 8] and set(model.asked[7:]) == {8}
    assert [line.strip() for line in said] == [
        "Out of memory: 16 images per forward pass from here on; the batch stays 32.",
        "Out of memory: 8 images per forward pass from here on; the batch stays 32.",
    ]
    assert trainer.state()["micro_batch"] == 8
    started_small = make_trainer(images=make_images(64), epochs=2, batch_size=32, lr=1e-4, clip=1.0, micro_batch=8)
    started_small.run()
    for name, value in started_small.model.state_dict().items():
        torch.testing.assert_close(model.model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_out_of_memory_half_way_through_a_batch_begins_it_again():
    """What the first micro-batch left in the gradients must not count twice."""
    torch.manual_seed(1)
    model = Narrow(create_model("vit_nano2", depth=2, num_classes=4), room=32, never=[2])
    make_trainer(model, micro_batch=16, lr=1e-4, note=lambda _: None).run()
    assert model.asked == [16, 16, 8, 8, 8, 8]
    for name, value in weights_after(8, clip=0.0).items():
        torch.testing.assert_close(model.model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_no_memory_for_a_single_image_is_one_sentence():
    trainer = make_trainer(Narrow(create_model("vit_nano2", num_classes=4), room=0), note=lambda _: None)
    with pytest.raises(VitrailError, match="Out of memory with a single image per forward pass: use a smaller --image"):
        trainer.run()


def test_no_memory_to_change_the_weights_is_one_sentence(monkeypatch):
    trainer = make_trainer()

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer.optimizer, "step", full)
    with pytest.raises(
        VitrailError, match="Out of memory while changing the weights: use a smaller --model, or --ema 0"
    ):
        trainer.run()


@pytest.mark.parametrize(("count", "batch", "steps", "used"), [(5, 8, 1, 5), (32, 32, 1, 32), (33, 8, 4, 8)])
def test_an_epoch_has_as_many_steps_as_whole_batches_and_at_least_one(count, batch, steps, used):
    trainer = make_trainer(images=make_images(count), batch_size=batch)
    seen, steps_of = [], trainer.train.loader.batches
    trainer.train.loader.batches = lambda groups: steps_of(seen.extend(groups) or groups)
    trainer.run()
    assert (trainer.steps, [len(numbers) for numbers in seen]) == (steps, [used] * steps)
    assert len({int(n) for numbers in seen for n in numbers}) == steps * used


@pytest.mark.parametrize("steps_at_once", [2, 100])
def test_pictures_on_the_device_are_changed_many_steps_at_once_and_train_the_same(monkeypatch, steps_at_once):
    def weights(resident):
        images = make_images(72)
        if resident:
            pictures = [images.loader.images[number] for number in range(72)]
            images.loader.resident = Canvas(torch.stack(pictures), np.full((72, 2), pictures[0].shape[-1]))
        torch.manual_seed(1)
        model = create_model("vit_nano2", depth=2, num_classes=4)
        trainer = make_trainer(model, images, policy="medium", epochs=2, batch_size=8, mixup=0.2, cutmix=1.0)
        trainer.run()
        return trainer.model.state_dict()

    monkeypatch.setattr(batches, "values_at_once", lambda device: steps_at_once * 8 * 3 * 8 * 8)
    apart = weights(resident=False)
    for name, value in weights(resident=True).items():
        assert torch.equal(value, apart[name])


def test_the_first_pictures_of_an_epoch_are_made_while_the_one_before_is_validated(monkeypatch):
    images = make_images(64)
    pictures = torch.stack([images.loader.images[number] for number in range(64)])
    images.loader.resident = Canvas(pictures, np.full((64, 2), pictures.shape[-1]))
    monkeypatch.setattr(batches, "values_at_once", lambda device: 2 * 8 * 3 * 8 * 8)
    begun = []

    def validate(model):
        begun.append([group.epoch for group, _ in trainer.batches._line])
        return {"loss": 1.0, "top1": 0.5}

    trainer = make_trainer(images=images, policy="medium", epochs=3, batch_size=8)
    trainer.validate = validate
    trainer.run()
    assert begun == [[1, 1], [2, 2], []]
    assert trainer.batches._thread is None and not trainer.batches._line


@pytest.mark.parametrize(("fails", "left"), [("once", [2]), ("at several steps", [2, 1]), ("later", [2])])
def test_where_memory_runs_out_fewer_pictures_are_changed_at_once_and_train_the_same(monkeypatch, fails, left):
    def train(room):
        images, notes = make_images(72), []
        pictures = torch.stack([images.loader.images[number] for number in range(72)])
        images.loader.resident = Canvas(pictures, np.full((72, 2), pictures.shape[-1]))
        monkeypatch.setattr(batches, "values_at_once", lambda device: room * 8 * 3 * 8 * 8)
        torch.manual_seed(1)
        model = create_model("vit_nano2", depth=2, num_classes=4)
        trainer = make_trainer(model, images, policy="medium", note=notes.append, epochs=2, batch_size=8, mixup=0.2)
        trainer.run()
        return model.state_dict(), [row["train_loss"] for row in trainer.history], notes

    def narrow(self, group):
        made.append(len(group.numbers) // 8)
        nth = {"once": 2, "at several steps": 0, "later": 4}[fails]  # the fourth is of the second epoch
        if len(made) == nth or (not nth and made[-1] > 1):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return make(self, group)

    weights, losses, _ = train(room=1)
    made, make = [], batches.Batches._make
    monkeypatch.setattr(batches.Batches, "_make", narrow)
    others, their_losses, notes = train(room=4)
    assert losses == their_losses and all(torch.equal(value, others[name]) for name, value in weights.items())
    assert [int(note.split(" step")[0].split()[-1]) for note in notes] == left and made[0] == 4
    assert notes[0].startswith("  Out of memory: the images of 2 steps are changed at once from here on; what is done")


def test_a_step_whose_pictures_there_is_no_memory_to_change_is_one_sentence(monkeypatch):
    trainer = make_trainer(batch_size=8)

    def narrow(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer.augmenter.__class__, "__call__", narrow)
    with pytest.raises(VitrailError) as caught:
        trainer.run()
    assert str(caught.value) == (
        "Out of memory while changing the 8 images of a step: use a smaller --batch-size or --image-size."
    )


def test_pictures_that_are_enlarged_are_counted_at_their_new_size(monkeypatch):
    """CIFAR at 224 takes 49 times the memory that its pictures do."""
    images = make_images(32)
    images.loader.resident = Canvas(torch.zeros(32, 3, 4, 4, dtype=torch.uint8), np.full((32, 2), 4))
    trainer, asked = make_trainer(images=images, batch_size=8), []  # at 8×8
    augmented = trainer.augmenter.__class__.__call__
    monkeypatch.setattr(batches, "values_at_once", lambda device: 2 * 8 * 3 * 8 * 8)
    monkeypatch.setattr(
        trainer.augmenter.__class__,
        "__call__",
        lambda self, images, *rest: asked.append(len(rest[0])) or augmented(self, images, *rest),
    )
    trainer.run()
    assert asked == [16, 16]


def test_a_state_that_was_recorded_on_a_gpu_goes_on_without(monkeypatch):
    """There the rates lie in tensors, and the optimizer is told that its step is recorded."""
    recorded, plain = (make_trainer(epochs=2, batch_size=8) for _ in range(2))
    recorded.run()
    state = recorded.state()
    for group in state["optimizer"]["param_groups"]:
        group |= {"lr": torch.tensor(group["lr"]), "capturable": True}
    plain.load_state(state)
    for before, group in zip(recorded.optimizer.param_groups, plain.optimizer.param_groups, strict=True):
        assert group["capturable"] is False and type(group["lr"]) is float
        assert group["lr"] == pytest.approx(before["lr"], rel=1e-6)


# What is no number is noticed, and never kept.


def loss_is_nan(logits, loss):
    return loss * float("nan")


def gradient_is_nan(logits, loss):
    return loss + (logits * 0).sum(dim=1).sqrt()  # 0, and its derivative 0 · ∞


KEPT, NONE = "the last good weights are kept", "no epoch was completed before it"


@pytest.mark.parametrize(
    ("change", "call", "save_every", "sentence"),
    [
        (loss_is_nan, 13, 600, f"The loss became nan at step 3 of epoch 3; {KEPT}."),
        (loss_is_nan, 13, 0, f"The loss became nan at step 3 of epoch 3; {KEPT}."),
        (gradient_is_nan, 13, 0, f"The gradient became nan at step 3 of epoch 3; {KEPT}."),
        (gradient_is_nan, 14, 600, f"The gradient became nan at step 4 of epoch 3; {KEPT}."),
        (gradient_is_nan, 14, 0, f"The gradient became nan at step 4 of epoch 3; {KEPT}."),
        (loss_is_nan, 15, 600, f"The validation loss became nan after epoch 3; {KEPT}."),
        (loss_is_nan, 2, 0, f"The loss became nan at step 2 of epoch 1; {NONE}."),
    ],
)
def test_what_is_no_number_ends_the_run_and_is_never_kept(tmp_path, monkeypatch, change, call, save_every, sentence):
    """Four steps and a validation make five losses in each epoch; with 0, states are saved inside of epochs too."""
    data, folder = make_folder(tmp_path / "data", count=40), tmp_path / "run"
    calls, loss = [], Classify.loss

    def changed(task, logits, targets):
        calls.append(None)
        true = loss(task, logits, targets)
        return change(logits, true) if len(calls) == call else true

    monkeypatch.setattr(Classify, "loss", changed)
    monkeypatch.setattr(loop, "SAVE_EVERY", save_every)
    with pytest.raises(VitrailError) as caught:
        vitrail.train(data, out=folder, epochs=4, batch_size=8, **small_options())
    assert str(caught.value) == f"{sentence} A lower --lr, or --precision fp32, usually helps."
    state = torch.load(folder / "last.pt", weights_only=True)
    assert all_finite(state["model"]) and all_finite(state["average"]["average"])
    completed = 2 if KEPT in sentence else 0
    assert [row["epoch"] for row in rows(folder)] == list(range(1, completed + 1))
    assert state["epoch"] == completed
    assert (folder / "model.safetensors").exists() == bool(completed)
    if completed:
        assert all_finite(load_file(folder / "model.safetensors"))
        assert vitrail.load(folder, device="cpu").about["metrics"]["epoch"] <= 2


def all_finite(tensors: dict[str, torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_a_rate_beyond_reason_never_reaches_the_files(tmp_path):
    """The first step takes the weights out of what float32 holds, while loss and gradient are still numbers."""
    data, folder = make_folder(tmp_path / "data", count=12), tmp_path / "run"
    with pytest.raises(VitrailError, match=r"The weights ceased to be finite in epoch 1, by step 1; no epoch was"):
        vitrail.train(data, out=folder, epochs=2, batch_size=16, warmup=0.0, clip=0.0, **small_options(lr=3e39))
    assert all_finite(torch.load(folder / "last.pt", weights_only=True)["model"])
    assert sorted(path.name.split(".")[0] for path in folder.iterdir()) == [
        "events", "last", "metrics", "run", "split",
    ]  # fmt: skip


def test_a_loss_in_a_state_is_that_of_all_its_steps(tmp_path: Path):
    """The loss of a step is read one step late; what is saved in between has all of them."""
    trainer = make_trainer(images=make_images(32), epochs=1, batch_size=8)
    losses = []
    accumulate = trainer._accumulate
    trainer._accumulate = lambda *batch: (losses.append(accumulate(*batch)), losses[-1])[1]
    trainer.leave.asked = True
    with pytest.raises(loop.Stopped):
        trainer.run()
    assert trainer.step == 2
    assert trainer.sums["loss"] == pytest.approx(sum(loss.item() for loss in losses), rel=1e-6)


@pytest.mark.parametrize(
    ("figures", "kept"),
    [
        ([0.90, 0.92, 0.91], 3),  # within a standard error (0.027 of 100 images) of the best, the last
        ([0.90, 0.99, 0.91], 2),
        ([0.90, 1.00, 0.99], 3),  # 100 % has a standard error, too: of one image in a hundred
        ([0.90, 1.00, 0.97], 2),
        ([0.90, 0.80, 0.99], 3),
        ([float("nan"), 0.5, 0.1], 2),
    ],
)
def test_the_last_epoch_is_kept_unless_an_earlier_one_was_clearly_better(figures, kept):
    trainer = make_trainer(epochs=3)
    trainer.validated, answers = 100, iter(figures)
    trainer.validate = lambda model: {"loss": 1.0, "top1": next(answers)}
    trainer.run()
    assert trainer.best["epoch"] == kept


def test_calm_epochs_are_neither_mixed_nor_changed(tmp_path, monkeypatch):
    """With all epochs calm a run is the one without mixing and RandAugment; with some, those before are not."""
    data, mixed = tmp_path / "digits.npz", []
    pixels = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), np.uint8)
    np.savez(data, train_images=pixels, train_labels=np.arange(48) % 2)
    monkeypatch.setattr(loop, "mix", lambda *given: mixed.append(given) or mix(*given))

    def losses(**options):
        mixed.clear()
        vitrail.train(data, **small_options(model="vit_nano4", epochs=3, val=0.0, **options))
        return [row["train_loss"] for row in rows(options["out"])], len(mixed)

    full = {"augment": "medium", "mixup": 0.8, "cutmix": 1.0, "batch_size": 16}
    bare = {"augment": "medium", "mixup": 0.0, "cutmix": 0.0, "batch_size": 16}
    calm, count = losses(**full, calm=3, out=tmp_path / "calm")
    monkeypatch.setattr(job, "policy_of", lambda *given: policy_of(*given).calm)
    assert (calm, count) == losses(**bare, out=tmp_path / "bare") and count == 0
    monkeypatch.undo()
    monkeypatch.setattr(loop, "mix", lambda *given: mixed.append(given) or mix(*given))
    part, count = losses(**full, calm=1, out=tmp_path / "part")
    never, steps = losses(**full, out=tmp_path / "never")
    assert count == 6 and steps == 9  # of three steps an epoch
    assert part[:2] == never[:2] and part[2] != never[2]


@pytest.mark.parametrize(("figures", "kept"), [([0.90, 0.94, 0.93], 0), ([0.90, 0.94, 0.95], 3)])
def test_what_is_tuned_has_to_match_the_linear_classifier_in_full(figures, kept):
    trainer = make_trainer(epochs=3)
    trainer.best = {"epoch": 0, "val_loss": 1.0, "val_top1": 0.945}
    trainer.history = [trainer.best]
    trainer.validated, answers = 100, iter(figures)
    trainer.validate = lambda model: {"loss": 1.0, "top1": next(answers)}
    trainer.run()
    assert trainer.best["epoch"] == kept
