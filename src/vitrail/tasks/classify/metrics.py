"""The figures of a classifier, as plain functions of what it said and what was true.

Everywhere: `probabilities` float [n, C]; `labels` int [n], one class per image, or for several labels per image
`targets` bool [n, C]; `predicted` int [n]. Figures are fractions of one. Where a figure can't be known (a class with
no images, a test set of one class) the functions give NaN, and the `..._figures` leave the key out.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from vitrail.errors import VitrailError
from vitrail.tasks.bootstrap import Array, bootstrap, percentiles, resampled, wilson

BINS = 15  # of calibration, as in Guo et al. 2017 and everywhere since


def top_k(probabilities: Array, labels: Array, k: int) -> float:
    """The share of images whose class is among the k likeliest.

    Of equal probabilities the first class counts as the likelier, as in `argmax`: a model that says the same of
    every class gains nothing by it.
    """
    return _mean(_in_top(probabilities, labels, k))


def macro_f1(predicted: Array, labels: Array, classes: int, among: Sequence[int] | None = None) -> float:
    """F1 averaged over the classes that occur in the labels or in the predictions (scikit-learn's choice too), or over
    those of them that are `among` these: the classes of the data, where a model knows more."""
    return _nanmean(_only(_f1(*_marginals(predicted, labels, classes)), among))


def per_class(predicted: Array, labels: Array, classes: int) -> dict[str, Array]:
    """precision, recall, f1 and support, each [C]; NaN is a precision with no predictions, a recall with no images."""
    return _precision_recall(*_marginals(predicted, labels, classes))


def confusion(predicted: Array, labels: Array, classes: int) -> Array:
    """int [C, C]: how many images of the row's class were taken for the column's."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def auroc(probabilities: Array, labels: Array) -> float:
    """The chance that a random image of a class gets a higher probability of it than a random other image.

    Averaged over the classes, each against the rest, that have both; of two classes it is that of the second. For
    several labels per image, `labels` are the targets [n, C].
    """
    return _auroc_and_influence(probabilities, labels)[0]


def ece(probabilities: Array, labels: Array, bins: int = BINS) -> float:
    """Expected calibration error: how far confidence and accuracy lie apart, averaged over the images."""
    table = reliability(probabilities, labels, bins)
    filled = table["count"] > 0
    gaps = np.abs(table["confidence"] - table["accuracy"])[filled]
    return float((gaps * table["count"][filled]).sum() / table["count"].sum()) if filled.any() else math.nan


def reliability(probabilities: Array, labels: Array, bins: int = BINS) -> dict[str, Array]:
    """Bins of equal width over the confidence: mean `confidence`, `accuracy` with its 95 % interval from `low` to
    `high` (NaN where empty) and `count`, [bins].

    The confidence is the highest probability of an image, the accuracy how often that class is right. For several
    labels per image (targets [n, C]) every single probability is a confidence, and right is a label that is there.
    """
    confidence, correct = _confidence(probabilities, labels)
    index = _bin(confidence, bins)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        claimed, right = np.bincount(index, confidence, bins) / count, np.bincount(index, correct, bins) / count
    low, high = np.array([wilson(*bin) if bin[1] else (math.nan, math.nan) for bin in zip(right, count, strict=True)]).T
    return {"confidence": claimed, "accuracy": right, "low": low, "high": high, "count": count}


def average_precision(probabilities: Array, targets: Array) -> Array:
    """[C]: the precision at every recall, averaged; NaN for a class with no image."""
    once = np.ones(len(targets))
    return np.array([_weighted_precision(*column, once) for column in _ranked(probabilities, targets)])


def mean_average_precision(probabilities: Array, targets: Array) -> float:
    """Averaged over the classes that have an image."""
    return _nanmean(average_precision(probabilities, targets))


def best_thresholds(probabilities: Array, targets: Array) -> Array:
    """[C]: from which probability on to say a label, for the best F1 of each class. Choose on validation images.

    A threshold lies midway between two probabilities that occurred, so that it is not the one of a certain image;
    of equally good ones it is the nearest to one half, which is also that of a class with no image.
    """
    return np.array([_best_threshold(p, t) for p, t in zip(probabilities.T, targets.T.astype(bool), strict=True)])


def multi_label_f1(
    probabilities: Array, targets: Array, thresholds: Array | float = 0.5, among: Sequence[int] | None = None
) -> dict[str, float]:
    """`macro_f1`, over the classes that are there or were said (of those `among` these, if given), and `micro_f1`, over
    all labels together."""
    said = probabilities >= thresholds
    counts = np.stack([(said & (targets > 0)).sum(0), said.sum(0), targets.sum(0)])
    return {"macro_f1": _nanmean(_only(_f1(*counts), among)), "micro_f1": float(_f1(*counts.sum(1)))}


def multi_label_per_class(probabilities: Array, targets: Array, thresholds: Array | float = 0.5) -> dict[str, Array]:
    """average_precision, threshold, precision, recall, f1 and support, each [C]."""
    said = probabilities >= thresholds
    return {
        "average_precision": average_precision(probabilities, targets),
        "threshold": np.broadcast_to(np.asarray(thresholds, dtype=float), targets.shape[1:]),
        **_precision_recall((said & (targets > 0)).sum(0), said.sum(0), targets.sum(0)),
    }


def classification_figures(
    probabilities: Array,
    labels: Array,
    classes: Sequence[str],
    seed: int = 0,
    rounds: int = 1000,
    among: Sequence[int] | None = None,
) -> dict[str, float]:
    """top1, top5 (of more than five classes), macro_f1, ece, auroc, each with `_low` and `_high` (95 %), and n; means
    over classes are over those `among` these."""
    n, width = _checked(probabilities, labels, classes)
    if n == 0 or not np.isfinite(probabilities).all():
        return {"n": n}
    labels, predicted = labels.astype(np.int64), probabilities.argmax(1)
    figures: dict[str, float] = {}
    for key, k in {"top1": 1, "top5": 5}.items():
        if k < width:
            right = _in_top(probabilities, labels, k)
            _put(figures, key, right.mean(), _interval_of_share(right, seed, rounds))

    confidence, correct = _confidence(probabilities, labels)
    index, gap = _bin(confidence, BINS), confidence - correct

    def f1_of(drawn: Array) -> float:
        return macro_f1(predicted[drawn], labels[drawn], width, among)

    def ece_of(drawn: Array) -> float:
        return np.abs(np.bincount(index[drawn], gap[drawn], BINS)).sum() / n

    for key, value, function in (
        ("macro_f1", macro_f1(predicted, labels, width, among), f1_of),
        ("ece", ece(probabilities, labels), ece_of),
    ):
        _put(figures, key, value, bootstrap(function, n, seed, rounds, centre=value))
    _put_auroc(figures, probabilities, labels, seed, rounds)
    return figures | {"n": n}


def multi_label_figures(
    probabilities: Array,
    targets: Array,
    classes: Sequence[str],
    thresholds: Array | float = 0.5,
    seed: int = 0,
    rounds: int = 1000,
    among: Sequence[int] | None = None,
) -> dict[str, float]:
    """map, macro_f1, micro_f1 (at the thresholds) and auroc, each with `_low` and `_high` (95 %), and n."""
    n, width = _checked(probabilities, targets, classes)
    if n == 0 or not np.isfinite(probabilities).all():
        return {"n": n}
    targets = targets > 0
    # A round of these costs n × C; fewer than 200 would leave the ends of the interval to chance.
    fewer = int(np.clip(4e7 / (n * width), min(rounds, 200), rounds))
    columns = _ranked(probabilities, targets)

    def map_of(drawn: Array) -> float:
        weights = np.bincount(drawn, minlength=n).astype(float)
        return _nanmean(np.array([_weighted_precision(*column, weights) for column in columns]))

    said = probabilities >= thresholds
    table = np.concatenate([said & targets, said, targets], axis=1).astype(np.float32)  # [n, 3C]

    def counts_of(drawn: Array) -> Array:
        weights = np.bincount(drawn, minlength=n).astype(np.float32)
        return (weights @ table).reshape(3, width)

    f1 = multi_label_f1(probabilities, targets, thresholds, among)
    figures: dict[str, float] = {}
    functions: dict[str, tuple[float, Callable[[Array], float]]] = {
        "map": (mean_average_precision(probabilities, targets), map_of),
        "macro_f1": (f1["macro_f1"], lambda drawn: _nanmean(_only(_f1(*counts_of(drawn)), among))),
        "micro_f1": (f1["micro_f1"], lambda drawn: float(_f1(*counts_of(drawn).sum(1)))),
    }
    for key, (value, function) in functions.items():
        _put(figures, key, value, bootstrap(function, n, seed, fewer, centre=value))
    _put_auroc(figures, probabilities, targets, seed, rounds)
    return figures | {"n": n}


def _checked(probabilities: Array, labels: Array, classes: Sequence[str]) -> tuple[int, int]:
    if probabilities.ndim != 2 or probabilities.shape[1] != len(classes) or len(labels) != len(probabilities):
        raise VitrailError(
            f"The probabilities are {list(probabilities.shape)}: expected [{len(labels)}, {len(classes)}], "
            "one row per image and one column per class."
        )
    if labels.ndim == 1 and len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise VitrailError(f"The labels go from {labels.min()} to {labels.max()}: expected 0 to {len(classes) - 1}.")
    return probabilities.shape


def _put(figures: dict[str, float], key: str, value: float, interval: tuple[float, float]) -> None:
    """The figure unless it can't be known, and its interval unless that is of no width: a resample of a test set
    without a single error has none either, which says nothing of how many the next set would have."""
    if math.isfinite(value):
        figures[key] = float(value)
        low, high = interval
        if low < high:
            figures[f"{key}_low"], figures[f"{key}_high"] = low, high


def _put_auroc(figures: dict[str, float], probabilities: Array, labels: Array, seed: int, rounds: int) -> None:
    value, influence = _auroc_and_influence(probabilities, labels)
    if math.isfinite(value):
        values = value + resampled(lambda drawn: influence[drawn].sum(), len(labels), seed, rounds)
        _put(figures, "auroc", value, percentiles(values.clip(0, 1)))


def _interval_of_share(right: Array, seed: int, rounds: int) -> tuple[float, float]:
    if right.all() or not right.any():
        return wilson(float(right[0]), len(right))
    return bootstrap(lambda drawn: right[drawn].mean(), len(right), seed, rounds)


def _in_top(probabilities: Array, labels: Array, k: int) -> Array:
    """bool [n]: the class is among the k likeliest."""
    of_class = probabilities[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(probabilities.shape[1]) < labels[:, None]
    return ((probabilities > of_class) | ((probabilities == of_class) & earlier)).sum(1) < k


def _confidence(probabilities: Array, labels: Array) -> tuple[Array, Array]:
    if labels.ndim == 2:
        return probabilities.astype(float).ravel(), (labels > 0).ravel().astype(float)
    return probabilities.max(1).astype(float), (probabilities.argmax(1) == labels).astype(float)


def _bin(confidence: Array, bins: int) -> Array:
    """A bin holds its upper edge; the first holds zero too."""
    return np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")


def _marginals(predicted: Array, labels: Array, classes: int) -> tuple[Array, Array, Array]:
    """How often each class was rightly said, said, and there: [C] each."""
    right = labels[predicted == labels]
    rightly, said, there = (np.bincount(values, minlength=classes) for values in (right, predicted, labels))
    return rightly, said, there


def _f1(rightly: Array, said: Array, there: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return 2 * rightly / (said + there)


def _precision_recall(rightly: Array, said: Array, there: Array) -> dict[str, Array]:
    with np.errstate(invalid="ignore"):
        recall, precision = rightly / there, rightly / said
    return {"precision": precision, "recall": recall, "f1": _f1(rightly, said, there), "support": there}


def _auroc_and_influence(probabilities: Array, labels: Array) -> tuple[float, Array]:
    """The macro AUROC and what each image adds to it, [n], summing to zero.

    The AUROC of a resample is, to first order, the AUROC plus the sum of the drawn images' influences (DeLong's
    placement values): a thousand rounds for the price of one, however many classes.
    """
    influence = np.zeros(len(labels))
    if labels.ndim == 2:
        columns = [(probabilities[:, c], labels[:, c] > 0) for c in range(labels.shape[1])]
    elif probabilities.shape[1] == 2:
        columns = [(probabilities[:, 1], labels == 1)]
    else:
        columns = [(probabilities[:, c], labels == c) for c in np.unique(labels)]
    areas = []
    for score, positive in columns:
        with_class, without = np.sort(score[positive]), np.sort(score[~positive])
        if not len(with_class) or not len(without):
            continue
        below = _share_below(without, score[positive])
        above = 1 - _share_below(with_class, score[~positive])
        area = below.mean()
        influence[positive] += (below - area) / len(below)
        influence[~positive] += (above - area) / len(above)
        areas.append(area)
    return (float(np.mean(areas)), influence / len(areas)) if areas else (math.nan, influence)


def _share_below(ascending: Array, values: Array) -> Array:
    """The share of `ascending` below each value, equals counting half."""
    both = np.searchsorted(ascending, values, "left") + np.searchsorted(ascending, values, "right")
    return both / (2 * len(ascending))


def _ranked(probabilities: Array, targets: Array) -> list[tuple[Array, Array, Array, Array]]:
    """Per class, by falling probability: all images; those that have it; and for each of these, because equals count
    together, the rank of the last image, and of the last one that has it, with the same probability."""
    columns = []
    for score, positive in zip(probabilities.T, targets.T > 0, strict=True):
        order = np.argsort(-score, kind="stable")
        having = order[positive[order]]
        last = np.searchsorted(-score[order], -score[having], "right") - 1
        last_having = np.searchsorted(-score[having], -score[having], "right") - 1
        columns.append((order, having, last, last_having))
    return columns


def _weighted_precision(order: Array, having: Array, last: Array, last_having: Array, weights: Array) -> float:
    """Average precision where image i counts `weights[i]` times, a whole number."""
    gained = weights[having]
    if not gained.any():
        return math.nan
    found, said = gained.cumsum()[last_having], weights[order].cumsum()[last]
    return float((gained * found / np.maximum(said, 1)).sum() / gained.sum())


def _best_threshold(score: Array, positive: Array) -> float:
    if not positive.any():
        return 0.5
    order = np.argsort(-score, kind="stable")
    values = score[order].astype(float)
    ends = np.flatnonzero(np.append(np.diff(values) != 0, True))
    f1 = 2 * positive[order].cumsum()[ends] / (ends + 1 + positive.sum())
    below = np.append(values[ends[1:]], 0.0)  # the next lower probability, where one more image would be said
    middle = (values[ends] + below) / 2
    thresholds = np.where(middle > below, middle, values[ends])  # neighbouring floats have no middle
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(thresholds[best[np.abs(thresholds[best] - 0.5).argmin()]])


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else math.nan


def _only(values: Array, among: Sequence[int] | None) -> Array:
    return values if among is None else values[np.unique(np.asarray(among))]


def _nanmean(values: Array) -> float:
    return _mean(values[np.isfinite(values)])
