"""The loop on small real tensors: it learns, accumulates, makes do with little memory, tells its listeners, and knows
when to stop."""

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.odd_files import photograph
from tests.training.support import Narrow, make_folder, make_images, make_trainer, rows, small_options
from vitrail import VitrailError
from vitrail.models import create_model
from vitrail.tasks.classify.objective import Classify
from vitrail.training import listeners
from vitrail.training.signals import Stopped
from vitrail.training.trainer import Listener


def test_a_handful_of_images_is_memorised(tmp_path):
    """Labels that have nothing to do with the images: whatever is wrong on the way from file to weight shows."""
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
    train, augment = trainer.batches.train, trainer.batches.augment
    _, images = next(train.loader.batches([train.numbers]))
    trainer.accumulate(*augment(images, train.numbers, train.numbers, 0, "cpu"))
    return {name: parameter.grad for name, parameter in trainer.model.named_parameters()}


def test_four_times_eight_images_make_the_gradient_of_thirty_two():
    parts, whole = gradients(8), gradients(32)
    assert max(value.abs().max().item() for value in whole.values()) > 0.01
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6)


def weights_after(micro_batch: int, **hyper) -> dict[str, torch.Tensor]:
    trainer = make_trainer(micro_batch=micro_batch, **{"lr": 1e-4, "clip": 1.0, **hyper})
    trainer.run()
    return trainer.model.state_dict()


@pytest.mark.parametrize("micro_batch", [8, 5, 1])
def test_accumulation_ends_with_the_same_weights(micro_batch):
    whole, parts = weights_after(32), weights_after(micro_batch)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-6)


class MicroBatches(Listener):
    """Notes the smaller ones."""

    def __init__(self):
        self.seen = []

    def on_smaller(self, trainer):
        self.seen.append(trainer.micro_batch)


