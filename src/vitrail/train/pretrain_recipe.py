"""What `vitrail pretrain` can be told, and what it decides by the data where nothing was said."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.data.augment import Policy
from vitrail.train.plan import by, scaled, settled
from vitrail.train.recipe import check

BETAS = (0.9, 0.95)  # the paper's: a shorter memory, for the masks change with every step


@dataclass(frozen=True)
class PretrainRecipe:
    """The options of `pretrain`. What is left out is chosen by the size of the data, printed, and saved."""

    model: str | None = None
    """A ViT by name (`vitrail models`), made into a masked autoencoder, or mae_*; by default by the data."""
    weights: str = "none"
    """none (from scratch), or a masked autoencoder to go on from: a run folder, a checkpoint, or hf://org/name."""
    mask_ratio: float = 0.75
    """Share of the patches that are hidden."""
    norm_pix: bool = True
    """Predict each patch relative to its own mean and deviation: better features than plain colours."""
    epochs: int | None = None
    """Passes over the images."""
    batch_size: int | None = None
    """Images per step, over all processes and accumulated micro-batches."""
    image_size: int | None = None
    """Side of the images that the model sees."""
    fit: Literal["crop", "pad", "stretch"] | None = None
    """How an image is brought to that size; by default crop."""
    lr: float | None = None
    """Peak learning rate."""
    weight_decay: float | None = None
    """Decay of matrices; norms, biases and tokens have none."""
    warmup: float | None = None
    """Epochs of rising learning rate before the cosine."""
    crop: float | None = None
    """Least share of a picture that a random crop keeps."""
    flip: float | None = None
    """Probability of a mirror image; set 0 where left and right matter."""
    micro_batch: int | None = None
    """Images per forward pass and process; the rest of a batch is accumulated. Halved when memory runs out."""
    val: float | None = None
    """Part of the images to hold out and watch the loss on, where the data has no val/ of its own."""
    seed: int = 0
    """Of the split, the order, the crops, the masks and the initial weights."""
    out: Path | None = None
    """Run folder; by default runs/NAME-OF-DATA."""
    resume: bool = False
    """Continue the run in --out exactly where it stopped."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a GPU, where the run is long enough to repay it."""
    device: str | None = None
    """cpu or cuda; the GPU where there is one."""
    workers: int | None = None
    """Threads that decode images; by default one per core."""
    cache: Literal["auto", "memory", "disk", "off"] = "auto"
    """Where decoded images are kept for later epochs; auto: by their size."""
    wandb: bool = False
    """Also log to Weights & Biases."""
    mlflow: bool = False
    """Also log to MLflow."""

    def __post_init__(self) -> None:
        check(self)


def fill_pretraining(
    recipe: PretrainRecipe, images: int, side: int, own_val: bool
) -> tuple[PretrainRecipe, dict[str, str]]:
    """The recipe with nothing left open, and for each choice the reason. The paper's schedule is 800 epochs of 1.3
    million images at batch 4096; scaled to fewer images, it is as many passes and fewer steps, of smaller batches."""
    n, size = images, f"{images:,} images"
    batch = min(max(8, n // 8), by(n, ((5_000, 64), (50_000, 256), (500_000, 512)), 1024))
    epochs = recipe.epochs if recipe.epochs is not None else by(n, ((20_000, 800), (200_000, 400)), 200)
    tiny = side <= 16
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
