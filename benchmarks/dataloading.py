"""From a folder of JPEG files to augmented, normalised batches: images per second on one core, beside the peers.

    python benchmarks/dataloading.py FOLDER [FOLDER …] [--json out.json]

Each library crops at random (area 0.35 to 1), flips, resizes to 224 and normalises, in batches of 64 on the CPU. The
process is bound to one core, with one thread for arithmetic. Peers run in their own best setting of those tried here:
timm's create_loader, and torchvision's ImageFolder with transforms v2, on PIL images and on tensors from
torchvision.io's decoder, each without workers and with one. vitrail decodes in one thread beside the main one.

A virtual machine's host finds memory when it is first touched, which took about a millisecond for each picture that is
kept: so a gigabyte is touched, and given back, before each round.

The libraries take turns, epoch by epoch, `--rounds` times; the fastest epoch of each counts. "First" is an epoch in
which every file is decoded; "later" is any other. The peers have no difference between the two. They crop from the
original, vitrail from what it keeps of it, about 250 pixels on the short side: part of the speed is bought with that.
"""

import argparse
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import keep

SIZE, BATCH, SCALE = 224, 64, (0.35, 1.0)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def vitrail_epochs(folder: str, cache: str) -> Iterator[Callable[[], int]]:
    """The first epoch decodes and fills the cache, the second reads it."""
    from vitrail.data.augment.images import Augmenter, Policy
    from vitrail.data.image_set import shrunk
    from vitrail.data.loader import Loader, epoch_order
    from vitrail.data.sources.classification import open_source
    from vitrail.models.preprocessing import Preprocessing

    source = open_source(folder, one_class=True)
    samples = [sample for split in source.splits.values() for sample in split]
    pictures = shrunk(samples, Preprocessing(size=(SIZE, SIZE), mean=MEAN, std=STD), cache)
    augmenter = Augmenter(Policy(scale=SCALE), (SIZE, SIZE), MEAN, STD, seed=0)
    loader, device = Loader(pictures, torch.device("cpu"), workers=1), torch.device("cpu")
    batch: torch.Tensor | None = None  # written over by the next, also in the next epoch: as the training loop does

    def epoch(number: int) -> int:
        nonlocal batch
        order = epoch_order(np.arange(len(samples)), 0, number)
        groups = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
        for group, images in loader.batches(groups):
            if batch is None:
                batch = augmenter(images, group, number, device)
            else:
                augmenter(images, group, number, device, out=batch[: len(group)])
        return len(order)

    yield lambda: epoch(0)
    yield lambda: epoch(1)


def timm_epoch(folder: str, workers: int) -> Callable[[], int]:
    from timm.data import create_dataset, create_loader

    loader = create_loader(
        create_dataset("", folder), input_size=(3, SIZE, SIZE), batch_size=BATCH, is_training=True,
        use_prefetcher=False, scale=SCALE, hflip=0.5, color_jitter=None, auto_augment=None,
        interpolation="bilinear", mean=MEAN, std=STD,
        num_workers=workers, persistent_workers=workers > 0, device=torch.device("cpu"),
    )  # fmt: skip
    return lambda: sum(len(x) for x, _ in loader)


def torchvision_epoch(folder: str, workers: int, tensors: bool) -> Callable[[], int]:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    steps: list[Any] = [] if tensors else [v2.PILToTensor()]
    steps += [v2.RandomResizedCrop(SIZE, scale=SCALE, antialias=True), v2.RandomHorizontalFlip()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    options: dict[str, Any] = {"loader": lambda path: decode_image(path, ImageReadMode.RGB)} if tensors else {}
    dataset = ImageFolder(folder, v2.Compose(steps), **options)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda: sum(len(x) for x, _ in loader)


def rate(epoch: Callable[[], int]) -> float:
    start = time.perf_counter()
    return epoch() / (time.perf_counter() - start)


def measure(folder: str, rounds: int) -> dict[str, float]:
    peers: dict[str, Callable[[], int]] = {}
    for workers in (0, 1):
        peers[f"timm, {workers} workers"] = timm_epoch(folder, workers)
        peers[f"torchvision PIL, {workers} workers"] = torchvision_epoch(folder, workers, tensors=False)
        peers[f"torchvision tensors, {workers} workers"] = torchvision_epoch(folder, workers, tensors=True)
    best: dict[str, float] = {}
    for _ in range(rounds):
        np.ones(2**30, np.uint8)
        shutil.rmtree(
            os.environ["VITRAIL_CACHE"], ignore_errors=True
        )  # or the next round would find its images decoded
        for cache in ("memory", "disk"):
            first, later = vitrail_epochs(folder, cache)
            for name, epoch in ((f"vitrail, first, cache {cache}", first), (f"vitrail, later, cache {cache}", later)):
                best[name] = max(best.get(name, 0.0), rate(epoch))
        for name, epoch in peers.items():
            best[name] = max(best.get(name, 0.0), rate(epoch))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="of class folders")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--at-least", type=float, nargs=2, metavar=("FIRST", "LATER"), help="fail if a ratio is lower")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    core = sorted(os.sched_getaffinity(0))[0]
    os.sched_setaffinity(0, {core})  # before any thread or worker is started
    torch.set_num_threads(1)
    results, low = {}, False
    for folder in arguments.folders:
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["VITRAIL_CACHE"] = f"{scratch}/cache"
            best = measure(folder, arguments.rounds)
        peer = max((name for name in best if not name.startswith("vitrail")), key=lambda name: best[name])
        print(f"\n{folder}: images per second on one core")
        for name, value in sorted(best.items(), key=lambda item: -item[1]):
            print(f"  {name:34s} {value:8.0f}   {value / best[peer]:5.2f}× the fastest peer")
        ours = {
            when: max(v for n, v in best.items() if n.startswith(f"vitrail, {when}")) for when in ("first", "later")
        }
        ratios = [ours[when] / best[peer] for when in ("first", "later")]
        print(f"  first epoch {ratios[0]:.2f}×, later epochs {ratios[1]:.2f}× the fastest peer ({peer})")
        results[folder] = {**best, "fastest peer": peer, "first": ratios[0], "later": ratios[1]}
        low |= bool(arguments.at_least) and (ratios[0] < arguments.at_least[0] or ratios[1] < arguments.at_least[1])
    keep(arguments.json, {"results": results}, "cpu")
    raise SystemExit(1 if low else 0)


if __name__ == "__main__":
    main()