def test_out_of_memory_halves_the_micro_batch_and_goes_on():
    torch.manual_seed(1)
    model = Narrow(create_model("vit_nano2", depth=2, num_classes=4), room=9)
    sizes = MicroBatches()
    trainer = make_trainer(model, make_images(64), listeners=[sizes], epochs=2, batch_size=32, lr=1e-4, clip=1.0)
    torch.manual_seed(1)
    trainer.run()
    assert model.asked[:7] == [32, 16, 8, 8, 8, 8, 8] and set(model.asked[7:]) == {8}
    assert sizes.seen == [16, 8] and trainer.batch_size == 32
    assert trainer.state_dict()["micro_batch"] == 8
    started_small = make_trainer(images=make_images(64), epochs=2, batch_size=32, lr=1e-4, clip=1.0, micro_batch=8)
    started_small.run()
    for name, value in started_small.model.state_dict().items():
        torch.testing.assert_close(model.model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_out_of_memory_half_way_through_a_batch_begins_it_again():
    """What the first micro-batch left in the gradients must not count twice."""
    torch.manual_seed(1)
    model = Narrow(create_model("vit_nano2", depth=2, num_classes=4), room=32, never=[2])
    make_trainer(model, micro_batch=16, lr=1e-4).run()
    assert model.asked == [16, 16, 8, 8, 8, 8]
    for name, value in weights_after(8, clip=0.0).items():
        torch.testing.assert_close(model.model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_no_memory_for_a_single_image_is_an_error_that_says_so():
    trainer = make_trainer(Narrow(create_model("vit_nano2", num_classes=4), room=0))
    with pytest.raises(VitrailError, match="--image-size") as info:
        trainer.run()
    assert (info.value.code, info.value.fields) == ("out_of_memory", {"images": 1})


def test_no_memory_to_change_the_weights_is_an_error_that_says_so(monkeypatch):
    trainer = make_trainer()

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer.optimizer, "step", full)
    with pytest.raises(VitrailError, match="--ema 0") as info:
        trainer.run()
    assert info.value.code == "out_of_memory"


def test_a_state_that_was_recorded_on_a_gpu_goes_on_without():
    """There the rates lie in tensors, and the optimizer is told that its step is recorded."""
    recorded, plain = (make_trainer(epochs=2, batch_size=8) for _ in range(2))
    recorded.run()
    state = recorded.state_dict()
    for group in state["optimizer"]["param_groups"]:
        group |= {"lr": torch.tensor(group["lr"]), "capturable": True}
    plain.load_state_dict(state)
    for before, group in zip(recorded.optimizer.param_groups, plain.optimizer.param_groups, strict=True):
        assert group["capturable"] is False and type(group["lr"]) is float
        assert group["lr"] == pytest.approx(before["lr"], rel=1e-6)


# NaN and infinity are noticed, and never kept.


def loss_is_nan(logits, loss):
    return loss * float("nan")


def gradient_is_nan(logits, loss):
    return loss + (logits * 0).sum(dim=1).sqrt()  # 0, and its derivative 0 · ∞


@pytest.mark.parametrize(
    ("change", "call", "save_every", "of", "step", "epoch"),
    [
        (loss_is_nan, 13, 600, "loss", 3, 3),
        (loss_is_nan, 13, 0, "loss", 3, 3),
        (gradient_is_nan, 13, 0, "gradient", 3, 3),
        (gradient_is_nan, 14, 600, "gradient", 4, 3),
        (gradient_is_nan, 14, 0, "gradient", 4, 3),
        (loss_is_nan, 15, 600, "validation loss", None, 3),
        (loss_is_nan, 2, 0, "loss", 2, 1),
    ],
)
def test_nan_ends_the_run_and_is_never_kept(tmp_path, monkeypatch, change, call, save_every, of, step, epoch):
    """Four steps and a validation make five losses in each epoch; with 0, states are saved inside of epochs too."""
    data, folder = make_folder(tmp_path / "data", count=40), tmp_path / "run"
    calls, loss = [], Classify.loss

    def changed(objective, logits, targets):
        calls.append(None)
        true = loss(objective, logits, targets)
        return change(logits, true) if len(calls) == call else true

    monkeypatch.setattr(Classify, "loss", changed)
    monkeypatch.setattr(listeners, "SAVE_EVERY", save_every)
    with pytest.raises(VitrailError, match="--lr") as info:
        vitrail.train(data, out=folder, epochs=4, batch_size=8, **small_options())
    completed = epoch - 1
    assert info.value.code == "diverged"
    assert info.value.fields == {"of": of, "epoch": epoch, "kept": bool(completed)}
    assert step is None or f" at step {step} " in str(info.value)
    state = torch.load(folder / "last.pt", weights_only=True)
    assert all_finite(state["model"]) and all_finite(state["average"]["average"])
    assert [row["epoch"] for row in rows(folder)] == list(range(1, completed + 1))
    assert state["epoch"] == completed
    assert (folder / "model.safetensors").exists() == bool(completed)
    if completed:
        assert all_finite(load_file(folder / "model.safetensors"))
        assert vitrail.load(folder, device="cpu").about["metrics"]["epoch"] <= 2


def all_finite(tensors: dict[str, torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_weights_that_overflow_never_reach_the_files(tmp_path):
    """The first step takes the weights out of what float32 holds, while loss and gradient are still numbers."""
    data, folder = make_folder(tmp_path / "data", count=12), tmp_path / "run"
    with pytest.raises(VitrailError) as info:
        vitrail.train(data, out=folder, epochs=2, batch_size=16, warmup=0.0, clip=0.0, **small_options(lr=3e39))
    assert info.value.fields == {"of": "weights", "epoch": 1, "kept": False}
    assert all_finite(torch.load(folder / "last.pt", weights_only=True)["model"])
    assert sorted(path.name.split(".")[0] for path in folder.iterdir()) == [
        "events", "last", "metrics", "run", "split",
    ]  # fmt: skip


class Ask(Listener):
    """To stop, in every step."""

    def wants(self):
        return True, False


def test_a_loss_in_a_state_is_that_of_all_its_steps():
    """The loss of a step is read one step late; what is saved in between has all of them."""
    trainer = make_trainer(images=make_images(32), listeners=[Ask()], epochs=1, batch_size=8)
    losses = []
    accumulate = trainer.accumulate
    trainer.accumulate = lambda *batch: (losses.append(accumulate(*batch)), losses[-1])[1]
    with pytest.raises(Stopped) as info:
        trainer.run()
    assert trainer.step == info.value.step == 2 and info.value.code == "stopped"
    assert trainer.sums["loss"] == pytest.approx(sum(loss.item() for loss in losses), rel=1e-6)


# Listeners.


class Recorder(Listener):
    """Writes down what it is told, and where the trainer stands then."""

    def __init__(self, name="", events=None, save_in=()):
        self.name, self.events, self.save_in = name, [] if events is None else events, save_in

    def note(self, event, trainer, *values):
        self.events.append((f"{self.name}{event}", trainer.epoch, trainer.step, *values))

    def on_step(self, trainer):
        self.note("step", trainer)

    def on_validated(self, trainer, row, is_best):
        self.note("validated", trainer, row["epoch"], is_best)

    def on_epoch(self, trainer):
        self.note("epoch", trainer)

    def on_save(self, trainer):
        self.note("save", trainer)

    def on_load(self, trainer):
        self.note("load", trainer)

    def wants(self):
        steps = sum(event[0].endswith("step") for event in self.events)
        return False, steps + 1 in self.save_in


def test_listeners_are_told_of_steps_then_the_validation_then_the_epoch():
    recorder = Recorder()
    figures = iter([0.5, 0.1])
    trainer = make_trainer(
        listeners=[recorder], validate=lambda model: {"loss": 1.0, "top1": next(figures)}, validated=100,
        epochs=2, batch_size=16,
    )  # fmt: skip
    trainer.run()
    assert recorder.events == [
        ("step", 0, 1), ("step", 0, 2), ("validated", 0, 2, 1, True), ("epoch", 1, 0),
        ("step", 1, 1), ("step", 1, 2), ("validated", 1, 2, 2, False), ("epoch", 2, 0),
    ]  # fmt: skip
    again = make_trainer(listeners=[other := Recorder()], epochs=2, batch_size=16)
    again.load_state_dict(trainer.state_dict())
    again.run()  # which is over
    assert other.events == [("load", 2, 0)]


def test_a_wish_to_save_is_granted_one_step_later_and_all_losses_are_counted():
    recorder = Recorder(save_in=[2])
    trainer = make_trainer(listeners=[recorder], epochs=1, batch_size=8)
    trainer.run()
    assert recorder.events == [
        ("step", 0, 1), ("step", 0, 2), ("step", 0, 3), ("save", 0, 3), ("step", 0, 4),
        ("validated", 0, 4, 1, True), ("epoch", 1, 0),
    ]  # fmt: skip


def test_of_several_listeners_the_first_is_told_first():
    events = []
    both = [Recorder("a ", events), Recorder("b ", events)]
    make_trainer(listeners=both, epochs=1).run()
    assert [event[0] for event in events] == [
        "a step", "b step", "a validated", "b validated", "a epoch", "b epoch"
    ]  # fmt: skip


def test_averaged_weights_are_in_the_model_when_it_is_validated_and_only_then():
    seen = {}

    class Look(Listener):
        def on_step(self, trainer):
            seen["trained"] = trainer.model.head.output.weight.detach().clone()
            seen["average"] = trainer.average.average["head.output.weight"].clone()

        def on_validated(self, trainer, row, is_best):
            seen["validated"] = trainer.model.head.output.weight.detach().clone()

        def on_epoch(self, trainer):
            seen["after"] = trainer.model.head.output.weight.detach().clone()

    make_trainer(listeners=[Look()], epochs=1, batch_size=8, ema=0.9).run()
    assert torch.equal(seen["validated"], seen["average"]) and torch.equal(seen["after"], seen["trained"])
    assert not torch.equal(seen["average"], seen["trained"])


def test_a_run_keeps_the_best_weights_then_logs_then_shows_and_keeps_its_state_last(tmp_path, monkeypatch):
    """So that a state never tells of weights or figures that are not there."""
    told = []

    def follow(kind, event):
        method = getattr(kind, event)
        followed = lambda self, *values: (told.append(kind.__name__), method(self, *values))[1]  # noqa: E731
        monkeypatch.setattr(kind, event, followed)

    for kind in (listeners.KeepBest, listeners.WriteLog, listeners.Show):
        follow(kind, "on_validated")
    follow(listeners.KeepState, "on_epoch")
    data = make_folder(tmp_path / "data", count=20)
    vitrail.train(data, **small_options(epochs=1), out=tmp_path / "run")
    assert told == ["KeepBest", "WriteLog", "Show", "KeepState"]
