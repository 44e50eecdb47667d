"""The linear classifier on frozen features: what fine-tuning starts from, or has to get ahead of."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.models.heads import classifiers
from vitrail.tasks.probe import solve_probe
from vitrail.train.distributed import Processes
from vitrail.train.settle import State, copies


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
