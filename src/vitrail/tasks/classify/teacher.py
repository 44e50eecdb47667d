"""The teacher of a run: any trained classifier of the same classes, shown what the student sees in its own way."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.loader import Subset, random_places
from vitrail.data.samples import plural, some
from vitrail.distributed import Processes
from vitrail.errors import VitrailError
from vitrail.inference.forward import Forward
from vitrail.models import Preprocessing
from vitrail.reasons import Reason
from vitrail.tasks.classify.metrics import mean_average_precision
from vitrail.tasks.classify.objective import SHORT, Classify
from vitrail.tasks.context import is_refitted, is_same_split
from vitrail.weights import model_from, read_checkpoint
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.header import DENSE

MEASURED = 2_000  # validation images, at most: enough to know a teacher from chance
DEALS = 20
FEWEST = 10  # images: of fewer, chance may get all right


@dataclass
class Teacher:
    """Pixels as they are normalised for the student, [B, C, H, W] on the device, to logits in the order of the data's
    classes. It never learns, never drops and keeps no graph."""

    source: str
    name: str
    net: nn.Module
    preprocessing: Preprocessing
    seen_as: Preprocessing  # the student's
    order: list[int] | None  # for each class of the data, the teacher's place for it; None: the same
    weights: str  # digest
    figures: dict[str, Any] = field(default_factory=dict)  # what its own run measured
    named: bool = True  # does it say what its classes are?
    about: dict[str, Any] = field(default_factory=dict)  # the header of its model, where a run made it

    def __post_init__(self) -> None:
        self.net.eval().requires_grad_(False)
        place = next(self.net.parameters()).device
        (mean, std), (other_mean, other_std) = (
            (torch.tensor(p.mean, device=place), torch.tensor(p.std, device=place))
            for p in (self.seen_as, self.preprocessing)
        )
        # (x·std + mean − mean') / std', in one step; where both are alike, none.
        self._gain = (std / other_std).view(-1, 1, 1)
        self._shift = ((mean - other_mean) / other_std).view(-1, 1, 1)
        self._same = self.seen_as.mean == self.preprocessing.mean and self.seen_as.std == self.preprocessing.std
        self._low, self._high = ((c - other_mean) / other_std for c in (0.0, 1.0))
        self._order = None if self.order is None else torch.tensor(self.order, device=place)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        logits = self.net(self.seen(pixels))
        return logits if self._order is None else logits[:, self._order]

    def seen(self, pixels: Tensor) -> Tensor:
        """The same image in the teacher's normalisation and size."""
        size, cubic = self.preprocessing.size, self.preprocessing.interpolation == "bicubic"
        resized = tuple(pixels.shape[-2:]) != size
        if resized:
            pixels = F.interpolate(pixels, size, mode="bicubic" if cubic else "bilinear", antialias=True)
        if not self._same:
            pixels = pixels * self._gain + self._shift
        if resized and cubic:  # which overshoots at edges, where a file's pixels end at black and white
            low, high = self._low.view(-1, 1, 1), self._high.view(-1, 1, 1)
            pixels = pixels.clamp(low, high)
        return pixels

    def may_know(self, run: dict[str, Any], own_val: bool) -> bool:
        """Has it perhaps learned from what this run, by the header of its model, validates on? Of a teacher that no run
        of ours has made, nothing is known."""
        apart = is_same_split(self.about, run, own_val) and not is_refitted(self.about)
        return "recipe" in self.about and not apart

    def facts(self, shared: bool = False) -> dict[str, Any]:
        """For the record of the run; `shared`, for the header of its model: without the places of this machine."""
        source = Path(self.source).name if shared and not self.source.startswith("hf://") else self.source
        return {
            "name": self.name, "source": source, "weights": self.weights,
            "image_size": list(self.preprocessing.size), "figures": self.figures,
        }  # fmt: skip

    def words(self) -> str:
        """The reason in the plan: who it is, and how good it was found to be."""
        size = "×".join(map(str, self.preprocessing.size))
        words = [f"{self.name} at {size}"]
        for key, what in (("top1", "accuracy"), ("map", "mean average precision")):
            if key in self.figures:
                count = self.figures.get("n", 0)
                words.append(f"{what} {self.figures[key]:.1%} on its own {count:,} validation images")
        if not self.named:
            words.append("its classes have no names: taken to be in the order of the data's")
        return "; ".join(words)


def load_teacher(
    source: str, classes: list[str], multi_label: bool, student: Preprocessing, device: torch.device
) -> Teacher:
    try:
        checkpoint = read_checkpoint(source)
    except VitrailError as error:  # of a resumed run, where it may be long since it was named
        raise VitrailError(f"--teacher: {error}", code="teacher_unreadable") from None
    _check_classes(checkpoint, source, classes, multi_label)
    pre, labels = checkpoint.preprocessing, checkpoint.labels
    if len(pre.mean) != len(student.mean):
        raise VitrailError(
            f"The teacher {source} sees images of {len(pre.mean)} channels and the student of {len(student.mean)}: "
            "both must see the same.",
            code="teacher_channels",
        )
    order = None if labels is None or labels == classes else [labels.index(name) for name in classes]
    metrics = checkpoint.about.get("metrics") or {}
    figures = {name: metrics[name] for name in ("top1", "macro_f1", "map", "n") if name in metrics}
    return Teacher(
        source, checkpoint.name or "custom", model_from(checkpoint).to(device), pre, student, order,
        weights_digest(checkpoint.state), figures, labels is not None, checkpoint.about,
    )  # fmt: skip


