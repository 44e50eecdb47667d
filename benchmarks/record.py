"""What every benchmark keeps beside its figures: the command, the versions, the hardware."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from vitrail.environment import installed, versions
from vitrail.whole import whole

PEERS = ("timm", "transformers", "scikit-learn")


def about(device: str | torch.device | None) -> dict[str, Any]:
    """The command as it was typed, but for where things lie on this machine."""
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
    return {"command": command, **versions(device), **_peers()}


def keep(path: Path | None, content: dict[str, Any], device: str | torch.device | None = None) -> None:
    """Nothing where no file was asked for; a GPU, if there is one, where no device is named."""
    if path is not None:
        with whole(path) as unfinished:
            record = {"about": about(device), **content}
            unfinished.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _peers() -> dict[str, str]:
    return {name: found for name in PEERS if (found := installed(name)) != "unknown"}
