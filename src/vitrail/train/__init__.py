"""From DATA to a run folder: recipe, plan, loop, state."""

from typing import TYPE_CHECKING

from vitrail.lazy import keep_functions, lazy

if TYPE_CHECKING:
    from vitrail.train.pretrain.recipe import PretrainRecipe
    from vitrail.train.pretrain.run import pretrain
    from vitrail.train.recipe import Recipe
    from vitrail.train.run import Run, train
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.train.pretrain.run": ("pretrain",),
            "vitrail.train.pretrain.recipe": ("PretrainRecipe",),
            "vitrail.train.recipe": ("Recipe",),
            "vitrail.train.run": ("Run", "train"),
        },
    )
    keep_functions(__name__, ("pretrain",))

__all__ = ["PretrainRecipe", "Recipe", "Run", "pretrain", "train"]
