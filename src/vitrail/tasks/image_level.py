"""Tasks with one answer per image, from a linear head on pooled features: classification and its kin.

They can start from a linear probe on frozen features, be tuned by adapters, LoRA, prompts or biases, and train their
head on features that are computed once. A task adds its targets, its loss and its figures.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.augment.images import Augmenter, Policy
from vitrail.data.augment.randaugment import to_device
from vitrail.data.loader import Subset
from vitrail.data.samples import Sample, Source
from vitrail.errors import VitrailError
from vitrail.inference.forward import Forward
from vitrail.models.tuning import PARTS, freeze, learns, tune, tuning_of
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.backbones import Start, set_drop_path, start_model, typical_side
from vitrail.tasks.base import Batch, Row, Task
from vitrail.tasks.context import Context
from vitrail.tasks.linear_probe import Heads
from vitrail.tasks.tuning_cost import budget_rows


class AugmentImages:
    """Images through an `Augmenter`, and beside them the targets of the images."""

    def __init__(self, augmenter: Augmenter, objective: Any, subset: Subset, truths: Sequence[Any]):
        self.augmenter, self.objective, self.subset, self.truths = augmenter, objective, subset, truths
        self.output_values: int | None = int(np.prod(augmenter.size)) * len(augmenter.mean)
        self._known: Tensor | None = None  # the targets of all images, where these live on the device

    def __call__(
        self, images: Any, numbers: np.ndarray, keys: np.ndarray, epoch: int, device: Any, out: Any = None
    ) -> Batch:
        return self.augmenter(images, keys, epoch, device, out=out), self.targets(numbers, device)

    def targets(self, numbers: np.ndarray, device: Any) -> Tensor:
        if self.subset.loader.resident is None:
            return self._made([self.truths[number] for number in numbers], device)
        if self._known is None:
            self._known = self._made(self.truths, device)
        return self._known[to_device(numbers, device)]

    def _made(self, truths: Sequence[Any], device: Any) -> Tensor:
        return self.objective.smoothed(self.objective.targets(truths, device))


class ImageTask(Task):
    probe_limit: ClassVar[int] = (
        20_000_000  # images × answers: beyond, a head is trained as quickly as it is solved for
    )

    # -- the model ---------------------------------------------------------------------------------------------------

    def start(self, config: Config, source: Source, learnt: list[Sample], gpu: bool) -> Start:
        taught = config.get("teacher") is not None and config.tune == "full"
        return start_model(
            config.model, config.weights, self.answers_of(source), config.image_size, config.fit, typical_side(learnt),
            gpu, taught, config.tune,
        )  # fmt: skip

    def answers_of(self, source: Source) -> list[str]:
        """What the outputs of the head stand for."""
        return source.classes

    def prepare_model(self, ctx: Context) -> None:
        config = ctx.config
        if config.tune not in ("full", "head") and not ctx.start.pretrained:
            raise VitrailError(
                f"--tune {config.tune} uses the features of a trained model, and there is none here ({ctx.start.why}) "
                "Name one with --weights.",
                code="nothing_to_tune", tune=config.tune,
            )  # fmt: skip
        rate = (config.drop_path or 0.0) if config.tune == "full" else 0.0  # older runs may have recorded one
        ctx.model = set_drop_path(ctx.start.model, rate).to(ctx.device)
        if config.tune in PARTS:
            tune(ctx.model, config.tune, **config.group("tune").parts)

    def plan_rows(self, ctx: Context) -> list[Row]:
        config = ctx.config
        if config.tune == "full":
            return []
        if config.tune == "probe" or not hasattr(ctx.settings, "tuning") or not ctx.processes.first:
            return [("tune", config.tune, "as asked")]
        what = str(tuning_of(ctx.model)) if config.tune in PARTS else "as asked"
        batch = config.micro_batch or -(-(config.batch_size or 64) // ctx.processes.count)
        return budget_rows(ctx.model, config.tune, what, batch, ctx.dtype, self.caches_features(ctx))

    def hidden_choices(self, ctx: Context) -> set[str]:
        hidden = {"precision", "val"} | ({"flip"} if ctx.config.augment == "none" else set())
        return hidden | ({"layer_decay"} if ctx.config.tune == "head" else set())

    # -- augmentation ------------------------------------------------------------------------------------------------

    def policy(self, config: Config, size: tuple[int, int]) -> Policy:
        """The augmentation by its name."""
        return Policy.named(config.augment)

    def augmenter(self, ctx: Context) -> Augmenter:
        policy, pre = self.policy(ctx.config, ctx.preprocessing.size), ctx.preprocessing
        kernel = pre.interpolation if policy.scale is None and pre.interpolation == "bicubic" else "bilinear"
        calm_from = ctx.epochs - ctx.config.get("calm", 0)
        return Augmenter(policy, pre.size, pre.mean, pre.std, ctx.config.seed, kernel, pre.crop, calm_from)

    def augment(self, ctx: Context) -> AugmentImages:
        subset = ctx.subsets["train"]
        return AugmentImages(self.augmenter(ctx), ctx.objective, subset, self.truths(subset.samples))

    @abstractmethod
    def truths(self, samples: Sequence[Sample]) -> Sequence[Any]:
        """What each sample is labelled with, as `objective.targets` takes it."""

    def truths_in(self, subset: Subset) -> Sequence[Any]:
        """Of the images of a subset that are used."""
        return self.truths([subset.samples[number] for number in subset.numbers])

    # -- the head ----------------------------------------------------------------------------------------------------

    def is_random(self, ctx: Context) -> bool:
        """Is anything drawn at random on the way to the model?"""
        config = ctx.config
        drawn = self.policy(config, ctx.preprocessing.size).scale is not None
        return bool(drawn or config.get("mixup") or config.get("cutmix"))

    def caches_features(self, ctx: Context) -> bool:
        """Is the head trained on features that are computed once? Where nothing is drawn at random."""
        plain = getattr(ctx.settings, "head", "linear") == "linear" and hasattr(ctx.settings, "tuning")
        taught = getattr(ctx.objective, "teacher", None) is not None
        return ctx.config.tune == "head" and plain and not self.is_random(ctx) and not taught and ctx.epochs > 0

    def solves_head(self, ctx: Context) -> bool:
        """Does the run begin with a linear probe?"""
        if ctx.resumed or not ctx.start.pretrained or (ctx.parent and ctx.small_head):
            return False
        small = len(ctx.samples["train"]) * len(self.answers_of(ctx.source)) <= self.probe_limit
        return small or ctx.config.tune == "probe"

    def head_inputs(self, ctx: Context, split: str) -> list[Tensor]:
        """For each layer that gives outputs, its inputs [n, D] over a subset; computed once where the backbone is
        frozen."""
        if split not in ctx.features:
            forward = Forward(ctx.subsets[split], ctx.preprocessing, ctx.processes, torch.float32)
            ctx.features[split] = forward.head_inputs(ctx.model)
        return ctx.features[split]

    @abstractmethod
    def tuning_rate(self, config: Config, score: float) -> tuple[float, Reason]:
        """The learning rate of fine-tuning by the score of the linear probe, of the figure that chooses."""

    @abstractmethod
    def solve_heads(self, ctx: Context, features: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Solves for the head on frozen features; gives the outputs for these images, each by a solution that has not
        seen it."""

    def outputs(self, ctx: Context, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Of the validation images, and their targets."""
        subset = ctx.subsets["val"]
        if self.caches_features(ctx):
            features = torch.stack(self.head_inputs(ctx, "val"), dim=1).to(ctx.device)
            with torch.no_grad():
                found = Heads(model)(features).float().cpu()
        else:
            found = Forward(subset, ctx.preprocessing, ctx.processes, ctx.dtype).logits(model)
        return found, ctx.objective.targets(self.truths_in(subset))

    def freeze(self, ctx: Context) -> None:
        freeze(ctx.model, ctx.config.tune)

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        return ctx.objective.score(*self.outputs(ctx, model))

    def draws(self, ctx: Context, subset: Subset) -> np.ndarray | None:
        """How often each image is drawn, where not all are drawn alike."""
        return None


def learns_matrices(ctx: Context, is_hidden: Any) -> bool:
    """Is a matrix inside of the transformer among what is trained?"""
    tune = ctx.config.get("tune", "full")  # pre-training has no such option
    return any(learns(name, tune) and is_hidden(name, p) for name, p in ctx.model.named_parameters())
