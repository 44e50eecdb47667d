"""What a detector of presentation attacks is worth, in the terms of ISO/IEC 30107-3.

A face gets a score, 1 − P(live); from the threshold on it is taken for an attack. Then

    APCER   the share of attacks that pass for live, for each attack type; the worst type counts
    BPCER   the share of live faces that are turned away
    ACER    (worst APCER + BPCER) / 2
    HTER    (APCER over all attacks together + BPCER) / 2
    EER     where both errors are equal, all attacks together; AUC likewise, over all thresholds

The threshold of APCER, BPCER, ACER and HTER is chosen on other faces, the development set: where its errors are equal.
EER, AUC and BPCER at a given APCER describe the scores at hand; nobody can choose by them beforehand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from vitrail.tasks.bootstrap import percentiles, resampled

Array = np.ndarray
LEVELS = (0.01, 0.05, 0.10)  # of APCER, at which BPCER is told


def attack_scores(probabilities: Array) -> Array:
    """[n] from the probabilities [n, C], live first: 1 − P(live), with all digits at either end."""
    chances = np.asarray(probabilities, dtype=np.float64)
    return np.where(chances[:, 0] > 0.5, chances[:, 1:].sum(axis=1), 1 - chances[:, 0])


@dataclass(frozen=True)
class Curve:
    """Both errors at every threshold that makes a difference, from "all are attacks" to "none is"."""

    thresholds: Array  # ascending; from the first on all are attacks, from the last on none
    apcer: Array  # rising from 0 to 1
    bpcer: Array  # falling from 1 to 0

    @property
    def auc(self) -> float:
        """How often an attack scores above a live face; a tie counts half."""
        width, height = -np.diff(self.bpcer), 1 - (self.apcer[1:] + self.apcer[:-1]) / 2
        return float((width * height).sum())

    @property
    def equal(self) -> int:
        """Where the errors are most alike; of several such places, where they are least."""
        return int(np.lexsort((self.apcer + self.bpcer, np.abs(self.apcer - self.bpcer).round(12)))[0])

    @property
    def eer(self) -> float:
        return float(self.apcer[self.equal] + self.bpcer[self.equal]) / 2

    @property
    def threshold(self) -> float:
        """Of equal errors."""
        return float(self.thresholds[self.equal])


class Scored:
    """Scores with what they are of: "" or the attack type, and the subject; each of them [n]."""

    def __init__(self, scores: Array, attacks: Sequence[str], subjects: Sequence[str] | None = None):
        self.scores, self.attacks = np.asarray(scores, np.float64), np.asarray([*attacks], dtype=object)
        self.subjects = np.asarray([*subjects] if subjects else [""] * len(self.scores), dtype=object)
        self.live = self.attacks == ""
        self.types = sorted({kind for kind in self.attacks if kind})
        self._order = np.argsort(self.scores, kind="stable")
        ascending = self.scores[self._order]
        # The last of each run of equal scores: a threshold can't part them.
        self._ends = np.flatnonzero(np.r_[ascending[1:] > ascending[:-1], True]) if len(ascending) else self._order
        between = (ascending[self._ends[:-1]] + ascending[self._ends[1:]]) / 2
        least, most = (ascending[0], ascending[-1]) if len(ascending) else (0.0, 1.0)
        self._thresholds = np.r_[least, between, np.nextafter(most, np.inf)]

    def __len__(self) -> int:
        return len(self.scores)

    def place(self, threshold: float) -> int:
        """Of a threshold on the curve."""
        return int(np.searchsorted(self.scores[self._order][self._ends], threshold))

    def curve(self, weights: Array | None = None, kind: str | None = None) -> Curve:
        """Against all attacks, or those of one kind; `weights` say how often each face counts."""
        weights = np.ones(len(self)) if weights is None else weights
        attacked = ~self.live if kind is None else self.attacks == kind
        passed = [np.r_[0.0, np.cumsum((weights * group)[self._order])[self._ends]] for group in (attacked, self.live)]
        missed, accepted = (part / part[-1] if part[-1] else np.full(len(part), nan) for part in passed)
        return Curve(self._thresholds, missed, 1 - accepted)

    def errors(self, threshold: float, weights: Array | None = None) -> dict[str, float]:
        """At a threshold; NaN where there is nothing to count."""
        weights, taken = np.ones(len(self)) if weights is None else weights, self.scores >= threshold
        by_type = {kind: _share(~taken, weights * (self.attacks == kind)) for kind in self.types}
        worst = max((value for value in by_type.values() if value == value), default=nan)
        bpcer, pooled = _share(taken, weights * self.live), _share(~taken, weights * ~self.live)
        figures = {"hter": (pooled + bpcer) / 2, "acer": (worst + bpcer) / 2, "apcer": worst, "bpcer": bpcer}
        return figures | ({f"apcer/{kind}": value for kind, value in by_type.items()} if len(by_type) > 1 else {})

    def bpcer_at(self, level: float) -> float:
        """The least BPCER at which no attack type passes more often than `level`."""
        if not self.types or not self.live.any():
            return nan
        worst = np.max([self.curve(kind=kind).apcer for kind in self.types], axis=0)
        return float(self.curve().bpcer[worst <= level + 1e-12].min())

    def figures(self, threshold: float, intervals: bool = True, rounds: int = 1000) -> dict[str, Any]:
        """All of them, flat, as fractions; with 95 % intervals from drawing the subjects anew, for the images of one
        person are alike: of few people little is known, however many images there are."""
        curve, both = self.curve(), self.live.any() and not self.live.all()
        found: dict[str, float] = {"eer": curve.eer if both else nan} | self.errors(threshold)
        found |= {"auc": curve.auc if both else nan}
        found |= {f"bpcer_at_apcer_{round(100 * level)}": self.bpcer_at(level) for level in LEVELS}
        ways: dict[str, Callable[[Array], float]] = {
            "eer": lambda weights: self.curve(weights).eer,
            "hter": lambda weights: self.errors(threshold, weights)["hter"],
            "acer": lambda weights: self.errors(threshold, weights)["acer"],
            "auc": lambda weights: self.curve(weights).auc,
        }
        figures: dict[str, Any] = {}
        for name, value in found.items():
            if value != value:
                continue
            figures[name] = float(value)
            if intervals and name in ways and both:
                figures[f"{name}_low"], figures[f"{name}_high"] = self._interval(ways[name], rounds)
        return figures | {
            "threshold": float(threshold), "n": len(self), "live": int(self.live.sum()),
            "attacks": int((~self.live).sum()), "subjects": len({*self.subjects} - {""}),
        }  # fmt: skip

    def auc_error(self, rounds: int = 100) -> float:
        """The standard error of AUC, from drawing the subjects anew; NaN where it can't be known."""
        drawn = self._drawn(lambda weights: self.curve(weights).auc, rounds)
        return float(drawn.std()) if len(drawn) else nan

    def _interval(self, function: Callable[[Array], float], rounds: int) -> tuple[float, float]:
        return percentiles(self._drawn(function, rounds))

    def _drawn(self, function: Callable[[Array], float], rounds: int) -> Array:
        """The figure on each draw of subjects; of images, where nothing says whose they are."""
        named = (self.subjects != "").all() and len({*self.subjects}) > 1
        people = np.unique(self.subjects.astype(str), return_inverse=True)[1] if named else np.arange(len(self))
        count = int(people.max()) + 1

        def of(drawn: Array) -> float:
            weights = np.bincount(drawn, minlength=count)[people].astype(float)
            if not weights[self.live].any() or not weights[~self.live].any():
                return nan
            return function(weights)

        return resampled(of, count, rounds=rounds)

    def by_subject(self, threshold: float) -> list[dict[str, Any]]:
        """A row for each person, the one with the most errors first."""
        taken, rows = self.scores >= threshold, []
        for person in sorted({*self.subjects} - {""}):
            own = self.subjects == person
            live, attacked = own & self.live, own & ~self.live
            rows.append({
                "subject": person, "live": int(live.sum()), "attacks": int(attacked.sum()),
                "bpcer": _share(taken, live), "apcer": _share(~taken, attacked),
                "errors": int((taken & live).sum() + (~taken & attacked).sum()),
            })  # fmt: skip
        return sorted(rows, key=lambda row: (-row["errors"], row["subject"]))


def _share(counted: Array, weights: Array) -> float:
    weights = np.asarray(weights, np.float64)
    return float((counted * weights).sum() / weights.sum()) if weights.any() else nan
