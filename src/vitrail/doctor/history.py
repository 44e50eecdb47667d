"""What a run has written of its own training, in metrics.jsonl."""

import math
from collections.abc import Iterator
from itertools import pairwise

from vitrail.doctor.findings import Finding, fault, ok, warn
from vitrail.doctor.learning import BLOWN, RATES, guessing
from vitrail.doctor.patient import Patient


def history(patient: Patient) -> Iterator[Finding]:
    """A loss that rose, ceased to be a number, or never left the one of guessing."""
    run = patient.run
    if run is None:
        return
    losses = [float(row["train_loss"]) for row in run.rows if row.get("epoch") and row.get("train_loss") is not None]
    rate = run.lr or 0.0
    if not losses and run.kept:
        yield ok("no epochs: the run solved for its head alone")
        return
    if not losses:
        yield fault(
            "no_epoch",
            f"no epoch was completed, at learning rate {rate:g}",
            "a loss that ceased to be a number in the first epoch, or a run that was stopped",
            "see what learning, above, says of that rate; train again",
            lr=rate,
        )
        return
    first, last, least = losses[0], losses[-1], min(losses)
    seen = {"first": first, "last": last, "least": least, "epochs": len(losses)}
    several = len(losses) > 1
    words = f"train loss {first:.3g}" + (
        f" to {last:.3g} over {len(losses)} epochs" if several else " in its only epoch"
    )
    steepest = max((b - a for a, b in pairwise(losses)), default=0.0)
    chance = guessing(patient.classes)
    rose = last > max(1.2 * first, BLOWN * chance) or first > 3 * chance + 1 or steepest > max(1.0, chance)
    if rose or not all(map(math.isfinite, losses)):
        yield fault(
            "lr_explodes",
            f"{words}, at most {max(losses):.3g}; guessing has {chance:.2f}",
            f"a learning rate of {rate:g} that is too high",
            f"train again with --lr {min(RATES[0], rate / 10):g}",
            **seen,
        )
    elif len(losses) >= 5 and least > 0.98 * first and first > 0.9 * chance:
        yield warn(
            "no_progress",
            f"{words}: hardly below guessing ({chance:.2f})",
            "a learning rate that is too low, or labels that can't be told from the pictures",
            "see the labels and the learning above",
            **seen,
        )
    elif several:
        yield ok(words, **seen)
