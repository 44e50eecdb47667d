"""Logistic regression and nearest neighbours, beside scikit-learn's."""

import numpy as np
import pytest
import scipy
import torch

from vitrail import VitrailError
from vitrail.tasks import linear_probe
from vitrail.tasks.linear_probe import nearest_neighbours, quick_probe, solve_probe


def features(count: int = 600, width: int = 20, classes: int = 5, spread: float = 1.5, seed: int = 0):
    """Overlapping clouds with unequal scales, as features have."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, classes, count)
    centres = chance.normal(0, 1, (classes, width))
    scales = np.exp(chance.normal(0, 1, width))
    x = (centres[labels] + chance.normal(0, spread, (count, width))) * scales + chance.normal(0, 3, width)
    return torch.from_numpy(x).float(), torch.from_numpy(labels)


def one_hot(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(labels).float()


def test_it_is_sklearns_logistic_regression_with_the_same_penalty():
    from sklearn import linear_model

    x, labels = features()
    unseen, _ = features(2000, seed=1)
    found = solve_probe(x, one_hot(labels))
    mean, std = x.mean(dim=0), x.std(dim=0)
    # mean loss + penalty/2 ‖W‖²  =  1/(n C) · (C · sum of losses + ½ ‖W‖²)
    theirs = linear_model.LogisticRegression(C=1 / (found.penalty * len(x)), max_iter=5000, tol=1e-8)
    theirs.fit(((x - mean) / std).numpy(), labels.numpy())
    wanted = theirs.predict_proba(((unseen - mean) / std).numpy())
    ours = (found(unseen) / found.sharpness).softmax(dim=1).numpy()
    assert (ours.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.999
    assert np.abs(ours - wanted).max() < 2e-3


def test_several_labels_are_sklearns_one_against_the_rest():
    from sklearn import linear_model

    x, labels = features()
    targets = torch.stack([labels % 2 == 0, labels > 2, labels == 1], dim=1).float()
    found = solve_probe(x, targets, multi_label=True)
    standard = ((x - x.mean(dim=0)) / x.std(dim=0)).numpy()
    for column in range(3):
        theirs = linear_model.LogisticRegression(C=1 / (found.penalty * len(x)), max_iter=5000, tol=1e-8)
        theirs.fit(standard, targets[:, column].numpy())
        wanted = theirs.predict_proba(standard)[:, 1]
        assert np.abs((found(x)[:, column] / found.sharpness).sigmoid().numpy() - wanted).max() < 2e-3


def test_the_penalty_is_the_one_whose_sharpened_logits_lose_least():
    """Beside scikit-learn on the same folds, the factor by trying many; the first that is worse ends the search."""
    from sklearn import linear_model, metrics, model_selection

    x, labels = features(160, spread=3)
    found = solve_probe(x, one_hot(labels))
    standard = ((x - x.mean(dim=0)) / x.std(dim=0)).numpy()
    folds = model_selection.PredefinedSplit(linear_probe._folds(one_hot(labels).numpy(), 4, seed=0))
    losses = []
    for penalty in linear_probe.PENALTIES:
        theirs = linear_model.LogisticRegression(C=1 / (penalty * 120), max_iter=5000, tol=1e-8)
        logits = model_selection.cross_val_predict(
            theirs, standard, labels.numpy(), cv=folds, method="decision_function"
        )
        tried = [scipy.special.softmax(times * logits, axis=1) for times in np.geomspace(1, 16, 200)]
        losses.append(min(metrics.log_loss(labels, chances) for chances in tried))
        if losses[-1] > min(losses):
            break
    penalties = linear_probe.PENALTIES
    assert found.penalty == penalties[int(np.argmin(losses))] and 1 < len(losses) < len(penalties)
    assert torch.nn.functional.cross_entropy(found.held_out, labels).item() == pytest.approx(min(losses), abs=1e-3)


def test_classes_that_are_always_told_apart_leave_a_doubt():
    """Of 64 right answers of 64, none makes the next certain."""
    x, labels = features(64, spread=0.01)
    found = solve_probe(x, one_hot(labels))
    assert (found.held_out.argmax(dim=1) == labels).all()
    surest = found.held_out.softmax(dim=1).amax(dim=1)
    assert surest.min() > 0.9 and surest.max() < 1 - 1 / 66 / 10


def test_a_rare_class_is_found():
    """Held back too much, a head says the common one of all."""
    chance = torch.Generator().manual_seed(0)
    labels = (torch.arange(4000) % 50 == 0).long()  # 2 %
    x = torch.randn(4000, 64, generator=chance)
    x[:, 0] += 4 * labels
    found = solve_probe(x[:800], one_hot(labels[:800]))
    assert (found(x[800:]).argmax(dim=1) == 1)[labels[800:] == 1].float().mean() >= 0.3


def test_the_only_image_of_a_class_does_not_make_the_others_timid():
    x, labels = features(200, spread=0.5)
    labels[0] = labels.max() + 1
    with_it, without = solve_probe(x, one_hot(labels)), solve_probe(x[1:], one_hot(labels[1:]))
    assert with_it.sharpness > 0.5 * without.sharpness


def test_what_is_held_out_foretells_what_fresh_images_give():
    x, labels = features(2300, spread=3)
    found = solve_probe(x[:300], one_hot(labels[:300]))
    seen, held_out, fresh = (
        (logits.argmax(dim=1) == truth).float().mean().item()
        for logits, truth in (
            (found(x[:300]), labels[:300]),
            (found.held_out, labels[:300]),
            (found(x[300:]), labels[300:]),
        )
    )
    assert held_out == pytest.approx(fresh, abs=0.06) and seen > fresh + 0.06


def test_held_out_logits_tell_nothing_of_labels_that_are_chance():
    chance = torch.Generator().manual_seed(0)
    x, labels = torch.randn(400, 50, generator=chance), torch.randint(0, 2, (400,), generator=chance)
    found = solve_probe(x, one_hot(labels))
    assert (found.held_out.argmax(dim=1) == labels).float().mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("count", [300, 3000])
def test_a_quick_probe_knows_nearly_as_much(count):
    x, labels = features(count + 1000, spread=3)
    right = [
        (probe(x[:count], one_hot(labels[:count]))(x[count:]).argmax(dim=1) == labels[count:]).float().mean().item()
        for probe in (quick_probe, solve_probe)
    ]
    assert right[0] == pytest.approx(right[1], abs=0.03) and right[0] > 0.5


def test_a_quick_probe_takes_features_as_they_are_and_several_labels():
    x, labels = features(300, spread=1)
    targets = torch.maximum(one_hot(labels), one_hot(labels.roll(1)) * (labels == 0)[:, None])
    moved = quick_probe(1000 * x + 7, targets, multi_label=True)
    assert torch.allclose(moved(1000 * x + 7), quick_probe(x, targets, multi_label=True)(x), atol=1e-2)


def test_a_fold_has_its_share_of_each_class():
    labels = np.repeat([0, 1, 2], [40, 12, 3])
    fold = linear_probe._folds(np.eye(3)[labels], 4, seed=0)
    counts = np.array([[((fold == k) & (labels == c)).sum() for c in range(3)] for k in range(4)])
    assert counts.sum() == 55 and np.ptp(counts, axis=0).max() <= 1


def test_features_that_are_no_numbers_are_one_sentence():
    x, labels = features(20)
    x[3, 4] = float("nan")
    with pytest.raises(VitrailError, match="features of some images are not finite"):
        solve_probe(x, one_hot(labels))


def test_a_single_image_is_one_sentence():
    x, labels = features(20)
    with pytest.raises(VitrailError, match="learns from two images or more, and 1 can be read"):
        solve_probe(x[:1], one_hot(labels)[:1])


def test_nearest_neighbours_are_sklearns_with_weighted_votes():
    from sklearn import neighbors

    known, labels = features(300)
    asked, _ = features(100, seed=1)
    ours = nearest_neighbours(known, one_hot(labels), asked, k=20, temperature=0.07, rows=33)
    theirs = neighbors.KNeighborsClassifier(
        20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07), algorithm="brute"
    )
    theirs.fit(known.numpy(), labels.numpy())
    np.testing.assert_allclose(ours.numpy(), theirs.predict_proba(asked.numpy()), atol=1e-4)
    few = nearest_neighbours(known[:5], one_hot(labels)[:5], asked)  # fewer than 20 are known
    assert few.sum(dim=1) == pytest.approx(torch.ones(100))