def _check_classes(checkpoint: Checkpoint, source: str, classes: list[str], multi_label: bool) -> None:
    if isinstance(checkpoint.settings, DENSE):
        raise VitrailError(
            f"The teacher {source} is a segmenter or a detector: a classifier is needed.", code="teacher_dense"
        )
    count, labels = checkpoint.settings.num_classes, checkpoint.labels
    if not count:
        raise VitrailError(
            f"The teacher {source} has no classes, only features: train one on this data first.",
            code="teacher_without_classes",
        )
    if bool(checkpoint.about.get("multi_label")) != multi_label:
        kinds = ("one label", "several labels")
        raise VitrailError(
            f"The teacher {source} gives {kinds[not multi_label]} per image and the data has {kinds[multi_label]}.",
            code="teacher_labels",
        )
    if labels is None and count != len(classes):
        raise VitrailError(
            f"The teacher {source} knows {count:,} classes and the data has {len(classes):,}; "
            "train one on this data first.",
            code="teacher_classes", counts=(count, len(classes)),
        )  # fmt: skip
    if labels is not None and sorted(labels) != sorted(classes):
        lacking, more = [c for c in classes if c not in labels], [c for c in labels if c not in classes]
        what = [f"it does not know {some(lacking)}"] * bool(lacking) + [f"the data has no {some(more)}"] * bool(more)
        raise VitrailError(
            f"The teacher {source} knows other classes than the data: {' and '.join(what)}; "
            "train one on this data first.",
            code="teacher_classes", lacking=lacking, more=more,
        )  # fmt: skip


def weights_digest(state: dict[str, Tensor]) -> str:
    """Of the weights: the same teacher, wherever its file lies."""
    total = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(state.items()):
        total.update(name.encode())
        total.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def how_good(
    teacher: Teacher, task: Classify, images: Subset, group: Processes, dtype: torch.dtype, known: bool = False
) -> list[str]:
    """What a run says of its teacher once the validation images are there: how good it is at them, seen as the student
    sees them, and a warning where that is no more than chance. `known`: it may have learned from them, so that what its
    own run held out says more."""
    part = replace(images, numbers=images.numbers[random_places(len(images.numbers), MEASURED)], weights=None)
    forward = Forward(part, teacher.seen_as, group, dtype)
    logits = forward.run(teacher.net, lambda x: [teacher(x)], [len(task.classes)])[0]
    if not len(logits):
        return []
    targets = task.targets(part.labels())
    count = teacher.figures.get("n", 0)
    own = teacher.figures.get(task.figure) if known and count >= FEWEST else None
    score, chance, clearly = against_chance(logits, targets, task.multi_label, 1.0 if own is None else own)
    if np.isnan(score):  # none of the images has a label
        return []
    figure, here = SHORT[task.figure], f"{score:.1%} on {plural(len(logits), 'validation image')}"
    if own is not None:
        here = f"{own:.1%} on its own {count:,} validation images; {here} here, from which it may have learned"
    elif known:
        here += ", which may flatter it: it may have learned from them"
    lines = [f"Teacher: {figure} {here}."]
    if len(logits) >= FEWEST and len(targets.unique(dim=0)) > 1 and not clearly:
        worth = "that" if own is None else f"{min(own, score):.1%}"
        lines.append(
            f"  Warning: {worth} is not clearly better than chance ({chance:.1%}), so there is little to learn from "
            "it: was it trained for long enough, and on images like these?"
        )
    return lines


def against_chance(
    logits: Tensor, targets: Tensor, multi_label: bool, at_most: float = 1.0
) -> tuple[float, float, bool]:
    """Accuracy, or mean average precision; its mean when the same answers are dealt out to the images anew, which
    grants nothing to the commonest class; and whether it, or `at_most` if that is less, beats 95 % of such deals."""
    answers, truth = (logits, targets) if multi_label else (logits.argmax(dim=1), targets.argmax(dim=1))

    def score(order: np.ndarray) -> float:
        dealt = answers[order].numpy()
        return mean_average_precision(dealt, truth.numpy() > 0.5) if multi_label else np.mean(dealt == truth.numpy())

    draws = np.random.default_rng(0)  # of their own: what training draws stays as it is
    own, others = score(np.arange(len(truth))), [score(draws.permutation(len(truth))) for _ in range(DEALS)]
    return float(own), float(np.mean(others)), bool(np.mean(np.less(others, min(own, at_most))) >= 0.95)


def with_reasons(why: dict[str, Reason], teacher: Teacher, model: nn.Module, tune: str) -> dict[str, Reason]:
    """The reasons of the plan, with who teaches and by which way the student learns from it."""
    code = "distill_token" if getattr(model.settings, "distillation_token", False) else "distill_logits"
    if code == "distill_logits" and tune != "full":
        code = "distill_frozen"
    rest = {name: reason for name, reason in why.items() if name not in ("distill", "alpha", "temperature")}
    last = {name: why[name] for name in ("alpha", "temperature") if name in why}
    distill = Reason(code, reason=why["distill"], tune=tune)
    return rest | {"teacher": Reason("teacher", teacher=teacher.words()), "distill": distill} | last
