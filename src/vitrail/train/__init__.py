"""From DATA to a run folder: recipe, plan, loop, state."""

from vitrail.train.recipe import Recipe
from vitrail.train.run import Run, train

__all__ = ["Recipe", "Run", "train"]
