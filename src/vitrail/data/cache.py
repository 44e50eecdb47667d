"""Decoded images, kept: what one epoch decodes, later epochs read back as it was.

In memory, the images are arrays in large blocks. On disk they lie end to end in a file that is memory-mapped, so that
the operating system keeps what fits, and several processes, or a second run over the same images, share it.
"""

import hashlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vitrail.errors import VitrailError

BLOCK = 2**25  # bytes of memory taken at once
INDEX = 6  # numbers per image: file, offset, height, width, channels, there


class MemoryStore:
    """Arrays [h, w, C] by number, side by side in large blocks. For these NumPy asks Linux for huge pages, in which the
    processor finds its way sooner than in memory for each image by itself: later epochs take less time."""

    def __init__(self, count: int):
        self._images: list[np.ndarray | None] = [None] * count
        self._free, self._lock = np.empty(0, np.uint8), threading.Lock()

    def get(self, number: int) -> np.ndarray | None:
        return self._images[number]

    def put(self, number: int, image: np.ndarray) -> np.ndarray:
        with self._lock:
            if image.size > len(self._free):
                self._free = np.empty(max(BLOCK, image.size), np.uint8)
            place, self._free = self._free[: image.size], self._free[image.size :]
        kept = place.reshape(image.shape)
        kept[...] = image
        self._images[number] = kept
        return kept


class DiskStore:
    """The same in a folder, for any number of processes: each appends to a file of its own, all share one index.

    The index is itself memory-mapped, one row per image. A row ends with a checksum of itself, written after everything
    else: of two processes that write it at once, a reader sees one or the other, or none.
    """

    def __init__(self, folder: Path, count: int):
        self.folder, self._lock = folder, threading.Lock()
        self._maps: dict[int, np.memmap] = {}
        self._own: tuple[int, BinaryIO] | None = None  # made with the first image, since most runs add none
        try:
            folder.mkdir(parents=True, exist_ok=True)
            index = folder / "index.bin"
            with index.open("ab") as file:
                _reserve(file, count * INDEX * 8)
            self._index = np.memmap(index, np.int64, "r+", shape=(count, INDEX))
        except OSError as error:
            raise VitrailError(
                f"The image cache {folder} can't be written ({error.strerror}): use --cache memory or --cache off, "
                "or set VITRAIL_CACHE to another folder."
            ) from None

    def get(self, number: int) -> np.ndarray | None:
        row = self._index[number].tolist()
        file, offset, height, width, channels, checksum = row
        if checksum != _checksum(row[:5]):
            return None
        end = offset + height * width * channels
        pixels = self._maps.get(file)
        if pixels is None or len(pixels) < end:  # not mapped yet, or grown since
            try:
                # "c", copy on write: torch can't mark a tensor read-only, and warns of arrays that are
                pixels = np.memmap(self.folder / f"{file}.bin", np.uint8, "c")
            except (OSError, ValueError):
                return None
            self._maps[file] = pixels
        if len(pixels) < end:  # a machine that went down wrote the index and not the pixels
            return None
        return pixels[offset:end].reshape(height, width, channels)

    def put(self, number: int, image: np.ndarray) -> np.ndarray:
        with self._lock:
            try:
                own, file = self._own = self._own or self._own_file()
                offset = _append(file, image)
            except OSError as error:
                raise VitrailError(
                    f"The image cache {self.folder} can't grow ({error.strerror}): free some space, use --cache off, "
                    "or set VITRAIL_CACHE to a folder on a larger disk."
                ) from None
            row = [own, offset, *image.shape]
            self._index[number, :5] = row
            self._index[number, 5] = _checksum(row)
        return image

    def _own_file(self) -> tuple[int, BinaryIO]:
        number = 0
        while True:
            with suppress(FileExistsError):
                return number, open(self.folder / f"{number}.bin", "xb", buffering=0)
            number += 1


class ArrayStore:
    """Images that are decoded already and lie in one array, [n, h, w, C]; `rows` says which of them by number."""

    def __init__(self, array: np.ndarray, rows: np.ndarray):
        self.array, self.rows = array, rows

    def get(self, number: int) -> np.ndarray:
        return self.array[self.rows[number]]

    def several(self, numbers: np.ndarray) -> np.ndarray:
        return self.array[self.rows[numbers]]

    def put(self, number: int, image: np.ndarray) -> np.ndarray:
        raise RuntimeError("an array of pictures is complete")


Store = MemoryStore | DiskStore | ArrayStore


def _checksum(row: list[int]) -> int:
    return zlib.crc32(repr(row).encode()) or 1  # an empty row ends with 0


def _reserve(file: BinaryIO, size: int) -> None:
    """Room for the index, for certain: a memory map that the disk has no room for kills who writes to it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    elif file.tell() < size:
        file.write(bytes(size - file.tell()))


def _append(file: BinaryIO, image: np.ndarray) -> int:
    """Where it begins. What a full disk left of it is taken away again."""
    offset, rest = file.seek(0, os.SEEK_END), memoryview(np.ascontiguousarray(image).data).cast("B")
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with suppress(OSError):
            file.truncate(offset)
        raise
    return offset


def cache_folder(key: Iterable[str]) -> Path:
    """Where images with this description are cached: the same images, shrunk alike, meet again."""
    root = os.environ.get("VITRAIL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitrail"
    digest = hashlib.sha256(json.dumps([*key]).encode()).hexdigest()[:16]
    return Path(root).expanduser() / "images" / digest


def choose(mode: str, expected_bytes: int, copies: int = 1) -> str:
    """auto → memory while a quarter of what is free holds the images, disk while half of it does, else off.

    `copies` is how many processes would each hold them in memory; on disk they share them.
    """
    if mode != "auto":
        return mode
    if expected_bytes * copies < free_memory() / 4:
        return "memory"
    root = cache_folder([]).parent
    while not root.exists():
        root = root.parent
    return "disk" if expected_bytes < shutil.disk_usage(root).free / 2 else "off"


def free_memory() -> int:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
