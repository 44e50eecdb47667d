"""`vitrail pretrain`: a masked autoencoder from images alone."""

from typing import Any

from vitrail.cli.training import parse, run

EXAMPLES = """  vitrail pretrain photos --epochs 200
  vitrail train pets/images --weights runs/photos"""


def pretrain() -> None:
    """Trains a masked autoencoder, without labels; `vitrail train DATA --weights RUN` then continues from it."""


def command(arguments: list[str], rules: Any) -> int:
    data, config = parse("pretrain", " ".join((pretrain.__doc__ or "").split()), EXAMPLES, arguments, rules)
    return run("pretrain", data, config)
