"""Forward pass and training step beside timm, transformers and torchvision, in one run.

    python benchmarks/forward.py                       # three models on the CPU, fp32
    python benchmarks/forward.py --device cuda         # bf16 autocast
    python benchmarks/forward.py --device cuda --compile

Every library runs its own model with its own default kernels. The libraries take turns, round after round, so that a
machine that slows down slows them all. Ratios are peer time / our time within a round, their median counts: above 1,
Vitrail is faster. `--json FILE` keeps the numbers.
"""

import argparse
import gc
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from record import keep
from torch import nn

import vitrail

SHAPES = {"vit_ti16": (192, 3), "vit_b16": (768, 12)}


def vitrail_model(name: str) -> nn.Module:
    return vitrail.create_model(name)


def timm_model(name: str) -> nn.Module:
    import timm

    names = {
        "vit_ti16": "vit_tiny_patch16_224",
        "vit_b16": "vit_base_patch16_224",
        "swin_t": "swin_tiny_patch4_window7_224",
    }
    return timm.create_model(names[name])


def torchvision_model(name: str) -> nn.Module:
    from torchvision.models import SwinTransformer, VisionTransformer

    if name == "swin_t":
        return SwinTransformer([4, 4], 96, [2, 2, 6, 2], [3, 6, 12, 24], [7, 7], stochastic_depth_prob=0.0)
    width, heads = SHAPES[name]
    return VisionTransformer(224, 16, 12, heads, width, 4 * width)


class Logits(nn.Module):
    """transformers returns an object; what is compared is the logits in it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


def transformers_model(name: str) -> nn.Module:
    import transformers

    if name == "swin_t":
        config = transformers.SwinConfig(num_labels=1000, drop_path_rate=0.0)
        return Logits(transformers.SwinForImageClassification(config))
    width, heads = SHAPES[name]
    config = transformers.ViTConfig(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=1000,
        attn_implementation="sdpa",
    )
    return Logits(transformers.ViTForImageClassification(config))


LIBRARIES = {
    "vitrail": vitrail_model,
    "timm": timm_model,
    "transformers": transformers_model,
    "torchvision": torchvision_model,
}


def forward(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model(images)

    return run


def training_step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=images.is_cuda)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return run


def seconds(run: Callable[[], None], device: str, repeat: int) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeat


def compare(
    name: str, job: Callable, libraries: list[str], options: argparse.Namespace, batch: int
) -> dict[str, list[float]]:
    torch.manual_seed(0)
    images = torch.randn(batch, 3, 224, 224, device=options.device)
    labels = torch.randint(1000, (batch,), device=options.device)
    runs = {}
    for library in libraries:
        model = LIBRARIES[library](name).to(options.device)
        model = torch.compile(model) if options.compile else model
        runs[library] = job(model, images, labels)
    autocast = torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda")
    times: dict[str, list[float]] = {library: [] for library in libraries}
    with autocast:
        for run in runs.values():
            seconds(run, options.device, options.warm_up)
        shuffled = random.Random(0)
        for _ in range(options.rounds):
            # In a new order each time, and after one pass that does not count: none runs in another's wake.
            for library in shuffled.sample(libraries, len(libraries)):
                runs[library]()
                times[library].append(seconds(runs[library], options.device, options.repeat))
    del runs
    gc.collect()
    torch._dynamo.reset()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="+", default=["vit_ti16", "vit_b16", "swin_t"])
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--batch", type=int, default=None, help="8 on the CPU, 256 on a GPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeat", type=int, default=None, help="passes per round: 1 on the CPU, 10 on a GPU")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail if a ratio is lower")
    options = parser.parse_args()
    options.repeat = options.repeat or (10 if options.device == "cuda" else 1)
    batch = options.batch or (256 if options.device == "cuda" else 8)

    machine = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{torch.get_num_threads()} threads, {platform.machine()}"
    )
    precision = "bf16 autocast" if options.device == "cuda" else "fp32"
    print(f"torch {torch.__version__}, {machine}, {precision}, batch {batch}{', compiled' if options.compile else ''}")
    others = [library for library in options.libraries if library != "vitrail"]
    header = f"{'':26s}{'vitrail':>12s}" + "".join(f"{library:>16s}" for library in others) + f"{'fastest peer':>16s}"
    print(header)
    rows = []
    for name in options.models:
        for label, job in (("forward", forward), ("training step", training_step)):
            times = compare(name, job, options.libraries, options, batch)
            ours = statistics.median(times["vitrail"])
            # Ratios within a round, and their median: what slows the machine down for a while then hardly counts.
            ratios = {
                library: statistics.median(t / o for t, o in zip(times[library], times["vitrail"], strict=True))
                for library in others
            }
            row = f"{name:10s}{label:16s}{ours * 1e3:9.1f} ms" + "".join(
                f"{ratios[library]:15.2f}×" for library in others
            )
            print(row + f"{min(ratios.values()):15.2f}×", flush=True)
            rows.append({"model": name, "job": label, "seconds": times, "ratio": ratios})
    keep(options.json, {"precision": precision, "batch": batch, "rows": rows}, options.device)

    if min(min(row["ratio"].values()) for row in rows) < options.at_least:
        raise SystemExit(f"slower than {options.at_least}× the fastest peer")


if __name__ == "__main__":
    main()
