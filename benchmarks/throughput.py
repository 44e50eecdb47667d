"""How fast is training on small pictures, and what is it bound by: the GPU's arithmetic, or the host?

    python benchmarks/throughput.py --json speed.json
    python benchmarks/throughput.py --models hybrid_mini4 --optimizers muon --batches 512 1024 --profile

Random pictures, `vitrail.train` with all its augmentation and mixing, compiled. The first epoch compiles; of the others
the median counts. The arithmetic of an image is three times its forward pass; the peak is that of a large product of
matrices in bf16, measured in the same run. With --profile the kernels of the steps of one epoch are listed, too: how
long the GPU was busy, and with what.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import keep

import vitrail
from vitrail.models.cost import cost
from vitrail.models.registry import model_settings

MODELS = ("vit_mini4:class_token=False,pool=mean,heads=6", "hybrid_mini4")
OPTIONS: dict[str, Any] = {"augment": "medium", "mixup": 0.8, "cutmix": 1.0, "lr": 1e-3, "compile": "on"}


def matmul_peak(size: int = 8192, rounds: int = 20) -> float:
    """Operations per second of a product of random matrices in bf16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        a @ b
    torch.cuda.synchronize()
    return rounds * 2 * size**3 / (time.perf_counter() - began)


def random_pictures(path: Path, count: int, side: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    np.savez(path, train_images=images, train_labels=np.arange(count) % 10,
             test_images=images[:500], test_labels=np.arange(500) % 10)  # fmt: skip


def measured(
    data: Path, model: str, optimizer: str, batch: int, epochs: int, folder: Path, **more: Any
) -> dict[str, Any]:
    vitrail.train(
        str(data), model=model, weights="none", optimizer=optimizer, batch_size=batch, epochs=epochs, val=0.02,
        out=folder, **OPTIONS | more,
    )  # fmt: skip
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "images_per_second": float(np.median([row["images_per_second"] for row in rows[1:]])),
        "waiting": float(np.median([row["data_wait"] for row in rows[1:]])),
        "epochs": [round(row["images_per_second"]) for row in rows],
    }


def covered(spans: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """From the start of the first to the end of the last, and how much of it lies in one of them, or in several."""
    ordered = sorted(spans)
    first, busy = ordered[0][0], 0.0
    end = first
    for start, stop in ordered:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return end - first, busy


def kernels(data: Path, model: str, optimizer: str, batch: int, folder: Path) -> dict[str, Any]:
    """Of the second epoch of three: milliseconds by the GPU's own clock, and the share in which it had work."""
    from torch.profiler import ProfilerActivity, profile

    from vitrail.training.trainer import Trainer

    train_epoch, found = Trainer._train_epoch, {}

    def profiled(trainer: Trainer) -> None:
        if trainer.epoch != 1:
            return train_epoch(trainer)
        with profile(activities=[ProfilerActivity.CUDA]) as watched:
            train_epoch(trainer)
            torch.cuda.synchronize()
        found["events"] = watched.events()

    Trainer._train_epoch = profiled  # type: ignore[method-assign]
    try:
        measured(data, model, optimizer, batch, 3, folder)
    finally:
        Trainer._train_epoch = train_epoch  # type: ignore[method-assign]
    events = [event for event in found["events"] if event.device_type == torch.autograd.DeviceType.CUDA]
    whole, busy = covered((event.time_range.start, event.time_range.end) for event in events)
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in events:
        counts[event.name] += 1
        spent[event.name] += event.time_range.end - event.time_range.start
    return {
        "milliseconds": whole / 1e3,
        "busy": busy / whole,
        "kernels": [{"name": name[:120], "ms": ms / 1e3, "count": counts[name]} for name, ms in spent.most_common(40)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1024])
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.epochs < 2:
        parser.error("--epochs: two or more, for the first one compiles.")
    if not torch.cuda.is_available():
        parser.exit(2, "This is about a GPU, and there is none here.\n")
    peak = matmul_peak()
    found: dict[str, Any] = {"matmul_peak": peak, "rows": []}
    print(f"matrix products: {peak / 1e12:.0f} TFLOP/s", flush=True)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "random.npz"
        random_pictures(data, asked.count, asked.side)
        for number, one in enumerate(product(asked.models, asked.optimizers, asked.batches)):
            model, optimizer, batch = one
            row = {"model": model, "optimizer": optimizer, "batch": batch}
            row |= measured(data, *one, asked.epochs, Path(place) / f"run-{number}")
            sized = model_settings(model, image_size=asked.side)
            row["share_of_peak"] = row["images_per_second"] * 6 * cost(sized).multiply_adds / peak
            if asked.profile:
                row["profile"] = kernels(data, *one, Path(place) / f"profiled-{number}")
            found["rows"].append(row)
            print(
                f"{model}, {optimizer}, batch {batch}: {row['images_per_second']:,.0f} images/s, "
                f"{row['share_of_peak']:.0%} of that, waiting for data {row['waiting']:.1%} of the time"
                + (f", GPU busy {row['profile']['busy']:.1%}" if asked.profile else ""),
                flush=True,
            )
            keep(asked.json, found, "cuda")


if __name__ == "__main__":
    main()
