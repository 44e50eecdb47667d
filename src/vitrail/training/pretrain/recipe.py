"""What `vitrail pretrain` can be told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.training.config import check


@dataclass(frozen=True)
class PretrainRecipe:
    """The options of `pretrain`. What is left out is chosen by the size of the data, printed, and saved."""

    model: str | None = None
    """A ViT by name (`vitrail models`), made into a masked autoencoder, or mae_*; by default by the data."""
    weights: str = "none"
    """none (from scratch), or a masked autoencoder to go on from: a run folder, a checkpoint, or hf://org/name."""
    mask_ratio: float | None = None
    """Share of the patches that are hidden; by default as the weights had it, else 0.75."""
    norm_pix: bool | None = None
    """Predict each patch relative to its mean and deviation: better features; by default as in the weights, else on."""
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
