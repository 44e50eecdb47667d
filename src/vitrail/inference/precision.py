"""Which numbers to compute with. Some virtual machines announce instructions that kill whoever uses them, so bf16 on a
CPU is tried in a child process first."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.reasons import Reason

TRIAL = """
import torch
a = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
(torch.nn.functional.linear(a, a).float().sum()).backward()
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Linear(192, 576)(torch.randn(4, 197, 192))
"""


def choose_precision(wanted: str, device: torch.device) -> tuple[torch.dtype, Reason]:
    """The dtype of matrix products, and why."""
    if device.type == "cuda":
        if wanted == "fp32":
            return torch.float32, Reason("as_asked")
        if has_bf16():
            return torch.bfloat16, Reason("bf16_gpu" if wanted == "auto" else "as_asked")
        if wanted == "bf16":
            raise VitrailError("This GPU has no bf16: leave --precision out, or use fp32.")
        return torch.float32, Reason("no_bf16")
    if wanted != "bf16":
        return torch.float32, Reason("fp32_cpu" if wanted == "auto" else "as_asked")
    code = survives_bf16()
    if code:
        raise VitrailError(
            f"bf16 does not work on this processor: a trial in a child process ended with exit code {code}; use "
            "--precision fp32 (or, if it announces AMX without having it, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16)."
        )
    return torch.bfloat16, Reason("bf16_trial")


@cache
def has_bf16() -> bool:
    """Does the GPU have it, and not only imitate it?"""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def survives_bf16() -> int:
    """The exit code of a process that multiplies in bf16 on this CPU: 0, or how it died (132: illegal instruction)."""
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


@contextmanager
def fitting_threads(model: nn.Module, device: torch.device) -> Iterator[None]:
    """One thread where there is little to share: on a busy machine, threads that wait for each other over tensors this
    small cost far more than they give."""
    threads = torch.get_num_threads()
    if device.type == "cpu" and sum(p.numel() for p in model.parameters()) < 500_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
