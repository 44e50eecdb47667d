"""`vitrail train`: from a folder of images to a model, a report, and one file to ship."""

from typing import Any

from vitrail.cli.training import parse, run

EXAMPLES = """  vitrail train pets/images --epochs 10
  vitrail train pets --task segment --out runs/pets"""


def train() -> None:
    """Trains a model on labelled images: classes, or with --task masks, boxes, live faces. What is left out is chosen
    from the data, and printed before training starts."""


def command(arguments: list[str], rules: Any) -> int:
    data, config = parse("train", " ".join((train.__doc__ or "").split()), EXAMPLES, arguments, rules)
    return run("train", data, config)
