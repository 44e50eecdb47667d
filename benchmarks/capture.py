"""What `capture` costs beside a plain forward, and beside transformers with eager attention, in one run.

    python benchmarks/capture.py                       # ViT-B/16, batch 32 of 224×224, on the CPU, fp32
    python benchmarks/capture.py --device cuda         # bf16 autocast
    python benchmarks/capture.py --check               # fails above 1.3× for class rows, 1.2× for one layer's maps

The jobs take turns, round after round, in a new order each time. Beside each, right before or right after it, the
library's own plain forward is measured again: on a GPU its time jumps between levels, so one measured elsewhere in the
round says little. A ratio is a job's time over that of the plain forward beside it; the median of the rounds counts,
and the least and the largest are printed with it. transformers gives maps only from eager attention, of all layers at
once. Then the peak memory of one layer's class row at 1024×1024, against its whole map and against none, and of the
class rows of all layers, whose q, k and v wait for one another up to a bound. `--json FILE` keeps the numbers, and the
command.
"""

import argparse
import multiprocessing
import platform
import random
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import keep

import vitrail

LIMITS = {"class rows of all layers": 1.3, "maps of one layer": 1.2}
PLAIN = "plain forward"
Job = Callable[[], object]
Jobs = dict[str, Job]  # a plain forward, and what is measured beside it


def our_jobs(name: str, images: torch.Tensor) -> Jobs:
    model = vitrail.create_model(name).to(images.device).eval()

    def capturing(**options: object) -> Job:
        def job() -> object:
            with vitrail.capture(model, **options) as maps:  # type: ignore[arg-type]
                model(images)
            return maps

        return job

    return {
        PLAIN: lambda: model(images),
        "class rows of all layers": capturing(reduce="cls_row"),
        "maps of one layer": capturing(layers=[-1]),
        "mean maps of one layer": capturing(layers=[-1], reduce="mean_heads"),
        "maps of all layers": capturing(),
    }


def transformers_jobs(name: str, images: torch.Tensor) -> Jobs:
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
        PLAIN: lambda: models["sdpa"](images).logits,
        "eager, maps of all layers": eager,
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


def measure(libraries: dict[str, Jobs], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """For each job its seconds, and those of its library's plain forward beside it, round by round."""
    pairs = {
        f"{library}{name}": (job, jobs[PLAIN])
        for library, jobs in libraries.items()
        for name, job in jobs.items()
        if name != PLAIN
    }
    times: dict[str, dict[str, list[float]]] = {name: {"job": [], "plain": []} for name in pairs}
    for both in pairs.values():
        for job in both:
            seconds(job, options.device, options.warm_up)
    shuffled = random.Random(0)
    for _ in range(options.rounds):
        for name in shuffled.sample(list(pairs), len(pairs)):
            both = dict(zip(("job", "plain"), pairs[name], strict=True))
            for which in shuffled.sample(list(both), 2):
                both[which]()  # does not count: none runs in another's wake
                times[name][which].append(seconds(both[which], options.device, options.repeat))
    return times


def ratios_of(times: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Of the rounds, each job over the plain forward beside it: median, least and most."""
    found = {}
    for name, taken in times.items():
        ratios = [job / plain for job, plain in zip(taken["job"], taken["plain"], strict=True)]
        found[name] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return found


def peak(device: str, name: str, size: int, blocks: int | None, captured: dict | None) -> int:
    """Bytes at the highest point of one forward of one picture, with so many blocks or all."""
    model = vitrail.create_model(name, image_size=size, **({} if blocks is None else {"depth": blocks}))
    model = model.to(device).eval()
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


# One block, for in inference all need the same; and all of them, for class rows of all are made together.
MEMORY: dict[str, tuple[int | None, dict | None]] = {
    "one block, plain forward": (1, None),
    "one block, class row": (1, {"reduce": "cls_row"}),
    "one block, mean map": (1, {"reduce": "mean_heads"}),
    "one block, map": (1, {}),
    "all blocks, plain forward": (None, None),
    "all blocks, class rows": (None, {"reduce": "cls_row"}),
}


def memory(options: argparse.Namespace) -> dict[str, int]:
    """Each in a process of its own, so that none starts from another's peak."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {
            job: pool.apply(peak, (options.device, options.model, options.large, blocks, captured))
            for job, (blocks, captured) in MEMORY.items()
        }


def line(job: str, taken: list[float]) -> str:
    return f"{job:42s}{statistics.median(taken) * 1e3:9.1f} ms"


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
        libraries = {"": our_jobs(options.model, images)}
        libraries["transformers, "] = transformers_jobs(options.model, images)
        times = measure(libraries, options)
    for library in libraries:
        own = [f"{library}{name}" for name in libraries[library] if name != PLAIN]
        plain = [second for job in own for second in times[job]["plain"]]
        print(line(f"{library}{PLAIN}", plain) + f"   ({min(plain) * 1e3:.1f} to {max(plain) * 1e3:.1f})", flush=True)
    ratios = ratios_of(times)
    for job, ratio in ratios.items():
        limit = f", limit {LIMITS[job]}×" if job in LIMITS else ""
        spread = f"({ratio['least']:.2f} to {ratio['most']:.2f}{limit})"
        print(f"{line(job, times[job]['job'])}{ratio['median']:8.2f}×   {spread}", flush=True)

    print(f"peak memory of one picture of {options.large}×{options.large}")
    peaks = memory(options)
    for job, size in peaks.items():
        above = size - peaks[f"{job.split(',')[0]}, {PLAIN}"]
        print(f"{job:42s}{size / 2**20:9.1f} MiB{above / 2**20:+9.1f} MiB", flush=True)

    result = {"precision": precision, "model": options.model, "batch": options.batch, "seconds": times}
    keep(options.json, result | {"ratio": ratios, "large": options.large, "peak_bytes": peaks}, options.device)
    if options.check and (slow := [job for job, limit in LIMITS.items() if ratios[job]["median"] > limit]):
        raise SystemExit(f"above its limit: {', '.join(slow)}")


if __name__ == "__main__":
    main()
