"""Plans: what a configuration leaves open, decided by the data, every choice with its reason."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.options import Config
from vitrail.reasons import Reason

Choice = tuple[Any, Reason]  # a value, and why
Choices = dict[str, Choice]  # by option

USUAL = Reason("usual")
AVERAGE = Reason("average")


@dataclass(frozen=True)
class Facts:
    """What the choices depend on."""

    images: int  # to train on
    classes: int
    pretrained: bool
    side: int  # of the images that the model sees
    settings: Any = None  # of the model
    own_val: bool = False  # has the data validation images of its own?
    masked: bool = False  # are the weights those of a masked autoencoder, which has seen no labels?
    multi_label: bool = False


def settled(config: Config, choices: Mapping[str, Choice]) -> tuple[Config, dict[str, Reason]]:
    """What was asked for stays; what was left open becomes what was chosen, with its reason."""
    values: dict[str, Any] = {}
    why: dict[str, Reason] = {}
    for name, (value, reason) in choices.items():
        if name not in config:  # shared plans choose for options that not every task has
            continue
        if config.get(name) in (None, "auto"):
            values[name], why[name] = value, reason
        else:
            why[name] = Reason("as_asked")
    if config.get("calm"):
        why["calm"] = Reason("as_asked")
    full = config.replace(**values)
    if full.warmup is not None and full.epochs is not None and full.warmup > full.epochs / 2:
        full, why["warmup"] = full.replace(warmup=full.epochs / 2), Reason("half_of_run")
    return full, why


def scaled(lr: float, reason: Reason, batch: int, usual: int) -> tuple[float, Reason]:
    """The square-root rule for Adam, for a batch other than the one that the rate was found with."""
    if batch == usual:
        return lr, reason
    rate = float(f"{lr * (batch / usual) ** 0.5:.3g}")
    return rate, Reason("batch_scaled", reason=reason, batch=batch, usual=usual)


def by(n: int, steps: Iterable[tuple[int, Any]], beyond: Any) -> Any:
    """The value of the first step that n is below."""
    return next((value for limit, value in steps if n < limit), beyond)
