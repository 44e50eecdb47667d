"""What is chosen for a classifier where nothing was asked for: by the number of images, their size, and its start."""

from dataclasses import replace

from vitrail.data.augment.images import Policy
from vitrail.errors import VitrailError
from vitrail.models import CNNSettings
from vitrail.options import Config
from vitrail.reasons import Reason
from vitrail.tasks.planning import AVERAGE, USUAL, Choice, Choices, Facts, by, scaled

TINY, MOVED = 16, 32  # pixels a side, at most
MASKED = 1024  # the batch that the learning rate after MAE is for
# Few weights have to go further than many to the same end: 10 times the rate validated best for each of them, on pets.
RATES = {"adapter": 10, "lora": 10, "bias": 10, "prompt": 10}


def plan_classifier(config: Config, facts: Facts) -> Choices:
    chosen = fine_tuning(facts) if facts.pretrained else from_scratch(facts)
    if facts.masked:
        chosen = from_scratch(facts) | after_masking(facts)
    layered = not isinstance(facts.settings, CNNSettings)
    if not layered:
        chosen["layer_decay"] = (1.0, Reason("one_rate"))
        if config.layer_decay not in (None, 1.0):
            raise VitrailError(
                "--layer-decay counts the blocks of a transformer: leave it out for this model.", code="no_blocks"
            )
    if not layered or config.tune != "full":
        chosen["optimizer"] = ("adamw", USUAL)
    if not getattr(facts.settings, "drops_paths", True):
        chosen["drop_path"] = (0.0, Reason("no_paths"))
    if config.get("teacher") is not None:
        chosen |= distilling(config.distill)
    if config.tune in RATES and facts.pretrained:
        chosen |= with_added_parts(facts)
    if config.tune != "full":
        chosen["drop_path"] = (0.0, Reason("frozen_paths"))
        if config.drop_path:
            raise VitrailError(
                f"--drop-path is for what is trained, and --tune {config.tune} freezes the blocks.", code="frozen_paths"
            )
    if facts.multi_label and chosen["refit"][0] == "on":
        chosen["refit"] = ("off", Reason("thresholds"))
    return chosen


def rate_for_batch(chosen: Choices, config: Config, facts: Facts) -> None:
    """The learning rate for the batch of this run."""
    if chosen["lr"][0] is not None:
        batch = chosen["batch_size"][0]
        chosen["lr"] = scaled(*chosen["lr"], config.batch_size or batch, MASKED if facts.masked else batch)


