"""Schedules of the learning rate, in closed form, and in the loop."""

import numpy as np
import pytest

from tests.training.support import make_folder, make_trainer, rows, small_options
from vitrail import train
from vitrail.training.optimization import SCHEDULES, rate_factor

STEPS, WARMUP = 100, 10
PROGRESS = np.arange(STEPS - WARMUP) / (STEPS - WARMUP - 1)  # 0 … 1, after the warm-up
CLOSED_FORM = {
    "cosine": 0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * PROGRESS)),
    "linear": 1 - 0.99 * PROGRESS,
    "constant": np.ones_like(PROGRESS),
    "wsd": np.where(PROGRESS < 0.8, 1.0, 1 - 0.99 * (PROGRESS - 0.8) / 0.2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_after_a_linear_warmup_each_schedule_is_its_closed_form(name):
    found = np.array([rate_factor(step, STEPS, WARMUP, name) for step in range(STEPS)])
    rise = (np.arange(WARMUP) + 1) / WARMUP
    np.testing.assert_allclose(found, np.concatenate([rise, CLOSED_FORM[name]]), atol=1e-12)
    assert found.max() == found[WARMUP] == 1.0
    assert found[-1] == pytest.approx(1.0 if name == "constant" else 0.01)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_single_step_has_the_whole_rate_and_later_ones_the_last(name):
    assert rate_factor(0, 1, 0, name) == 1.0
    assert rate_factor(500, 100, 10, name) == rate_factor(99, 100, 10, name)


def test_wsd_holds_the_peak_until_the_last_fifth():
    rates = [rate_factor(step, 101, 0, "wsd") for step in range(101)]
    assert rates[:81] == [1.0] * 81 and rates[81] < 1.0
    falls = np.diff(rates[80:])
    np.testing.assert_allclose(falls, falls[0], atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_step_of_the_loop_has_the_rate_of_the_schedule(name):
    trainer = make_trainer(epochs=3, batch_size=8, lr=0.5, layer_decay=0.5, warmup=1.5, schedule=name)
    seen = []
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda: (seen.append([g["lr"] for g in trainer.optimizer.param_groups]), step())[1]
    trainer.run()
    scales = [group["scale"] for group in trainer.optimizer.param_groups]
    assert sorted(set(scales)) == [0.25, 0.5, 1.0]
    wanted = [[0.5 * rate_factor(s, 12, 6, name) * scale for scale in scales] for s in range(12)]
    np.testing.assert_allclose(seen, wanted, rtol=1e-12)
    assert [row["lr"] for row in trainer.history] == pytest.approx(
        [0.5 * rate_factor(s, 12, 6, name) for s in (3, 7, 11)]
    )


def test_the_schedule_of_a_run_is_the_one_asked_for(tmp_path):
    data = make_folder(tmp_path / "data", count=20)
    rates = {}
    for name in SCHEDULES:
        options = small_options(epochs=4, batch_size=8, warmup=0.0, schedule=name)
        train(data, **options, out=tmp_path / name)
        rates[name] = [row["lr"] for row in rows(tmp_path / name)]
    steps = 2 * 4  # 16 images to train on
    for name, found in rates.items():
        wanted = [1e-3 * rate_factor(2 * epoch + 1, steps, 0, name) for epoch in range(4)]
        assert found == pytest.approx(wanted)
