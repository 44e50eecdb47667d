"""`vitrail models`: the catalog as a table."""

from fnmatch import fnmatch
from typing import Annotated

import tyro


def models(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """The models that can be built by name, with their size and cost.

    Args:
        pattern: Which names to show, such as "swin*" or "*16"; "tv:*" for torchvision's convolutional baselines.
    """
    from rich.console import Console
    from rich.table import Table

    from vitrail.errors import VitrailError, nearest
    from vitrail.models import list_models, resolve
    from vitrail.models.cost import cost
    from vitrail.weights import read_checkpoint
    from vitrail.weights.shipped import shipped_names

    names = list_models(pattern)
    inside = [name for name in shipped_names() if fnmatch(name, pattern)]
    if not names and not inside:
        raise VitrailError(f"No model is named like {pattern!r}.{nearest(pattern, list_models())}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    for title in ("parameters", "multiply-adds", "tokens", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("public weights", overflow="fold")
    table.add_column("licence", no_wrap=True)
    rows = [(name, read_checkpoint(name).settings, "ships inside", "apache-2.0") for name in inside]
    for entry in (resolve(name)[0] for name in names):
        rows.append((entry.name, entry.settings, entry.hub or "", entry.licence or ""))
    for name, settings, weights, licence in rows:
        count = cost(settings if name in inside else name)
        height, width = settings.image_size
        table.add_row(
            name,
            f"{count.parameters:,}",
            f"{count.multiply_adds / 1e9:.2f} G",
            f"{count.tokens:,}" if count.tokens else "",
            f"{height}×{width}",
            weights,
            licence,
        )
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)
