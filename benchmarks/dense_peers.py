"""torchvision's segmenter and detector, trained by our loop under the budget of a run of ours; see dense.py.

From scratch, as there are no weights of theirs here: on the same images, augmented alike, at the same size, for the
same epochs and batches; validation chooses the epoch that counts, as it does for ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.augment.boxes import BoxAugmenter, BoxPolicy, viewed
from vitrail.data.augment.masks import JointAugmenter, JointPolicy
from vitrail.data.loader import read_subset
from vitrail.data.maps import fitted_with_maps, shrunk_with_maps
from vitrail.data.sources.boxes import open_boxes
from vitrail.data.sources.masks import open_masks
from vitrail.distributed import Processes
from vitrail.inference.forward import Forward
from vitrail.inference.precision import choose_precision
from vitrail.models import Preprocessing, ViTSettings
from vitrail.models.dense.detector import Detector, Frame
from vitrail.tasks import registry
from vitrail.tasks.backbones import typical_side
from vitrail.tasks.dense.cases import standard_error
from vitrail.tasks.dense.task import ROUNDS, AugmentMaps
from vitrail.tasks.detect.measure import measure_boxes
from vitrail.tasks.detect.objective import Detect, find
from vitrail.tasks.detect.task import AugmentBoxes, viewing_sides
from vitrail.tasks.planning import Facts
from vitrail.tasks.segment.drawing import palette
from vitrail.tasks.segment.measure import measure_masks
from vitrail.tasks.segment.objective import Segment
from vitrail.tasks.segment.results import pixel_classes
from vitrail.tasks.segment.task import SegmentTask
from vitrail.training.batches import Batches
from vitrail.training.config import TrainConfig
from vitrail.training.listeners import KeepBest
from vitrail.training.run import plan, splits
from vitrail.training.trainer import Hyperparameters, Trainer

PEERS = {"segment": "DeepLabV3-MobileNetV3", "detect": "Faster R-CNN MobileNetV3"}


class DeepLab(nn.Module):
    """Logits, as our segmenters give them."""

    def __init__(self, classes: int):
        super().__init__()
        from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

        self.net = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)["out"]


class FasterRCNN(Detector):
    """torchvision's network in our frame: images come normalised, and are sized as ours are."""

    def __init__(self, classes: int, short_side: int, long_side: int):
        nn.Module.__init__(self)
        from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn

        self.settings: Any = SimpleNamespace(channels=3, background=1, inside="")
        self.net = fasterrcnn_mobilenet_v3_large_fpn(weights=None, weights_backbone=None, num_classes=classes + 1)
        self.net.transform = Frame(short_side, long_side)


@dataclass
class Budget:
    """What a run of ours took, for the peer to have the same."""

    epochs: int
    batch_size: int
    augment: str
    pre: Any  # preprocessing
    val: float  # held out of the training images, where the data has no val/
    sides: tuple[int, int] = (0, 0)


def budget_of(task: str, data: str, options: Any) -> Budget:
    """By the very functions that plan a run of ours."""
    source, gpu = opened(task, data), options.device.startswith("cuda")
    learnt = source.splits["train"]
    side = options.image_size or 224
    facts = Facts(len(learnt), len(source.classes), True, side, ViTSettings(), "val" in source.splits)
    full, _ = plan(registry.task(task), TrainConfig(task, epochs=options.epochs), facts)
    sides = viewing_sides(options.image_size, typical_side(learnt, min), gpu)[:2] if task == "detect" else (0, 0)
    pre = Preprocessing(size=(side, side), crop=1.0, fit="stretch")
    return Budget(full.epochs or 0, full.batch_size or 0, full.augment, pre, full.val or 0.0, sides)


def opened(task: str, data: str) -> Any:
    return open_masks(data) if task == "segment" else open_boxes(data)


