"""What follows a run: when its state is saved, and what is said of the time that is left."""

import time
from types import SimpleNamespace

import pytest
import torch

from tests.training.support import Narrow, make_images, make_trainer
from vitrail.console import Console
from vitrail.distributed import Processes
from vitrail.models import create_model
from vitrail.tasks import registry
from vitrail.training import listeners
from vitrail.training.listeners import CountEpochs, KeepState, Show


def context(folder=None) -> SimpleNamespace:
    """As much of a run as these listeners look at."""
    return SimpleNamespace(
        task=registry.task("classify"), console=Console(), processes=Processes(), folder=folder, probe=None, epoch=0
    )


def test_the_time_of_the_first_step_which_compiles_is_not_taken_for_the_rate():
    trainer, show = make_trainer(epochs=2), Show(context())
    trainer.steps, trainer.batch_size, trainer.step, trainer.sums["time"] = 10, 4, 1, 30.0
    trainer.warm = (0, 1, 30.0)
    assert show.seconds_left(trainer) is None
    trainer.step, trainer.sums["time"] = 3, 34.0
    assert show.seconds_left(trainer) == pytest.approx(17 * 2.0) and show.rate(trainer) == pytest.approx(2.0)
    trainer.epoch, trainer.step, trainer.sums["time"] = 1, 4, 8.0
    assert show.seconds_left(trainer) == pytest.approx(6 * 2.0)


def test_the_time_left_counts_the_second_training():
    trainer, show = make_trainer(epochs=2), Show(context(), extra_images=100)
    trainer.steps, trainer.batch_size, trainer.epoch, trainer.step, trainer.sums["time"] = 10, 4, 1, 10, 20.0
    assert show.seconds_left(trainer) == pytest.approx(2 * 100 / 2.0)


def test_smaller_micro_batches_are_told_of_with_both_sizes(capsys):
    torch.manual_seed(1)
    model = Narrow(create_model("vit_nano2", depth=2, num_classes=4), room=9)
    trainer = make_trainer(model, make_images(64), batch_size=32)
    show = Show(context())
    trainer.listeners.append(SimpleListener(show.on_smaller))
    trainer.run()
    first, second = capsys.readouterr().out.splitlines()
    assert " 16 " in first and " 8 " in second and " 32." in first and " 32." in second


class SimpleListener(listeners.Listener):
    def __init__(self, on_smaller):
        self.on_smaller = on_smaller


@pytest.mark.parametrize(("rests", "epochs_saved"), [(False, [1, 2, 3]), (True, [3])])
def test_a_state_is_kept_after_every_epoch_or_where_epochs_are_short_after_the_last(tmp_path, rests, epochs_saved):
    trainer, saved = make_trainer(epochs=3), []
    keep = KeepState(context(tmp_path), rests)
    trainer.listeners += [keep, Note(saved)]
    trainer.run()
    assert saved == epochs_saved
    assert torch.load(tmp_path / "last.pt", weights_only=True)["epoch"] == 3


class Note(listeners.Listener):
    def __init__(self, saved):
        self.saved = saved

    def on_save(self, trainer):
        self.saved.append(trainer.epoch)


def test_inside_a_long_epoch_a_state_is_asked_for_every_ten_minutes(tmp_path):
    keep = KeepState(context(tmp_path), rests=False)
    assert keep.wants() == (False, False)
    keep.saved = time.monotonic() - 601
    assert keep.wants() == (False, True)
    keep.ctx.processes = Processes(rank=1, count=2)  # another process writes
    assert keep.wants() == (False, False)


def test_a_task_can_tell_the_epoch_from_its_context():
    ctx, seen = context(), []
    trainer = make_trainer(epochs=3, listeners=[CountEpochs(ctx)])
    trainer.validate = lambda model: (seen.append(ctx.epoch), {"loss": 1.0, "top1": 0.5})[1]
    trainer.run()
    assert seen == [0, 1, 2]
    again = make_trainer(epochs=3, listeners=[CountEpochs(other := context())])
    again.load_state_dict(trainer.state_dict() | {"epoch": 2})
    assert other.epoch == 2
