"""What is chosen for a dense task where nothing was asked for."""

from typing import Any

from vitrail.errors import VitrailError
from vitrail.models import SwinSettings
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.planning import AVERAGE, USUAL, Choice, Choices, Facts, by, scaled


def plan_dense(config: Config, facts: Facts, usual_batch: int, rate: tuple[float, float]) -> Choices:
    """`usual_batch` images are a step that the learning rates are for: `rate` with weights, and from scratch."""
    n, size = facts.images, Reason("images", n=facts.images)
    batch = min(max(2, n // 8), usual_batch)
    swin = isinstance(facts.settings, SwinSettings)
    tuned = (rate[0], Reason("dense_new")) if facts.pretrained else (rate[1], Reason("scratch"))
    chosen: Choices = {
        "pyramid": ("own", Reason("pyramid_own")) if swin else ("adapter", Reason("pyramid_adapter")),
        "epochs": _epochs(n, facts.pretrained),
        "batch_size": (batch, size if batch < usual_batch else Reason("dense_batch")),
        "lr": scaled(*tuned, config.batch_size or batch, usual_batch),
        "optimizer": ("adamw", USUAL),
        "weight_decay": (0.05, USUAL),
        "layer_decay": (0.75, Reason("layers_general")) if facts.pretrained else (1.0, Reason("layers_alike")),
        "drop_path": (0.1 if n >= 1_000 or not facts.pretrained else 0.0, size),
        "augment": ("medium", Reason("dense_sizes")),
        "flip": (0.5, USUAL),
        "ema": (0.9998, AVERAGE),
        "val": (by(n, ((1_000, 0.2), (20_000, 0.15)), 0.05), size),
    }
    epochs = chosen["epochs"][0] if config.epochs is None else config.epochs
    chosen["warmup"] = (min(5.0, epochs / 20), Reason("dense_warmup"))
    if config.get("tune") == "head":
        chosen["drop_path"] = (0.0, Reason("frozen_paths"))
        chosen["layer_decay"] = (1.0, Reason("all_new"))
    return chosen


def _epochs(n: int, pretrained: bool) -> Choice:
    """A step sees few images here, so that small data takes many passes to be learned at all."""
    if pretrained:
        passes = by(n, ((300, 80), (1_000, 60), (3_000, 40), (10_000, 24), (50_000, 12)), 8)
        return passes, Reason("images", n=n)
    return by(n, ((1_000, 200), (3_000, 150), (10_000, 100), (50_000, 50)), 30), Reason("scratch_images", n=n)


def suited_width(settings: Any) -> int:
    """Of the maps and the head: as wide as the backbone, at most 256, of which the papers' heads are."""
    return max(32, min(256, settings.width))


def refuse_tuning(config: Config, task: str) -> None:
    """`tune` has two values here; Python may ask for one of a classifier's."""
    if config.get("tune", "full") not in ("full", "head"):
        raise VitrailError(f"--tune {config.tune} is for classifiers: with --task {task} use full or head.")
