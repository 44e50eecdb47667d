"""The rows of `vitrail models`, counted beforehand: to count them takes half a minute, to read them no time.

`python -m vitrail.cli.catalog` counts them anew and writes catalog.json; a test counts them too, and says when to.
"""

import json
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, nearest
from vitrail.weights.shipped import LARGEST, shipped_names

FILE = Path(__file__).with_name("catalog.json")
TORCHVISION = "tv:"


@dataclass(frozen=True)
class Row:
    name: str
    parameters: int
    multiply_adds: int  # of one image at the default size
    tokens: int
    size: tuple[int, int]  # height, width
    weights: str  # where public ones lie
    licence: str  # of those


def rows_like(pattern: str) -> list[Row]:
    """What ships inside, then the catalog; or torchvision's, of which only an installed copy knows what it has. A
    pattern that is no name is a part of some."""
    known = written()
    if pattern.startswith(TORCHVISION):
        from vitrail.models import list_models

        choices = list_models(f"{TORCHVISION}*")
    else:
        catalog = [name for name in known if not name.startswith(TORCHVISION) and name not in LARGEST]
        choices = [*shipped_names(), *catalog]
    names = [name for name in choices if fnmatch(name, pattern)] or [name for name in choices if pattern in name]
    if not names:
        raise VitrailError(f"No model is named like {pattern!r}.{nearest(pattern, choices)}")
    return [known.get(name) or counted(name) for name in names]


def written() -> dict[str, Row]:
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    return {row["name"]: Row(**{**row, "size": tuple(row["size"])}) for row in rows}


def counted(name: str) -> Row:
    """A row as it is, counted on the model itself."""
    from vitrail.models import resolve
    from vitrail.models.cost import cost
    from vitrail.weights import read_checkpoint

    looks: Any = {}
    if name in LARGEST:
        inside = read_checkpoint(name)
        settings, weights, licence = inside.settings, "ships inside", "apache-2.0"
        looks = {"image_size": inside.preprocessing.size}  # perhaps larger than what it learned from
    else:
        entry, _ = resolve(name)
        settings, weights, licence = entry.settings, entry.hub or "", entry.licence or ""
    found, used = cost(settings), replace(settings, **looks)
    price = cost(used) if looks else found
    return Row(name, found.parameters, price.multiply_adds, price.tokens, used.image_size, weights, licence)


def all_names() -> list[str]:
    from vitrail.models import list_models

    return [*shipped_names(), *list_models(), *list_models(f"{TORCHVISION}*")]


def write() -> None:
    lines = [json.dumps(asdict(counted(name)), ensure_ascii=False) for name in all_names()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write()
