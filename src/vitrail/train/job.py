"""One training run, step by step: read the pictures, solve for a head, tune, keep the best, learn from all, report."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.augment import Augmenter
from vitrail.data.pictures import fitted
from vitrail.data.samples import Sample, plural
from vitrail.errors import VitrailError
from vitrail.models.tuning import PARTS, freeze, learns, merge, tune, tuning_of
from vitrail.report.content import ReportContent
from vitrail.report.model_report import write_report
from vitrail.tasks.classify import Classify, balancing_weights, sampling_weights
from vitrail.tasks.distil import Distil
from vitrail.train import words
from vitrail.train.again import AGAIN, learn_from_all
from vitrail.train.budget import budget_rows
from vitrail.train.cached import FromFeatures, Heads, as_images, as_they_are
from vitrail.train.finish import classification_content, data_problems, figures_of
from vitrail.train.forward import Forward
from vitrail.train.images import Images, read
from vitrail.train.linear import exchange_heads, heads, is_lost, solve_heads
from vitrail.train.loop import Progress, Settings, Trainer
from vitrail.train.optimizer import hidden
from vitrail.train.plan import fine_tuning_rate, policy_of
from vitrail.train.recipe import Recipe, parts_of
from vitrail.train.settle import State, best_share, copies
from vitrail.train.start import set_drop_path
from vitrail.train.teacher import Teacher, how_good, load_teacher, with_reasons
from vitrail.train.view import clock
from vitrail.train.work import Work
from vitrail.weights import read_checkpoint
from vitrail.weights.adapter_file import Base, save_adapter

START = "start.safetensors"  # in the run folder, until the run is finished
FEW = 100  # images to validate on: figures of fewer say little
MEASURED = 4  # steps that an estimate of the time needs; the first of them is slower
PROBE_LIMIT = 20_000_000  # images × classes; beyond, a head is learned as quickly as it is solved for


@dataclass
class Job(Work):
    """Learning from labels. The head is solved for before the folder is made."""

    given: Recipe
    recipe: Recipe
    teacher: Teacher | None = None
    begins_small: bool = False  # does tuning start from a head that knows nothing, and not from the linear classifier?

    kind: ClassVar[type[Classify]] = Classify

    def __post_init__(self) -> None:
        recipe = self.recipe
        if recipe.tune not in ("full", "head") and not self.start.pretrained:
            raise VitrailError(
                f"--tune {recipe.tune} learns from the features of a trained model, and here is none "
                f"({self.start.why}) Name one with --weights."
            )
        self.pre = self.start.preprocessing
        rate = (recipe.drop_path or 0.0) if recipe.tune == "full" else 0.0  # older runs may record one
        self.model = set_drop_path(self.start.model, rate).to(self.group.device)
        if recipe.tune in PARTS:
            tune(self.model, recipe.tune, **parts_of(recipe))
        if recipe.optimizer == "muon" and not self.again and not self.learning_matrices():
            raise VitrailError(
                "--optimizer muon is for matrices inside of a transformer, and none of them learns here: leave it out."
            )
        self.cross_validated: tuple[float, int] | None = None  # the linear classifier's figure, and of how many images
        self.solved: list[State] = []  # that classifier, where tuning starts from another head
        if self.resumed:
            self.begins_small |= any(row.get("begins_small", False) for row in self.resumed[1]["history"])
        self.estimated = self.again  # has it been said how long it takes?
        self.features: dict[str, list[Tensor]] = {}  # "train", "val": where the head learns from them
        self.task = self.kind(self.source.classes, self.source.multi_label, recipe.label_smoothing or 0.0)
        if recipe.teacher is not None:
            self.task = self.taught(recipe.teacher)
        self.epochs = 0 if recipe.tune == "probe" else recipe.epochs or 0

    def taught(self, source: str) -> Distil:
        """The task with a teacher in it."""
        recipe, task = self.recipe, self.task
        if recipe.tune == "probe" and not self.again:
            raise VitrailError("--tune probe solves for a head from the labels alone: leave --teacher out.")
        if (path := Path(source).expanduser()).exists():  # to be found again from another place
            source = str(path.absolute())
            self.given, self.recipe = replace(self.given, teacher=source), replace(recipe, teacher=source)
        elif self.resumed and path.is_absolute():
            raise VitrailError(f"The teacher of this run is no longer at {source}: say where it is with --teacher.")
        if self.teacher is None:
            self.teacher = load_teacher(source, task.classes, task.multi_label, self.pre, self.group.device)
        before = self.resumed[0].teacher.get("weights", self.teacher.weights) if self.resumed else self.teacher.weights
        if before != self.teacher.weights:
            raise VitrailError(f"The teacher {source} has other weights than when the run began: start a new run.")
        if not self.resumed and not self.again:
            self.why = with_reasons(self.why, self.teacher, self.model, recipe.tune)
        return Distil(
            task.classes, task.multi_label, task.smoothing, None, self.teacher, recipe.distill == "hard",
            recipe.alpha or 0.0, recipe.temperature or 1.0,
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {"teacher": self.teacher.facts()} if self.teacher else {}

    def show_plan(self) -> None:
        words.show_plan(
            self.view, self.data, self.source, self.samples, self.start, self.recipe, self.why, self.group.device,
            self.dtype, self.folder, self.tuned_rows(),
        )  # fmt: skip

    def learning_matrices(self) -> bool:
        return any(learns(n, self.recipe.tune) and hidden(n, p) for n, p in self.model.named_parameters())

    def tuned_rows(self) -> list[tuple[str, str, str]]:
        recipe, settings = self.recipe, self.model.settings
        if recipe.tune == "full":
            return []
        if recipe.tune == "probe" or not hasattr(settings, "tuning") or not self.group.first:
            return [("tune", recipe.tune, "as asked")]
        what = str(tuning_of(self.model)) if recipe.tune in PARTS else "as asked"
        batch = recipe.micro_batch or -(-(recipe.batch_size or 64) // self.group.count)
        return budget_rows(self.model, recipe.tune, what, batch, self.dtype, self.caches)

    # -- data --------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        super().read()
        if not self.resumed and not self.again:
            words.check_classes(self.view, self.samples["train"], self.left_out, self.task.classes)
        labels, classes = self.views["train"].labels(), len(self.task.classes)
        if self.recipe.balance == "weights":
            weights = balancing_weights(labels, classes, self.task.multi_label)
            # On the device: a step that is recorded as a CUDA graph can't fetch them.
            self.task = replace(self.task, class_weights=torch.from_numpy(weights).float().to(self.group.device))
        elif self.recipe.balance == "sampling":
            self.views["train"].weights = self.drawing_weights(labels)
        if self.teacher is not None and "val" in self.views and not self.resumed:
            known = self.teacher.may_know(self.all_about({}), "val" in self.source.splits)
            for line in how_good(self.teacher, self.task, self.views["val"], self.group, self.dtype, known):
                self.view.line(line)

    def drawing_weights(self, labels: Sequence[tuple[int, ...]]) -> np.ndarray:
        """How often each image is drawn, with --balance sampling."""
        return sampling_weights(labels, len(self.task.classes))

    def groups(self, images: Images) -> list[str] | None:
        """Of images that are too alike to teach one about another, the same word; None: all differ."""
        return None

    def read_more(self, workers: int, cache: str) -> None:
        if self.solves_head or self.caches:
            known = [*self.views["train"].bad]
            pictures = fitted(self.samples["train"], self.pre, "off")
            self.views["train as predicted"] = read(pictures, self.group, workers, None, known)

    def logits(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Of the validation images, and their targets."""
        images = self.views["val"]
        if self.caches:
            if "val" not in self.features:
                self.features["val"] = Forward(images, self.pre, self.group, torch.float32).head_inputs(model)
            features = torch.stack(self.features["val"], dim=1).to(self.group.device)
            with torch.no_grad():
                return Heads(model)(features).float().cpu(), self.task.targets(images.labels())
        logits = Forward(images, self.pre, self.group, self.dtype).logits(model)
        return logits, self.task.targets(images.labels())

    def validate(self, model: nn.Module) -> dict[str, float]:
        return self.task.score(*self.logits(model))

    def figure(self, model: nn.Module) -> float:
        """The one figure that chooses."""
        return self.validate(model)[self.task.figure]

    # -- the model ---------------------------------------------------------------------------------------------------

    @property
    def caches(self) -> bool:
        """Does the head learn from features that are made once? Where nothing is drawn at random."""
        recipe, settings = self.recipe, self.model.settings
        drawn = policy_of(recipe, self.pre.size).scale is not None or recipe.mixup or recipe.cutmix
        plain = getattr(settings, "head", "linear") == "linear" and hasattr(settings, "tuning")
        return recipe.tune == "head" and plain and not drawn and not self.teacher and self.epochs > 0

    @property
    def solves_head(self) -> bool:
        if self.resumed or not self.start.pretrained or (self.again and self.begins_small):
            return False
        small = len(self.samples["train"]) * len(self.task.classes) <= PROBE_LIMIT
        return small or self.recipe.tune == "probe"

    def prepare(self) -> dict[str, Any]:
        """Logistic regression on what the head is given, put into the head; gives the row of epoch 0."""
        recipe, began = self.recipe, time.monotonic()
        if not self.solves_head:
            if recipe.lr is None:
                lr, _ = fine_tuning_rate(0.0, recipe.batch_size or 64, recipe.tune)
                self.recipe, self.why["lr"] = replace(recipe, lr=lr), "too many images to look at frozen features first"
                self.view.line(f"  learning rate {lr:g}: {self.why['lr']}.")
            return {}
        images = self.views["train as predicted"]
        self.view.progress("  solving for a linear classifier on the frozen features")
        small = heads(self.model)
        features, targets = self.head_inputs(), self.task.targets(images.labels())
        unseen = solve_heads(
            self.model, features, targets, self.task.multi_label, recipe.seed, self.groups(images), self.group
        )
        score = self.task.score(unseen, targets)
        self.view.settle()
        figure, spent = (
            f"{words.SHORT[self.task.figure]} {score[self.task.figure]:.1%}",
            clock(time.monotonic() - began),
        )
        self.view.line(
            f"A linear classifier on the frozen features: {figure}, cross-validated on the training images ({spent})."
        )
        self.cross_validated = score[self.task.figure], len(targets)
        if recipe.lr is None:
            lr, self.why["lr"] = fine_tuning_rate(score[self.task.figure], recipe.batch_size or 64, recipe.tune)
            self.recipe = replace(recipe, lr=lr)
            if self.epochs:
                self.view.line(f"  Tuning starts from it, with learning rate {lr:g}: {self.why['lr']}.")
        row: dict[str, Any] = {"epoch": 0, "train_loss": score["loss"]}
        if "val" in self.views:
            row |= {f"val_{name}": value for name, value in self.validate(self.model).items()}
        if self.start.masked and self.epochs and recipe.tune == "full":
            pictures = self.views["train"], self.augmenter(), self.task
            self.begins_small = self.group.of_first(is_lost(self.model, small, *pictures))
        if self.begins_small:
            self.solved, row["begins_small"] = exchange_heads(self.model, small), True
            ahead = ", and has to get ahead of it" if "val" in self.views else ""
            self.view.line(f"  On pictures as they are in training it is lost: tuning starts from a small head{ahead}.")
        return row

    def keep_first(self, first: dict[str, Any]) -> None:
        """With the linear classifier, also where tuning starts from another head."""
        small = exchange_heads(self.model, self.solved) if self.solved else []
        super().keep_first(first)
        if small:
            exchange_heads(self.model, small)
        if self.epochs and (first or self.recipe.refit == "on"):
            self.save(self.folder / START, first)

    def head_inputs(self) -> list[Tensor]:
        """Of the training images as they will be predicted: for each layer that gives logits, its [n, D]."""
        if "train" not in self.features:
            images = self.views["train as predicted"]
            self.features["train"] = Forward(images, self.pre, self.group, torch.float32).head_inputs(self.model)
        return self.features["train"]

    def trainer(self) -> Trainer:
        freeze(self.model, self.recipe.tune)
        if self.caches:
            return self.trainer_of_features()
        if self.teacher is not None and self.compiles:
            self.teacher.net.compile()
        return super().trainer()

    @property
    def learns_from_all(self) -> bool:
        """Once more, in the end. Not the second time, which holds nothing out."""
        return self.recipe.refit == "on" and "val" in self.views

    def show_step(self, now: Progress) -> None:
        """What is left is left of both times. The first estimate that is long is answered once."""
        if self.learns_from_all and now.seconds_left is not None:
            images = len(self.samples["train"]) + len(self.samples["val"])
            now = replace(now, seconds_left=now.seconds_left + now.epochs * images / now.images_per_second)
        if not self.estimated and now.seconds_left is not None and now.step >= MEASURED:
            self.estimated = True
            words.advise_shorter(self.view, now.seconds_left, self.cross_validated is not None)
        super().show_step(now)

    def trainer_of_features(self) -> Trainer:
        if self.resumed:  # features are those of its weights
            self.model.load_state_dict(self.resumed[1]["model"])
        features = self.head_inputs()  # first: it also finds the pictures that can't be read
        images = as_images(self.views["train as predicted"], features, self.group.device)
        if self.recipe.balance == "sampling":
            images.weights = self.drawing_weights(images.labels())
        return self.trainer_on(images, as_they_are, FromFeatures.of(self.task))

    def settings(self) -> Settings:
        recipe = self.recipe
        return Settings(
            epochs=self.epochs, batch_size=recipe.batch_size or 64, lr=recipe.lr or 0.0,
            optimizer=recipe.optimizer, weight_decay=recipe.weight_decay or 0.0, warmup=recipe.warmup or 0.0,
            layer_decay=1.0 if recipe.layer_decay is None else recipe.layer_decay, mixup=recipe.mixup or 0.0,
            cutmix=recipe.cutmix or 0.0, calm=recipe.calm, ema=recipe.ema or 0.0, clip=recipe.clip,
            seed=recipe.seed, micro_batch=recipe.micro_batch, compile=self.compiles, dtype=self.dtype,
        )  # fmt: skip

    def augmenter(self) -> Augmenter:
        policy, pre = policy_of(self.recipe, self.pre.size), self.pre
        kernel = pre.interpolation if policy.scale is None and pre.interpolation == "bicubic" else "bilinear"
        calm_from = self.settings().calm_from
        return Augmenter(policy, pre.size, pre.mean, pre.std, self.recipe.seed, kernel, pre.crop, calm_from)

    def about(self) -> dict[str, Any]:
        about = {"task": "classify", "multi_label": self.task.multi_label}
        return about | ({"teacher": self.teacher.facts(shared=True)} if self.teacher else {})

    @property
    def first(self) -> dict[str, Tensor]:
        """The weights that training started from: mostly the linear classifier on frozen features."""
        return read_checkpoint(self.folder / START).state if self.epochs else copies(self.model)

    # -- the folder --------------------------------------------------------------------------------------------------

    def keep(self, row: dict[str, Any], **more: Any) -> None:
        """Beside the file to ship the small one to share. LoRA goes into the weights when all is done."""
        kind = "head" if self.recipe.tune == "probe" else self.recipe.tune
        if kind != "full" and self.start.base and self.group.first and not self.again:
            base, about = Base(**self.start.base), self.all_about(row, **more)
            path, labels = self.folder / "adapter.safetensors", self.task.classes
            save_adapter(self.model, path, kind, base, labels, self.pre, self.start.name, about)
        if more.get("finished"):
            merge(self.model)
        super().keep(row, **more)

    def finish(self, history: list[dict[str, Any]], best: dict[str, Any], began: float) -> dict[str, Any]:
        """The best weights, measured once more with intervals; then, once more, on all images; the report.

        What it starts from stays as it is until all is done, so that a run that is killed here can be resumed."""
        share, solved = 1.0, any(row["epoch"] == 0 for row in history)
        if "val" in self.views and self.epochs and solved:
            share = self.chosen_share(best)
            solution = next(row for row in history if row["epoch"] == 0)
            best = {**(best if share else solution), "share": share}
        figures: dict[str, Any] = {}
        more: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        if "val" in self.views:
            figures, more, parts = self.measured()
        unreadable, trained = self.unreadable(), plural(len(self.views["train"].numbers), "image")
        words.show_unreadable(self.view, {name: why for name, why in unreadable.items() if name not in self.left_out})
        if self.learns_from_all:
            trained += f", then on all {learn_from_all(self, share):,} with what validation had chosen"
        if self.group.first:
            seconds = time.monotonic() - began
            summary = f"{self.start.why} Trained on {trained}, in {self.spent(seconds)}."
            chose = bool(self.epochs or more)  # an epoch, or thresholds
            self.report(history, best, figures, parts | {"kept": words.kept(best, solved)}, unreadable, summary, chose)
        self.keep({**best, **figures}, finished=True, figures=figures, **more)
        if self.group.first:
            (self.folder / START).unlink(missing_ok=True)
            shutil.rmtree(self.folder / AGAIN, ignore_errors=True)
            named = {name: words.NAMES[name] for name in (self.task.figure, "macro_f1", "eer")}
            chosen, spent, remark = words.kept(best, solved), self.spent(seconds), ""
            if self.cross_validated is not None and 0 < figures.get("n", 0) < FEW:
                remark = words.surer(*self.cross_validated, self.task.figure)
            words.show_outcome(self.view, named, figures, chosen, spent, self.folder, remark, chose)
        return figures

    def chosen_share(self, best: dict[str, Any]) -> float:
        """How far to go from the linear classifier, by validation. The model is left there."""
        if self.begins_small:  # elsewhere than at the classifier, so that nothing lies between
            if not best["epoch"]:
                self.model.load_state_dict(read_checkpoint(self.folder / "model.safetensors").state)
            return 1.0 if best["epoch"] else 0.0
        self.view.progress("  measuring how far to go from the linear classifier")
        share = best_share(self.model, self.first, copies(self.model), self.figure)
        self.view.settle()
        return share

    def measured(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """On the validation images: the figures, what the file to ship has to know, and parts of the report."""
        logits, targets = self.logits(self.model)
        figures, more = figures_of(self.task, logits, targets)
        if not self.group.first:
            return figures, more, {}
        samples = self.validated()
        return figures, more, classification_content(self.task, logits, targets, samples, more.get("thresholds"))

    def validated(self) -> list[Sample]:
        images = self.views["val"]
        return [images.samples[number] for number in images.numbers]

    def report(
        self, history: list[dict[str, Any]], best: dict[str, Any], figures: dict[str, Any], parts: dict[str, Any],
        unreadable: dict[str, str], summary: str, chose: bool,
    ) -> None:  # fmt: skip
        split = "nothing: no images were held out"
        if figures:
            split = f"{plural(figures['n'], 'image')} ({words.held_out(self.source)})"
            split += f", {words.CHOSE}" if chose else ""
        content = ReportContent(
            figures=figures,
            split=split,
            classes=self.task.classes,
            summary=summary,
            curves=[row for row in history if row["epoch"]],
            best_epoch=best.get("epoch"),
            problems=data_problems(self.samples, self.task.classes, unreadable, self.source.notes),
            **self.told(),
            **parts,
        )
        write_report(self.folder / "report.html", content)
