"""What a recipe of `pretrain` leaves open, decided by the data: every choice with its reason."""

from typing import Any

from vitrail.data.augment import Policy
from vitrail.train.plan import TINY, by, scaled, settled
from vitrail.train.pretrain.recipe import PretrainRecipe

BETAS = (0.9, 0.95)  # the paper's: a shorter memory, for the masks change with every step


def fill_pretraining(
    recipe: PretrainRecipe, images: int, side: int, own_val: bool
) -> tuple[PretrainRecipe, dict[str, str]]:
    """The recipe with nothing left open, and for each choice the reason. The paper's schedule is 800 epochs of 1.3
    million images at batch 4096; scaled to fewer images, it is as many passes and fewer steps, of smaller batches."""
    n, size = images, f"{images:,} images"
    batch = min(max(8, n // 8), by(n, ((5_000, 64), (50_000, 256), (500_000, 512)), 1024))
    epochs = recipe.epochs if recipe.epochs is not None else by(n, ((20_000, 800), (200_000, 400)), 200)
    tiny = side <= TINY
    lr = scaled(2.4e-3, "the paper's: 1.5e-4 · batch/256 = 2.4e-3 at 4096", recipe.batch_size or batch, 4096)
    chosen: dict[str, tuple[Any, str]] = {
        "epochs": (epochs, f"{size}; the paper has 800, and more still helps"),
        "batch_size": (batch, size),
        "lr": lr,
        "weight_decay": (0.05, "the paper's"),
        "warmup": (epochs / 20, "the paper's: 40 of 800"),
        "crop": (0.85, "an image of few pixels") if tiny else (0.2, "the paper's"),
        "flip": (0.5, "usual"),
        "val": (0.0, "the data has its own val/") if own_val else (by(n, ((20_000, 0.1),), 0.02), size),
    }
    full, why = settled(recipe, chosen)
    return full, {"mask_ratio": "the paper's" if recipe.mask_ratio == 0.75 else "as asked", **why}


def policy_for(recipe: PretrainRecipe) -> Policy:
    """Crops and mirror images alone: hiding three quarters of a picture is change enough."""
    crop = 1.0 if recipe.crop is None else recipe.crop
    ratio = (0.85, 1 / 0.85) if crop >= 0.85 else (3 / 4, 4 / 3)
    return Policy(scale=(crop, 1.0), ratio=ratio, flip=recipe.flip or 0.0)
