"""What a recipe leaves open, decided by the data: every choice with its reason, to be printed before the run starts."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from vitrail.data.augment.images import Policy
from vitrail.data.sources.faces.protocol import DEVELOPMENT
from vitrail.errors import VitrailError
from vitrail.training.config import Recipe


@dataclass(frozen=True)
class Facts:
    """What the choices depend on."""

    images: int  # to train on
    classes: int
    pretrained: bool
    side: int  # of the images that the model sees
    own_val: bool = False  # has the data validation images of its own?
    layered: bool = True  # has it blocks that may learn at different rates?
    drops_paths: bool = True
    masked: bool = False  # are the weights those of a masked autoencoder, which has seen no labels?
    multi_label: bool = False


def fill(recipe: Recipe, facts: Facts) -> tuple[Recipe, dict[str, str]]:
    """The recipe with nothing left open, and for each choice made here the reason."""
    chosen = _fine_tuning(facts) if facts.pretrained else _from_scratch(facts)
    if facts.masked:
        chosen = _from_scratch(facts) | _after_masking(facts)
    if not facts.layered:
        chosen["layer_decay"] = (1.0, "a convolutional network learns at one rate")
        if recipe.layer_decay not in (None, 1.0):
            raise VitrailError("--layer-decay counts the blocks of a transformer: leave it out for this model.")
    if not facts.layered or recipe.tune != "full":
        chosen["optimizer"] = ("adamw", "usual")
    if not facts.drops_paths:
        chosen["drop_path"] = (0.0, "it has no paths to drop")
    if recipe.teacher is not None:
        chosen |= _distilling(recipe)
    if recipe.tune in RATES and facts.pretrained:
        chosen |= _cheaply(facts)
    if recipe.tune != "full":
        chosen["drop_path"] = (0.0, "what is frozen is not to be dropped")
        if recipe.drop_path:
            raise VitrailError(f"--drop-path is for what learns, and with --tune {recipe.tune} the blocks are frozen.")
    if recipe.task == "spoof":
        chosen |= _spoofing(facts, chosen["epochs"])
    else:
        recipe = replace(recipe, balance="none" if recipe.balance == "auto" else recipe.balance)
    if facts.multi_label and chosen["refit"][0] == "on":
        chosen["refit"] = ("off", "the thresholds belong to the weights that they were chosen with")
    if chosen["lr"][0] is not None:
        batch = chosen["batch_size"][0]
        chosen["lr"] = scaled(*chosen["lr"], recipe.batch_size or batch, MASKED if facts.masked else batch)
    full, why = settled(recipe, chosen)
    if full.calm > full.epochs:
        raise VitrailError(f"--calm {full.calm} is more than the {full.epochs} epochs of the run.")
    if TINY < facts.side <= MOVED and full.task != "spoof" and full.augment != "none":
        why["augment"] += f"; at {facts.side} pixels images are moved, not cropped"
    return full, why


def settled(recipe: Any, chosen: dict[str, tuple[Any, str]]) -> tuple[Any, dict[str, str]]:
    """What was asked for stays; what was left open becomes what was chosen, with its reason."""
    values, why = {}, {}
    for name, (value, reason) in chosen.items():
        given = getattr(recipe, name)
        if given is None or given == "auto":
            values[name], why[name] = value, reason
        else:
            why[name] = "as asked"
    if getattr(recipe, "calm", 0):
        why["calm"] = "as asked"
    full = replace(recipe, **values)
    if full.warmup is not None and full.epochs is not None and full.warmup > full.epochs / 2:
        full, why["warmup"] = replace(full, warmup=full.epochs / 2), "half of so short a run"
    return full, why


def scaled(lr: float, reason: str, batch: int, usual: int) -> tuple[float, str]:
    """The square-root rule for Adam, for a batch other than the one that the rate was found with."""
    if batch == usual:
        return lr, reason
    return float(f"{lr * (batch / usual) ** 0.5:.3g}"), f"{reason}, × √({batch}/{usual}) for this batch"


def _fine_tuning(facts: Facts) -> dict[str, tuple[Any, str]]:
    n = facts.images
    epochs = by(n, ((2_000, 30), (10_000, 20), (50_000, 12)), 8)
    size = f"{n:,} images"
    return {
        "epochs": (epochs, size),
        "batch_size": (min(max(8, n // 8), by(n, ((4_000, 64), (20_000, 128)), 256)), size),
        "lr": (None, ""),  # `fine_tuning_rate`, once the frozen features are known
        "optimizer": ("adamw", "usual"),
        "weight_decay": (0.05, "usual"),
        "layer_decay": (0.75, "early layers are general already"),
        "warmup": (1.0, "usual"),
        "drop_path": (0.1 if n >= 1_000 else 0.0, size),
        "augment": ("light" if n < 50_000 else "medium", size),
        "flip": (0.5, "usual"),
        "mixup": (0.0, "fine-tuning"),
        "cutmix": (0.0, "fine-tuning"),
        "label_smoothing": (0.1, "usual"),
        "ema": (0.9998, "at most; less at first, so that about the last tenth of the run counts"),
        "val": (by(n, ((1_000, 0.2), (20_000, 0.15)), 0.05), size),
        "refit": ("off", "the data has its own val/") if facts.own_val else _refit(n, size),
    }


def _from_scratch(facts: Facts) -> dict[str, tuple[Any, str]]:
    n = facts.images
    epochs = by(n, ((20_000, 200), (200_000, 100)), 90)
    start = "after MAE" if facts.masked else "from scratch"
    size, few = f"{start}, {n:,} images", f"{start}, images of few pixels"
    batch = min(max(8, n // 8), by(n, ((10_000, 64), (100_000, 256)), 1024))
    large, tiny = n >= 10_000, facts.side <= TINY
    return {
        "epochs": (epochs, size),
        "batch_size": (batch, size),
        "lr": (2e-3, few) if tiny else (1e-3, start),
        "optimizer": ("adamw", few) if tiny else ("muon", f"{start}; ahead of AdamW on Tiny-ImageNet"),
        "weight_decay": (0.05, "usual"),
        "layer_decay": (1.0, "from scratch all layers learn alike"),
        "warmup": (min(5.0, epochs / 10), "usual"),
        "drop_path": (0.1, start),
        "augment": ("strong" if large and facts.side > 64 else "medium", size),
        "flip": (0.5, "usual"),
        "mixup": (0.0, few) if tiny and not large else (0.8 if large else 0.2, size),
        "cutmix": (1.0 if large else 0.0, size),
        "label_smoothing": (0.1, "usual"),
        "ema": (0.9998, "at most; less at first, so that about the last tenth of the run counts"),
        "val": (by(n, ((1_000, 0.2), (20_000, 0.1)), 0.05), size),
        "refit": ("off", start),
    }


def _after_masking(facts: Facts) -> dict[str, tuple[Any, str]]:
    """What fine-tuning a masked autoencoder wants otherwise than training from scratch ("Masked autoencoders are
    scalable vision learners", He et al. 2022, table 9). Its features are not yet about classes, so that a linear
    classifier on them says little about the rate: they have to move, early layers less than late ones."""
    n, usual, tuning = facts.images, "MAE's paper", _fine_tuning(facts)
    epochs = 100 if n < 200_000 else 50
    return {
        "epochs": (epochs, f"{usual}: several times what other weights need"),
        "lr": (2e-3, f"{usual}: 2e-3 at {MASKED}"),
        "layer_decay": (0.75, usual),
        "warmup": (epochs / 20, usual),
        "val": tuning["val"],
        "refit": tuning["refit"],
    }


def _distilling(recipe: Recipe) -> dict[str, tuple[Any, str]]:
    """DeiT's: a hard answer counts as much as the label, a soft one for a tenth of the loss at temperature 3."""
    if recipe.distill == "soft":
        return {"distill": ("soft", ""), "alpha": (0.1, "DeiT's paper"), "temperature": (3.0, "DeiT's paper")}
    return {"distill": ("hard", "better than soft in DeiT's paper"), "alpha": (0.5, "DeiT's paper")}


def _cheaply(facts: Facts) -> dict[str, tuple[Any, str]]:
    """What little of a model that learns, in all layers alike."""
    tuning = _fine_tuning(facts)
    return {
        **{name: tuning[name] for name in ("epochs", "warmup", "lr", "augment", "mixup", "cutmix")},
        "layer_decay": (1.0, "what is added is new in every layer"),
    }


def _spoofing(facts: Facts, epochs: tuple[int, str]) -> dict[str, tuple[Any, str]]:
    """What tells an attack is fine texture, colour and the edges of a print or screen: none of it is to be washed out,
    and no live face mixed with an attack."""
    evidence = "else the evidence of an attack is lost"
    few = (by(facts.images, ((50_000, 10),), 5), "many pictures of few people")
    return {
        "epochs": few if facts.pretrained and not facts.masked else epochs,
        "augment": ("light", f"mirror images and crops of 60 % or more, {evidence}"),
        "mixup": (0.0, evidence),
        "cutmix": (0.0, evidence),
        "balance": ("sampling", "live faces as often as attacks, each attack type alike"),
        "val": (DEVELOPMENT, "of the subjects"),
        "refit": ("off", "the threshold belongs to the weights that it was chosen with"),
    }


def _refit(n: int, size: str) -> tuple[str, str]:
    """What is held out of few images is missed; what is held out of many is not, and costs as long again."""
    why = f"{size}: in the end it learns from those held out too, which takes as long again"
    return ("on", why) if n < 20_000 else ("off", size)


TINY, MOVED = 16, 32  # pixels a side, at most
MASKED = 1024  # the batch that the rate after MAE is for


def policy_of(recipe: Recipe, size: tuple[int, int]) -> Policy:
    """The augmentation by its name. Where an image has few pixels a crop moves it and takes little away, and where it
    has very few none are erased."""
    policy = Policy.named(recipe.augment)
    if policy.scale is None:
        return policy
    if recipe.flip is not None:
        policy = replace(policy, flip=recipe.flip)
    if recipe.task == "spoof" and recipe.augment == "light":
        policy = replace(policy, scale=(0.6, 1.0), ratio=(0.9, 1 / 0.9))
    if max(size) <= TINY:
        return replace(policy, scale=(0.85, 1.0), ratio=(0.85, 1 / 0.85), erasing=0.0)
    if max(size) <= MOVED and recipe.task != "spoof":
        return replace(policy, scale=(1.0, 1.0), ratio=(size[1] / size[0],) * 2, border=1 / 8)
    return policy


def by(n: int, steps: Iterable[tuple[int, Any]], beyond: Any) -> Any:
    """The value of the first step that n is below."""
    return next((value for limit, value in steps if n < limit), beyond)


# Few weights have to go further than many to the same end: 10 times the rate validated best for each of them, on pets.
RATES = {"adapter": 10, "lora": 10, "bias": 10, "prompt": 10}


def fine_tuning_rate(score: float, batch: int, tune: str = "full") -> tuple[float, str]:
    """By how well frozen features do already: what is nearly right needs a light hand, what is not has to move."""
    lr, times = 1e-4 if score >= 0.95 else 3e-4, RATES.get(tune, 1)
    words = f"frozen features reach {score:.1%}" + (f", × {times} for {tune}" if times > 1 else "")
    return scaled(lr * times, words, batch, 64)
