"""Dividing samples into two parts that look alike, and writing down who went where.

Who goes where depends on the seed and the names alone, never on the order in which a file system lists them, so the
same folder on another machine is divided the same way.
"""

import csv
import hashlib
import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

from vitrail.data.samples import NAMED, SPLITS, Sample, TarMember
from vitrail.data.sources.arrays import ImageArray
from vitrail.errors import VitrailError
from vitrail.whole import whole


def divide(samples: list[Sample], fraction: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """(rest, part), where part holds `fraction` of the samples, and of every class as nearly as it can.

    Every class keeps at least one sample in the rest. A class of two or more also has one in the part, if the part is
    large enough to hold one of each. A sample with several labels is placed by the one that is rarest over all.
    """
    if not 0 <= fraction < 1:
        raise VitrailError(f"The fraction to set apart is {fraction}: expected 0 or more, and less than 1.")
    kept = Counter(label for sample in samples for label in sample.labels)  # in the rest, as the part is filled
    strata: dict[int, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: (drawn(seed, sample.name), sample.name)):
        strata[min(sample.labels, key=lambda label: (kept[label], label), default=-1)].append(sample)
    sizes = {label: len(strata[label]) for label in sorted(strata)}
    target = round(fraction * len(samples))
    taken: list[Sample] = []

    def take(sample: Sample) -> bool:
        if any(kept[label] < 2 for label in sample.labels):
            return False
        kept.subtract(sample.labels)
        taken.append(sample)
        return True

    for label, quota in _quotas(sizes, target, fraction, seed).items():
        for sample in strata[label]:
            if quota and take(sample):
                quota -= 1
    if any(len(sample.labels) > 1 for sample in samples):
        _cover([sample for stratum in strata.values() for sample in stratum], taken, take, target)
    in_part = set(map(id, taken))
    return [s for s in samples if id(s) not in in_part], [s for s in samples if id(s) in in_part]


def drawn(seed: int, name: object) -> bytes:
    """A number for this name that looks random, the same everywhere and always."""
    return hashlib.blake2b(f"{seed} {name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _quotas(sizes: dict[int, int], target: int, fraction: float, seed: int) -> dict[int, int]:
    """How many of each stratum go into the part: `target` together, and never the whole of a stratum."""
    wanted = {label: fraction * size for label, size in sizes.items()}
    several = [label for label, size in sizes.items() if size > 1]
    least = 1 if len(several) <= target else 0  # one of each, if there is room for one of each
    quotas = {label: min(size - 1, max(int(wanted[label]), least)) for label, size in sizes.items()}
    missing = target - sum(quotas.values())
    if missing > 0:  # the largest remainders first
        change, may, key = 1, lambda l: quotas[l] < sizes[l] - 1, lambda l: quotas[l] - wanted[l]
    else:  # from those that stay nearest to their share
        change, may, key = -1, lambda l: quotas[l] > least, lambda l: (1 - quotas[l]) / wanted[l]
    queue = [(key(label), drawn(seed, label), label) for label in sizes if may(label)]
    heapq.heapify(queue)
    for _ in range(abs(missing)):
        if not queue:
            break
        _, draw, label = heapq.heappop(queue)
        quotas[label] += change
        if may(label):
            heapq.heappush(queue, (key(label), draw, label))
    return quotas


def _cover(by_draw: list[Sample], taken: list[Sample], take: Callable[[Sample], bool], target: int) -> None:
    """With several labels per sample, a label may have been passed over: bring one of each into the part."""
    counts = Counter(label for sample in by_draw for label in sample.labels)
    if len(counts) > target:
        return
    covered = {label for sample in taken for label in sample.labels}
    for label in sorted(counts, key=lambda label: (counts[label], label)):
        if label not in covered and counts[label] > 1:
            candidates = (sample for sample in by_draw if label in sample.labels)
            if chosen := next(filter(take, candidates), None):
                covered |= set(chosen.labels)


def write_split(
    path: str | Path, train: list[Sample], val: list[Sample], test: list[Sample], classes: list[str]
) -> Path:
    """A table `path,label,split` that `open_source` reads back as the same images, labels and splits.

    Files below the table's folder are written relative to it, others with their whole path; images in tar files as
    shard.tar/member.jpg, in arrays as images.npz/train/7, those of a data set as torchvision:CIFAR10/train/7. Classes
    come back in the sorted order of their names, which is not every data set's own, and those without an image do not
    come back.
    """
    path = Path(path)
    with whole(path) as part, open(part, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for split, samples in (("train", train), ("val", val), ("test", test)):
            for sample in samples:
                labels = (classes[label].replace("|", "\\|") for label in sample.labels)
                writer.writerow([written(sample, path.parent), "|".join(labels), split])
    return path


def written(sample: Sample, folder: Path) -> str:
    """How a table in this folder names the image."""
    where = sample.where
    if isinstance(where, Path):
        return _relative(where, folder)
    if isinstance(where, TarMember):
        return _relative(where.path, folder) + "/" + sample.name.partition(f"{where.path.name}/")[2]
    if isinstance(where.dataset, ImageArray):
        return _relative(where.dataset.path, folder) + "/" + sample.name.partition(f"{where.dataset.path.name}/")[2]
    return sample.name


def read_split(path: Path, splits: Collection[str] = SPLITS) -> dict[str, str]:
    """The place of each image of these splits in such a table → its split."""
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] in splits]
    return {_resolved(path.parent, row["path"]): row["split"] for row in rows}


def place(sample: Sample) -> str:
    """The same for the same image, whatever it is called; in a tar or an array, a place below that file."""
    return _resolved(Path.cwd(), written(sample, Path.cwd()))


def _resolved(folder: Path, path: str) -> str:
    return path if path.startswith(NAMED) else os.path.realpath(folder / path)


def _relative(file: Path, folder: Path) -> str:
    file, folder = Path(os.path.abspath(file)), Path(os.path.abspath(folder))
    return (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()
