"""Preprocessing against what the weights expect: scale, mean and deviation, order of the channels.

What a person says about an image can be wrong; what the model makes of it can't. So the images are also shown in the
ways they might have been meant, and where the model understands one of those better, that is what its weights expect.

An image's score is log p(its label) − entropy of the answer; without labels, − entropy alone. Measured on DeiT-Ti with
64 images (ImageNet, Imagenette) when the lines were drawn: right order against reversed channels t = 5.5 and 5.1 on
average; without labels 4.9 and 4.3. Normalised against not at all, t = 8 and more. A healthy model has t of the same
size below zero. Other images give other figures: these are what was seen, not bounds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.doctor.findings import Finding, fault, ok, skipped, warn
from vitrail.doctor.patient import Patient
from vitrail.errors import VitrailError
from vitrail.models import Preprocessing, resolve
from vitrail.models.preprocessing import CLIP, HALF, IMAGENET

SURE = 3.0  # t of the paired difference: were it normal and without a fault, it would be above once in 700 times
MARGIN = 0.1  # nats per image, that a significant difference must also be worth; reversed channels: 0.4 to 0.7
FEW = 16  # images, below which no t is believed


@dataclass(frozen=True)
class Other:
    """Another way that the images may have been meant."""

    what: str
    code: str
    x: Tensor
    cause: str
    fix: str


def preprocessing(patient: Patient) -> Iterator[Finding]:
    x, pre = patient.batch.x, patient.preprocessing
    mean, deviation = x.mean().item(), x.std().item()
    low, high = x.min().item(), x.max().item()
    seen: dict[str, float] = {"mean": mean, "deviation": deviation, "least": low, "most": high}
    if not (math.isfinite(low) and math.isfinite(high)):
        yield fault(
            "not_finite",
            "the pictures hold values that are no numbers",
            "a deviation of 0 in the normalisation, or damaged data",
            "check mean and std of the preprocessing",
            **seen,
        )
        return
    if not patient.batch.real:
        yield ok(
            f"mean {_numbers(pre.mean)}, deviation {_numbers(pre.std)}, as stated; made-up pictures can't tell more",
        )
        return
    scale = f"pictures of mean {mean:.2f} and deviation {deviation:.2f}"
    stated = _stated(patient)
    if patient.untrained or not patient.classes:
        finding = _by_range(scale, low, high, stated, seen)
        yield finding or ok(f"{scale}, {_numbers(pre.mean)} and {_numbers(pre.std)} as stated", **seen)
        return
    labelled = patient.batch.targets is not None and not patient.batch.multi_label
    enough = len(x) >= FEW
    if not (labelled and enough) and (finding := _by_range(scale, low, high, stated, seen)):
        yield finding
        return
    given = _understood(patient, None)
    if given is None and patient.predictor.kind.answer != "probabilities":
        yield skipped(f"a model that gives no probabilities does not tell how sure it is; {scale}")
        return
    if given is None:
        yield skipped(f"answers that are no numbers can't tell: mend what was found above first; {scale}")
        return
    tried: list[tuple[float, float, Other]] = []
    for other in _others(patient, low, high, stated):
        shown = _understood(patient, other.x)
        if shown is None:
            continue
        t, gain = _t(shown.score - given.score), (shown.plain - given.plain).mean().item()
        if t > SURE and gain > MARGIN and enough and shown.knows and shown.right >= given.right:
            tried.append((t, gain, other))
        elif not tried:
            seen["t"] = max(t, seen.get("t", -math.inf))
    if tried:
        t, gain, best = max(tried, key=lambda one: one[0])
        how = f"{gain:.2f} nats per label better" if labelled else f"surer by {gain:.2f} nats"
        make = fault if labelled else warn
        seen |= {"t": t, "gain": gain}
        yield make(
            best.code,
            f"{scale}; {best.what} the model does better ({how}, t = {t:.1f})",
            best.cause,
            best.fix,
            **seen,
        )
        return
    finding = _by_range(scale, low, high, pre, seen)
    if finding is None and stated is not None and not (labelled and enough):
        finding = _by_name(pre, stated, patient.predictor.name or "", seen)
    words = f"{scale}; no other order or scale suits the model better"
    if finding is None and patient.faulty and seen.get("t", -math.inf) > -SURE:
        # A model that sees little in any order shows no difference, whichever of them is right.
        yield skipped(f"answers of a faulty model can't tell (t = {seen['t']:.1f}): mend what was found above first")
        return
    yield finding or ok(words + (f" (t = {seen['t']:.1f})" if "t" in seen else ""), **seen)


def _others(patient: Patient, low: float, high: float, stated: Preprocessing | None) -> Iterator[Other]:
    """Only what the images' own numbers leave possible: more trials are more chances to be wrong."""
    x, pre = patient.batch.x, patient.preprocessing
    mean, std = _shaped(pre.mean, x), _shaped(pre.std, x)
    if x.shape[1] == 3:
        reversed_ = ((x * std + mean).flip(1) - mean) / std
        yield Other(
            "with red and blue exchanged",
            "channel_order",
            reversed_,
            "pictures, or weights, with their channels in the order blue, green, red",
            "read pictures as RGB (with OpenCV: image[..., ::-1]), or reverse the channels of patch.weight",
        )
    raw: Tensor | None = None
    if low >= 0 and high <= 1.001:
        raw, cause = x, "pictures from 0 to 1 that were never normalised"
    elif low >= 0 and high > 20:
        raw, cause = x / 255, "pictures from 0 to 255 that were never normalised"
    elif abs(x.mean().item()) > 1.2 and x.std().item() > 2.5:  # normalised photographs: 0.1 and 1.3 at most
        raw, cause = (x * std + mean) * std + mean, "pictures that were normalised twice"
    conventions = {"ImageNet's": IMAGENET, "0.5 and 0.5": HALF, "CLIP's": CLIP}
    if raw is not None and x.shape[1] == 3:
        if stated is not None:
            conventions = {"the stated": {"mean": stated.mean, "std": stated.std}} | conventions
        for name, values in conventions.items():
            yield Other(
                f"normalised by {name} mean and deviation",
                "normalisation",
                _normalised(raw, values),
                cause,
                f"normalise as (pixel/255 − {_numbers(values['mean'])}) / {_numbers(values['std'])}",
            )
    elif stated is not None and (stated.mean, stated.std) != (pre.mean, pre.std) and len(stated.mean) == x.shape[1]:
        values = {"mean": stated.mean, "std": stated.std}
        yield Other(
            f"normalised as {patient.predictor.name} was trained",
            "normalisation",
            _normalised(x * std + mean, values),
            f"a file that states mean {_numbers(pre.mean)} and deviation {_numbers(pre.std)}",
            f"set its preprocessing to mean {_numbers(stated.mean)} and deviation {_numbers(stated.std)}",
        )


