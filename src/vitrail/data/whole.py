"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.errors import VitrailError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives a name beside the target to write to, and renames it when all is written: nobody sees half a file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        raise VitrailError(f"{path} can't be written ({error.strerror or error}).") from None
    finally:
        with suppress(OSError):
            part.unlink()
