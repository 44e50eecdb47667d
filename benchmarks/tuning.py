"""The ways to adapt a model cheaply beside fine-tuning all of it: accuracy, weights that learn, memory, images/s.

    python benchmarks/tuning.py pets/images --weights deit_tiny.safetensors --json out.json
    python benchmarks/tuning.py pets/images --weights deit_tiny.safetensors --methods lora --lr 1e-3 3e-3 1e-2

Each row is `vitrail.train(data, weights=…, tune=…)` with no other option than the seed; test/ is looked at once, at the
end, by `vitrail.evaluate`. With --lr the given rates are tried instead, and only what validation says of them is told:
that is how the default rates (RATES in train/plan.py) were chosen.

`--jobs N` trains N at a time, which says nothing about speed: memory and images/s of training are measured afterwards,
one method at a time, over a few epochs of a run that is then thrown away (not with --timed 0). A finished row in --json
is not made again.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import keep

import vitrail
from vitrail.models.tuning import KINDS, learns

WARM = 2  # epochs of a timed run that do not count


def one_run(data: str, options: dict[str, Any], look: bool) -> dict[str, Any]:
    """Trains; with `look`, also measures on test/."""
    folder, began = Path(tempfile.mkdtemp()) / "run", time.monotonic()
    with open(folder.parent / "log", "w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        run = vitrail.train(data, out=folder, **options)
    seconds = time.monotonic() - began
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    recipe = json.loads((folder / "run.json").read_text())["recipe"]
    model = vitrail.load(run, device="cpu").model
    # LoRA is merged there, so that it is counted in the small file beside it.
    small = vitrail.load(folder / "adapter.safetensors", device="cpu").model if options["tune"] == "lora" else model
    found: dict[str, Any] = {
        "validation": {k: v for k, v in run.metrics.items() if isinstance(v, int | float)},
        "validated": [row["val_top1"] for row in rows if "val_top1" in row],
        "recipe": {k: recipe[k] for k in ("epochs", "batch_size", "lr", "augment", "tune", "refit")},
        "learnt": sum(p.numel() for name, p in small.named_parameters() if learns(name, options["tune"])),
        "parameters": sum(p.numel() for p in model.parameters()),
        "images_per_second": [row["images_per_second"] for row in rows if row["epoch"]],
        "seconds": round(seconds, 1),
    }
    if torch.cuda.is_available():
        found["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    if look:
        figures = vitrail.evaluate(run, data, split="test")
        found["figures"] = {k: v for k, v in figures.items() if isinstance(v, int | float)}
    shutil.rmtree(folder.parent)
    return found


def key(tune: str, lr: float | None, seed: int) -> str:
    return f"{tune}/{'default' if lr is None else f'{lr:g}'}/{seed}"


def compare(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    wanted = {}
    for seed in arguments.seeds:
        for tune in arguments.methods:
            for lr in arguments.lr or [None]:
                options = {"weights": arguments.weights, "tune": tune, "seed": seed}
                options |= {name: getattr(arguments, name) for name in ("epochs", "model") if getattr(arguments, name)}
                wanted[key(tune, lr, seed)] = options | ({} if lr is None else {"lr": lr, "refit": "off"})
    missing = {name: options for name, options in wanted.items() if name not in results}
    # A process for each run: its peak of memory is then its own.
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {
            pool.submit(one_run, arguments.data, options, not arguments.lr): name for name, options in missing.items()
        }
        for done in as_completed(running):
            name = running[done]
            results[name] = found = done.result()
            keep(arguments.json, {"jobs": arguments.jobs, "results": results})
            test = f"test {found['figures']['top1']:.2%}, " if "figures" in found else ""
            best = max(found["validated"], default=float("nan"))
            print(f"  {name:<24} {test}best validation {best:.2%}, {found['seconds']:.0f} s", flush=True)
    if not arguments.lr:
        if arguments.timed:
            timed(arguments, results)
        table(arguments, results)


def timed(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    for tune in arguments.methods:
        if f"{tune}/speed" in results:
            continue
        options = {"weights": arguments.weights, "tune": tune, "seed": 0, "refit": "off", "epochs": arguments.timed}
        options |= {"model": arguments.model} if arguments.model else {}
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            results[f"{tune}/speed"] = pool.submit(one_run, arguments.data, options, False).result()
        keep(arguments.json, {"jobs": arguments.jobs, "results": results})


def table(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    print(f"{'method':<9} {'weights that learn':>19}  {'test accuracy':>16}  {'images/s':>9}  {'peak memory':>12}")
    full = results.get(key("full", None, arguments.seeds[0]), {}).get("learnt")
    for tune in arguments.methods:
        rows = [results[key(tune, None, seed)] for seed in arguments.seeds]
        right = [100 * row["figures"]["top1"] for row in rows]
        spread = f" ± {np.std(right, ddof=1):.2f}" if len(right) > 1 else ""
        share = f" ({rows[0]['learnt'] / full:.1%})" if full else ""
        speed = results.get(f"{tune}/speed", {})
        rate = np.median(speed.get("images_per_second", [])[WARM:] or [float("nan")])
        memory = f"{speed['peak_mib']:,.0f} MiB" if "peak_mib" in speed else "–"
        learnt = f"{rows[0]['learnt']:,}{share}"
        print(f"{tune:<9} {learnt:>19}  {np.mean(right):7.2f}{spread} %  {rate:9,.0f}  {memory:>12}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model")
    parser.add_argument("--methods", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lr", type=float, nargs="+", help="rates to try, by validation alone")
    parser.add_argument("--epochs", type=int, help="instead of those that vitrail chooses")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--timed", type=int, default=6, help="epochs of the runs that are timed; 0: none")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        results = json.loads(arguments.json.read_text())["results"]
    compare(arguments, results)


if __name__ == "__main__":
    main()
