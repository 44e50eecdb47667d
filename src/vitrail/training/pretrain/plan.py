"""What a recipe of `pretrain` leaves open, decided by the data: every choice with its reason."""

from typing import Any

from vitrail.data.augment.images import Policy
from vitrail.models import MAESettings
from vitrail.training.plan import TINY, by, scaled, settled
from vitrail.training.pretrain.recipe import PretrainRecipe

BETAS = (0.9, 0.95)  # the paper's: a shorter memory, for the masks change with every step


def fill_pretraining(
    recipe: PretrainRecipe, images: int, side: int, own_val: bool, model: MAESettings | None = None,
    pretrained: bool = False,
) -> tuple[PretrainRecipe, dict[str, str]]:  # fmt: skip
    """The recipe with nothing left open, and for each choice the reason. What is hidden and what is predicted are those
    of the model that the run starts from. The paper's schedule is 800 epochs of 1.3 million images at batch 4096;
    scaled to fewer images, it is as many passes and fewer steps, of smaller batches."""
    n, size = images, f"{images:,} images"
    batch = min(max(8, n // 8), by(n, ((5_000, 64), (50_000, 256), (500_000, 512)), 1024))
    epochs = recipe.epochs if recipe.epochs is not None else by(n, ((20_000, 800), (200_000, 400)), 200)
    tiny = side <= TINY
    start, had = model or MAESettings(), "as the weights had it" if pretrained else ""
    lr = scaled(2.4e-3, "the paper's: 1.5e-4 · batch/256 = 2.4e-3 at 4096", recipe.batch_size or batch, 4096)
    chosen: dict[str, tuple[Any, str]] = {
        "mask_ratio": (start.mask_ratio, had or ("the paper's" if start.mask_ratio == 0.75 else "as --model says")),
        "norm_pix": (start.norm_pix, had or ("better features" if start.norm_pix else "as --model says")),
        "epochs": (epochs, f"{size}; the paper has 800, and more still helps"),
        "batch_size": (batch, size),
        "lr": lr,
        "weight_decay": (0.05, "the paper's"),
        "warmup": (epochs / 20, "the paper's: 40 of 800"),
        "crop": (0.85, "an image of few pixels") if tiny else (0.2, "the paper's"),
        "flip": (0.5, "usual"),
        "val": (0.0, "the data has its own val/") if own_val else (by(n, ((20_000, 0.1),), 0.02), size),
    }
    return settled(recipe, chosen)


def policy_for(recipe: PretrainRecipe) -> Policy:
    """Crops and mirror images alone: hiding three quarters of a picture is change enough."""
    crop = 1.0 if recipe.crop is None else recipe.crop
    ratio = (0.85, 1 / 0.85) if crop >= 0.85 else (3 / 4, 4 / 3)
    return Policy(scale=(crop, 1.0), ratio=ratio, flip=recipe.flip or 0.0)
