"""From DATA to a run folder: recipe, plan, loop, state."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazily

if TYPE_CHECKING:
    from vitrail.train.pretrain import pretrain
    from vitrail.train.pretrain_recipe import PretrainRecipe
    from vitrail.train.recipe import Recipe
    from vitrail.train.run import Run, train

__all__ = ["PretrainRecipe", "Recipe", "Run", "pretrain", "train"]

lazily(
    __name__,
    {
        "vitrail.train.pretrain": ("pretrain",),
        "vitrail.train.pretrain_recipe": ("PretrainRecipe",),
        "vitrail.train.recipe": ("Recipe",),
        "vitrail.train.run": ("Run", "train"),
    },
)
