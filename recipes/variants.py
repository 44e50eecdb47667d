"""What a study is: a question, and named variants that are tried with several seeds."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What most studies ask about: `vit_mini4`, or `vit_mini8` of depth 7, as a plain ViT of 64 tokens and no others.
PLAIN: dict[str, Any] = {"class_token": False, "pool": "mean", "heads": 6}


@dataclass(frozen=True)
class Variant:
    """One thing to try. In `options`, "run:NAME" stands for the run of another variant, of the same seed."""

    name: str
    model: str = "vit_mini4"
    settings: dict[str, Any] = field(default_factory=dict)  # of the model, by name
    options: dict[str, Any] = field(default_factory=dict)  # of vitrail.train, or vitrail.pretrain
    verb: str = "train"  # train | pretrain | look (at the run that `of` names) | cost
    of: str = ""
    images: int | None = None  # to learn from: a part of train/, of every class its share
    measure: str = "accuracy"  # a function of measure.py
    line: str = ""  # in the plot: which line, or which group of bars
    x: float | str | None = None  # "parameters": millions of them, as the run has them
    means: bool = False  # a means, such as a teacher: in the record, not in the plot
    once: bool = False  # one run, of seed 0, that serves all seeds

    def seed(self, asked: int) -> int:
        return 0 if self.once else asked

    def place(self, work: Path, seed: int) -> Path:
        return work / f"{slug(self.name)}-{self.seed(seed)}"

    def result(self, work: Path, seed: int) -> Path:
        """Its row, once it is done."""
        place = self.place(work, seed)
        return place.with_name(f"{place.name}.json")

    @property
    def named(self) -> str:
        """The model with its settings, as `--model` takes it."""
        words = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.model}:{words}" if words else self.model

    @property
    def needs(self) -> set[str]:
        named = {value[4:] for value in self.options.values() if isinstance(value, str) and value.startswith("run:")}
        return named | ({self.of} if self.of else set())

    @property
    def starts(self) -> set[str]:
        """Whose weights it has to begin with: what those have seen counts as seen. A teacher's eyes are its own."""
        weights = str(self.options.get("weights", ""))
        return {weights[4:]} if weights.startswith("run:") else {self.of} - {""}


@dataclass(frozen=True)
class Study:
    name: str
    question: str
    variants: list[Variant]
    minutes: float  # planned, for all seeds, on one H200
    data: str = "cifar10.npz"
    seeds: tuple[int, ...] = (0,)
    figure: str = "top1"  # what is drawn
    axis: str = "accuracy on test images, %"
    x: str = ""  # what the horizontal axis says; without it, bars
    logarithmic: str = ""  # which axes: x, y or xy; with both, the plot fits exponents
    beside: tuple[str, str] = ()  # type: ignore[assignment]  # another figure and its axis, for a second panel
    notes: str = ""

    @property
    def without_data(self) -> bool:
        """What a model costs needs no pictures."""
        return all(variant.verb == "cost" for variant in self.variants)

    def find(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def order(self) -> list[list[Variant]]:
        """In waves: each needs only what the ones before have made."""
        waves: list[list[Variant]] = []
        done: set[str] = set()
        while rest := [variant for variant in self.variants if variant.name not in done]:
            wave = [variant for variant in rest if variant.needs <= done]
            if not wave:
                raise ValueError(f"{rest[0].name} needs {rest[0].needs - done}, which nothing makes")
            waves.append(wave)
            done |= {variant.name for variant in wave}
        return waves


def slug(name: str) -> str:
    """The name of a variant as that of a folder."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")
