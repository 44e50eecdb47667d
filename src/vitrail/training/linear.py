"""The linear classifier on frozen features: what fine-tuning starts from, or has to get ahead of."""

from collections.abc import Sequence
from contextlib import closing

import torch
from torch import Tensor, nn

from vitrail.data.augment.images import Augmenter
from vitrail.data.subset import Subset, drawn
from vitrail.distributed import Processes
from vitrail.models.heads import classifiers
from vitrail.tasks.classify import Classify
from vitrail.tasks.probe import solve_probe
from vitrail.training.interpolation import State, copies

LOOKED_AT, PART = 512, 64  # images, and of them at a time
FAR_OFF = 2.0  # times the loss of a head that knows nothing


def solve_heads(
    model: nn.Module, features: Sequence[Tensor], targets: Tensor, multi_label: bool, seed: int,
    groups: list[str] | None, processes: Processes,
) -> Tensor:  # fmt: skip
    """Logistic regression into each layer of the model that gives logits, on what that is given, [n, D]. The logits of
    these images, each by a classifier that has not seen it: [n, classes]."""
    held_out = []
    for layer, inputs in zip(classifiers(model), features, strict=True):
        probe = solve_probe(inputs.to(processes.device), targets, multi_label, seed=seed, groups=groups)
        weight, bias, unseen = processes.of_first((probe.weight.cpu(), probe.bias.cpu(), probe.held_out.cpu()))
        held_out.append(unseen)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.copy_(bias)
    return torch.stack(held_out).mean(dim=0)


def heads(model: nn.Module) -> list[State]:
    return [copies(layer) for layer in classifiers(model)]


def exchange_heads(model: nn.Module, states: list[State]) -> list[State]:
    """Gives those that were there."""
    before = heads(model)
    for layer, state in zip(classifiers(model), states, strict=True):
        layer.load_state_dict(state)
    return before


def is_lost(model: nn.Module, small: list[State], images: Subset, augmenter: Augmenter, task: Classify) -> bool:
    """Is the classifier in the model no start for tuning, and these heads, which know nothing, a better one? A masked
    autoencoder's features may be nearly alike before they have moved: what tells them apart in a line has huge weights
    then, and is lost as soon as pictures look as they do in training."""
    pictures = images, augmenter, task
    loss = loss_in_training(model, *pictures)
    solved = exchange_heads(model, small)
    least = loss_in_training(model, *pictures)
    exchange_heads(model, solved)
    return loss > FAR_OFF * least


@torch.no_grad()
def loss_in_training(model: nn.Module, images: Subset, augmenter: Augmenter, task: Classify) -> float:
    """Of some training images, changed at random as in the first epoch."""
    device = next(model.parameters()).device
    numbers = images.numbers[drawn(len(images.numbers), LOOKED_AT)]
    with closing(images.loader.batches([numbers])) as batches:
        shown, pictures = next(batches)
    pixels = augmenter(pictures, shown, 0, device)
    was_training = model.training
    model.eval()
    logits = torch.cat([model(part).float().cpu() for part in pixels.split(PART)])
    model.train(was_training)
    return task.score(logits, task.targets(images.labels(shown)))["loss"]
