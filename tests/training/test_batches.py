"""What the steps of an epoch learn from: whole batches, images augmented ahead of the steps, and calm epochs."""

import numpy as np
import pytest
import torch

import vitrail
from tests.training.support import make_images, make_trainer, rows, small_options
from vitrail import VitrailError
from vitrail.data.augment.crop import Canvas
from vitrail.data.augment.mixing import mix
from vitrail.models import create_model
from vitrail.tasks.classify import task as classify
from vitrail.tasks.classify.plan import policy_of
from vitrail.training import batches
from vitrail.training.fast import look_ahead


def put_on_device(images) -> None:
    """As a GPU keeps small images: all of them in one tensor."""
    pixels = torch.stack([images.loader.images[number] for number in range(len(images.numbers))])
    images.loader.resident = Canvas(pixels, np.full((len(pixels), 2), pixels.shape[-1]))


@pytest.mark.parametrize(("count", "batch", "steps", "used"), [(5, 8, 1, 5), (32, 32, 1, 32), (33, 8, 4, 8)])
def test_an_epoch_has_as_many_steps_as_whole_batches_and_at_least_one(count, batch, steps, used):
    trainer = make_trainer(images=make_images(count), batch_size=batch)
    loader = trainer.batches.train.loader
    seen, steps_of = [], loader.batches
    loader.batches = lambda groups: steps_of(seen.extend(groups) or groups)
    trainer.run()
    assert (trainer.steps, [len(numbers) for numbers in seen]) == (steps, [used] * steps)
    assert len({int(n) for numbers in seen for n in numbers}) == steps * used


@pytest.mark.parametrize("steps_at_once", [2, 100])
def test_images_on_the_device_are_augmented_many_steps_at_once_and_train_the_same(monkeypatch, steps_at_once):
    def weights(resident):
        images = make_images(72)
        if resident:
            put_on_device(images)
        torch.manual_seed(1)
        model = create_model("vit_nano2", depth=2, num_classes=4)
        trainer = make_trainer(model, images, policy="medium", epochs=2, batch_size=8, mixup=0.2, cutmix=1.0)
        trainer.run()
        return trainer.model.state_dict()

    monkeypatch.setattr(look_ahead, "values_at_once", lambda device: steps_at_once * 8 * 3 * 8 * 8)
    apart = weights(resident=False)
    for name, value in weights(resident=True).items():
        assert torch.equal(value, apart[name])


def test_the_first_images_of_an_epoch_are_made_while_the_one_before_is_validated(monkeypatch):
    images = make_images(64)
    put_on_device(images)
    monkeypatch.setattr(look_ahead, "values_at_once", lambda device: 2 * 8 * 3 * 8 * 8)
    begun = []

    def validate(model):
        begun.append([group.epoch for group, _ in trainer.batches._ahead._line])
        return {"loss": 1.0, "top1": 0.5}

    trainer = make_trainer(images=images, policy="medium", validate=validate, epochs=3, batch_size=8)
    trainer.run()
    assert begun == [[1, 1], [2, 2], []]
    trainer.batches.close()
    assert trainer.batches._ahead._thread is None and not trainer.batches._ahead._line


@pytest.mark.parametrize(("fails", "left"), [("once", [2]), ("at several steps", [2, 1]), ("later", [2])])
def test_where_memory_runs_out_fewer_images_are_augmented_at_once_and_train_the_same(monkeypatch, fails, left):
    def train(room):
        images, notes = make_images(72), []
        put_on_device(images)
        monkeypatch.setattr(look_ahead, "values_at_once", lambda device: room * 8 * 3 * 8 * 8)
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
    made, make = [], look_ahead.LookAhead._make
    monkeypatch.setattr(look_ahead.LookAhead, "_make", narrow)
    others, their_losses, notes = train(room=4)
    assert losses == their_losses and all(torch.equal(value, others[name]) for name, value in weights.items())
    assert [int(note.split(" step")[0].split()[-1]) for note in notes] == left and made[0] == 4


def test_no_memory_to_augment_the_images_of_a_step_is_an_error_that_says_so(monkeypatch):
    trainer = make_trainer(batch_size=8)

    def narrow(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer.batches.augment.augmenter.__class__, "__call__", narrow)
    with pytest.raises(VitrailError, match="--batch-size") as info:
        trainer.run()
    assert (info.value.code, info.value.fields) == ("out_of_memory", {"images": 8})


def test_images_that_are_enlarged_are_counted_at_their_new_size(monkeypatch):
    """CIFAR at 224 takes 49 times the memory that its images do."""
    images = make_images(32)
    images.loader.resident = Canvas(torch.zeros(32, 3, 4, 4, dtype=torch.uint8), np.full((32, 2), 4))
    trainer, asked = make_trainer(images=images, batch_size=8), []  # at 8×8
    augmenter = trainer.batches.augment.augmenter.__class__
    augmented = augmenter.__call__
    monkeypatch.setattr(look_ahead, "values_at_once", lambda device: 2 * 8 * 3 * 8 * 8)
    monkeypatch.setattr(
        augmenter, "__call__",
        lambda self, images, *rest, **more: asked.append(len(rest[0])) or augmented(self, images, *rest, **more),
    )  # fmt: skip
    trainer.run()
    assert asked == [16, 16]


def test_calm_epochs_are_neither_mixed_nor_changed(tmp_path, monkeypatch):
    """With all epochs calm a run is the one without mixing and RandAugment; with some, those before are not."""
    data, mixed = tmp_path / "digits.npz", []
    pixels = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), np.uint8)
    np.savez(data, train_images=pixels, train_labels=np.arange(48) % 2)
    monkeypatch.setattr(batches, "mix", lambda *given: mixed.append(given) or mix(*given))

    def losses(**options):
        mixed.clear()
        vitrail.train(data, **small_options(model="vit_nano4", epochs=3, val=0.0, **options))
        return [row["train_loss"] for row in rows(options["out"])], len(mixed)

    full = {"augment": "medium", "mixup": 0.8, "cutmix": 1.0, "batch_size": 16}
    bare = {"augment": "medium", "mixup": 0.0, "cutmix": 0.0, "batch_size": 16}
    calm, count = losses(**full, calm=3, out=tmp_path / "calm")
    monkeypatch.setattr(classify, "policy_of", lambda *given: policy_of(*given).calm)
    assert (calm, count) == losses(**bare, out=tmp_path / "bare") and count == 0
    monkeypatch.undo()
    monkeypatch.setattr(batches, "mix", lambda *given: mixed.append(given) or mix(*given))
    part, count = losses(**full, calm=1, out=tmp_path / "part")
    never, steps = losses(**full, out=tmp_path / "never")
    assert count == 6 and steps == 9  # of three steps an epoch
    assert part[:2] == never[:2] and part[2] != never[2]
