"""Face anti-spoofing: classification of live against attack types, judged by how well the two kinds are told apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vitrail.tasks.classify.objective import Classify, class_counts
from vitrail.tasks.spoof.metrics import Scored, attack_scores

LEAST = 1e-12  # a probability, so that its logarithm is one


@dataclass(frozen=True)
class Spoof(Classify):
    """`classes[0]` is live. A face without a label is an attack of a type that was not learned."""

    @property
    def figure(self) -> str:
        return "auc"

    def scored(self, logits: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """1 − P(live) of each face, and whether it is live."""
        chances = logits.double().softmax(dim=1).cpu().numpy()
        return attack_scores(chances), targets[:, 0].cpu().numpy() > 0.5

    def score(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        """AUC and EER; the loss is that of live against attack, each kind counting half."""
        scores, live = self.scored(logits, targets)
        each = -np.log(np.maximum(np.where(live, 1 - scores, scores), LEAST))
        kinds = [each[kind].mean() for kind in (live, ~live) if kind.any()]
        curve = Scored(scores, np.where(live, "", "attack").tolist()).curve()
        return {"loss": float(np.mean(kinds)), "auc": curve.auc, "eer": curve.eer}


def even_weights(labels: Sequence[tuple[int, ...]], classes: int) -> np.ndarray:
    """[n]: live faces are drawn as often as attacks, and each type of attack as often as the others."""
    counts = class_counts(labels, classes)
    types = max(1, int(np.count_nonzero(counts[1:])))
    return np.array([(1.0 if index == 0 else 1 / types) / counts[index] for (index,) in labels])
