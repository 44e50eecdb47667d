"""What a predictor is shown: each image as one view or several, decoded in threads ahead of the model."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import to_image
from vitrail.data.image_set import let_go
from vitrail.data.preprocess import fit_image
from vitrail.data.samples import Sample
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing

ROOM = 7 / 8  # of the sides of the larger image that corners are cut from, where the preprocessing leaves no border
# The places of the views beside the central one, as fractions of the room there is: down, across.
CROPS: dict[int, list[tuple[float, float]]] = {
    1: [],
    5: [(0, 0), (0, 1), (1, 0), (1, 1)],
    9: [(y, x) for y in (0, 0.5, 1) for x in (0, 0.5, 1) if (y, x) != (0.5, 0.5)],
}
THREADS = min(8, os.cpu_count() or 1)


def views(image: Image.Image, pre: Preprocessing, crops: int = 1) -> list[Image.Image]:
    """The image as the model sees it and, with 5 or 9 crops, windows of the same size at its corners (and its edges).

    The first view is always that of `fit_image`. The others are cut from the image at the scale that a central crop is
    cut from, size / crop: of all of it for "crop", of the padded or stretched image for "pad" and "stretch", and of an
    enlarged one for "native". Without a border to cut off (crop = 1), it is enlarged to 8/7.
    """
    first = fit_image(image, pre)
    if not CROPS[crops]:
        return [first]
    height, width = first.height, first.width
    share = pre.crop if pre.crop < 1 else ROOM
    cover = (int(height / share), int(width / share))
    if pre.fit == "crop":
        ratio = max(cover[0] / image.height, cover[1] / image.width)
        cover = (max(cover[0], round(image.height * ratio)), max(cover[1], round(image.width * ratio)))
    larger = fit_image(image, replace(pre, size=cover, fit="pad" if pre.fit == "pad" else "stretch"))
    room_y, room_x = cover[0] - height, cover[1] - width
    corners = [(round(y * room_y), round(x * room_x)) for y, x in CROPS[crops]]
    return [first, *(larger.crop((left, top, left + width, top + height)) for top, left in corners)]


@dataclass
class Picture:
    source: Any  # as it was given
    views: np.ndarray | None  # V H W C, uint8; None: it could not be read
    error: VitrailError | None = None


def decoded(images: Iterable[Any], pre: Preprocessing, batch_size: int, crops: int = 1) -> Iterator[list[Picture]]:
    """The images, or samples of a data set, in batches and in order. While the model has one batch, threads decode the
    next two (Pillow works outside of Python's lock), and no more are in memory. One that can't be read keeps its place
    and its error.
    """

    def show(image: Image.Image) -> np.ndarray:
        shown = [np.asarray(view) for view in views(image, pre, crops)]
        return np.stack([pixels.reshape(*pixels.shape[:2], -1) for pixels in shown])

    def read(source: Any) -> np.ndarray:
        return show(source.decode() if isinstance(source, Sample) else to_image(source))

    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="vitrail-decode")

    def submit(source: Any) -> tuple[Any, Future[np.ndarray]]:
        if isinstance(source, str | bytes | PathLike | Sample):
            return source, pool.submit(read, source)
        try:  # a file or an image that its owner has open is no business of another thread
            return source, pool.submit(show, to_image(source))
        except VitrailError as error:
            failed: Future[np.ndarray] = Future()
            failed.set_exception(error)
            return source, failed

    coming = iter(images)
    try:
        waiting = deque(submit(source) for source in islice(coming, 3 * batch_size))
        while waiting:
            batch = [waiting.popleft() for _ in range(min(batch_size, len(waiting)))]
            done = [_result(source, future) for source, future in batch]
            waiting.extend(submit(source) for source in islice(coming, batch_size))
            yield done
    finally:
        let_go(pool)


def _result(source: Any, future: Future[np.ndarray]) -> Picture:
    try:
        return Picture(source, future.result())
    except VitrailError as error:
        return Picture(source, None, named(source, error))


def named(source: Any, error: VitrailError) -> VitrailError:
    """The error of an image, which says of which: where there are many, that is the first thing to know."""
    name = source.name if isinstance(source, Sample) else source
    if isinstance(name, str | PathLike) and os.path.basename(name) not in str(error):
        return VitrailError(f"{os.fspath(name)}: {error}")
    return error
