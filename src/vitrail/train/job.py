"""One training run, step by step: read the pictures, solve for a head, tune, keep the best, learn from all, report."""

import shlex
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.augment import Augmenter
from vitrail.data.pictures import cache_mode, default_workers, fitted, shrunk
from vitrail.data.samples import Sample, Source, plural
from vitrail.data.split import write_split
from vitrail.errors import VitrailError
from vitrail.models import build
from vitrail.models.heads import classifiers
from vitrail.tasks.classify import Classify, balancing_weights, sampling_weights
from vitrail.tasks.probe import solve_probe
from vitrail.tasks.report import ReportContent, write_report
from vitrail.train.distributed import Processes
from vitrail.train.finish import classification_content, data_problems, figures_of
from vitrail.train.forward import Forward
from vitrail.train.images import Images, all_bad, read
from vitrail.train.leave import Stopped
from vitrail.train.log import Log
from vitrail.train.loop import Settings, Trainer
from vitrail.train.plan import fine_tuning_rate, policy_of
from vitrail.train.recipe import Recipe, shared, to_dict
from vitrail.train.record import Record, command_line, described, digest, read_record, versions
from vitrail.train.settle import best_share, between, copies
from vitrail.train.start import Start, set_drop_path
from vitrail.train.state import load_state
from vitrail.train.view import View, clock
from vitrail.train.words import CHOSE, advise, held_out, show_outcome, show_plan, show_unreadable
from vitrail.weights import read_checkpoint, save_weights

START, AGAIN = "start.safetensors", "again"  # in the run folder, until the run is finished
PROBE_LIMIT = 20_000_000  # images × classes; beyond, a head is learned as quickly as it is solved for
COMPILE_FROM = 2_000  # steps; fewer do not repay the minute that compiling takes


