"""From DATA to a run folder: recipe, plan, loop, state."""

from vitrail.train.pretrain import pretrain
from vitrail.train.pretrain_recipe import PretrainRecipe
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run, train

__all__ = ["PretrainRecipe", "Recipe", "Run", "pretrain", "train"]
