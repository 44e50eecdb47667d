"""Pictures as training sees them: the same pixels from every cache, and never another's in their place."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.odd_files import photograph
from vitrail import VitrailError
from vitrail.data import image_set as module
from vitrail.data.image_set import Unreadable, fitted, shrunk, threaded
from vitrail.data.preprocess import fit_image
from vitrail.data.samples import Sample
from vitrail.inference.decoding import decoded
from vitrail.models import Preprocessing

PRE = Preprocessing(size=(16, 16), crop=0.9)
SIZES = [(40, 60), (60, 40), (12, 20), (33, 33), (17, 90)]


@pytest.fixture
def samples(tmp_path, monkeypatch) -> list[Sample]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    found = []
    for number, size in enumerate(SIZES):
        path = tmp_path / f"{number}.png"
        photograph(number, *size).save(path)
        found.append(Sample(path.name, path, (number % 2,)))
    return found


@pytest.mark.parametrize("view", [shrunk, fitted])
def test_every_cache_gives_the_same_pixels(samples, view):
    plain, memory, disk = (view(samples, PRE, cache) for cache in ("off", "memory", "disk"))
    for _ in range(2):  # decoded, then kept
        for number in range(len(samples)):
            assert torch.equal(plain[number], memory[number]) and torch.equal(plain[number], disk[number])
    again = view(samples, PRE, "disk")  # another run
    again.prepare = None  # it has nothing to decode
    assert all(torch.equal(again[number], plain[number]) for number in range(len(samples)))


def test_shrunk_has_room_around_what_the_model_sees_and_is_never_enlarged(samples):
    shapes = [tuple(image.shape) for image in (shrunk(samples, PRE, "off")[n] for n in range(5))]
    # 16 · 10/9 = 18 on the short side, aspect kept; 12×20 stays as it is, and so does 17×90.
    assert shapes == [(3, 18, 27), (3, 27, 18), (3, 12, 20), (3, 18, 18), (3, 17, 90)]


def test_fitted_is_what_predict_prepares(samples):
    pictures = fitted(samples, PRE, "off")
    for number, sample in enumerate(samples):
        wanted = np.asarray(fit_image(sample.decode(), PRE))
        assert np.array_equal(pictures[number].permute(1, 2, 0), wanted)


def test_a_changed_file_is_not_served_from_before(samples):
    before = shrunk(samples, PRE, "disk")[0].clone()
    status = samples[0].where.stat()
    photograph(99, 40, 60).save(samples[0].where)
    os.utime(samples[0].where, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    after = shrunk(samples, PRE, "disk")[0]
    assert not torch.equal(before, after)
    assert torch.equal(after, shrunk(samples, PRE, "off")[0])


def test_another_size_or_fit_is_another_cache(samples):
    folders = {
        shrunk(samples, pre, "disk").store.folder
        for pre in (PRE, Preprocessing(size=(24, 24)), Preprocessing(size=(16, 16), fit="pad"))
    } | {fitted(samples, PRE, "disk").store.folder}
    assert len(folders) == 4


def test_a_relative_path_means_the_files_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    seen = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        photograph(len(seen), 20, 20).save("a.bmp")  # of the same size in bytes
        os.utime("a.bmp", ns=(10**18, 10**18))
        seen.append(shrunk([Sample("a.bmp", Path("a.bmp"), (0,))], PRE, "disk")[0].clone())
    assert not torch.equal(*seen)


@pytest.mark.parametrize("cache", ["off", "memory", "disk"])
def test_a_picture_that_can_not_be_read_is_replaced_by_the_next_and_its_number_says_so(samples, cache):
    samples[1].where.write_bytes(b"nothing")
    samples[4].where.unlink()
    pictures = shrunk(samples, PRE, cache)
    numbers, images = pictures.batch(np.array([0, 1, 4, 3]))
    assert numbers.tolist() == [0, 2, 0, 3]  # after the last comes the first
    assert all(torch.equal(image, pictures[number]) for number, image in zip(numbers, images, strict=True))
    assert pictures.bad.keys() == {1, 4}
    assert "is not an image of a known format" in pictures.bad[1] and "was not found" in pictures.bad[4]
    alone, _ = pictures.batch(np.array([1]))  # whatever the batch, the same one stands in
    assert alone.tolist() == [2]
    with pytest.raises(Unreadable):
        pictures[1]


def test_reading_ahead_finds_all_that_can_not_be_read(samples):
    samples[2].where.write_bytes(b"")
    pictures, steps = shrunk(samples, PRE, "memory"), []
    pictures.read(range(5), workers=2, progress=lambda done, total: steps.append((done, total)))
    assert pictures.bad.keys() == {2}
    assert steps == [(n, 5) for n in range(1, 6)]


def test_nothing_readable_at_all_is_one_sentence(samples):
    for sample in samples:
        sample.where.write_bytes(b"nothing")
    with pytest.raises(VitrailError, match=r"\b5\b.*0\.png"):
        shrunk(samples, PRE, "off").batch(np.array([0, 1]))


def test_a_store_that_fails_is_no_fault_of_the_picture(samples):
    class Full:
        def get(self, number):
            return None

        def put(self, number, image):
            raise VitrailError("The image cache can't grow.")

    pictures = shrunk(samples, PRE, "off")
    pictures.store = Full()
    with pytest.raises(VitrailError, match="can't grow"):
        pictures.read(range(5), workers=1)
    assert pictures.bad == {}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_threads_give_results_in_order(workers):
    assert list(threaded(workers, lambda n: n * n, range(50))) == [n * n for n in range(50)]


def test_threads_stay_a_few_items_ahead_and_end_when_the_reader_leaves():
    started = []

    def work(number: int) -> int:
        started.append(number)
        time.sleep(0.002)
        return number

    results = threaded(2, work, range(1000), ahead=3)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    results.close()
    for thread in threading.enumerate():
        if thread.name.startswith("vitrail-decode"):
            thread.join(10)
            assert not thread.is_alive()
    assert len(started) <= 4 + 2 * 3


@pytest.mark.parametrize("reader", ["of items", "of pictures"])
def test_whoever_ends_a_reader_never_waits_for_its_threads(reader):
    """It may be the garbage collector, within the start of another thread, whose lock they need to end."""
    go_on, begun = threading.Event(), threading.Event()

    def work(number: int) -> Image.Image:
        if number:
            begun.set()
            go_on.wait()
        return Image.new("RGB", (8, 8))

    class Slow(Sample):
        def decode(self, *_):
            return work(self.labels[0])

    slow = [Slow(str(number), Path("nowhere"), (number,)) for number in range(10)]
    results = threaded(1, work, range(10)) if reader == "of items" else decoded(slow, PRE, 1)
    next(results)
    assert begun.wait(30)
    ending = threading.Thread(target=results.close, daemon=True)
    ending.start()
    ending.join(30)
    waited = ending.is_alive()
    go_on.set()
    assert not waited


def test_an_error_in_a_thread_reaches_the_reader():
    def work(number: int) -> int:
        if number == 5:
            raise VitrailError("five")
        return number

    with pytest.raises(VitrailError, match="five"):
        list(threaded(2, work, range(100)))


def test_workers_are_as_many_as_this_process_may_use():
    assert 1 <= module.default_workers() <= 16
