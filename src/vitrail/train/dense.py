"""What segmentation and detection share of a run: the plan, what learns, the end, the report."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vitrail.data.samples import plural
from vitrail.tasks.report import DataProblems, ReportContent, write_report
from vitrail.train.dense_loop import DenseTrainer
from vitrail.train.dense_plan import HIDDEN
from vitrail.train.finish import duplicates
from vitrail.train.loop import Settings
from vitrail.train.recipe import Recipe
from vitrail.train.view import clock
from vitrail.train.words import CHOSE, choices, held_out, size_rows
from vitrail.train.work import Work

ROUNDS = 40  # of the bootstrap after an epoch, which only says what difference counts


@dataclass
class Measured:
    """What came of the held-out pictures."""

    figures: dict[str, float]  # with intervals
    per_class: dict[str, Any]
    cases: list[tuple[str, str]]  # (caption, picture), the best, the median and the worst; in the first process
    kept: dict[str, Any]  # for the file to ship


@dataclass
class DenseWork(Work):
    """Learning from pictures with an answer inside."""

    given: Recipe
    recipe: Recipe

    looping: ClassVar[Any] = DenseTrainer
    unit: ClassVar[str]  # what the support of a class counts
    meanings: ClassVar[dict[str, tuple[str, str]]]  # of the figures: a name, and what it says

    def __post_init__(self) -> None:
        self.pre = self.start.preprocessing
        self.model: Any = self.start.model.to(self.group.device)
        self.epochs = self.recipe.epochs or 0
        if self.recipe.tune == "head":
            self.model.backbone.requires_grad_(False)

    # -- what each of the two says for itself ------------------------------------------------------------------------

    @abstractmethod
    def size_row(self) -> tuple[str, str, str]:
        """How large the pictures are that the model sees."""

    @abstractmethod
    def measured(self) -> Measured:
        """The held-out pictures, by the weights that are kept."""

    @abstractmethod
    def wrong(self) -> dict[str, list[str]]:
        """What was wrong with masks or boxes, by kind: where."""

    # -- the run -----------------------------------------------------------------------------------------------------

    def show_plan(self) -> None:
        view, recipe, samples = self.view, self.recipe, self.samples
        view.line(self.start.why)
        train, val = plural(len(samples["train"]), "image"), len(samples["val"])
        classes = plural(len(self.source.classes), "class", "classes")
        measured = f"{val:,} to validate on ({held_out(self.source)}, seed {recipe.seed})"
        view.line(f"{self.data}: {classes}, {train} to train on, {measured if val else 'none to validate on'}.")
        for note in self.source.notes:
            view.line(f"  note: {note}")
        model, _, device = size_rows(self.start, self.group.device, self.dtype, self.why["precision"])
        tuned = [] if recipe.tune == "full" else [("tune", recipe.tune, "the backbone stays as it is")]
        hidden = HIDDEN | ({"flip"} if recipe.augment == "none" else set())
        view.table([model, self.size_row(), device, *tuned, *choices(recipe, self.why, hidden)])
        view.line(f"  run folder: {self.folder}")

    def settings(self) -> Settings:
        recipe = self.recipe
        return Settings(
            epochs=self.epochs, batch_size=recipe.batch_size or 8, lr=recipe.lr or 0.0,
            weight_decay=recipe.weight_decay or 0.0, warmup=recipe.warmup or 0.0,
            layer_decay=1.0 if recipe.layer_decay is None else recipe.layer_decay, ema=recipe.ema or 0.0,
            clip=recipe.clip, seed=recipe.seed, micro_batch=recipe.micro_batch, compile=self.compiles, dtype=self.dtype,
        )  # fmt: skip

    def finish(self, history: list[dict[str, Any]], best: dict[str, Any], began: float) -> dict[str, Any]:
        found = self.measured() if "val" in self.views else Measured({}, {}, [], {})
        unreadable, seconds = self.unreadable(), time.monotonic() - began
        if self.group.first:
            self.report(history, best, found, unreadable, seconds)
        self.keep({**best, **found.figures}, finished=True, **found.kept)
        if self.group.first:
            self.show_outcome(found.figures, best, seconds)
        return found.figures

    def report(
        self, history: list[dict[str, Any]], best: dict[str, Any], found: Measured, unreadable: dict[str, str],
        seconds: float,
    ) -> None:  # fmt: skip
        split, figures = "nothing: no images were held out", found.figures
        if figures:
            split = f"{plural(int(figures['n']), 'image')} ({held_out(self.source)}), {CHOSE}"
        trained = plural(len(self.views["train"].numbers), "image")
        content = ReportContent(
            split=split,
            classes=self.source.classes,
            summary=f"{self.start.why} Trained on {trained}, in {clock(seconds)}.",
            curves=[row for row in history if row["epoch"]],
            best_epoch=best.get("epoch"),
            problems=self.problems(unreadable),
            **dense_content(found, self.meanings, self.unit),
            **self.told(),
        )
        write_report(self.folder / "report.html", content)

    def problems(self, unreadable: dict[str, str]) -> DataProblems:
        samples = {split: [s for s in members if s.name not in unreadable] for split, members in self.samples.items()}
        within, across = duplicates(samples)
        return DataProblems([*unreadable.items()], within, across, list(self.source.notes), self.wrong())

    def show_outcome(self, figures: dict[str, Any], best: dict[str, Any], seconds: float) -> None:
        view = self.view
        view.line()
        for name, (words, _) in self.meanings.items():
            if name in figures:
                low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
                interval = f" (95 % interval {low:.1%} to {high:.1%})" if low is not None else ""
                view.line(f"{words}: {figures[name]:.1%}{interval}, on {int(figures['n']):,} validation images")
        if figures:
            view.line(f"(Those images {CHOSE.removeprefix('which ')}; `vitrail evaluate` measures on others.)")
        view.line(f"Kept: epoch {best.get('epoch', self.epochs)}, after {clock(seconds)} in all.")
        view.line(f"Model:  {self.folder / 'model.safetensors'}")
        view.line(f"Report: {self.folder / 'report.html'}")


def dense_content(found: Measured, meanings: dict[str, tuple[str, str]], unit: str) -> dict[str, Any]:
    """The parts of a report that come from the model's answers; the table of classes has what a class has alone."""
    return {
        "figures": {name: value for name, value in found.figures.items() if "/" not in name},
        "per_class": found.per_class,
        "gallery": found.cases,
        "gallery_title": "Best, median and worst",
        "meanings": meanings,
        "unit": unit,
    }


def spread(figures: dict[str, float], name: str) -> dict[str, float]:
    """The standard error of a figure from its interval; nothing where it has none."""
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    return {} if low is None or high is None else {f"{name}_error": (high - low) / 3.92}


def shown_cases(worst_first: Sequence[int]) -> list[tuple[str, int]]:
    """Which pictures a report shows: two of the best, of the middle and of the worst, or as many as there are."""
    n = len(worst_first)
    if n < 6:
        places = {"best": [n - 1], "median": [n // 2], "worst": [0]}
    else:
        places = {"best": [n - 1, n - 2], "median": [n // 2, n // 2 - 1], "worst": [0, 1]}
    seen: set[int] = set()
    chosen = []
    for word, several in places.items():
        for place in several:
            if 0 <= place < n and place not in seen:
                seen.add(place)
                chosen.append((word, int(worst_first[place])))
    return chosen