def fine_tuning(facts: Facts) -> Choices:
    n = facts.images
    epochs = by(n, ((2_000, 30), (10_000, 20), (50_000, 12)), 8)
    size, tuning = Reason("images", n=n), Reason("fine_tuning")
    return {
        "epochs": (epochs, size),
        "batch_size": (min(max(8, n // 8), by(n, ((4_000, 64), (20_000, 128)), 256)), size),
        "lr": (None, Reason("later")),  # `fine_tuning_rate`, once the linear probe is solved
        "optimizer": ("adamw", USUAL),
        "weight_decay": (0.05, USUAL),
        "layer_decay": (0.75, Reason("layers_general")),
        "warmup": (1.0, USUAL),
        "drop_path": (0.1 if n >= 1_000 else 0.0, size),
        "augment": ("light" if n < 50_000 else "medium", size),
        "flip": (0.5, USUAL),
        "mixup": (0.0, tuning),
        "cutmix": (0.0, tuning),
        "label_smoothing": (0.1, USUAL),
        "ema": (0.9998, AVERAGE),
        "val": (by(n, ((1_000, 0.2), (20_000, 0.15)), 0.05), size),
        "refit": ("off", Reason("own_val")) if facts.own_val else _refit(n),
    }


def from_scratch(facts: Facts) -> Choices:
    n = facts.images
    epochs = by(n, ((20_000, 200), (200_000, 100)), 90)
    start = Reason("after_mae" if facts.masked else "scratch")
    size = Reason("after_mae_images" if facts.masked else "scratch_images", n=n)
    few = Reason("few_pixels", start=start)
    batch = min(max(8, n // 8), by(n, ((10_000, 64), (100_000, 256)), 1024))
    large, tiny = n >= 10_000, facts.side <= TINY
    return {
        "epochs": (epochs, size),
        "batch_size": (batch, size),
        "lr": (2e-3, few) if tiny else (1e-3, start),
        "optimizer": ("adamw", few) if tiny else ("muon", Reason("muon_scratch", start=start)),
        "weight_decay": (0.05, USUAL),
        "layer_decay": (1.0, Reason("layers_alike")),
        "warmup": (min(5.0, epochs / 10), USUAL),
        "drop_path": (0.1, start),
        "augment": ("strong" if large and facts.side > 64 else "medium", size),
        "flip": (0.5, USUAL),
        "mixup": (0.0, few) if tiny and not large else (0.8 if large else 0.2, size),
        "cutmix": (1.0 if large else 0.0, size),
        "label_smoothing": (0.1, USUAL),
        "ema": (0.9998, AVERAGE),
        "val": (by(n, ((1_000, 0.2), (20_000, 0.1)), 0.05), size),
        "refit": ("off", start),
    }


def after_masking(facts: Facts) -> Choices:
    """Where fine-tuning a masked autoencoder differs from training from scratch ("Masked autoencoders are scalable
    vision learners", He et al. 2022, table 9). Its features are not yet about classes, so that a linear probe says
    little about the learning rate: they have to move, early layers less than late ones."""
    n, paper, tuning = facts.images, Reason("mae_paper"), fine_tuning(facts)
    epochs = 100 if n < 200_000 else 50
    return {
        "epochs": (epochs, Reason("mae_epochs")),
        "lr": (2e-3, Reason("mae_rate", batch=MASKED)),
        "layer_decay": (0.75, paper),
        "warmup": (epochs / 20, paper),
        "val": tuning["val"],
        "refit": tuning["refit"],
    }


def distilling(kind: str | None) -> Choices:
    """DeiT's: a hard answer counts as much as the label, a soft one for a tenth of the loss at temperature 3."""
    paper = Reason("deit_paper")
    if kind == "soft":
        return {"distill": ("soft", Reason("as_asked")), "alpha": (0.1, paper), "temperature": (3.0, paper)}
    return {"distill": ("hard", Reason("hard_better")), "alpha": (0.5, paper)}


def with_added_parts(facts: Facts) -> Choices:
    """For adapters, LoRA, prompts and biases: the same rate in all layers."""
    tuning = fine_tuning(facts)
    return {
        **{name: tuning[name] for name in ("epochs", "warmup", "lr", "augment", "mixup", "cutmix")},
        "layer_decay": (1.0, Reason("layers_new")),
    }


def _refit(n: int) -> Choice:
    """What is held out of few images is missed; what is held out of many is not, and costs as long again."""
    return ("on", Reason("refit", n=n)) if n < 20_000 else ("off", Reason("images", n=n))


def fine_tuning_rate(score: float, batch: int, tune: str = "full", figure: str = "") -> tuple[float, Reason]:
    """By the score of the linear probe: what is nearly right needs a light hand, what is not has to move. `figure` is
    what the score is called, where it is no share of the images."""
    lr, times = 1e-4 if score >= 0.95 else 3e-4, RATES.get(tune, 1)
    code, known = ("probe_figure", {"figure": figure}) if figure else ("probe_score", {})
    reason = Reason(code, score=score, **known)
    if times > 1:
        reason = Reason(f"{code}_times", score=score, times=times, tune=tune, **known)
    return scaled(lr * times, reason, batch, 64)


def policy_of(name: str, flip: float | None, size: tuple[int, int]) -> Policy:
    """The augmentation by its name. Where an image has few pixels a crop moves it and takes little away, and where it
    has very few none are erased."""
    policy = Policy.named(name)
    if policy.scale is None:
        return policy
    if flip is not None:
        policy = replace(policy, flip=flip)
    if max(size) <= TINY:
        return replace(policy, scale=(0.85, 1.0), ratio=(0.85, 1 / 0.85), erasing=0.0)
    if max(size) <= MOVED:
        return replace(policy, scale=(1.0, 1.0), ratio=(size[1] / size[0],) * 2, border=1 / 8)
    return policy
