"""The layers that give a model's outputs: solved for on frozen features, exchanged, and run by themselves."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitrail.data.subset import drawn
from vitrail.distributed import Processes
from vitrail.models.heads import classifiers
from vitrail.models.interpolation import State, copies
from vitrail.tasks.linear_probe import Probe
from vitrail.tasks.ridge import Ridge

if TYPE_CHECKING:
    from vitrail.tasks.image_level import AugmentImages

LOOKED_AT, PART = 512, 64  # images, and of them at a time
FAR_OFF = 2.0  # times the loss of an untrained head


class Heads(nn.Module):
    """These layers without the backbone: the mean of them, as the model does it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(classifiers(model))

    def forward(self, features: Tensor) -> Tensor:  # B k D: what each of the k layers is given
        outputs = [layer(x) for layer, x in zip(self.layers, features.unbind(1), strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(dim=0)


def solve_heads(
    model: nn.Module, features: Sequence[Tensor], solve: Callable[[Tensor], Probe | Ridge], processes: Processes
) -> Tensor:
    """Puts into each layer what `solve` makes of its inputs, [n, D]. Gives the outputs for these images, each by a
    solution that has not seen it: [n, C]."""
    held_out = []
    for layer, inputs in zip(classifiers(model), features, strict=True):
        probe = solve(inputs.to(processes.device))
        weight, bias, unseen = processes.of_first((probe.weight.cpu(), probe.bias.cpu(), probe.held_out.cpu()))
        held_out.append(unseen)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.copy_(bias)
    return torch.stack(held_out).mean(dim=0)


def heads_of(model: nn.Module) -> list[State]:
    return [copies(layer) for layer in classifiers(model)]


def exchange_heads(model: nn.Module, states: list[State]) -> list[State]:
    """Puts these heads into the model; gives those that were there."""
    before = heads_of(model)
    for layer, state in zip(classifiers(model), states, strict=True):
        layer.load_state_dict(state)
    return before


def is_bad_start(model: nn.Module, untrained: list[State], augment: "AugmentImages") -> bool:
    """Is the linear probe in the model no start for tuning, and these untrained heads a better one? The features of a
    masked autoencoder may be nearly alike before tuning: a linear probe that separates them has huge weights then, and
    fails as soon as images look as they do in training."""
    loss = loss_in_training(model, augment)
    solved = exchange_heads(model, untrained)
    least = loss_in_training(model, augment)
    exchange_heads(model, solved)
    return loss > FAR_OFF * least


@torch.no_grad()
def loss_in_training(model: nn.Module, augment: "AugmentImages") -> float:
    """Of some training images, augmented as in the first epoch."""
    subset, objective, device = augment.subset, augment.objective, next(model.parameters()).device
    numbers = subset.numbers[drawn(len(subset.numbers), LOOKED_AT)]
    with closing(subset.loader.batches([numbers])) as batches:
        shown, images = next(batches)
    pixels = augment.augmenter(images, shown, 0, device)
    was_training = model.training
    model.eval()
    outputs = torch.cat([model(part).float().cpu() for part in pixels.split(PART)])
    model.train(was_training)
    return objective.score(outputs, objective.targets([augment.truths[number] for number in shown]))["loss"]
