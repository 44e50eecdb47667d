"""`vitrail models`: the catalog as a table."""

from typing import Annotated

import tyro


def models(pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*") -> None:
    """The models that can be built by name, with their size and cost.

    Args:
        pattern: Which names to show, such as "swin*" or "*16"; "tv:*" for torchvision's convolutional baselines.
    """
    from rich.console import Console
    from rich.table import Table

    from vitrail.cli.catalog import rows_like

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    for title in ("parameters", "multiply-adds", "tokens", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("public weights", overflow="fold")
    table.add_column("licence", no_wrap=True)
    for row in rows_like(pattern):
        table.add_row(
            row.name,
            f"{row.parameters:,}",
            f"{row.multiply_adds / 1e9:.2f} G",
            f"{row.tokens:,}" if row.tokens else "",
            f"{row.size[0]}×{row.size[1]}",
            row.weights,
            row.licence,
        )
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)