def _stated(patient: Patient) -> Preprocessing | None:
    """What the public weights of this name were trained with; a run of ours was trained as its own file says."""
    predictor = patient.predictor
    if predictor.about.get("recipe") or not predictor.name:
        return getattr(patient.model, "preprocessing", None)
    try:
        return resolve(predictor.name)[0].preprocessing.suited(patient.body.settings)
    except VitrailError:
        return None


def _by_range(
    scale: str, low: float, high: float, stated: Preprocessing | None, seen: dict[str, float]
) -> Finding | None:
    """By the numbers alone, where the model's answers can't tell."""
    wants = stated is not None and any(stated.mean)
    if low >= 0 and (high > 20 or (high <= 1.001 and wants)):
        return fault(
            "normalisation",
            f"{scale}, from {low:.2g} to {high:.3g}",
            "pictures that were never normalised",
            f"normalise as (pixel/255 − {_numbers(stated.mean)}) / {_numbers(stated.std)}"
            if stated
            else "divide by 255, then normalise as the weights expect",
            **seen,
        )
    if abs(seen["mean"]) > 3 or seen["deviation"] > 5:  # normalised photographs: 0.1 and 1.3 at most
        return warn(
            "normalisation",
            f"{scale}, far from 0 and 1",
            "pictures that were normalised twice, or not at all",
            "normalise once",
            **seen,
        )
    return None


def _by_name(pre: Preprocessing, stated: Preprocessing, name: str, seen: dict[str, float]) -> Finding | None:
    if (pre.mean, pre.std) == (stated.mean, stated.std):
        return None
    return warn(
        "normalisation",
        f"mean {_numbers(pre.mean)}, deviation {_numbers(pre.std)}; {name} was trained with "
        f"{_numbers(stated.mean)} and {_numbers(stated.std)}",
        "preprocessing that is not that of the weights",
        "use theirs, or name labelled DATA so that the model's answers can decide",
        **seen,
    )


@dataclass(frozen=True)
class Understood:
    """How well each image was understood, [n]."""

    score: Tensor  # label and sureness together
    plain: Tensor  # the label alone or, without labels, sureness
    right: float = 0.0  # the share of right answers
    knows: bool = True  # is that more than saying the commonest label would give? Unknown without labels


def _understood(patient: Patient, x: Tensor | None) -> Understood | None:
    if patient.predictor.kind.answer != "probabilities":  # numbers say nothing of how sure they are
        return None
    logits = (patient.answers if x is None else patient.answers_to(x))[0]
    if logits is None or not logits.isfinite().all():
        return None
    batch = patient.batch
    if batch.multi_label or patient.predictor.multi_label or logits.shape[1] == 1:
        chance = logits.double().sigmoid()
        sure = -(torch.special.entr(chance) + torch.special.entr(1 - chance)).sum(dim=1)
        return Understood(sure, sure)
    log = logits.double().log_softmax(dim=1)
    sure = -torch.special.entr(log.exp()).sum(dim=1)
    if batch.targets is None:
        return Understood(sure, sure)
    truth = torch.tensor([labels[0] for labels in batch.targets])
    label = log.gather(1, truth[:, None])[:, 0]
    right = (log.argmax(dim=1) == truth).double().mean().item()
    # With labels that were shuffled against the images, less sure answers cost less; that is no better understanding.
    commonest = truth.bincount().max().item() / len(truth)
    return Understood(label + sure, label, right, right > commonest + 2 * math.sqrt(commonest / len(truth)))


def _t(difference: Tensor) -> float:
    """Of the paired differences; 0 where there are none, as with grey images or a single one."""
    deviation = difference.std().item() if len(difference) > 1 else 0.0
    if deviation < 1e-9:
        return 0.0
    return difference.mean().item() / deviation * math.sqrt(len(difference))


def _normalised(pixels: Tensor, values: dict[str, tuple[float, ...]]) -> Tensor:
    return (pixels - _shaped(values["mean"], pixels)) / _shaped(values["std"], pixels)


def _shaped(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype).view(1, -1, 1, 1)


def _numbers(values: tuple[float, ...]) -> str:
    short = [f"{value:.3g}" for value in values]
    return short[0] if len(set(short)) == 1 else f"({', '.join(short)})"
