"""What a study measures of a run: accuracy on the test images, also when they are moved, and what a model costs."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import vitrail
from vitrail.data.sources.classification import open_source
from vitrail.models import create_model
from vitrail.models.position import LearnedPosition
from vitrail.predict import Predictor
from vitrail.weights.shipped import LARGEST

BATCH = 500


def held_out(data: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images, labels and the names of the classes, as the source has them."""
    source = open_source(data)
    samples = source.splits["test"]
    images: Any = samples[0].where
    return images.dataset.data, np.array([sample.labels[0] for sample in samples]), source.classes


@torch.inference_mode()
def share_right(predictor: Predictor, images: np.ndarray, labels: np.ndarray, classes: list[str]) -> float:
    """Of images that have the model's own size already, which is then all the preparation they need; others are brought
    to it as `vitrail predict` does."""
    numbers = np.array([predictor.labels.index(name) for name in classes])[labels]
    right, pre = 0, predictor.preprocessing
    for start in range(0, len(images), BATCH):
        part = np.array(images[start : start + BATCH])
        if part.shape[1:3] == pre.size and pre.crop == 1:
            with predictor.precision():
                answers = predictor.model(predictor.normalised(torch.from_numpy(part))).argmax(1).cpu().numpy()
        else:
            answers = predictor.probabilities(part, batch_size=BATCH).argmax(1).numpy()
        right += int((answers == numbers[start : start + BATCH]).sum())
    return right / len(images)


def accuracy(run: Path, data: Path, device: str, image_size: int | None = None) -> dict[str, float]:
    """`image_size`: at another size than the run learned at, positions resized as they always are."""
    return {"top1": share_right(vitrail.load(run, device=device, image_size=image_size), *held_out(data))}


def not_resized(run: Path, data: Path, device: str, image_size: int) -> dict[str, float]:
    """At another size with the position table as it is: cut off, or continued by zeros, in place of being resized."""
    predictor = vitrail.load(run, device=device, image_size=image_size)
    model: Any = predictor.model
    old: LearnedPosition = model.position
    grid = model.token_grid(image_size, image_size)
    new = LearnedPosition(old.table.shape[2], grid, old.prefix_rows, old.rule).to(old.table.device)
    with torch.no_grad():
        rows, columns = min(grid[0], old.grid[0]), min(grid[1], old.grid[1])
        patches = old.table[0, old.prefix_rows :].view(*old.grid, -1)
        table = torch.zeros(*grid, old.table.shape[2], device=patches.device)
        table[:rows, :columns] = patches[:rows, :columns]
        new.table.copy_(torch.cat([old.table[0, : old.prefix_rows], table.flatten(0, 1)])[None])
    model.position = new
    return {"top1": share_right(predictor, *held_out(data))}


# -- moved images ----------------------------------------------------------------------------------------------------


def moved(images: np.ndarray, shift: float = 0.0, scale: float = 1.0, angle: float = 0.0) -> np.ndarray:
    """uint8 [n, h, w, C], moved: `shift` to the right and down as a share of the side, `scale` > 1 larger, `angle` in
    degrees against the clock; what comes in from outside is the mirror image. Bilinear."""
    turn = np.deg2rad(angle)
    cos, sin = np.cos(turn) / scale, np.sin(turn) / scale
    # Where each pixel of the result comes from, in coordinates from −1 to 1.
    matrix = torch.tensor([[cos, -sin, -2 * shift], [sin, cos, -2 * shift]], dtype=torch.float32)
    parts = []
    for start in range(0, len(images), BATCH):
        x = torch.from_numpy(np.array(images[start : start + BATCH])).permute(0, 3, 1, 2).float()
        grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
        y = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        parts.append(y.round_().clamp_(0, 255).byte().permute(0, 2, 3, 1).numpy())
    return np.concatenate(parts)


MOVES: dict[str, dict[str, float]] = {
    **{f"shift {percent} %": {"shift": percent / 100} for percent in (6, 12, 25)},
    **{f"scale {factor}": {"scale": factor} for factor in (0.7, 0.85, 1.2, 1.5)},
    **{f"rotate {degrees}°": {"angle": degrees} for degrees in (10, 20, 45)},
}


def robustness(run: Path, data: Path, device: str) -> dict[str, float]:
    """Accuracy on the test images as they are, and moved in each way; `moved` is the mean of those."""
    predictor = vitrail.load(run, device=device)
    images, labels, classes = held_out(data)
    found = {"top1": share_right(predictor, images, labels, classes)}
    for name, move in MOVES.items():
        found[name] = share_right(predictor, moved(images, **move), labels, classes)
    return found | {"moved": float(np.mean([found[name] for name in MOVES]))}


# -- cost ------------------------------------------------------------------------------------------------------------


def cost(model: str, options: dict[str, Any], device: str) -> dict[str, float]:
    """Milliseconds and megabytes per image of a training step, and milliseconds of a forward pass, at one size."""
    side, batch = options["image_size"], options["batch_size"]
    net = create_model(model, num_classes=10, image_size=side).to(device)
    x = torch.randn(batch, 3, side, side, device=device)
    gpu = device.startswith("cuda")
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if gpu else 0

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=gpu):
            loss = net(x).float().logsumexp(1).mean()
        loss.backward()
        net.zero_grad(set_to_none=True)

    @torch.no_grad()
    def forward() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=gpu):
            net(x)

    found = {"step_ms": _milliseconds(step, gpu) / batch, "forward_ms": _milliseconds(forward, gpu) / batch}
    if gpu:
        found["memory_mb"] = (torch.cuda.max_memory_allocated() - before) / 1e6 / batch
    return found


def _milliseconds(work: Callable[[], None], gpu: bool, least: float = 0.3) -> float:
    """The median of single calls, for as long as `least` seconds, after two to warm up."""
    times: list[float] = []
    for number in range(1000):
        began = time.perf_counter()
        work()
        if gpu:
            torch.cuda.synchronize()
        if number > 1:
            times.append(1000 * (time.perf_counter() - began))
        if sum(times) > 1000 * least and len(times) > 2:
            break
    return float(np.median(times))


def seen_by(weights: str) -> int:
    """How many images a model that ships inside has learned from, each as often as it saw it."""
    metrics = vitrail.load(weights, device="cpu").about["metrics"] if weights in LARGEST else {}
    return metrics.get("epoch", 0) * metrics.get("images", 0)


# -- what a run wrote ------------------------------------------------------------------------------------------------


def of_run(folder: Path) -> dict[str, Any]:
    """The recipe, the sizes, the time and the validation figure of a finished run. Images and seconds are those of all
    its epochs, whether it was interrupted or not; but the GPU may have been shared meanwhile, which `jobs` tells."""
    told = json.loads((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if row["epoch"]]  # 0 is the linear classifier on frozen features
    rates = [row["images_per_second"] for row in epochs]
    predictor = vitrail.load(folder, device="cpu")
    figures = predictor.about.get("metrics", {})
    return {
        "recipe": {key: value for key, value in told["recipe"].items() if value is not None and "/" not in str(value)},
        "parameters": sum(parameter.numel() for parameter in predictor.model.parameters()),
        "images_seen": sum(row["images"] for row in epochs),
        "seconds": round(sum(row["seconds"] for row in epochs), 1),
        "images_per_second": round(float(np.median(rates))) if rates else None,
        "validation": {key: value for key, value in figures.items() if isinstance(value, int | float)},
        "last": rows[-1] if rows else {},
    }
