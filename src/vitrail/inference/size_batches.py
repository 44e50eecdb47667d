"""Images in their own sizes, in batches: as many as memory has room for, and those of one size at once to a model."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from PIL import Image

from vitrail.errors import VitrailError

HELD = 2**26  # pixels of a batch of images in their own sizes: 200 MB
LARGEST = 2**22  # pixels that a model is given at once
LARGEST_CPU = 2**18  # with more, the maps between its layers leave a CPU's cache, and an image takes longer


def in_batches(images: Iterable[Image.Image], count: int) -> Iterator[list[Image.Image]]:
    """In order, `count` at a time; fewer where they are large."""
    if count < 1:
        raise VitrailError(f"batch_size must be at least 1, got {count}.")
    batch: list[Image.Image] = []
    for image in images:
        batch.append(image)
        if len(batch) == count or sum(each.width * each.height for each in batch) >= HELD:
            yield batch
            batch = []
    if batch:
        yield batch


def alike(sizes: Sequence[tuple[int, int]], device: torch.device | str) -> Iterator[list[int]]:
    """The numbers of those of one size, as many as the device takes at once; a single one may be larger."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, size in enumerate(sizes):
        groups.setdefault(size, []).append(number)
    for size, numbers in groups.items():
        most = max(1, (LARGEST_CPU if torch.device(device).type == "cpu" else LARGEST) // (size[0] * size[1]))
        yield from (numbers[start : start + most] for start in range(0, len(numbers), most))
