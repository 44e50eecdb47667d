"""Can it learn? One batch learned by heart, at the learning rate of the run or at one that suits nearly everything.

The labels are made up, four classes over eight images, so that knowing something already does not help. Measured: at
3e-4 DeiT-Ti is below a quarter of ln 4 after 4 steps, a fresh ViT-Ti of 4 blocks after 7; models of 50,000 parameters
need about 60 steps at 1e-3. At 1e-1 and above the losses of the first two rise to 50 and 15 within ten steps.
"""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitrail.data.samples import plural
from vitrail.doctor.findings import Finding, fault, ok, skipped, warn
from vitrail.doctor.objective import made_up_classes, objective
from vitrail.doctor.patient import Patient
from vitrail.tasks.reconstruct.objective import Expected

RATES, STEPS = (3e-4, 1e-3), 30
# Small models learn at higher rates and in more steps, which cost little. Small: parameters × patches of 16×16.
SMALL, SMALL_RATES, SMALL_STEPS = 1e9, (1e-3, 3e-3, 3e-4), 120
PICTURES = 8
WARMUP = 3  # steps
LEARNT, ENOUGH = 0.4, 0.25  # of the loss of guessing: that counts as learned, and to stop at
FEW = 0.5  # of all parameters: where fewer may learn, as in cheap tuning, learning by heart is not to be expected
PAINTED = 0.95  # of its first loss, which a masked autoencoder must get below: it never learns by heart
BLOWN = 2.0  # times the larger of the first loss and that of guessing, plus 1; healthy losses rise to 1.0 of that


def learning(patient: Patient) -> Iterator[Finding]:
    """A copy of the model is trained for a few steps; the model itself stays as it is."""
    if not any(parameter.requires_grad for parameter in patient.model.parameters()):
        yield warn(
            "frozen",
            "nothing may learn: requires_grad is off everywhere",
            "the model is frozen as a whole",
            "parameter.requires_grad_(True), if it is to be trained",
        )
        return
    if patient.faulty and not math.isfinite(objective(patient, patient.batch.x[:PICTURES])(patient.model).item()):
        yield skipped("the loss is no number: mend what was found above first")
        return
    x = _distinct(patient.batch.x[: 4 * PICTURES])[:PICTURES]
    asked = patient.lr
    if asked is not None:
        losses = trial(patient, x, asked)
        patient.charts["learning"] = losses
        if _blown(patient, losses):
            peak = max(loss if math.isfinite(loss) else math.inf for loss in losses)
            yield fault(
                "lr_explodes",
                f"the loss of {plural(len(x), 'picture')} goes from {losses[0]:.3g} up to {peak:.3g} in "
                f"{_steps(losses)} at learning rate {asked:g}",
                "a learning rate that is too high",
                f"train with --lr {min(RATES[0], asked / 10):g}, and with warm-up",
                lr=asked,
                first=losses[0],
                most=peak,
                steps=len(losses) - 1,
            )
            return
        if _learnt(patient, losses):
            yield _learns(patient, x, losses, asked)
            return
    rates, steps = _effort(patient, x)
    for rate in rates:
        losses = trial(patient, x, rate)
        if _learnt(patient, losses):
            break
    patient.charts.setdefault("learning", losses)
    may, total = _learning_share(patient.model)
    if not _learnt(patient, losses) and may < FEW * total:
        yield skipped(
            f"the {may:,} of {total:,} parameters that may learn did not learn {plural(len(x), 'picture')} by heart "
            f"(loss {losses[0]:.3g} to {min(losses):.3g} in {_steps(losses)}), and need not",
        )
    elif not _learnt(patient, losses):
        yield fault(
            "cannot_overfit",
            f"{plural(len(x), 'picture')} can't be learned by heart: loss {losses[0]:.3g}, at best {min(losses):.3g} "
            f"in {_steps(losses)} at {_list(rates)}",
            "gradients that do not reach the weights, or pictures that all look alike to the model",
            "look at activations, gradients and preprocessing above",
            first=losses[0],
            least=min(losses),
        )
    elif asked is not None and asked > rate:
        yield warn(
            "lr_high",
            f"{plural(len(x), 'picture')} can't be learned by heart in {steps} steps at learning rate {asked:g}, at "
            f"{rate:g} in {len(losses) - 1}",
            "a learning rate that is too high",
            f"train with --lr {rate:g}, or with more warm-up",
            lr=asked,
            better=rate,
        )
    else:
        yield _learns(patient, x, losses, rate)


