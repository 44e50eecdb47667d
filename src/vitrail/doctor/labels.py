"""Labels against what the model sees: images that lie close in feature space should share theirs.

The share of an image's five nearest neighbours with its label is compared with what a thousand shuffles of the labels
give. Measured on DeiT-Ti with 64 images: Imagenette 0.93 against 0.10, z = 38; pets (37 breeds, two images each)
0.17 against 0.01, z = 20. These are what was seen when the line was drawn, not bounds: other images give other z.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.doctor.findings import Finding, fault, ok, skipped, warn
from vitrail.doctor.patient import Patient

NEIGHBOURS = 5
SHUFFLES = 1000
CLEAR = 3.0  # z above which labels and neighbours belong together
FEW = 16


def labels(patient: Patient) -> Iterator[Finding]:
    batch = patient.batch
    if batch.groups is None:
        yield skipped("there are none; name labelled DATA")
        return
    if patient.untrained:
        yield skipped("the features of an untrained model can't tell")
        return
    if len(batch.x) < FEW:
        yield skipped(f"{len(batch.x)} pictures are too few; at least {FEW} are needed")
        return
    logits, features = patient.answers
    if not features.isfinite().all():
        yield skipped("the features are no numbers")
        return
    share, chance, z = neighbour_agreement(features, _targets(batch.groups))
    accuracy, expected, above = _own_answers(patient, logits)
    seen = {"neighbours": share, "chance": chance, "z": z} | ({} if accuracy is None else {"accuracy": accuracy})
    near = f"{share:.0%} of near neighbours share their label, shuffled ones {chance:.0%} (z = {z:.1f})"
    own = "" if accuracy is None else f"; the model's own answers: {accuracy:.0%} right, {expected:.0%} by chance"
    if z > CLEAR and accuracy is not None and not above and _sure(logits):
        yield fault(
            "class_order",
            near + own,
            "the classes of the data are not in the order, or not those, of the model",
            "compare the class names with the model's labels",
            **seen,
        )
    elif z > CLEAR or above:
        yield ok((near if math.isfinite(z) else "no two pictures share a label") + own, **seen)
    elif not math.isfinite(z) and accuracy is None:
        yield skipped("no two pictures share a label; name DATA with several of each class")
    elif patient.faulty:
        yield skipped(f"features of a faulty model can't tell: mend what was found above first. {near}")
    elif patient.predictor.kind.self_supervised:
        yield skipped(f"an autoencoder's features need not tell classes apart, and these do not: {near}")
    else:
        make: Any = fault if logits is None or _sure(logits) else warn
        yield make(
            "shuffled_labels",
            (near if math.isfinite(z) else "no two pictures share a label") + own,
            "labels that were shuffled against their pictures, as by sorting one list and not the other"
            + ("" if make is fault else "; or features that do not tell these classes apart yet"),
            "look at some pictures with their labels (vitrail data inspect DATA --out sheet.png)",
            **seen,
        )


def neighbour_agreement(features: Tensor, targets: Tensor, seed: int = 0) -> tuple[float, float, float]:
    """The mean agreement of labels with those of near neighbours, what shuffled labels give, and how many deviations
    lie between. targets [n, C] of 0 and 1; agreement is shared labels over all labels of the two."""
    # Without the mean, which all features share, cosines spread.
    centred = F.normalize(features.double() - features.double().mean(dim=0), dim=1)
    alike = (centred @ centred.T).fill_diagonal_(-math.inf)
    near = alike.topk(min(NEIGHBOURS, len(features) - 1), dim=1).indices
    both = targets.double() @ targets.double().T
    count = targets.sum(dim=1).double()
    agreement = both / (count[:, None] + count[None] - both).clamp(min=1)
    share = agreement.gather(1, near).mean().item()
    chance = torch.Generator().manual_seed(seed)
    shuffled = []
    for _ in range(SHUFFLES):
        order = torch.randperm(len(targets), generator=chance)
        shuffled.append(agreement[order[:, None], order[near]].mean().item())
    null = torch.tensor(shuffled, dtype=torch.float64)
    deviation = null.std().item()
    mean = null.mean().item()
    return share, mean, (share - mean) / deviation if deviation > 1e-12 else -math.inf


def _targets(groups: list[tuple[int, ...]]) -> Tensor:
    highest = max((label for several in groups for label in several), default=0)
    targets = torch.zeros(len(groups), highest + 1)
    for row, several in enumerate(groups):
        targets[row, list(several)] = 1
    return targets


def _own_answers(patient: Patient, logits: Tensor | None) -> tuple[float | None, float, bool]:
    """The share of answers that are among the labels, what chance would give, and whether it hardly reaches that."""
    if logits is None or patient.batch.targets is None or patient.faulty:
        return None, 0.0, False
    truth = torch.zeros_like(logits)
    for row, several in enumerate(patient.batch.targets):
        truth[row, list(several)] = 1
    right = truth.gather(1, logits.argmax(dim=1, keepdim=True)).mean().item()
    # Chance: as often as the model says a class times how often it is a label.
    said = F.one_hot(logits.argmax(dim=1), logits.shape[1]).double().mean(dim=0)
    expected = (said * truth.double().mean(dim=0)).sum().item()
    error = math.sqrt(max(expected * (1 - expected), 1 / len(logits)) / len(logits))
    return right, expected, right > expected + CLEAR * error


def _sure(logits: Tensor | None) -> bool:
    """Does the model claim to know? The mean probability of its answers is half of the way from chance to certainty, in
    logarithms. DeiT-Ti: 0.58 of 1000 classes, where 0.03 would do; a model of a few steps is near chance."""
    if logits is None or logits.shape[1] < 2:
        return False
    return logits.softmax(dim=1).amax(dim=1).mean().item() > (1 / logits.shape[1]) ** 0.5
