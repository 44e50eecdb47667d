"""`vitrail models`: the catalog as a table."""

from typing import Annotated

import tyro

TITLES = ("name", "parameters", "multiply-adds", "tokens", "size", "licence", "public weights")
SIDES = "<>>>><<"


def models(pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*") -> None:
    """The models that can be built by name, with their size and cost.

    Args:
        pattern: Which names to show, such as "swin", "vit*" or "*16"; "tv:*" for torchvision's convolutional baselines.
    """
    from rich.console import Console
    from rich.text import Text

    from vitrail.cli.catalog import rows_like

    rows = [TITLES] + [
        (
            row.name,
            short(row.parameters),
            short(row.multiply_adds),
            f"{row.tokens:,}" if row.tokens else "",
            f"{row.size[0]}×{row.size[1]}",
            row.licence,
            row.weights,
        )
        for row in rows_like(pattern)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    console = Console()
    # On a narrow terminal the weights, whose names are long, have a line of their own; a file has room.
    narrow = console.is_terminal and sum(widths) + 2 * (len(widths) - 1) > console.width
    for place, row in enumerate(rows):
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, SIDES, widths, strict=True)]
        text = Text("  ".join(cells[:-1] if narrow else cells).rstrip(), style="" if place else "bold")
        if narrow and row[-1]:
            text.append(f"\n  {row[-1]}", "dim")
        console.print(text, soft_wrap=True)


def short(count: int) -> str:
    """5.7 M, 1.2 G."""
    size, unit = next((each for each in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if count >= each[0]), (1, ""))
    return f"{count / size:.1f} {unit}" if unit else str(count)
