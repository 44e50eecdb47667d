"""A loss to differentiate, for any kind of model: by it gradients are measured, and a batch is learned by heart."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.doctor.patient import Patient
from vitrail.doctor.pictures import Labels
from vitrail.tasks.classify.objective import Classify

PROBED = 4  # classes of the made-up task


def objective(patient: Patient, x: Tensor, truthful: bool = False) -> Callable[[nn.Module], Tensor]:
    """A loss to differentiate, of a model such as this one: over the data's own labels if `truthful` and there are
    any, else over made-up ones, which a model that can learn at all learns by heart.

    A masked autoencoder has its own loss; a model without classes gets a fixed random classifier.
    """
    if (own := patient.predictor.kind.own_loss(patient.model, x)) is not None:
        return own
    if not patient.classes:
        chance = torch.Generator().manual_seed(0)
        width = patient.answers_to(x[:1])[1].shape[1]
        matrix = torch.randn(PROBED, width, generator=chance).to(x.device) / width**0.5
        labels = made_up_labels(len(x), PROBED).to(x.device)

        def probed(model: Any) -> Tensor:
            return F.cross_entropy(model.features(x, layers=())["pooled"].float() @ matrix.T, labels)

        return probed
    truthful = truthful and patient.batch.targets is not None
    several = patient.classes == 1 or (truthful and (patient.batch.multi_label or patient.predictor.multi_label))
    places: Labels = [(int(label),) for label in made_up_labels(len(x), made_up_classes(patient))]
    if patient.classes == 1:  # one answer, yes or no
        places = [(0,) if number % 2 else () for number in range(len(x))]
    if truthful and patient.batch.targets is not None:
        places = patient.batch.targets[: len(x)]
    task = Classify(patient.predictor.labels, several)
    targets = task.targets(places, x.device)
    return lambda model: task.loss(model(x), targets).mean()


def made_up_classes(patient: Patient) -> int:
    return min(patient.classes or PROBED, PROBED)


def made_up_labels(count: int, classes: int) -> Tensor:
    """In an order that no data set is in."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)) % classes
