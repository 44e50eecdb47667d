"""Weights on their way from a checkpoint into a model."""

from dataclasses import dataclass, field

from vitrail.weights.rules import State


@dataclass
class Fitted:
    """Weights on their way into a model."""

    state: State
    path: str  # of the file, for errors
    notes: list[str] = field(default_factory=list)  # what was changed, in sentences
    fresh: tuple[str, ...] = ()  # beginnings of names that the file has nothing for: the model's own values stay
    inside: str = ""  # what names must begin with for the file to have something for them

    def is_fresh(self, name: str) -> bool:
        return name.startswith(self.fresh) or not name.startswith(self.inside)

    def drop(self, *prefixes: str) -> None:
        self.state = {name: tensor for name, tensor in self.state.items() if not name.startswith(prefixes)}
