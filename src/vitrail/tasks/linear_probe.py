"""What frozen features are worth: logistic regression, cross-validated, and nearest neighbours.

Also where fine-tuning starts: a head that is solved for, rather than drawn at random, spares the backbone the gradients
of a head that knows nothing yet ("Fine-tuning can distort pretrained features", Kumar et al. 2022).
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.loader import random_places
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.models.heads import classifiers
from vitrail.models.interpolation import State, copies

PENALTIES = tuple(10 ** (-exponent / 2) for exponent in range(10))  # 1 to 3e-5, from strong to weak
SHARPEST = 16.0
QUICK = 20.0  # penalty × images: near what cross-validation chooses for an autoencoder's features of 500 to 10,000


@dataclass(frozen=True)
class Probe:
    """logits = features @ weight.T + bias."""

    weight: Tensor  # C D
    bias: Tensor  # C
    penalty: float
    sharpness: float  # what the solution was multiplied by
    held_out: Tensor  # n C: the logits of each training image by the models that did not see it

    def __call__(self, features: Tensor) -> Tensor:
        return features.to(self.weight) @ self.weight.T + self.bias


def solve_probe(
    features: Tensor,
    targets: Tensor,
    multi_label: bool = False,
    folds: int = 4,
    seed: int = 0,
    groups: Sequence[str] | None = None,
) -> Probe:
    """Logistic regression with an L2 penalty on the weights, which cross-validation chooses.

    The best answers come from weights that are held back, the best probabilities from larger ones. So each penalty is
    judged by the held-out loss of its logits times one factor for all of them, the best there is, which stays.

    features [n, D], targets [n, C] one-hot (or any of 0 and 1 if multi-label). Features are standardised inside; the
    result takes them as they are. Images of one group, such as those of one person, are validated together.
    """
    standard, targets, mean, std = standardised(features, targets)
    fold = torch.from_numpy(_folds(targets.cpu().numpy(), folds, seed, groups)).to(features.device)
    parts = [(fold != k, fold == k) for k in range(int(fold.max()) + 1)]
    solutions: list[Tensor | None] = [None] * len(parts)
    fair = _fair(targets, parts)
    best, times, least, held_out = PENALTIES[0], 1.0, float("inf"), torch.empty(0)
    for penalty in PENALTIES:  # each starts from the one before: a path of close solutions
        logits = standard.new_empty(targets.shape)
        for k, (seen, unseen) in enumerate(parts):
            solutions[k] = w = _logistic_regression(standard[seen], targets[seen], penalty, multi_label, solutions[k])
            logits[unseen] = standard[unseen] @ w[:, :-1].T + w[:, -1]
        factor, loss = _sharpness(logits[fair], doubted(targets[fair], multi_label), multi_label)
        if not loss < least:
            break  # weaker ones only fit more closely what they have seen, and take the longest
        best, times, least, held_out = penalty, factor, loss, logits
    solution = times * _logistic_regression(standard, targets, best, multi_label, None)
    return Probe(*_for_plain(solution, mean, std), best, times, times * held_out)


def quick_probe(features: Tensor, targets: Tensor, multi_label: bool = False) -> Probe:
    """One solution with a penalty by the number of images, where `solve_probe` tries some of them on parts of the
    images: a twentieth of its time, so that it can be asked again and again."""
    standard, targets, mean, std = standardised(features, targets)
    penalty = QUICK / len(standard)
    solution = _logistic_regression(standard, targets, penalty, multi_label, None)
    return Probe(*_for_plain(solution, mean, std), penalty, 1.0, standard.new_empty(0))


def standardised(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of mean 0 and deviation 1, the targets beside them, and what these were before."""
    features, targets = features.float(), targets.float().to(features.device)
    if len(features) < 2:
        raise VitrailError(f"A linear classifier learns from two images or more, and {len(features)} can be read.")
    if not features.isfinite().all():
        raise VitrailError("The model's features of some images are not finite: nothing can be learnt from them.")
    mean, std = features.mean(dim=0), features.std(dim=0).clamp_min(1e-6)
    return (features - mean) / std, targets, mean, std


