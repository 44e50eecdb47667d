"""Segmentation and detection beside torchvision's own models under the same budget.

    python benchmarks/dense.py segment pets --weights deit_tiny.safetensors --json out.json --pictures out/
    python benchmarks/dense.py detect bccd --weights deit_tiny.safetensors --json out.json

The rows of Vitrail are `vitrail.train(data, task=…)` with no other option than what the row says; it selects on its own
validation images, and test/ is looked at once, at the end, by `vitrail.evaluate`. torchvision's models (dense_peers.py)
learn from scratch by the same loop on the same images, for as many epochs; validation chooses their epoch too, and with
the first seed the rate (of --peer-lr) that the others train at; all are shown. Data without a test/ is divided by a
fixed seed, a fifth to test on.

`--jobs N` trains N at a time, which says nothing about speed: images/s of prediction are measured afterwards, one model
at a time, in turns (not with --timed 0). What --json has already is not done again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dense_peers import PEERS, DeepLab, FasterRCNN, answers, budget_of, measure, opened, train_peer
from PIL import Image, ImageDraw
from record import keep

import vitrail
from vitrail.data.split import divide
from vitrail.report.drawing import font
from vitrail.tasks.detect.drawing import draw
from vitrail.tasks.detect.metrics import there
from vitrail.tasks.segment.drawing import coloured, palette

OURS: dict[str, dict[str, dict[str, Any]]] = {
    "segment": {
        "adapter + upernet": {"head": "upernet", "pyramid": "adapter"},
        "linear on the plain ViT": {"head": "linear"},
        "adapter + upernet from scratch": {"head": "upernet", "pyramid": "adapter", "weights": "none"},
    },
    "detect": {
        "adapter + faster_rcnn": {"head": "faster_rcnn", "pyramid": "adapter"},
        "adapter + faster_rcnn from scratch": {"head": "faster_rcnn", "pyramid": "adapter", "weights": "none"},
    },
}
DEFAULT = {"segment": [*OURS["segment"]][:2], "detect": [*OURS["detect"]][:1]}
FIGURES = {"segment": ("miou", "pixel_accuracy", "boundary_f1"), "detect": ("map", "map50", "map75")}


# -- rows --------------------------------------------------------------------------------------------------------------


def place(task: str, data: str, variant: str, seed: int, options: Any) -> Path:
    return options.runs / f"{task} {Path(data).name} {variant} {seed}".replace(" ", "_").replace("/", "-")


def one(task: str, data: str, variant: str, seed: int, options: Any) -> dict[str, Any]:
    """Trains and measures; the run folder, or the peer's weights, stay under --runs."""
    device, began, folder = torch.device(options.device), time.time(), place(task, data, variant, seed, options)
    if variant in OURS[task]:
        given = {"weights": options.weights, "model": options.model, **OURS[task][variant]}
        given |= {name: getattr(options, name) for name in ("epochs", "image_size") if getattr(options, name)}
        if given["weights"] == "none" and given["model"] is None:
            given["model"] = "deit_ti16"
        if not (folder / "report.html").exists():
            vitrail.train(data, task=task, seed=seed, out=folder, device=options.device, **given)
        predictor = vitrail.load(folder, device=options.device)
        model, figures = predictor.model, vitrail.evaluate(predictor, data, split="test")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        speed = float(np.median([row["images_per_second"] for row in rows]))
        recipe = json.loads((folder / "run.json").read_text())["recipe"]
        found: dict[str, Any] = {"train_images_per_second": speed, "recipe": recipe}
    else:
        budget = budget_of(task, data, options)
        model, found = train_peer(task, data, budget, seed, float(variant.partition(" at ")[2]), device)
        figures = measure(task, data, answers(task, model, budget.pre, device), opened(task, data).classes)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), folder / "peer.pt")
    kept = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    parameters = sum(p.numel() for p in model.parameters())
    return {**found, "figures": kept, "parameters": parameters, "minutes": (time.time() - began) / 60}


def compare(task: str, data: str, options: Any, results: dict[str, Any]) -> None:
    data = divided(task, data, options.runs)
    peers = [f"{PEERS[task]} at {rate:g}" for rate in options.peer_lr]
    variants = [*(options.variants or DEFAULT[task]), *peers]
    if options.only:
        variant, seed = options.only[0], int(options.only[1])
        results[key(task, data, variant, seed)] = one(task, data, variant, seed, options)
        return
    first, *others = options.seeds
    train(
        task, data, [(v, s) for s in options.seeds for v in variants if s == first or v not in peers], options, results
    )
    chosen = best_peer(task, data, peers, first, results)
    train(task, data, [(chosen, seed) for seed in others if chosen], options, results)
    table(task, data, variants, chosen, options.seeds, results)
    variants = [variant for variant in variants if variant not in peers or variant == chosen]
    if options.timed:
        speed(task, data, variants, options, results)
    if options.pictures:
        pictures(task, data, variants, options)


