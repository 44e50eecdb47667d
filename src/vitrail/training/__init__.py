"""From DATA to a run folder: recipe, plan, loop, state."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazily

if TYPE_CHECKING:
    from vitrail.training.config import Recipe
    from vitrail.training.pretrain.recipe import PretrainRecipe
    from vitrail.training.pretrain.run import pretrain
    from vitrail.training.run import Run, train

__all__ = ["PretrainRecipe", "Recipe", "Run", "pretrain", "train"]

lazily(
    __name__,
    {
        "vitrail.training.pretrain.run": ("pretrain",),
        "vitrail.training.pretrain.recipe": ("PretrainRecipe",),
        "vitrail.training.config": ("Recipe",),
        "vitrail.training.run": ("Run", "train"),
    },
)