def _learns(patient: Patient, x: Tensor, losses: list[float], rate: float) -> Finding:
    pictures, are = plural(len(x), "picture"), "is" if len(x) == 1 else "are"
    what = f"{pictures} with made-up labels {are} learned by heart: loss"
    beside = ""
    if patient.predictor.kind.self_supervised:
        what = f"the loss of {pictures} falls from"
        beside = f"; of a model that knows nothing it is {Expected.of(patient.predictor.model, x).nothing:.2f}"
    return ok(
        f"{what} {losses[0]:.3g} to {losses[-1]:.2g} in {_steps(losses)} at learning rate {rate:g}{beside}",
        lr=rate,
        first=losses[0],
        last=losses[-1],
        steps=len(losses) - 1,
    )


def _steps(losses: list[float]) -> str:
    """The first loss is from before the first step."""
    return plural(len(losses) - 1, "step")


def _effort(patient: Patient, x: Tensor) -> tuple[tuple[float, ...], int]:
    """Which rates to try, and for how many steps at most."""
    cost = sum(p.numel() for p in patient.model.parameters()) * x.shape[2] * x.shape[3] / 16**2 * len(x)
    return (SMALL_RATES, SMALL_STEPS) if cost < SMALL else (RATES, STEPS)


def _learning_share(model: nn.Module) -> tuple[int, int]:
    """How many parameters may learn, and how many there are."""
    counts = [(p.numel() * p.requires_grad, p.numel()) for p in model.parameters()]
    return sum(may for may, _ in counts), sum(total for _, total in counts)


def _list(rates: tuple[float, ...]) -> str:
    return " or ".join(f"{rate:g}" for rate in rates)


def trial(patient: Patient, x: Tensor, lr: float) -> list[float]:
    """The losses before and after each of a few steps of AdamW on one batch, without augmentation, dropout or drop
    path; it stops as soon as the outcome is clear. A run from scratch is tried from its own start."""
    run = patient.run
    start = None if run is None or run.record.model["pretrained"] else run.start
    model = copy.deepcopy(patient.model if start is None else start).to(x.device)
    frozen = {name for name, parameter in patient.model.named_parameters() if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    model.eval()  # nothing here behaves differently in training but what is random
    measure = objective(patient, x)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    clip = 1.0 if run is None else run.record.recipe.get("clip") or math.inf
    optimizer = torch.optim.AdamW(learning, lr=lr, weight_decay=0.0, fused=True)
    floor = ENOUGH * guessing(made_up_classes(patient))
    losses: list[float] = []
    with torch.enable_grad():
        for step in range(_effort(patient, x)[1] + 1):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (step + 1) / WARMUP)
            loss = measure(model)
            losses.append(loss.item())
            if patient.predictor.kind.self_supervised:
                floor = 0.9 * PAINTED * losses[0]
            if losses[-1] < floor or _blown(patient, losses):
                break
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learning, clip)
            optimizer.step()
    return losses


def guessing(classes: int) -> float:
    """The loss of saying all classes alike."""
    return math.log(max(2, classes))


def _blown(patient: Patient, losses: list[float]) -> bool:
    limit = BLOWN * max(losses[0], guessing(patient.classes or made_up_classes(patient))) + 1
    return not all(map(math.isfinite, losses)) or max(losses) > limit


def _learnt(patient: Patient, losses: list[float]) -> bool:
    if patient.predictor.kind.self_supervised:
        return min(losses) < PAINTED * losses[0]
    return min(losses) < LEARNT * guessing(made_up_classes(patient))


def _distinct(x: Tensor) -> Tensor:
    """The same image can't be learned under two labels."""
    kept: list[Tensor] = []
    for picture in x:
        if not any(torch.equal(picture, other) for other in kept):
            kept.append(picture)
    return torch.stack(kept)