def train(task: str, data: str, jobs: list[tuple[str, int]], options: Any, results: dict[str, Any]) -> None:
    missing = [job for job in jobs if key(task, data, *job) not in results]
    if options.jobs > 1:
        in_processes(task, data, missing, options, results)
        return
    for variant, seed in missing:
        results[key(task, data, variant, seed)] = one(task, data, variant, seed, options)
        keep(options.json, {"results": results}, options.device)


def key(task: str, data: str, variant: str, seed: int) -> str:
    return f"{task}/{Path(data).name}/{variant}/{seed}"


def in_processes(task: str, data: str, jobs: list[tuple[str, int]], options: Any, results: dict[str, Any]) -> None:
    waiting, running = [*jobs], []
    while waiting or running:
        while waiting and len(running) < options.jobs:
            variant, seed = waiting.pop(0)
            part = Path(tempfile.mkdtemp()) / "part.json"
            words = [sys.executable, __file__, task, data, "--only", variant, str(seed), "--json", str(part)]
            words += ["--weights", str(options.weights), "--runs", str(options.runs), "--device", options.device]
            for name in ("epochs", "image_size", "model"):
                if getattr(options, name):
                    words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
            folder = place(task, data, variant, seed, options)
            log = folder.with_name(f"{folder.name}.log")
            with log.open("w") as file:
                running.append((variant, seed, part, log, subprocess.Popen(words, stdout=file, stderr=file)))
        for each in [each for each in running if each[-1].poll() is not None]:
            running.remove(each)
            variant, seed, part, log, process = each
            if process.returncode:
                print(f"{variant}, seed {seed}, failed:\n{log.read_text()[-2000:]}", flush=True)
                continue
            results |= json.loads(part.read_text())["results"]
            keep(options.json, {"results": results}, options.device)
            done = results[key(task, data, variant, seed)]
            print(f"  {variant}, seed {seed}: {words_of(task, done)}, {done['minutes']:.1f} min", flush=True)
        time.sleep(0.5)