def _for_plain(solution: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias that do to features as they are what `solution` does to standardised ones."""
    weight = solution[:, :-1] / std
    return weight, solution[:, -1] - weight @ mean


def doubted(targets: Tensor, multi_label: bool) -> Tensor:
    """After n right answers of n, the next is right with a probability of (n + 1) / (n + 2) (Laplace): without that
    doubt, classes that are always told apart would ask for logits without end."""
    doubt = 1 / (len(targets) + 2)
    return targets.lerp(torch.full_like(targets, 0.5 if multi_label else 1 / targets.shape[1]), doubt)


def _fair(targets: Tensor, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The images whose classes others have too, in the other folds: what could not be learned says nothing."""
    fair = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
    for seen, unseen in parts:
        fair[unseen] = ~(targets[unseen].bool() & ~targets[seen].bool().any(dim=0)).any(dim=1)
    return fair if fair.any() else torch.ones_like(fair)


def _sharpness(logits: Tensor, targets: Tensor, multi_label: bool) -> tuple[float, float]:
    """The factor with the least loss, and that; it has a single minimum, and the third that it is not in is cut off.
    At least 1: what wants to be blunted was not held back enough, and such weights are a bad start for tuning."""
    low, high = 1.0, SHARPEST
    for _ in range(24):
        one, other = low ** (2 / 3) * high ** (1 / 3), low ** (1 / 3) * high ** (2 / 3)
        if _loss(one * logits, targets, multi_label) <= _loss(other * logits, targets, multi_label):
            high = other
        else:
            low = one
    factor = (low * high) ** 0.5
    return factor, _loss(factor * logits, targets, multi_label).item()


def _logistic_regression(x: Tensor, targets: Tensor, penalty: float, multi_label: bool, start: Tensor | None) -> Tensor:
    """argmin of mean cross-entropy + penalty/2 ‖W‖², as [C, D + 1] with the bias last. Convex: one answer."""
    w = x.new_zeros(targets.shape[1], x.shape[1] + 1) if start is None else start.clone()
    w.requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [w], max_iter=100, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-6
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(x @ w[:, :-1].T + w[:, -1], targets, multi_label) + penalty / 2 * w[:, :-1].square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[arg-type]
    return w.detach()


def _loss(logits: Tensor, targets: Tensor, multi_label: bool) -> Tensor:
    if multi_label:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1).mean()
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()


def _folds(targets: np.ndarray, folds: int, seed: int, groups: Sequence[str] | None = None) -> np.ndarray:
    """A fold for each image; the images of a class are dealt out in turn, so that each fold has its share. Groups are
    dealt out whole, the largest first, each to the fold that has least."""
    rng = np.random.default_rng(seed)
    if groups is not None and len({*groups}) > 1:
        number, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)[1:]
        order = rng.permutation(len(sizes))
        of_group, have = np.empty(len(sizes), dtype=np.int64), np.zeros(min(folds, len(sizes)))
        for group in order[np.argsort(-sizes[order], kind="stable")]:
            of_group[group] = have.argmin()
            have[of_group[group]] += sizes[group]
        return of_group[number]
    shuffled = rng.permutation(len(targets))
    by_class = shuffled[np.argsort(targets.argmax(axis=1)[shuffled], kind="stable")]
    fold = np.empty(len(targets), dtype=np.int64)
    fold[by_class] = np.arange(len(targets)) % min(folds, len(targets))
    return fold


def nearest_neighbours(
    known: Tensor, targets: Tensor, features: Tensor, k: int = 20, temperature: float = 0.07, rows: int = 4096
) -> Tensor:
    """Class probabilities [m, C] by the votes of the k most similar known images (cosine), as DINO evaluates:
    each vote counts exp(similarity / temperature)."""
    known, features = F.normalize(known.float(), dim=1), F.normalize(features.float(), dim=1)
    k, votes = min(k, len(known)), []
    for part in features.split(rows):
        similarity, index = (part @ known.T).topk(k, dim=1)
        weight = (similarity / temperature).softmax(dim=1)
        votes.append((weight[..., None] * targets.to(known)[index]).sum(dim=1))
    return torch.cat(votes)


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
    model: nn.Module, features: Sequence[Tensor], solve: Callable[[Tensor], Any], processes: Processes
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


def is_bad_start(model: nn.Module, untrained: list[State], augment: Any) -> bool:
    """Is the linear probe in the model no start for tuning, and these untrained heads a better one? The features of a
    masked autoencoder may be nearly alike before tuning: a linear probe that separates them has huge weights then, and
    fails as soon as images look as they do in training."""
    loss = loss_in_training(model, augment)
    solved = exchange_heads(model, untrained)
    least = loss_in_training(model, augment)
    exchange_heads(model, solved)
    return loss > FAR_OFF * least


@torch.no_grad()
def loss_in_training(model: nn.Module, augment: Any) -> float:
    """Of some training images, augmented as in the first epoch."""
    subset, objective, device = augment.subset, augment.objective, next(model.parameters()).device
    numbers = subset.numbers[random_places(len(subset.numbers), LOOKED_AT)]
    with closing(subset.loader.batches([numbers])) as batches:
        shown, images = next(batches)
    pixels = augment.augmenter(images, shown, 0, device)
    was_training = model.training
    model.eval()
    outputs = torch.cat([model(part).float().cpu() for part in pixels.split(PART)])
    model.train(was_training)
    return objective.score(outputs, objective.targets([augment.truths[number] for number in shown]))["loss"]
