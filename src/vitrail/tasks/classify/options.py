"""The options of a classifier, and what its data may be."""

from dataclasses import dataclass
from typing import Any, Literal

from vitrail.data.augment.options import AugmentOptions, MixOptions
from vitrail.data.kinds import LABELLED
from vitrail.errors import VitrailError
from vitrail.options import Options, option

EXPECTS = LABELLED


@dataclass(frozen=True)
class TuningOptions(Options):
    tune: Literal["full", "head", "probe", "adapter", "lora", "prompt", "bias"] = "full"
    """What is trained: everything, the head, nothing (a linear probe is solved for), or a head with adapters, LoRA,
    prompts or biases."""
    adapter_width: int = option(32, 1, kind="adapter")
    """Width of an adapter's bottleneck."""
    adapter_place: Literal["sequential", "parallel"] = option("sequential", kind="adapter")
    """Adapters after the MLP, or beside it."""
    lora_rank: int = option(8, 1, kind="lora")
    """Rank of LoRA's matrices."""
    lora_targets: str = option("qkv,proj", kind="lora")
    """Which layers get LoRA: of qkv, proj and mlp."""
    prompt_tokens: int = option(10, 1, kind="prompt")
    """Prompts in each attention."""
    refit: Literal["auto", "on", "off"] = "auto"
    """Train once more on all images when those held out have chosen; auto: from weights, up to 20,000 images."""

    @property
    def parts(self) -> dict[str, Any]:
        """What --tune adds to a model, as fields of `vitrail.models.tuning.Tuning`."""
        if self.tune == "adapter":
            return {"width": self.adapter_width, "place": self.adapter_place}
        if self.tune == "lora":
            targets = tuple(word.strip() for word in self.lora_targets.split(",") if word.strip())
            return {"rank": self.lora_rank, "targets": targets}
        return {"tokens": self.prompt_tokens}


@dataclass(frozen=True)
class LabelOptions(Options):
    label_smoothing: float | None = option(None, 0, 1)
    """Certainty taken from the true class and spread over all."""
    balance: Literal["auto", "none", "weights", "sampling"] = "auto"
    """For classes of unequal size: weigh their losses, or draw them equally often; auto: the latter for spoof alone."""


@dataclass(frozen=True)
class DistillationOptions(Options):
    teacher: str | None = option(None, source=True, machine=True)  # its place; that it is the same its weights tell
    """A trained classifier of the same classes to learn from as well: a run folder, a checkpoint, or hf://org/name."""
    distill: Literal["hard", "soft"] | None = None
    """What to learn from the teacher: its answer (hard) or its probabilities (soft)."""
    alpha: float | None = option(None, 0, 1)
    """The teacher's share of the loss; the labels have the rest."""
    temperature: float | None = option(None, 0.01)
    """With --distill soft: the higher, the more its less likely classes count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("distill", "alpha", "temperature"):
            if self.teacher is None and getattr(self, name) is not None:
                raise VitrailError(f"--{name} goes with --teacher, and there is none.", code="no_teacher", option=name)
        if self.temperature is not None and self.distill != "soft":
            raise VitrailError("--temperature goes with --distill soft: a hard answer has none.", code="hard_answer")


OPTIONS = (TuningOptions, AugmentOptions, MixOptions, LabelOptions, DistillationOptions)
