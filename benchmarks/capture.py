"""What `capture` costs beside a plain forward, and beside transformers with eager attention, in one run.

    python benchmarks/capture.py                       # ViT-B/16, batch 32 of 224×224, on the CPU, fp32
    python benchmarks/capture.py --device cuda         # bf16 autocast
    python benchmarks/capture.py --check               # fails above 1.3× for class rows, 1.2× for one layer's maps

The jobs take turns, round after round, in a new order each time. A ratio is a job's time over that of the library's own
plain forward in the same round; the median of the rounds counts. transformers gives maps only from eager attention, of
all layers at once. Then the peak memory of one layer's class row at 1024×1024, against its whole map and against none.
`--json FILE` keeps the numbers.
"""

import argparse
import json
import multiprocessing
import platform
import random
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import vitrail

LIMITS = {"class rows of all layers": 1.3, "maps of one layer": 1.2}
Job = Callable[[], object]


def our_jobs(name: str, images: torch.Tensor) -> dict[str, Job]:
    model = vitrail.create_model(name).to(images.device).eval()

    def capturing(**options: object) -> Job:
        def job() -> object:
            with vitrail.capture(model, **options) as maps:  # type: ignore[arg-type]
                model(images)
            return maps

        return job

    return {
        "plain forward": lambda: model(images),
        "class rows of all layers": capturing(reduce="cls_row"),
        "maps of one layer": capturing(layers=[-1]),
        "mean maps of one layer": capturing(layers=[-1], reduce="mean_heads"),
        "maps of all layers": capturing(),
    }


def transformers_jobs(name: str, images: torch.Tensor) -> dict[str, Job]:
    import transformers

    s = vitrail.create_model(name).settings
    models = {}
    for kind in ("sdpa", "eager"):
        config = transformers.ViTConfig(
            hidden_size=s.width,
            num_hidden_layers=s.depth,
            num_attention_heads=s.heads,
            intermediate_size=s.mlp_width,
            num_labels=s.num_classes,
            attn_implementation=kind,
        )
        models[kind] = transformers.ViTForImageClassification(config).to(images.device).eval()

    def eager() -> object:
        maps = models["eager"](images, output_attentions=True).attentions
        if not maps or maps[0].shape[-1] != maps[0].shape[-2]:
            raise SystemExit("transformers gave no attention maps")
        return maps

    return {
        "transformers, plain forward": lambda: models["sdpa"](images).logits,
        "transformers, eager, maps of all layers": eager,
    }


def seconds(job: Job, device: str, repeat: int) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeat):
        job()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeat


def measure(jobs: dict[str, Job], options: argparse.Namespace) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        seconds(job, options.device, options.warm_up)
    shuffled = random.Random(0)
    for _ in range(options.rounds):
        for name in shuffled.sample(list(jobs), len(jobs)):
            jobs[name]()  # does not count: none runs in another's wake
            times[name].append(seconds(jobs[name], options.device, options.repeat))
    return times


def peak(device: str, name: str, size: int, captured: dict | None) -> int:
    """Bytes at the highest point of one forward of one picture. One block: in inference all need the same."""
    model = vitrail.create_model(name, depth=1, image_size=size).to(device).eval()
    image = torch.randn(1, 3, size, size, device=device)
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        if device == "cuda":
            model(image)  # what libraries allocate once
            torch.cuda.reset_peak_memory_stats()
        if captured is None:
            model(image)
        else:
            with vitrail.capture(model, **captured):
                model(image)
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("The peak memory of a process can't be read on this system.")
    return 1024 * int(found[1])


def memory(options: argparse.Namespace) -> dict[str, int]:
    """Each in a process of its own, so that none starts from another's peak."""
    jobs: dict[str, dict | None] = {
        "plain forward": None,
        "class row of one layer": {"reduce": "cls_row"},
        "mean map of one layer": {"reduce": "mean_heads"},
        "map of one layer": {},
    }
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {
            job: pool.apply(peak, (options.device, options.model, options.large, captured))
            for job, captured in jobs.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--model", default="vit_b16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--large", type=int, default=1024, help="side of the picture that memory is measured with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=None, help="passes per round: 1 on the CPU, 10 on a GPU")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="fail if a ratio is above its limit")
    options = parser.parse_args()
    options.repeat = options.repeat or (10 if options.device == "cuda" else 1)

    gpu = options.device == "cuda"
    machine = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads, {platform.machine()}"
    precision = "bf16 autocast" if gpu else "fp32"
    print(f"torch {torch.__version__}, {machine}, {precision}, {options.model}, batch {options.batch}")

    torch.manual_seed(0)
    with torch.inference_mode(), torch.autocast(options.device, torch.bfloat16, enabled=gpu):
        images = torch.randn(options.batch, 3, 224, 224, device=options.device)
        times = measure(our_jobs(options.model, images) | transformers_jobs(options.model, images), options)
    ratios = {}
    for job, taken in times.items():
        plain = times["transformers, plain forward" if job.startswith("transformers") else "plain forward"]
        ratios[job] = statistics.median(t / p for t, p in zip(taken, plain, strict=True))
        limit = f"   (limit {LIMITS[job]}×)" if job in LIMITS else ""
        print(f"{job:42s}{statistics.median(taken) * 1e3:9.1f} ms{ratios[job]:8.2f}×{limit}", flush=True)

    print(f"peak memory of one picture of {options.large}×{options.large}")
    peaks = memory(options)
    for job, size in peaks.items():
        above = size - peaks["plain forward"]
        print(f"{job:42s}{size / 2**20:9.1f} MiB{above / 2**20:+9.1f} MiB", flush=True)

    if options.json:
        result = {"machine": machine, "torch": torch.__version__, "precision": precision, "model": options.model}
        result |= {
            "batch": options.batch,
            "seconds": times,
            "ratio": ratios,
            "large": options.large,
            "peak_bytes": peaks,
        }
        options.json.write_text(json.dumps(result, indent=1))
    if options.check and (slow := [job for job, limit in LIMITS.items() if ratios[job] > limit]):
        raise SystemExit(f"above its limit: {', '.join(slow)}")


if __name__ == "__main__":
    main()
