"""MixUp and CutMix are torchvision's, from numbers that can be drawn again."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from vitrail.data.augment.mixing import beta, blend, cutmix_box, draw, mix, paste


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3, 24, 40), torch.eye(5)[[0, 1, 2, 3, 4, 0]] * 0.9 + 0.02  # smoothed


@pytest.mark.parametrize("share", [0.0, 0.3, 0.85, 1.0])
def test_mixup_is_torchvisions(batch: tuple[Tensor, Tensor], share: float) -> None:
    images, targets = batch
    reference = v2.MixUp(alpha=1.0)
    parameters = {"labels": targets, "batch_size": 6, "lam": share}
    torch.testing.assert_close(blend(images, share), reference.transform(images, parameters), rtol=0, atol=1e-6)
    torch.testing.assert_close(blend(targets, share), reference.transform(targets, parameters), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_is_torchvisions(batch: tuple[Tensor, Tensor], seed: int) -> None:
    images, targets = batch
    reference = v2.CutMix(alpha=1.0)
    torch.manual_seed(seed)
    parameters = reference.make_params([images]) | {"labels": targets, "batch_size": 6}
    torch.manual_seed(seed)  # what it drew: λ, and the pixel of the centre
    share = float(reference._dist.sample(()))
    x, y = int(torch.randint(40, (1,))), int(torch.randint(24, (1,)))

    box, left_over = cutmix_box(share, (x + 0.5) / 40, (y + 0.5) / 24, 24, 40)
    assert box == parameters["box"] and left_over == pytest.approx(parameters["lam_adjusted"], abs=1e-12)
    torch.testing.assert_close(paste(images, box), reference.transform(images, parameters), rtol=0, atol=0)
    torch.testing.assert_close(blend(targets, left_over), reference.transform(targets, parameters), rtol=0, atol=1e-6)


def test_mix_takes_one_of_the_two_and_leaves_its_input_alone(batch: tuple[Tensor, Tensor]) -> None:
    images, targets = batch
    before = images.clone(), targets.clone()
    drawn = np.array([0.2, 0.3, 0.5, 0.5])

    box, left_over = cutmix_box(beta(1.0, 0.3), 0.5, 0.5, 24, 40)
    for mixup in (0.0, 0.8):
        mixed, soft = mix(images, targets, mixup, 1.0, drawn)
        assert torch.equal(mixed, paste(images, box)) and torch.equal(soft, blend(targets, left_over))
    drawn[0] = 0.7
    for cutmix in (0.0, 1.0):
        mixed, soft = mix(images, targets, 0.8, cutmix, drawn)
        assert torch.equal(mixed, blend(images, beta(0.8, 0.3))) and torch.equal(soft, blend(targets, beta(0.8, 0.3)))
    assert mix(images, targets, 0.0, 0.0, drawn) == (images, targets)
    assert torch.equal(images, before[0]) and torch.equal(targets, before[1])
    torch.testing.assert_close(soft.sum(1), torch.ones(6))


def test_each_of_the_two_has_half_of_the_steps_and_a_step_can_be_drawn_again() -> None:
    rows = np.stack([draw(0, 1, step) for step in range(4000)])
    assert (rows[:, 0] < 0.5).mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(draw(0, 1, 1234), rows[1234])
    assert not np.array_equal(draw(0, 2, 1234), rows[1234])


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 2.0, 8.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    """Against NumPy's own sampler, by the largest gap between the two distribution functions."""
    ours = np.array([beta(alpha, quantile) for quantile in (np.arange(2000) + 0.5) / 2000])
    assert (np.diff(ours) >= 0).all() and ours[0] >= 0 and ours[-1] <= 1
    theirs = np.sort(np.random.default_rng(0).beta(alpha, alpha, 200_000))
    lower = ours[:1000]  # of the upper half, many of a small α round to 1
    gap = np.abs(np.searchsorted(theirs, lower) / 200_000 - (np.arange(1000) + 0.5) / 2000)
    assert gap.max() < 0.006  # 1.36 / √200,000 = 0.003 is exceeded by one sampler in twenty
    assert ours.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.01)


def test_a_uniform_share_is_the_number_itself() -> None:
    """Beta(1, 1) in closed form, and Beta(2, 2), whose distribution function is 3t² − 2t³."""
    for quantile in (0.0, 0.1, 0.5, 0.77, 0.999999):
        assert beta(1.0, quantile) == pytest.approx(quantile, abs=1e-9)
        t = beta(2.0, quantile)
        assert 3 * t**2 - 2 * t**3 == pytest.approx(quantile, abs=1e-6)
