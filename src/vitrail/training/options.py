"""The options that every training has, in small groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.options import Options, option


@dataclass(frozen=True)
class ModelOptions(Options):
    model: str | None = None
    """Architecture by name (`vitrail models`); by default that of the weights, or one that suits the data."""
    weights: str = option("auto", source=True)
    """auto, none (from scratch), or a checkpoint, run folder, or hf://org/name to start from."""


@dataclass(frozen=True)
class RunOptions(Options):
    seed: int = option(0, 0, 2**63 - 1)
    """Of the split, the order, the augmentation and the initial weights."""
    out: Path | None = option(None, machine=True)
    """Run folder; by default runs/NAME-OF-DATA."""
    resume: bool = option(False, machine=True, switch=True)
    """Continue the run in --out exactly where it stopped."""


@dataclass(frozen=True)
class DataOptions(Options):
    batch_size: int | None = option(None, 1)
    """Images per step, over all processes and accumulated micro-batches."""
    image_size: int | None = option(None, 1)
    """Side of the images that the model sees; more than it was trained with is fine."""
    fit: Literal["crop", "pad", "stretch"] | None = None
    """How an image is brought to that size; by default as the weights had it, else crop."""
    val: float | None = option(None, 0, 0.9)
    """Part of the training images to hold out for validation where the data has no val/ of its own."""
    workers: int | None = option(None, 0, machine=True)
    """Threads that decode images; by default one per core."""
    cache: Literal["auto", "memory", "disk", "off"] = option("auto", machine=True)
    """Where decoded images are kept for later epochs; auto: by their size."""


@dataclass(frozen=True)
class ScheduleOptions(Options):
    epochs: int | None = option(None, 0)
    """Passes over the training images."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How the learning rate falls after the warm-up: cosine, linear, constant, or wsd (constant, then a decay over the
    last fifth)."""
    warmup: float | None = option(None, 0)
    """Epochs of rising learning rate before that."""


@dataclass(frozen=True)
class OptimizerOptions(Options):
    lr: float | None = option(None, 0)
    """Peak learning rate (of the head and the last block, where layers differ)."""
    optimizer: Literal["auto", "adamw", "muon"] = "auto"
    """adamw, or muon: for a transformer's inner matrices, AdamW for the rest; auto: that from scratch and after MAE."""
    weight_decay: float | None = option(None, 0)
    """Decay of matrices; norms, biases, tokens and positions have none."""
    layer_decay: float | None = option(None, 0, 1)
    """The learning rate of each block relative to the next one."""
    clip: float | None = option(None, 0)
    """Largest norm of a gradient; 0 switches it off; by default 1."""
    ema: float | None = option(None, 0, 1)
    """Decay of the running average of the weights, which is what is kept; 0 switches it off."""


@dataclass(frozen=True)
class MachineOptions(Options):
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp32."""
    compile: Literal["auto", "on", "off"] = option("auto", machine=True)
    """torch.compile; auto: on a GPU, where the run is long enough to repay it."""
    device: str | None = option(None, machine=True)
    """cpu or cuda; the GPU where there is one."""
    micro_batch: int | None = option(None, 1, machine=True)
    """Images per forward pass and process; the rest of a batch is accumulated. Halved when memory runs out."""


@dataclass(frozen=True)
class LoggingOptions(Options):
    wandb: bool = option(False, machine=True, switch=True)
    """Also log to Weights & Biases."""
    mlflow: bool = option(False, machine=True, switch=True)
    """Also log to MLflow."""


GROUPS = (
    ModelOptions, RunOptions, DataOptions, ScheduleOptions, OptimizerOptions, MachineOptions, LoggingOptions,
)  # fmt: skip
TITLES = {
    "ModelOptions": "model", "RunOptions": "run", "DataOptions": "loading", "ScheduleOptions": "schedule",
    "OptimizerOptions": "optimizer", "MachineOptions": "machine", "LoggingOptions": "logging",
    "TuningOptions": "tuning", "AugmentOptions": "augmentation", "MixOptions": "mixing", "LabelOptions": "labels",
    "DistillationOptions": "distillation",
}  # fmt: skip
# What a plan decides where it is left open.
CHOSEN = {
    "epochs", "batch_size", "lr", "optimizer", "weight_decay", "layer_decay", "warmup", "ema", "val", "augment", "flip",
    "drop_path", "mixup", "cutmix", "label_smoothing", "balance", "refit", "head", "pyramid", "crop", "distill",
    "alpha", "temperature",
}  # fmt: skip
# First in the help, in this order.
COMMON = (
    "model", "weights", "task", "tune", "epochs", "batch_size", "image_size", "lr", "augment", "seed", "out", "resume",
)  # fmt: skip
