"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.errors import VitrailError


@contextmanager
def whole(path: Path, *failures: type[Exception]) -> Iterator[Path]:
    """Gives a name beside the target to write to, and renames it when all is on the disk: nobody sees half a file, not
    even after a power cut. `failures` are what a writer raises besides OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)  # there is no other way to read it
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)  # safetensors makes files that only their owner can read
        os.replace(part, path)
    except (OSError, *failures) as error:  # type: ignore[misc]
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise VitrailError(f"{path} can't be written: {reason}.") from None
    finally:
        with suppress(OSError):
            part.unlink()