@dataclass
class Job:
    """Everything is checked and read, and the head solved for, before the folder is made."""

    data: str
    source: Source
    samples: dict[str, list[Sample]]  # "train", "val"
    start: Start
    given: Recipe
    recipe: Recipe  # with nothing left open, but perhaps the learning rate
    why: dict[str, str]
    dtype: torch.dtype
    folder: Path
    group: Processes
    view: View
    resumed: tuple[Record, dict[str, Any]] | None = None  # what is continued, and its state
    again: bool = False  # the second time, on all images: nothing is chosen, kept or logged
    views: dict[str, Images] = field(default_factory=dict)  # "train", "val", "train as predicted"
    left_out: dict[str, str] = field(default_factory=dict)  # name → reason, from the start

    def __post_init__(self) -> None:
        recipe = self.recipe
        if recipe.tune == "probe" and not self.start.pretrained:
            raise VitrailError(
                f"--tune probe learns from the features of a trained model, and here is none ({self.start.why}) "
                "Name one with --weights."
            )
        self.pre = self.start.preprocessing
        # What is frozen is not to be dropped.
        rate = (recipe.drop_path or 0.0) if recipe.tune == "full" else 0.0
        self.model = set_drop_path(self.start.model, rate).to(self.group.device)
        self.task = Classify(self.source.classes, self.source.multi_label, recipe.label_smoothing or 0.0)
        self.epochs = 0 if recipe.tune == "probe" else recipe.epochs or 0

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        began, view = time.monotonic(), self.view
        show_plan(
            view, self.data, self.source, self.samples, self.start, self.recipe, self.why, self.group.device,
            self.dtype, self.folder,
        )  # fmt: skip
        try:
            history, best = self.fit()
            return self.finish(history, best, began)
        except Stopped as stopped:
            again = shlex.join(["vitrail", "train", self.data, "--out", str(self.folder), "--resume"])
            raise Stopped(f"{stopped} To go on: {again}") from None

    def fit(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Leaves the tuned weights in the model: those of the best epoch, or of the last where nothing is chosen or the
        linear classifier remained ahead. Gives the rows of all epochs, and the best."""
        view = self.view
        self.read()
        head = {} if self.resumed else self.solve_head()
        trainer = self.trainer()
        if self.resumed:
            trainer.load_state(self.resumed[1])
            view.line(f"Resuming after epoch {trainer.epoch}, step {trainer.step}.")
        else:
            self.begin(trainer, head)
        log: Log | None = None
        if self.group.first and not self.again:
            log = Log(self.folder, trainer.history, to_dict(self.recipe), self.recipe.wandb, self.recipe.mlflow)

        def after_epoch(row: dict[str, Any], is_best: bool) -> None:
            if is_best:
                self.keep(row)
            if log:
                log.add(row)
            view.epoch(row, self.epochs, is_best)
            advise(view, row, self.views["train"])

        try:
            trainer.run(after_epoch)
        finally:
            view.settle()
            if log:
                log.close()
        if trainer.best.get("epoch") and not self.again:
            self.model.load_state_dict(read_checkpoint(self.folder / "model.safetensors").state)
        elif trainer.average is not None:
            trainer.average.swap(self.model)
        return trainer.history, trainer.best or {"epoch": self.epochs}

    def begin(self, trainer: Trainer, head: dict[str, Any]) -> None:
        """Makes the folder, with what the run is and, from weights, what it already has to show."""
        if self.group.first:
            self.write_facts()
        if head:
            trainer.best = head
            trainer.history.append(head)
        if head or not self.epochs:
            self.keep(head or {"epoch": 0})
        if self.epochs and (head or self.recipe.refit == "on"):
            self.save(self.folder / START, head)
        if self.epochs:
            trainer.save()

    # -- data --------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Decodes the pictures once, as far as they are kept, and finds those that can't be read."""
        recipe = self.recipe
        workers = default_workers() if recipe.workers is None else recipe.workers
        left_out = [*self.resumed[0].unreadable] if self.resumed else None
        train, val = self.samples["train"], self.samples["val"]
        # Only one pass, or none, over the training images needs no cache.
        cache = self.group.of_first(cache_mode(len(train) + len(val), self.pre, recipe.cache, self.group.count))
        pictures = shrunk(train, self.pre, cache if self.epochs else "off")
        progress = self.view.reading("reading the training images")
        self.views["train"] = learnt = read(pictures, self.group, workers, progress, left_out)
        if val:
            pictures = fitted(val, self.pre, cache)
            progress = self.view.reading("reading the validation images")
            self.views["val"] = read(pictures, self.group, workers, progress, left_out)
        if self.solves_head:
            known = [*learnt.bad]
            self.views["train as predicted"] = read(fitted(train, self.pre, "off"), self.group, workers, None, known)
        self.view.settle()
        self.left_out = self.unreadable()
        show_unreadable(self.view, self.left_out)
        labels, classes = learnt.labels(), len(self.task.classes)
        if recipe.balance == "weights":
            weights = balancing_weights(labels, classes, self.task.multi_label)
            self.task = replace(self.task, class_weights=torch.from_numpy(weights).float())
        elif recipe.balance == "sampling":
            learnt.weights = sampling_weights(labels, classes)

    def unreadable(self) -> dict[str, str]:
        """All that is known by now to all processes together, name → reason."""
        before = self.resumed[0].unreadable if self.resumed else {}
        return before | all_bad(self.group, [*self.views.values()])

    def logits(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Of the validation images, and their targets."""
        images = self.views["val"]
        logits = Forward(images, self.pre, self.group, self.dtype).logits(model)
        return logits, self.task.targets(images.labels())

    def validate(self, model: nn.Module) -> dict[str, float]:
        return self.task.score(*self.logits(model))

    def figure(self, model: nn.Module) -> float:
        """The one figure that chooses."""
        return self.validate(model)[self.task.figure]

    # -- the model ---------------------------------------------------------------------------------------------------

    @property
    def solves_head(self) -> bool:
        if self.resumed or not self.start.pretrained:
            return False
        small = len(self.samples["train"]) * len(self.task.classes) <= PROBE_LIMIT
        return small or self.recipe.tune == "probe"

    def solve_head(self) -> dict[str, Any]:
        """Logistic regression on what the head is given, put into the head; gives the row of epoch 0."""
        recipe, began = self.recipe, time.monotonic()
        if not self.solves_head:
            if recipe.lr is None:
                lr, _ = fine_tuning_rate(0.0, recipe.batch_size or 64)
                self.recipe, self.why["lr"] = replace(recipe, lr=lr), "too many images to look at frozen features first"
                self.view.line(f"  learning rate {lr:g}: {self.why['lr']}.")
            return {}
        images, held_out = self.views["train as predicted"], []
        features = Forward(images, self.pre, self.group, torch.float32).head_inputs(self.model)
        targets = self.task.targets(images.labels())
        for layer, inputs in zip(classifiers(self.model), features, strict=True):
            probe = solve_probe(inputs.to(self.group.device), targets, self.task.multi_label, seed=recipe.seed)
            weight, bias, unseen = self.group.of_first((probe.weight.cpu(), probe.bias.cpu(), probe.held_out.cpu()))
            held_out.append(unseen)
            with torch.no_grad():
                layer.weight.copy_(weight)
                if layer.bias is not None:
                    layer.bias.copy_(bias)
        score = self.task.score(torch.stack(held_out).mean(dim=0), targets)
        what = "mAP" if self.task.multi_label else "accuracy"
        self.view.line(
            f"A linear classifier on the frozen features: {what} {score[self.task.figure]:.1%}, cross-validated on the "
            f"training images ({clock(time.monotonic() - began)})."
        )
        if recipe.lr is None:
            lr, self.why["lr"] = fine_tuning_rate(score[self.task.figure], recipe.batch_size or 64)
            self.recipe = replace(recipe, lr=lr)
            if self.epochs:
                self.view.line(f"  Tuning starts from it, with learning rate {lr:g}: {self.why['lr']}.")
        row: dict[str, Any] = {"epoch": 0, "train_loss": score["loss"]}
        if "val" in self.views:
            row |= {f"val_{name}": value for name, value in self.validate(self.model).items()}
        return row

    def trainer(self) -> Trainer:
        recipe, gpu = self.recipe, self.group.device.type == "cuda"
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(recipe.tune == "full" or name.startswith("head"))
        images = self.views["train"]
        steps = self.epochs * (len(images.numbers) // (recipe.batch_size or 64))
        settings = Settings(
            epochs=self.epochs, batch_size=recipe.batch_size or 64, lr=recipe.lr or 0.0,
            weight_decay=recipe.weight_decay or 0.0, warmup=recipe.warmup or 0.0, mixup=recipe.mixup or 0.0,
            layer_decay=1.0 if recipe.layer_decay is None else recipe.layer_decay, cutmix=recipe.cutmix or 0.0,
            ema=recipe.ema or 0.0, clip=recipe.clip, seed=recipe.seed, micro_batch=recipe.micro_batch,
            compile=recipe.compile == "on" or (recipe.compile == "auto" and gpu and steps >= COMPILE_FROM),
            dtype=self.dtype,
        )  # fmt: skip
        policy, pre = policy_of(recipe, self.pre.size), self.pre
        kernel = pre.interpolation if policy.scale is None and pre.interpolation == "bicubic" else "bilinear"
        augmenter = Augmenter(policy, pre.size, pre.mean, pre.std, recipe.seed, kernel, pre.crop)
        return Trainer(
            self.model, self.task, images, augmenter, settings, self.group,
            self.validate if "val" in self.views else None, self.folder, self.view.step, self.view.line,
            len(self.views["val"].numbers) if "val" in self.views else 0,
        )  # fmt: skip

    def keep(self, row: dict[str, Any], **more: Any) -> None:
        """The one file to ship."""
        if not self.again:
            self.save(self.folder / "model.safetensors", row, **more)

    def save(self, path: Path, row: dict[str, Any], **more: Any) -> None:
        """Weights, labels, preprocessing, recipe, figures."""
        if self.group.first:
            about = {"task": "classify", "multi_label": self.task.multi_label, "recipe": shared(self.recipe)}
            about |= {"data": Path(self.data).name, "metrics": row, **more}
            save_weights(self.model, path, "vitrail", self.task.classes, self.pre, self.start.name, about)
        self.group.wait()

    @property
    def first(self) -> dict[str, Tensor]:
        """The weights that training started from; with weights, the linear classifier on frozen features."""
        return read_checkpoint(self.folder / START).state if self.epochs else copies(self.model)

    # -- the folder --------------------------------------------------------------------------------------------------

    def write_facts(self) -> None:
        """run.json and split.csv: what makes the run repeatable."""
        new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VitrailError(f"The run folder {self.folder} can't be made: {error.strerror}.") from None
        path = Path(self.data).expanduser()
        record = Record(
            data=str(path.absolute()) if path.exists() else self.data,
            given=to_dict(self.given),
            recipe=to_dict(self.recipe),
            why=self.why,
            model=described(replace(self.start, model=self.model)),
            samples={split: digest(samples) for split, samples in self.samples.items()},
            unreadable=self.left_out,
            command=command_line(),
            versions=versions(self.group.device),
        )
        try:
            test = self.source.splits.get("test", [])
            write_split(self.folder / "split.csv", self.samples["train"], self.samples["val"], test, self.task.classes)
            record.write(self.folder)
        except VitrailError:
            with suppress(OSError):
                if new:
                    self.folder.rmdir()  # unless something is in it
            raise

    def finish(self, history: list[dict[str, Any]], best: dict[str, Any], began: float) -> dict[str, Any]:
        """The best weights, measured once more with intervals; then, once more, on all images; the report.

        What it starts from stays as it is until all is done, so that a run that is killed here can be resumed."""
        share = 1.0
        if "val" in self.views and self.epochs and any(row["epoch"] == 0 for row in history):
            share = best_share(self.model, self.first, copies(self.model), self.figure)
            best = {**best, "share": share}
        figures: dict[str, Any] = {}
        more: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        if "val" in self.views:
            logits, targets = self.logits(self.model)
            figures, more = figures_of(self.task, logits, targets)
            if self.group.first:
                images = self.views["val"]
                samples = [images.samples[number] for number in images.numbers]
                parts = classification_content(self.task, logits, targets, samples, more.get("thresholds"))
        unreadable, trained = self.unreadable(), plural(len(self.views["train"].numbers), "image")
        if self.recipe.refit == "on" and "val" in self.views:
            trained += f", then on all {self.refit(share):,} with what validation had chosen"
        if self.group.first:
            seconds = time.monotonic() - began
            summary = f"{self.start.why} Trained on {trained}, in {clock(seconds)}."
            self.report(history, best, figures, parts, unreadable, summary)
        self.keep({**best, **figures}, finished=True, **more)
        if self.group.first:
            (self.folder / START).unlink(missing_ok=True)
            shutil.rmtree(self.folder / AGAIN, ignore_errors=True)
            show_outcome(self.view, self.task, figures, best, seconds, self.folder)
        return figures

    def refit(self, share: float) -> int:
        """The same once more on all images, with the choices made: the figures are of the first time, the weights of
        the second. Gives the number of images."""
        samples = {"train": [*self.samples["train"], *self.samples["val"]], "val": []}
        self.views.clear()  # the pictures, before they are read again
        folder = self.folder / AGAIN
        state = load_state(folder / "last.pt")
        start = replace(self.start, model=build(self.model.settings))  # type: ignore[arg-type]
        start.model.preprocessing = self.pre  # type: ignore[assignment]
        start.model.load_state_dict(self.first)
        recipe = replace(self.recipe, tune=self.recipe.tune if share else "probe")
        twin = Job(
            self.data, self.source, samples, start, self.given, recipe, self.why, self.dtype, folder, self.group,
            self.view, (read_record(folder), state) if state else None, again=True,
        )  # fmt: skip
        self.view.line(f"Once more, on all {len(samples['train']):,} images:")
        twin.fit()
        tuned = copies(twin.model)
        self.model.load_state_dict(between(twin.first, tuned, share) if twin.epochs else tuned)
        return len(twin.views["train"].numbers)

    def report(
        self, history: list[dict[str, Any]], best: dict[str, Any], figures: dict[str, Any], parts: dict[str, Any],
        unreadable: dict[str, str], summary: str,
    ) -> None:  # fmt: skip
        split = "nothing: no images were held out"
        if figures:
            split = f"{plural(figures['n'], 'image')} ({held_out(self.source)}), {CHOSE}"
        content = ReportContent(
            title=self.folder.name,
            figures=figures,
            split=split,
            classes=self.task.classes,
            summary=summary,
            curves=[row for row in history if row["epoch"]],
            best_epoch=best.get("epoch"),
            problems=data_problems(self.samples, self.task.classes, unreadable, self.source.notes),
            recipe=[(n, value, self.why.get(n, "")) for n, value in to_dict(self.recipe).items() if value is not None],
            command=self.resumed[0].command if self.resumed else command_line(),
            versions=versions(self.group.device),
            **parts,
        )
        write_report(self.folder / "report.html", content)