def words_of(task: str, result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {100 * result['figures'].get(name, float('nan')):.2f} %" for name in FIGURES[task])


def table(
    task: str, data: str, variants: list[str], chosen: str | None, seeds: list[int], results: dict[str, Any]
) -> None:
    print(f"\n{task}, {data}: mean over {len(seeds)} seeds, and their standard deviation")
    for variant in variants:
        found = [results[key(task, data, variant, seed)] for seed in seeds if key(task, data, variant, seed) in results]
        if not found:
            continue
        line = f"  {variant:<36} {found[0]['parameters'] / 1e6:5.1f} M"
        for name in FIGURES[task]:
            values = 100 * np.array([each["figures"].get(name, np.nan) for each in found])
            spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
            line += f"   {name} {values.mean():.2f}{spread}"
        line += f"   trains at {np.median([each['train_images_per_second'] for each in found]):.0f} images/s"
        print(line + ("   chosen by validation, this rate counts" if variant == chosen else ""), flush=True)


def best_peer(task: str, data: str, peers: list[str], seed: int, results: dict[str, Any]) -> str | None:
    """The rate that validated best; without a look at the test set."""
    found = {peer: results[key(task, data, peer, seed)] for peer in peers if key(task, data, peer, seed) in results}
    return max(found, key=lambda peer: found[peer]["validation"], default=None)


# -- speed, pictures ---------------------------------------------------------------------------------------------------


def loaded(task: str, data: str, variant: str, options: Any) -> Callable[[Any], Any] | None:
    folder, device = place(task, data, variant, options.seeds[0], options), torch.device(options.device)
    if variant in OURS[task] and (folder / "report.html").exists():
        predictor = vitrail.load(folder, device=options.device)
        return answers(task, predictor.model, predictor.preprocessing, device)
    if not (folder / "peer.pt").exists():
        return None
    budget, classes = budget_of(task, data, options), len(opened(task, data).classes)
    model = DeepLab(classes) if task == "segment" else FasterRCNN(classes, *budget.sides)
    model.load_state_dict(torch.load(folder / "peer.pt", weights_only=True))
    return answers(task, model.to(device).eval(), budget.pre, device)


def speed(task: str, data: str, variants: list[str], options: Any, results: dict[str, Any], rounds: int = 5) -> None:
    """Of prediction, one picture at a time, decoded beforehand; the models take turns."""
    images = [sample.decode() for sample in opened(task, data).splits["test"][: options.timed]]
    said = {variant: answer for variant in variants if (answer := loaded(task, data, variant, options))}
    times: dict[str, list[float]] = {variant: [] for variant in said}
    for number in range(rounds + 1):
        for variant, answer in said.items():
            _wait(options.device)
            start = time.perf_counter()
            for image in images:
                answer(image)
            _wait(options.device)
            if number:  # the first is to warm up
                times[variant].append(len(images) / (time.perf_counter() - start))
    print("\nprediction, one picture at a time:")
    for variant, each in times.items():
        results[f"{task}/{Path(data).name}/{variant}/speed"] = {"images_per_second": each}
        print(f"  {variant:<36} {np.median(each):7.1f} images/s ({min(each):.1f} to {max(each):.1f})", flush=True)
    keep(options.json, {"results": results}, options.device)


def pictures(task: str, data: str, variants: list[str], options: Any, count: int = 4) -> None:
    """The same few test pictures by every model, in one sheet; spread evenly, not chosen."""
    source = opened(task, data)
    samples = source.splits["test"]
    samples = samples[:: max(1, len(samples) // count)][:count]
    images = [sample.decode() for sample in samples]
    if task == "segment":
        colours = palette(len(source.classes), source.colours)
        truth = [coloured(image, s.mask_pixels(), colours) for image, s in zip(images, samples, strict=True)]
        columns = {"picture": images, "labelled": truth}
    else:
        objects = [there(s, (image.height, image.width)) for image, s in zip(images, samples, strict=True)]
        labels = zip(images, objects, strict=True)
        columns = {"labelled": [draw(image, each, source.classes, scores=False) for image, each in labels]}
    for variant in variants:
        if answer := loaded(task, data, variant, options):
            columns[variant] = [
                coloured(image, answer(image), colours)
                if task == "segment"
                else draw(image, answer(image).above(0.5), source.classes)
                for image in images
            ]
    options.pictures.mkdir(parents=True, exist_ok=True)
    path = options.pictures / f"{task}_{Path(data).stem}.jpg"
    sheet(columns).save(path, quality=88)
    print(f"pictures: {path}")


def sheet(columns: dict[str, list[Image.Image]], width: int = 320, gap: int = 8) -> Image.Image:
    """A picture in each row, and in the columns what each model says of it."""
    letters = font(18)
    rows = [
        [each.resize((width, each.height * width // each.width)) for each in row]
        for row in zip(*columns.values(), strict=True)
    ]
    heights = [max(each.height for each in row) + gap for row in rows]
    page = Image.new("RGB", (len(columns) * (width + gap) - gap, 30 + sum(heights) - gap), "white")
    pen = ImageDraw.Draw(page)
    for number, name in enumerate(columns):
        left, top = number * (width + gap), 30
        pen.text((left, 14), name.partition(" at ")[0], "black", letters, anchor="lm")
        for row, height in zip(rows, heights, strict=True):
            page.paste(row[number], (left, top))
            top += height
    return page


def divided(task: str, data: str, runs: Path) -> str:
    """The data, or where it has no test/ a COCO file pair that has: a fifth of it, by a fixed seed."""
    source = opened(task, data)
    if "test" in source.splits:
        return data
    if task == "segment":
        raise SystemExit(f"{data} has no test/.")
    folder = runs / f"{Path(data).stem}_divided"
    if not folder.exists():
        (folder / "annotations").mkdir(parents=True)
        for split, part in zip(("train", "test"), divide(next(iter(source.splits.values())), 0.2, 0), strict=True):
            images, rows = [], []
            for number, sample in enumerate(part, 1):
                height, width = sample.size or sample.decode().size[::-1]
                where = str(sample.where.absolute())
                images.append({"id": number, "file_name": where, "width": width, "height": height})
                objects = zip(sample.boxes_on((height, width)).tolist(), sample.classes, sample.ignored, strict=True)
                for (x0, y0, x1, y1), label, ignored in objects:
                    rows.append({"id": len(rows) + 1, "image_id": number, "category_id": int(label) + 1,
                                 "bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0),
                                 "iscrowd": int(ignored)})  # fmt: skip
            kinds = [{"id": number, "name": name} for number, name in enumerate(source.classes, 1)]
            content = {"images": images, "annotations": rows, "categories": kinds}
            (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return str(folder)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*OURS])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", help="instead of the usual ones: " + "; ".join(
        variant for each in OURS.values() for variant in each))  # fmt: skip
    parser.add_argument("--peer-lr", type=float, nargs="*", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--epochs", type=int, help="instead of those that vitrail chooses")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--timed", type=int, default=50, help="pictures that prediction is timed on; 0: it is not")
    parser.add_argument("--runs", type=Path, default=Path("runs/dense"))
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())["results"]
    options.runs.mkdir(parents=True, exist_ok=True)
    for data in options.data:
        compare(options.task, data, options, results)
    keep(options.json, {"results": results}, options.device)


if __name__ == "__main__":
    main()