def train_peer(
    task: str, data: str, budget: Budget, seed: int, lr: float, device: torch.device
) -> tuple[nn.Module, dict[str, float]]:
    """With the weights of the epoch that validation chose, as in a run of ours; and what is to be known of it."""
    source = opened(task, data)
    parts: Any = splits(source, budget.val, seed)  # the very images that ours learns from and chooses by
    torch.manual_seed(seed)
    samples, classes, group = parts["train"], source.classes, Processes(device=device)
    dtype, _ = choose_precision("auto", device)
    peer: Any = _segmenting if task == "segment" else _detecting
    model, images, augment, learnt, validate = peer(samples, parts["val"], classes, budget, seed, group, dtype)
    looks = registry.task(task).validations or budget.epochs
    hyper = Hyperparameters(
        epochs=budget.epochs, batch_size=budget.batch_size, lr=lr, weight_decay=0.05, ema=0.9998, clip=1.0,
        warmup=min(5.0, budget.epochs / 20), seed=seed, dtype=dtype, varied=task == "detect",
        validate_every=max(1, -(-budget.epochs // looks)),
    )  # fmt: skip
    kept: dict[str, Tensor] = {}

    def keep(_: dict[str, Any]) -> None:
        kept.update({name: value.detach().clone() for name, value in model.state_dict().items()})

    batches = Batches(images, augment, budget.batch_size, seed, group)
    trainer = Trainer(
        model.to(device), learnt, batches, hyper, group, validate, learnt.figure, len(parts["val"]), [KeepBest(keep)]
    )
    try:
        trainer.run()
    finally:
        batches.close()
    model.load_state_dict(kept)
    return model.eval(), {
        "train_images_per_second": float(np.median([row["images_per_second"] for row in trainer.history])),
        "loss": trainer.history[-1]["train_loss"],
        "epoch": trainer.best["epoch"],
        "validation": trainer.best[f"val_{learnt.figure}"],
    }


def _segmenting(
    samples: Any, held_out: Any, classes: list[str], budget: Budget, seed: int, group: Processes, dtype: torch.dtype
) -> tuple[Any, ...]:
    pre, task, kind = budget.pre, Segment(classes), SegmentTask.map_kind
    joint = JointAugmenter(JointPolicy.named(budget.augment), pre.size, pre.mean, pre.std, seed)
    images = read_subset(shrunk_with_maps(samples, pre, kind, "memory"), group, 8)
    seen = read_subset(fitted_with_maps(held_out, pre, kind, "memory"), group, 8)
    forward = Forward(seen, pre, group, dtype, 32 if group.device.type == "cuda" else 8)

    def validate(net: nn.Module) -> dict[str, float]:
        rows = forward.run(net, lambda pixels, masks: [task.rows(net(pixels), masks)], [task.width()])[0]
        return task.score(rows) | standard_error(task.figures(rows, seed, ROUNDS), "miou")

    return DeepLab(len(classes)), images, AugmentMaps(joint), task, validate


def _detecting(
    samples: Any, held_out: Any, classes: list[str], budget: Budget, seed: int, group: Processes, dtype: torch.dtype
) -> tuple[Any, ...]:
    pre, task, policy = budget.pre, Detect(classes), BoxPolicy.named(budget.augment)
    boxes = BoxAugmenter(policy, *budget.sides, pre.mean, pre.std, seed)
    images = read_subset(viewed(samples, *budget.sides, room=policy.scale[1], cache="memory"), group, 8)
    seen = viewed(held_out, *budget.sides, room=None, cache="memory")

    def validate(net: nn.Module) -> dict[str, float]:
        figures = task.score(net, seen, range(len(held_out)), pre, dtype).figures(ROUNDS, seed)
        return {name: figures[name] for name in ("map", "map50") if name in figures} | standard_error(figures, "map")

    return FasterRCNN(len(classes), *budget.sides), images, AugmentBoxes(boxes, samples), task, validate


def answers(task: str, model: nn.Module, pre: Preprocessing, device: torch.device) -> Callable[[Any], Any]:
    """What the model says of one picture, as `predict` would."""
    dtype, _ = choose_precision("auto", device)

    def segment(image: Any) -> np.ndarray:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            return pixel_classes(model, [image], pre, device)[0]

    def detect(image: Any) -> Any:
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        return find(model, [pixels], pre, dtype)[0]

    return segment if task == "segment" else detect


def measure(task: str, data: Any, answer: Callable[[Any], Any], classes: list[str]) -> dict[str, float]:
    everyone, said = [*range(len(classes))], partial(map, answer)
    if task == "segment":
        samples: Any = open_masks(data).splits["test"]
        found, _, _ = measure_masks(Segment(classes), samples, said, everyone, palette(len(classes)))
    else:
        samples = open_boxes(data).splits["test"]
        found, _, _ = measure_boxes(classes, samples, said, everyone, False, 0.5)
    return found.figures
