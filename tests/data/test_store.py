"""Decoded images, kept in memory or on disk: what is got is what was put, by whomever."""

import multiprocessing
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from vitrail import VitrailError
from vitrail.data.cache import INDEX, DiskStore, MemoryStore, cache_folder, choose, free_memory


def images(count: int, seed: int = 0) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    sizes = chance.integers(1, 12, (count, 2))
    return [chance.integers(0, 256, (h, w, 3 if n % 2 else 1), np.uint8) for n, (h, w) in enumerate(sizes)]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_is_got_is_what_was_put(tmp_path, kind):
    kept = images(20)
    store = MemoryStore(20) if kind == "memory" else DiskStore(tmp_path / "store", 20)
    for number in (3, 0, 19, 7):
        assert store.get(number) is None
        store.put(number, kept[number])
        assert np.array_equal(store.get(number), kept[number])
    assert store.get(1) is None
    assert np.array_equal(store.get(3), kept[3])  # also after the file has grown


def test_images_in_memory_from_several_threads_lie_apart_also_where_a_block_ends(monkeypatch):
    monkeypatch.setattr("vitrail.data.cache.BLOCK", 300)  # of one image to a few; some are larger than a block
    kept, store = images(200), MemoryStore(200)
    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(store.put, range(200), kept))
    for number, image in enumerate(kept):
        assert np.array_equal(store.get(number), image)
        assert np.shares_memory(store.get(number), given[number])
    assert max(image.size for image in kept) > 300
    assert not np.shares_memory(store.get(0), kept[0])


def test_a_disk_store_is_there_for_the_next_run_which_adds_no_file(tmp_path):
    kept, store = images(5), DiskStore(tmp_path, 5)
    for number, image in enumerate(kept):
        store.put(number, image)
    again = DiskStore(tmp_path, 5)
    assert all(np.array_equal(again.get(number), image) for number, image in enumerate(kept))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.bin", "index.bin"]
    assert (tmp_path / "0.bin").stat().st_size == sum(image.size for image in kept)
    assert (tmp_path / "index.bin").stat().st_size == 5 * INDEX * 8


def fill(folder: str, numbers: range) -> None:
    store, kept = DiskStore(Path(folder), 40), images(40)
    for number in numbers:
        if store.get(number) is None:
            store.put(number, kept[number])


def test_two_processes_fill_one_store(tmp_path):
    store, kept = DiskStore(tmp_path, 40), images(40)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=fill, args=(str(tmp_path), range(start, 40, 2))) for start in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    # The reader had the store open all the while: what the others wrote is there at once.
    assert all(np.array_equal(store.get(number), image) for number, image in enumerate(kept))


def test_an_index_without_its_pixels_counts_as_nothing(tmp_path):
    """What a machine that lost its power may leave behind."""
    store = DiskStore(tmp_path, 2)
    store.put(0, images(1)[0])
    (tmp_path / "0.bin").write_bytes(b"")
    assert DiskStore(tmp_path, 2).get(0) is None
    (tmp_path / "0.bin").unlink()
    again = DiskStore(tmp_path, 2)
    assert again.get(0) is None
    again.put(0, images(2)[1])
    assert np.array_equal(again.get(0), images(2)[1])


def test_a_full_disk_is_one_sentence_and_leaves_whole_images(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        store, image = DiskStore(disk / "store", 10), np.full((120, 100, 3), 7, np.uint8)
        store.put(0, image)
        with pytest.raises(VitrailError, match=r"can't grow \(No space left on device\): free some space, use --cache"):
            store.put(1, image)
        assert store.get(1) is None and np.array_equal(store.get(0), image)
        assert (disk / "store" / "0.bin").stat().st_size == image.size
        with pytest.raises(VitrailError, match=r"can't be written \(No space left on device\): use --cache memory"):
            DiskStore(disk / "other", 100_000)
    finally:
        del store
        subprocess.run(["umount", str(disk)], check=True)


def test_a_place_that_can_not_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match=r"can't be written .*set VITRAIL_CACHE to another folder"):
        DiskStore(tmp_path / "file" / "store", 3)


def test_the_cache_is_chosen_by_what_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "not there yet"))
    memory = free_memory()
    assert choose("auto", 1000) == "memory"
    assert choose("auto", memory // 8, copies=1) == "memory"
    assert choose("auto", memory // 8, copies=4) != "memory"  # four processes would each have one
    assert choose("auto", 2**60) == "off"
    assert choose("off", 1) == "off" and choose("disk", 2**60) == "disk"
    assert cache_folder(["a"]) == cache_folder(["a"]) != cache_folder(["b"])
    assert cache_folder(["a"]).is_relative_to(tmp_path)
