"""The resumable state of a run: everything that the next step depends on, written so that half a file is never seen."""

import io
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.whole import whole


def save_state(path: Path, state: dict[str, Any]) -> None:
    with whole(path, RuntimeError) as part, _File(io.FileIO(part, "w")) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            raise file.error or error from None


def write_text(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def remove_parts(folder: Path) -> None:
    """What a run that was killed while it wrote has left behind."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


class _File(io.BufferedWriter):
    """Remembers why it could not be written; of a full disk torch.save itself says "unexpected pos"."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def load_state(path: Path) -> dict[str, Any] | None:
    """None where there is none yet: the run was killed before it had anything to save."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise VitrailError(
            f"{path} can't be read ({reason}): start again without --resume.", code="bad_state"
        ) from None
