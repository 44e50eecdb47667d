"""What a recipe leaves open for segmentation and detection, decided by the data; and what it can't ask for there."""

from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models.dense import DETECT_HEADS, SEGMENT_HEADS
from vitrail.training.config import Recipe
from vitrail.training.plan import by, scaled, settled

HEADS = {"segment": SEGMENT_HEADS, "detect": DETECT_HEADS}
# Decided for people, and of no interest to them: a plan does not show these.
HIDDEN = {"precision", "val", "refit", "image_size"}
USUAL = {"segment": 16, "detect": 8}  # images of a step that the rates below are for
LONGER = 5 / 3  # the long side of a picture that a detector looks at, at most, in short sides: 800 for 480


@dataclass(frozen=True)
class DenseFacts:
    """What the choices depend on."""

    task: str  # segment | detect
    images: int  # to train on
    pretrained: bool
    swin: bool


def fill_dense(recipe: Recipe, facts: DenseFacts) -> tuple[Recipe, dict[str, str]]:
    """The recipe with nothing left open, and for each choice made here the reason."""
    refuse(recipe, facts)
    n, task, size = facts.images, facts.task, f"{facts.images:,} images"
    batch = min(max(2, n // 8), USUAL[task])
    chosen: dict[str, tuple[Any, str]] = {
        "head": _head(task),
        "pyramid": ("own", "a Swin has maps of four strides") if facts.swin else _ADAPTER,
        "epochs": _epochs(n, facts.pretrained),
        "batch_size": (batch, size if batch < USUAL[task] else "usual for a dense task"),
        "lr": _rate(task, facts.pretrained),
        "optimizer": ("adamw", "usual"),
        "weight_decay": (0.05, "usual"),
        "layer_decay": (0.75, "early layers are general already") if facts.pretrained else _ALIKE,
        "drop_path": (0.1 if n >= 1_000 or not facts.pretrained else 0.0, size),
        "augment": ("medium", "objects come in all sizes"),
        "flip": (0.5, "usual"),
        "ema": (0.9998, "at most; less at first, so that about the last tenth of the run counts"),
        "val": (by(n, ((1_000, 0.2), (20_000, 0.15)), 0.05), size),
        "refit": ("off", "a dense task learns once"),
    }
    epochs = chosen["epochs"][0] if recipe.epochs is None else recipe.epochs
    chosen["warmup"] = (min(5.0, epochs / 20), "a twentieth of the run, at most 5 epochs")
    chosen["lr"] = scaled(*chosen["lr"], recipe.batch_size or batch, USUAL[task])
    if recipe.head == "linear":
        del chosen["pyramid"]  # it reads the backbone's last map
    if recipe.tune == "head":
        chosen["drop_path"] = (0.0, "what is frozen is not to be dropped")
        chosen["layer_decay"] = (1.0, "all that learns is new")
    return settled(recipe, chosen)


_ADAPTER = ("adapter", "brings in the detail that patches have lost")
_ALIKE = (1.0, "from scratch all layers learn alike")


def _head(task: str) -> tuple[str, str]:
    if task == "segment":
        return "upernet", "reads all strides; linear and fcn are smaller"
    return "faster_rcnn", "the surest on little data; mask_rcnn also learns outlines, retinanet has one stage"


def _epochs(n: int, pretrained: bool) -> tuple[int, str]:
    """A step sees few images here, so that small data takes many passes to be learnt at all."""
    if pretrained:
        return by(n, ((300, 80), (1_000, 60), (3_000, 40), (10_000, 24), (50_000, 12)), 8), f"{n:,} images"
    return by(n, ((1_000, 200), (3_000, 150), (10_000, 100), (50_000, 50)), 30), f"from scratch, {n:,} images"


def _rate(task: str, pretrained: bool) -> tuple[float, str]:
    """What stands on the backbone is new, and has to go far; the backbone's early layers go a small part of it."""
    if task == "segment":
        return (3e-4, "of what is new, and the last block") if pretrained else (5e-4, "from scratch")
    return (2e-4, "of what is new, and the last block") if pretrained else (3e-4, "from scratch")


def refuse(recipe: Recipe, facts: DenseFacts) -> None:
    """One sentence for what does not go together, before anything is read or written."""
    task, heads = f"--task {facts.task}", HEADS[facts.task]
    if recipe.head is not None and recipe.head not in heads:
        raise VitrailError(f"--head {recipe.head} is not one of {task}: use {', '.join(heads)}.")
    if recipe.head == "linear" and recipe.pyramid is not None:
        raise VitrailError("--head linear reads the backbone's last map and no pyramid: leave --pyramid out.")
    if recipe.tune not in ("full", "head"):
        raise VitrailError(
            f"--tune {recipe.tune} is for classifiers: with {task} use full, or head (all but the backbone)."
        )
    for name in ("mixup", "cutmix"):
        if getattr(recipe, name):
            raise VitrailError(f"--{name} mixes the labels of whole pictures, and {task} has none: leave it out.")
    if recipe.calm:
        raise VitrailError(f"--calm is for classifiers: leave it out with {task}.")
    if recipe.teacher is not None:
        raise VitrailError(f"--teacher is for classifiers: leave it out with {task}.")
    if recipe.refit == "on":
        raise VitrailError(f"--refit on is for classifiers: leave it out with {task}.")
    if recipe.balance == "sampling" or (recipe.balance == "weights" and facts.task == "detect"):
        other = ": use weights" if facts.task == "segment" else ", whose heads weigh by themselves: leave it out"
        raise VitrailError(f"--balance {recipe.balance} does not go with {task}{other}.")
    if facts.task == "detect":
        if recipe.label_smoothing:
            raise VitrailError("--label-smoothing does not go with --task detect: leave it out.")
        if recipe.fit is not None:
            raise VitrailError("A detector looks at the whole picture in its own proportions: leave --fit out.")
    elif recipe.fit == "crop":
        raise VitrailError("--fit crop would lose the borders of a picture: segment with stretch or pad.")


def viewing_sides(image_size: int | None, short: int, gpu: bool) -> tuple[int, int, str]:
    """Short and long side in which a detector looks at pictures whose own short side is `short`; and why."""
    if image_size is not None:
        side, why = image_size, "as asked"
    else:
        most = 480 if gpu else 320
        side = max(64, min(most, 32 * round(1.5 * short / 32)))
        if side == most:
            why = "small objects count, and a GPU has time" if gpu else "on a CPU; more finds smaller objects"
        else:
            why = f"half as large again as the pictures, {short}"
    side = max(32, side)
    return side, round(side * LONGER), why


def suited_width(settings: Any) -> int:
    """Of the maps and the head: as wide as the backbone, at most 256, of which the papers' heads are."""
    return max(32, min(256, settings.width))
