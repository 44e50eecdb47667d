"""Where and how a result came to be: the command, versions of packages, the hardware."""

import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from vitrail.version import __version__


def command_line() -> str:
    """The command that a person typed; of a Python program, its name."""
    program = Path(sys.argv[0])
    name = "vitrail" if program.name in ("vitrail", "__main__.py") else str(program)
    return shlex.join([name, *sys.argv[1:]])


def versions(device: torch.device) -> dict[str, str]:
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        hardware = f"{platform.processor() or platform.machine()}, {threads} thread{'s' * (threads != 1)}"
    return {
        "vitrail": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": installed("torchvision"),  # without the seconds that it takes to import
        "hardware": hardware,
    }


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
