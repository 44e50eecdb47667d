"""Which images a report shows, and images in their own sizes, read ahead of a model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import TypeVar

from PIL import Image

from vitrail.data.image_set import default_workers, threaded
from vitrail.data.samples import Sample
from vitrail.errors import VitrailError

S = TypeVar("S", bound=Sample)
T = TypeVar("T")
A = TypeVar("A")
Problems = list[tuple[str, str]]  # name and reason
Answers = Callable[[Iterable[Image.Image]], Iterator[A]]  # of a model, one for each image


def shown_cases(worst_first: Sequence[int]) -> list[tuple[str, int]]:
    """Which images a report shows: two of the best, of the middle and of the worst; of few, one each."""
    n = len(worst_first)
    if n < 6:
        places = {"best": [n - 1], "median": [n // 2], "worst": [0]}
    else:
        places = {"best": [n - 1, n - 2], "median": [n // 2, n // 2 - 1], "worst": [0, 1]}
    chosen: dict[int, str] = {}
    for word, several in places.items():
        for place in several:
            if 0 <= place < n:
                chosen.setdefault(place, word)
    return [(word, int(worst_first[place])) for place, word in chosen.items()]


def standard_error(figures: dict[str, float], name: str) -> dict[str, float]:
    """Of a figure, from its interval; nothing where it has none."""
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    return {} if low is None or high is None else {f"{name}_error": (high - low) / 3.92}


def asked(
    samples: Sequence[S], read: Callable[[S], tuple[Image.Image, T]], answers: Answers[A], problems: Problems,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[S, T, A]]:  # fmt: skip
    """(sample, its truth, the answer), in order. Threads read images and truths ahead; what can't be read goes to the
    problems."""

    def attempt(sample: S) -> tuple[Image.Image, T] | VitrailError:
        try:
            return read(sample)
        except VitrailError as error:
            return error

    def readable() -> Iterator[tuple[S, Image.Image, T]]:
        for sample, found in zip(samples, threaded(default_workers(), attempt, samples), strict=True):
            if isinstance(found, VitrailError):
                problems.append((sample.name, str(found)))
            else:
                yield sample, *found

    shown, kept = tee(readable())  # the model takes several before it answers the first
    found = answers(image for _, image, _ in shown)
    for done, (answer, (sample, _, truth)) in enumerate(zip(found, kept, strict=True), 1):
        yield sample, truth, answer
        if progress:
            progress(done + len(problems), len(samples))
