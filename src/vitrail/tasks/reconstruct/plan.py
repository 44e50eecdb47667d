"""What is chosen for a masked autoencoder where nothing was asked for."""

from vitrail.data.augment.images import Policy
from vitrail.models import MAESettings
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.classify.plan import TINY
from vitrail.tasks.planning import USUAL, Choices, Facts, by, scaled

BETAS = (0.9, 0.95)  # the paper's: a shorter memory, for the masks change with every step


def plan_autoencoder(config: Config, facts: Facts) -> Choices:
    """What is hidden and what is predicted are those of the model that the run starts from. The paper's schedule is 800
    epochs of 1.3 million images at batch 4096; scaled to fewer images, it is as many passes and fewer steps, of smaller
    batches."""
    n, size, paper = facts.images, Reason("images", n=facts.images), Reason("paper")
    batch = min(max(8, n // 8), by(n, ((5_000, 64), (50_000, 256), (500_000, 512)), 1024))
    epochs = config.epochs if config.epochs is not None else by(n, ((20_000, 800), (200_000, 400)), 200)
    tiny, start = facts.side <= TINY, facts.settings or MAESettings()
    ratio = paper if start.mask_ratio == 0.75 else Reason("as_model")
    target = Reason("better_features") if start.norm_pix else Reason("as_model")
    had = Reason("as_weights")
    return {
        "mask_ratio": (start.mask_ratio, had if facts.pretrained else ratio),
        "norm_pix": (start.norm_pix, had if facts.pretrained else target),
        "epochs": (epochs, Reason("mae_pretrain_epochs", n=n)),
        "batch_size": (batch, size),
        "lr": scaled(2.4e-3, Reason("mae_rate_scaled"), config.batch_size or batch, 4096),
        "optimizer": ("adamw", paper),
        "weight_decay": (0.05, paper),
        "layer_decay": (1.0, USUAL),
        "warmup": (epochs / 20, Reason("mae_warmup")),
        "clip": (0.0, paper),
        "ema": (0.0, paper),
        "crop": (0.85, Reason("tiny_image")) if tiny else (0.2, paper),
        "flip": (0.5, USUAL),
        "val": (0.0, Reason("own_val")) if facts.own_val else (by(n, ((20_000, 0.1),), 0.02), size),
    }


def crops_and_flips(config: Config) -> Policy:
    """Crops and mirror images alone: hiding three quarters of an image is change enough."""
    crop = 1.0 if config.crop is None else config.crop
    ratio = (0.85, 1 / 0.85) if crop >= 0.85 else (3 / 4, 4 / 3)
    return Policy(scale=(crop, 1.0), ratio=ratio, flip=config.flip or 0.0)
