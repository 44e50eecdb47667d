"""What validation has the last word on: how far to go from the linear classifier to the tuned model.

Between the two, accuracy is mostly higher than at either end ("Robust fine-tuning of zero-shot models", Wortsman et al.
2022), and where tuning has nothing to add the answer lies near the start, so that it does no harm.
"""

from collections.abc import Callable

from torch import Tensor, nn

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

State = dict[str, Tensor]


def copies(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def between(first: State, last: State, share: float) -> State:
    """The weights at this share of the way from `first` to `last`."""
    if share in (0.0, 1.0):
        return first if share == 0.0 else last
    return {
        name: first[name].lerp(value.to(first[name].device), share) if value.is_floating_point() else value
        for name, value in last.items()
    }


def best_share(model: nn.Module, first: State, last: State, score: Callable[[nn.Module], float]) -> float:
    """The share that scores best; of equals, the one nearest to the start. The model is left there."""
    scores = {}
    for share in SHARES:
        model.load_state_dict(between(first, last, share))
        scores[share] = score(model)
    best = max(SHARES, key=lambda share: (scores[share], -share))
    model.load_state_dict(between(first, last, best))
    return best
