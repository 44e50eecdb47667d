"""Which epoch of a run is kept."""

import pytest

from tests.training.support import make_trainer
from vitrail.training.selection import early_best
from vitrail.training.trainer import Listener


def validating(figures, **more):
    """What a validation gives, epoch after epoch."""
    answers = iter(figures)
    return lambda model: {"loss": 1.0, "top1": next(answers), **more}


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
    trainer = make_trainer(epochs=3, validate=validating(figures), validated=100)
    trainer.run()
    assert trainer.best["epoch"] == kept


@pytest.mark.parametrize(("figures", "kept"), [([0.90, 0.94, 0.93], 0), ([0.90, 0.94, 0.95], 3)])
def test_tuned_weights_have_to_match_the_linear_probe_in_full(figures, kept):
    trainer = make_trainer(epochs=3, validate=validating(figures), validated=100)
    trainer.best = {"epoch": 0, "val_loss": 1.0, "val_top1": 0.945}
    trainer.history = [trainer.best]
    trainer.run()
    assert trainer.best["epoch"] == kept


class Chosen(Listener):
    """Of each epoch: is it kept, and what an earlier one validated at, if better."""

    def __init__(self):
        self.seen = []

    def on_validated(self, trainer, row, is_best):
        self.seen.append((is_best, early_best(row, trainer.history, trainer.figure)))


@pytest.mark.parametrize("more", [{}, {"top1_error": 0.01}])  # of a share of images, and as a task measures it
def test_an_epoch_that_is_kept_knows_of_an_earlier_one_with_a_better_figure(more):
    chosen, figures = Chosen(), [0.41, 0.462, 0.4586, 0.3, 0.47]
    make_trainer(
        epochs=5, validate=validating(figures, **more), validated=2500, listeners=[chosen]
    ).run()  # fmt: skip
    assert chosen.seen == [(True, None), (True, None), (True, 0.462), (False, 0.462), (True, None)]
