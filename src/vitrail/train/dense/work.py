"""What segmentation and detection share of a run: the plan, what learns, the end, the report."""

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from vitrail.data.samples import plural
from vitrail.report.content import DataProblems, ReportContent
from vitrail.report.model_report import write_report
from vitrail.train.dense.finish import Measured, dense_content
from vitrail.train.dense.loop import DenseTrainer
from vitrail.train.dense.plan import HIDDEN
from vitrail.train.finish import duplicates, same_files
from vitrail.train.loop import Settings
from vitrail.train.recipe import Recipe
from vitrail.train.words import CHOSE, choices, held_out, show_nameless, show_outcome
from vitrail.train.work import Work

ROUNDS = 40  # of the bootstrap after an epoch, which only says what difference counts


@dataclass
class DenseWork(Work):
    """Learning from pictures with an answer inside."""

    given: Recipe
    recipe: Recipe

    looping: ClassVar[Any] = DenseTrainer

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
    def measured(self) -> tuple[Measured, dict[str, Any]]:
        """The held-out pictures, by the weights that are kept; and what the file to ship is to know of them."""

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
        tuned = [] if recipe.tune == "full" else [("tune", recipe.tune, "the backbone stays as it is")]
        hidden = HIDDEN | ({"flip"} if recipe.augment == "none" else set())
        view.table([*self.sizes(), *tuned, *choices(recipe, self.why, hidden)])
        view.line(f"  run folder: {self.folder}")

    def sizes(self) -> list[tuple[str, str, str]]:
        model, _, device = super().sizes()
        return [model, self.size_row(), device]

    def would_compile(self, images: int) -> bool:
        """Not unless asked for: a detector's pictures come in many sizes, each of which would be compiled anew."""
        return False

    def settings(self) -> Settings:
        recipe = self.recipe
        return Settings(
            epochs=self.epochs, batch_size=recipe.batch_size or 8, lr=recipe.lr or 0.0,
            optimizer=recipe.optimizer, weight_decay=recipe.weight_decay or 0.0, warmup=recipe.warmup or 0.0,
            layer_decay=1.0 if recipe.layer_decay is None else recipe.layer_decay, ema=recipe.ema or 0.0,
            clip=recipe.clip, seed=recipe.seed, micro_batch=recipe.micro_batch, compile=self.compiles, dtype=self.dtype,
        )  # fmt: skip

    def finish(self, history: list[dict[str, Any]], best: dict[str, Any], began: float) -> dict[str, Any]:
        found, more = self.measured() if "val" in self.views else (Measured({}, {}, [], {}, ""), {})
        unreadable, seconds = self.unreadable(), time.monotonic() - began
        if self.group.first:
            self.report(history, best, found, unreadable, seconds)
        self.keep({**best, **found.figures}, finished=True, figures=found.figures, **more)
        if self.group.first:
            named = {name: words for name, (words, _) in found.meanings.items()}
            show_outcome(self.view, named, found.figures, f"epoch {best['epoch']}", self.spent(seconds), self.folder)
            show_nameless(self.view, self.source.classes)
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
            summary=f"{self.start.why} Trained on {trained}, in {self.spent(seconds)}.",
            curves=[row for row in history if row["epoch"]],
            best_epoch=best.get("epoch"),
            kept=f"epoch {best['epoch']}",
            problems=self.problems(unreadable),
            **dense_content(found),
            **self.told(),
        )
        write_report(self.folder / "report.html", content)

    def problems(self, unreadable: dict[str, str]) -> DataProblems:
        samples = {split: [s for s in members if s.name not in unreadable] for split, members in self.samples.items()}
        within, across = duplicates(same_files(samples))
        return DataProblems([*unreadable.items()], within, across, list(self.source.notes), self.wrong())
