"""What an image size costs: time and memory of a forward pass and of a training step, beside the plain ViT.

    python benchmarks/dense_sizes.py --device cuda --json out.json

Square images, the same batch at every size, bf16 autocast on a GPU that has it; one model after the other, and the
median of the repeats counts. A step is forward and backward, without the optimizer's. Memory is the peak that is
allocated, weights included; on a CPU it is not known.
"""

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import keep
from torch import Tensor, nn

import vitrail
from vitrail.inference.precision import choose_precision
from vitrail.models.dense.detector import Detector
from vitrail.models.dense.segmenter import Segmenter

SIZES = (256, 384, 512, 768, 1024)
PLAIN = "plain ViT"


def models(name: str) -> dict[str, Callable[[int], nn.Module]]:
    """By the side of the images."""

    def backbone() -> Any:
        return vitrail.create_model(name, num_classes=0)

    width = min(256, backbone().settings.width)
    return {
        PLAIN: lambda side: backbone(),
        "linear": lambda side: Segmenter(backbone(), 3, "linear"),
        "simple + upernet": lambda side: Segmenter(backbone(), 3, "upernet", pyramid="simple", width=width),
        "adapter + upernet": lambda side: Segmenter(backbone(), 3, "upernet", width=width),
        "adapter + faster_rcnn": lambda side: Detector(
            backbone(), "faster_rcnn", 3, pyramid_channels=width, hidden=4 * width, short_side=side, long_side=side
        ),
    }


def jobs(model: Any, side: int, batch: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    x = torch.randn(batch, 3, side, side, device=device)
    box = torch.tensor([[0.1, 0.2, 0.5, 0.6]], device=device) * side
    targets = [{"boxes": box, "labels": torch.zeros(1, dtype=torch.int64, device=device)}] * batch
    detects = isinstance(model, Detector)

    def forward() -> None:
        model.eval()
        with torch.inference_mode():
            model(list(x)) if detects else model(x)

    def step() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        out = model(list(x), targets) if detects else model(x)
        loss: Tensor = sum(out.values()) if detects else out.float().pow(2).mean()
        loss.backward()

    return {"forward": forward, "step": step}


def measured(job: Callable[[], Any], device: torch.device, repeats: int) -> dict[str, float | None]:
    """Milliseconds and MiB; None where it does not fit."""
    try:
        job()
        job()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        times = []
        for _ in range(repeats):
            wait(device)
            start = time.perf_counter()
            job()
            wait(device)
            times.append(1000 * (time.perf_counter() - start))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"ms": None, "mib": None}
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    return {"ms": float(np.median(times)), "mib": peak}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def words(row: dict[str, float | None], plain: dict[str, float | None]) -> str:
    if row["ms"] is None:
        return "does not fit"
    beside = f" ({row['ms'] / plain['ms']:.2f}×)" if plain["ms"] else ""
    memory = "" if row["mib"] is None else f", {row['mib']:,.0f} MiB"
    return f"{row['ms']:8.1f} ms{beside}{memory}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_ti16")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, rows = torch.device(options.device), []
    dtype, _ = choose_precision("auto", device)
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    precision = str(dtype).removeprefix("torch.")
    print(f"{options.model}, batch {options.batch}, {precision}, {hardware}, torch {torch.__version__}")
    for side in options.sizes:
        plain: dict[str, Any] = {}
        for name, make in models(options.model).items():
            torch.manual_seed(0)
            model = make(side).to(device)
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                found = {
                    what: measured(job, device, options.repeats)
                    for what, job in jobs(model, side, options.batch, device).items()
                }
            plain = plain or found
            print(
                f"  {side:>5}  {name:<22} " + "   ".join(f"{what} {words(found[what], plain[what])}" for what in found),
                flush=True,
            )
            rows.append({"size": side, "model": name, **found})
            del model
    keep(options.json, {"dtype": str(dtype), "rows": rows}, device)


if __name__ == "__main__":
    main()
