"""The figures against scikit-learn's, against closed forms, and the intervals against what they promise."""

import math
import time

import numpy as np
import pytest
from sklearn import metrics as sk

from vitrail.errors import VitrailError
from vitrail.tasks.bootstrap import bootstrap, wilson
from vitrail.tasks.classify.metrics import (
    auroc,
    average_precision,
    best_thresholds,
    classification_figures,
    confusion,
    ece,
    macro_f1,
    mean_average_precision,
    multi_label_f1,
    multi_label_figures,
    multi_label_per_class,
    per_class,
    reliability,
    top_k,
)


def classifier(n=400, classes=7, skill=2.0, seed=0):
    """Probabilities [n, C] and labels [n] of a model with some skill; the last class has no image."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes - 1, n)
    logits = generator.normal(size=(n, classes))
    logits[np.arange(n), labels] += skill
    chances = np.exp(logits)
    return chances / chances.sum(1, keepdims=True), labels


def tagger(n=300, classes=6, seed=0, digits=None):
    """Probabilities and targets [n, C] of several labels per image; the last class has no image."""
    generator = np.random.default_rng(seed)
    targets = generator.random((n, classes)) < 0.2
    targets[:, -1] = False
    chances = 1 / (1 + np.exp(-(generator.normal(size=(n, classes)) + 2 * targets - 1)))
    return (chances if digits is None else chances.round(digits)), targets


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_is_scikit_learns(k):
    chances, labels = classifier()
    assert top_k(chances, labels, k) == pytest.approx(
        sk.top_k_accuracy_score(labels, chances, k=k, labels=range(7)), abs=1e-9
    )


def test_a_model_that_says_the_same_of_every_class_gains_nothing_by_ties():
    chances, labels = np.full((10, 4), 0.25), np.arange(10) % 4
    assert top_k(chances, labels, 1) == np.mean(labels == chances.argmax(1)) == 0.3
    assert top_k(chances, labels, 2) == 0.6  # the classes 0 and 1


def test_f1_precision_recall_and_confusion_are_scikit_learns():
    chances, labels = classifier()
    predicted = chances.argmax(1)
    assert macro_f1(predicted, labels, 7) == pytest.approx(sk.f1_score(labels, predicted, average="macro"), abs=1e-9)
    table = per_class(predicted, labels, 7)
    expected = sk.precision_recall_fscore_support(labels, predicted, labels=range(7), zero_division=np.nan)
    for key, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        np.testing.assert_allclose(table[key], values, atol=1e-9)
    assert math.isnan(table["recall"][6])  # a class with no image has no recall, rather than one of 0
    np.testing.assert_array_equal(
        confusion(predicted, labels, 7), sk.confusion_matrix(labels, predicted, labels=range(7))
    )


def test_macro_f1_leaves_out_a_class_that_neither_is_nor_was_said():
    predicted, labels = np.array([0, 1, 1]), np.array([0, 1, 0])
    assert macro_f1(predicted, labels, 10) == pytest.approx(2 / 3)


@pytest.mark.parametrize("digits", [None, 1], ids=["distinct", "many ties"])
def test_auroc_is_scikit_learns(digits):
    chances, labels = classifier(classes=4)
    chances = chances if digits is None else chances.round(digits)
    per_one = [sk.roc_auc_score(labels == c, chances[:, c]) for c in range(3)]
    assert auroc(chances, labels) == pytest.approx(np.mean(per_one), abs=1e-9)  # without the class that is absent
    scores, targets = tagger(digits=digits)
    per_one = [sk.roc_auc_score(targets[:, c], scores[:, c]) for c in range(5)]
    assert auroc(scores, targets) == pytest.approx(np.mean(per_one), abs=1e-9)


def test_auroc_of_all_classes_and_of_two_is_scikit_learns_own_macro_average():
    generator = np.random.default_rng(3)
    labels, chances = generator.integers(0, 3, 200), generator.dirichlet(np.ones(3), 200)
    assert auroc(chances, labels) == pytest.approx(sk.roc_auc_score(labels, chances, multi_class="ovr"), abs=1e-9)
    labels, chances = generator.integers(0, 2, 200), generator.dirichlet(np.ones(2), 200)
    assert auroc(chances, labels) == pytest.approx(sk.roc_auc_score(labels, chances[:, 1]), abs=1e-9)


def test_a_test_set_of_one_class_has_no_auroc():
    assert math.isnan(auroc(np.array([[0.2, 0.8], [0.4, 0.6]]), np.array([1, 1])))


def test_calibration_error_in_closed_form():
    confident = np.array([[0.75, 0.25]] * 4)
    assert ece(confident, np.array([0, 0, 0, 1])) == pytest.approx(0, abs=1e-12)  # claims 3 of 4, gets 3 of 4
    assert ece(confident, np.array([1, 1, 1, 1])) == pytest.approx(0.75)
    two = np.array([[0.9, 0.1]] * 2 + [[0.6, 0.4]] * 6)
    labels = np.array([0, 1] + [0] * 6)
    assert ece(two, labels) == pytest.approx((2 * (0.9 - 0.5) + 6 * (1 - 0.6)) / 8)


def test_a_model_that_draws_its_labels_from_its_own_probabilities_is_calibrated():
    generator = np.random.default_rng(0)
    chances = generator.dirichlet([0.5] * 4, 100_000)
    labels = (chances.cumsum(1) > generator.random((100_000, 1))).argmax(1)
    assert ece(chances, labels) < 0.005
    assert ece(chances**2 / (chances**2).sum(1, keepdims=True), labels) > 0.05  # the same, over-confident


def test_reliability_counts_each_image_once_and_puts_an_edge_into_the_lower_bin():
    chances = np.array([[1.0, 0.0], [0.8, 0.2], [0.5, 0.5], [0.55, 0.45]])
    table = reliability(chances, np.array([0, 1, 0, 0]), bins=5)
    assert table["count"].tolist() == [0, 0, 2, 1, 1]
    assert table["confidence"][2:].tolist() == [0.525, 0.8, 1.0]
    assert table["accuracy"][2:].tolist() == [1.0, 0.0, 1.0]
    assert np.isnan(table["accuracy"][:2]).all()
    scores, targets = tagger()
    assert reliability(scores, targets)["count"].sum() == scores.size  # every label of an image is a claim


@pytest.mark.parametrize("digits", [None, 1], ids=["distinct", "many ties"])
def test_average_precision_is_scikit_learns(digits):
    scores, targets = tagger(digits=digits)
    expected = [sk.average_precision_score(targets[:, c], scores[:, c]) for c in range(5)]
    np.testing.assert_allclose(average_precision(scores, targets)[:5], expected, atol=1e-9)
    assert math.isnan(average_precision(scores, targets)[5])
    assert mean_average_precision(scores, targets) == pytest.approx(np.mean(expected), abs=1e-9)


def test_multi_label_f1_is_scikit_learns_on_the_classes_that_occur():
    scores, targets = tagger()
    thresholds = np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.9999])
    said = scores >= thresholds
    figures = multi_label_f1(scores, targets, thresholds)
    assert figures["micro_f1"] == pytest.approx(sk.f1_score(targets, said, average="micro"), abs=1e-9)
    each = sk.f1_score(targets, said, average=None, zero_division=np.nan)
    assert figures["macro_f1"] == pytest.approx(np.nanmean(each), abs=1e-9)
    assert np.isnan(each[5]) and multi_label_per_class(scores, targets, thresholds)["f1"][0] == pytest.approx(each[0])


def test_the_best_threshold_is_as_good_as_any_and_lies_between_probabilities():
    scores, targets = tagger(n=30)
    thresholds = best_thresholds(scores, targets)
    for c in range(5):
        best = max(sk.f1_score(targets[:, c], scores[:, c] >= t) for t in scores[:, c])
        assert sk.f1_score(targets[:, c], scores[:, c] >= thresholds[c]) == pytest.approx(best)
        assert thresholds[c] not in scores[:, c]
    assert thresholds[5] == 0.5
    assert best_thresholds(np.array([[0.9], [0.1]]), np.array([[True], [False]])).tolist() == [0.5]
    neighbours = np.array([[np.nextafter(0.5, 1)], [0.5]])  # two floats with none between
    assert (neighbours >= best_thresholds(neighbours, np.array([[True], [False]]))).tolist() == [[True], [False]]


def test_a_95_percent_interval_covers_the_truth_about_95_times_in_100():
    generator = np.random.default_rng(0)
    covered = 0
    for repeat in range(250):
        right = generator.random(200) < 0.8
        low, high = bootstrap(lambda drawn, right=right: right[drawn].mean(), 200, seed=repeat, rounds=150)
        covered += low <= 0.8 <= high
    assert 0.91 <= covered / 250 <= 0.98


def test_an_interval_of_a_mean_has_the_width_of_theory_and_is_the_same_for_the_same_seed():
    values = np.random.default_rng(0).normal(0.5, 0.1, 1000)
    interval = bootstrap(lambda drawn: values[drawn].mean(), 1000)
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 * values.std() / math.sqrt(1000), rel=0.1)
    assert interval == bootstrap(lambda drawn: values[drawn].mean(), 1000)


def test_the_auroc_interval_is_that_of_computing_every_resample_anew():
    chances, labels = classifier(n=300, classes=4, skill=1.0)
    figures = classification_figures(chances, labels, list("abcd"))
    low, high = bootstrap(lambda drawn: auroc(chances[drawn], labels[drawn]), 300, rounds=1000)
    width = high - low
    assert figures["auroc_low"] == pytest.approx(low, abs=0.1 * width)
    assert figures["auroc_high"] == pytest.approx(high, abs=0.1 * width)


@pytest.mark.parametrize("seed", range(5))
def test_intervals_hold_what_was_measured_even_with_two_images_per_class(seed):
    """Where the bias of a plain bootstrap would push them off it."""
    generator = np.random.default_rng(seed)
    labels = np.arange(100) // 2
    logits = generator.normal(size=(100, 50))
    logits[np.arange(100), labels] += 3
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    figures = classification_figures(chances, labels, [str(c) for c in range(50)], rounds=200)
    for key in ("top1", "top5", "macro_f1", "ece", "auroc"):
        assert 0 <= figures[f"{key}_low"] <= figures[key] <= figures[f"{key}_high"] <= 1, key


def test_a_thousand_resamples_of_ten_thousand_images_take_less_than_a_second():
    right = np.random.default_rng(0).random(10_000) < 0.9
    start = time.process_time()
    bootstrap(lambda drawn: right[drawn].mean(), 10_000)
    assert time.process_time() - start < 1


def keys(*names):
    return {f"{name}{end}" for name in names for end in ("", "_low", "_high")} | {"n"}


def test_the_figures_are_flat_fractions_under_the_documented_keys():
    chances, labels = classifier()
    figures = classification_figures(chances, labels, list("abcdefg"), rounds=100)
    assert figures.keys() == keys("top1", "top5", "macro_f1", "ece", "auroc")
    assert figures["n"] == 400 and all(0 <= value <= 1 for key, value in figures.items() if key != "n")
    assert all(type(value) is float for key, value in figures.items() if key != "n")  # JSON-able
    assert figures["top1"] == pytest.approx(sk.accuracy_score(labels, chances.argmax(1)))
    few = classification_figures(chances[:, :5], labels % 5, list("abcde"), rounds=100)
    assert few.keys() == keys("top1", "macro_f1", "ece", "auroc")  # of five classes, all are in the top five
    scores, targets = tagger()
    figures = multi_label_figures(scores, targets, list("abcdef"), 0.4, rounds=100)
    assert figures.keys() == keys("map", "macro_f1", "micro_f1", "auroc")
    assert all(figures[f"{key}_low"] < figures[key] < figures[f"{key}_high"] for key in ("map", "macro_f1", "auroc"))


def test_figures_that_cannot_be_known_are_left_out():
    one_class = classification_figures(np.array([[0.7, 0.3]] * 8), np.zeros(8, int), ["a", "b"], rounds=50)
    assert "auroc" not in one_class and one_class["top1"] == 1.0
    broken = classification_figures(np.full((8, 2), np.nan), np.zeros(8, int), ["a", "b"], rounds=50)
    assert broken == {"n": 8}
    assert classification_figures(np.zeros((0, 2)), np.zeros(0, int), ["a", "b"]) == {"n": 0}
    nothing = multi_label_figures(np.full((8, 2), 0.1), np.zeros((8, 2), bool), ["a", "b"], rounds=50)
    assert nothing == {"n": 8}


def test_twenty_of_twenty_right_is_not_certainty():
    """Resampling a test set without an error never shows one: the share has Wilson's bound, the others none."""
    labels = np.arange(20) % 2
    chances = np.where(np.eye(2)[labels] > 0, 0.9, 0.1)
    figures = classification_figures(chances, labels, ["a", "b"], rounds=50)
    assert figures["top1_low"] == pytest.approx(20 / (20 + 1.959964**2), abs=1e-5)  # 0.839
    assert figures["macro_f1"] == 1.0 and "macro_f1_low" not in figures and "auroc_low" not in figures


def test_wilsons_interval_is_the_textbooks():
    assert wilson(0.9, 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0, 0.2775), abs=1e-4)


def test_probabilities_and_labels_that_do_not_fit_are_refused():
    with pytest.raises(VitrailError, match=r"\[4, 3\]: expected \[4, 2\]"):
        classification_figures(np.zeros((4, 3)), np.zeros(4, int), ["a", "b"])
    with pytest.raises(VitrailError, match="from 0 to 2: expected 0 to 1"):
        classification_figures(np.zeros((3, 2)), np.array([0, 1, 2]), ["a", "b"])
