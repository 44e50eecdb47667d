"""What the header of a model tells of the images it was trained on and those it was validated on."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.data.samples import Sample
from vitrail.tasks.context import Context


def header_of(ctx: Context, row: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What the model of a run says of itself: task, options, data, figures, and which images were held out."""
    about = {"task": ctx.task.name, **ctx.task.header(ctx), "recipe": ctx.config.shared()}
    about |= {"data": Path(ctx.data).name, "metrics": dict(row), **more}
    return about | ({"held_out": samples_digest(ctx.samples["val"])} if ctx.samples.get("val") else {})


def samples_digest(samples: list[Sample]) -> str:
    """Of the names and labels, in order: what a number means in a saved state."""
    text = json.dumps([[sample.name, sample.target] for sample in samples])
    return f"{len(samples)} images, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_refitted(about: Mapping[str, Any]) -> bool:
    """By the header of its model: was a run trained, in the end, on the images it had been validated on?"""
    return bool(about.get("finished")) and (about.get("recipe") or {}).get("refit") == "on"


def is_same_split(about: Mapping[str, Any], other: Mapping[str, Any], own_val: bool) -> bool:
    """By the headers of their models: did two runs hold out the same images? `own_val`: the data comes with them. Older
    headers have no digest of these, but the name of the data, and how they were drawn."""
    if "held_out" in about and "held_out" in other:
        return about["held_out"] == other["held_out"]
    one, two = (each.get("recipe") or {} for each in (about, other))
    alike = own_val or all(name in one and one[name] == two.get(name) for name in ("seed", "val"))
    return alike and about.get("data") == other.get("data")
