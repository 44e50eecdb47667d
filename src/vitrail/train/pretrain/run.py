"""`vitrail.pretrain`: a masked autoencoder from pictures alone, to be continued by `train --weights RUN`."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.data.augment import Augmenter
from vitrail.data.pictures import fitted
from vitrail.data.samples import plural
from vitrail.data.sources import open_pictures
from vitrail.data.there import check_there
from vitrail.explain.tokens import reconstruct
from vitrail.models import MaskedAutoencoder, Preprocessing
from vitrail.models.mae import visible_patches
from vitrail.report.content import ReportContent
from vitrail.report.drawing import thumbnail
from vitrail.report.model_report import write_report
from vitrail.tasks.classify import Classify
from vitrail.tasks.probe import nearest_neighbours, quick_probe, solve_probe
from vitrail.tasks.reconstruct import Expected, Reconstruct, sheet, strip
from vitrail.train.distributed import Processes, processes
from vitrail.train.finish import data_problems
from vitrail.train.forward import Forward
from vitrail.train.images import Images, drawn, read
from vitrail.train.log import check_packages
from vitrail.train.loop import Settings, Trainer
from vitrail.train.precision import choose_precision, fitting_threads
from vitrail.train.pretrain.plan import BETAS, fill_pretraining, policy_for
from vitrail.train.pretrain.recipe import PretrainRecipe
from vitrail.train.pretrain.start import start_autoencoder
from vitrail.train.recipe import made
from vitrail.train.run import Kind, Run, pictures_to_learn, planned, resume, run_folder, typical_side
from vitrail.train.state import seed_step
from vitrail.train.view import View
from vitrail.train.words import choices, held_out
from vitrail.train.work import Work
from vitrail.weights.shipped import AUTOENCODER
from vitrail.whole import whole

PICTURE, PICTURES = "reconstruction.png", "reconstructions"  # the latest, and all of them
LOOKS = 20  # times that the run looks at pictures and neighbours
SHOWN, MEASURED = 8, 32  # pictures drawn, and those that the expected loss is measured on
PROBED = 1_000_000_000  # numbers × classes: on a CPU a probe of more takes too long to be solved again and again
KNOWN, ASKED = 10_000, 2_000  # images whose features are compared; after an epoch, those whose loss is measured
NAMES = {
    "knn_top1": "k-NN accuracy", "knn_map": "k-NN mean average precision", "probe_top1": "Linear probe accuracy",
    "probe_map": "Linear probe mean average precision",
}  # fmt: skip


def pretrain(data: str | Path | None = None, recipe: PretrainRecipe | None = None, **options: Any) -> Run:
    """Trains a masked autoencoder on the pictures of DATA, labelled or not, and gives the run; `options` are the fields
    of `PretrainRecipe`, what the command line calls --mask-ratio.

    >>> run = vitrail.pretrain("photos", epochs=200)
    >>> vitrail.train("pets/images", weights=run)
    """
    recipe = made(PretrainRecipe, "pretrain", options, recipe)
    check_packages(recipe.wandb, recipe.mlflow)
    if not recipe.resume:
        check_there(data or "", "pretrain")
    with processes(recipe.device) as group:
        if recipe.resume:
            return resume(data, recipe, group, lambda _: Kind(Pretraining, open_pictures, _pretrain))
        return _pretrain(str(data), recipe, group)


def _pretrain(data: str, recipe: PretrainRecipe, group: Processes) -> Run:
    folder = group.of_first(run_folder(recipe, data))
    source = open_pictures(data)
    learnt = pictures_to_learn(source)
    seed_step(recipe.seed, 0, 0, 0)  # the initial weights
    start = start_autoencoder(recipe, typical_side(learnt), group.device.type == "cuda")
    settings: Any = start.model.settings
    plan = partial(
        fill_pretraining, images=len(learnt), side=max(start.preprocessing.size), own_val="val" in source.splits,
        model=settings, pretrained=start.pretrained,
    )  # fmt: skip
    full, why, samples = planned(plan, recipe, source)
    dtype, why["precision"] = choose_precision(recipe.precision, group.device)
    work = Pretraining(data, source, samples, start, recipe, full, why, dtype, folder, group, View(group.first))
    with fitting_threads(start.model, group.device):
        return Run(folder, work.run())


@dataclass
class Pretraining(Work):
    """Learning without labels. Where there are labels, they are only looked at: do neighbours share them?"""

    given: PretrainRecipe
    recipe: PretrainRecipe

    verb: ClassVar[str] = "pretrain"

    def __post_init__(self) -> None:
        self.pre: Preprocessing = self.start.preprocessing
        self.model: Any = self.start.model.to(self.group.device)
        self.task, self.epochs = Reconstruct(), self.recipe.epochs or 0
        self.every = max(1, self.epochs // LOOKS)
        self.watched = torch.empty(0)  # pictures that are painted again and again

    @property
    def labelled(self) -> bool:
        enough = "val" in self.views and len(self.views["train"].numbers) > 1
        return enough and len(self.source.classes) > 1

    def show_plan(self) -> None:
        view = self.view
        view.line(self.start.why)
        train, val = len(self.samples["train"]), len(self.samples["val"])
        labels = plural(len(self.source.classes), "class", "classes") if self.source.classes else "no labels"
        watched = f"{val:,} to watch the loss on ({held_out(self.source)}, seed {self.recipe.seed})"
        view.line(
            f"{self.data}: {labels}, {plural(train, 'picture')} to learn from, {watched if val else 'none held out'}."
        )
        for note in self.source.notes:
            view.line(f"  note: {note}")
        view.table([*self.sizes(), *choices(self.recipe, self.why, {"precision", "val", "norm_pix"})])
        view.line(f"  run folder: {self.folder}")

    def sizes(self) -> list[tuple[str, str, str]]:
        settings = self.model.settings
        encoder = sum(p.numel() for p in self.model.encoder.parameters())
        decoder = sum(p.numel() for p in self.model.parameters()) - encoder
        patches, (p, q) = settings.grid[0] * settings.grid[1], settings.patch_size
        visible = visible_patches(patches, settings.mask_ratio)
        target, usual = ("norm_pix", "better features") if settings.norm_pix else ("colours", "as asked")
        return [
            *super().sizes(),
            ("patches", f"{p}×{q}", f"{visible} of {patches} are seen"),
            ("positions", settings.position, "fixed, as in the paper" if settings.position == "sincos" else "its own"),
            ("decoder", f"{settings.decoder_width}×{settings.decoder_depth}", f"{decoder / 1e6:.1f} M parameters"),
            ("target", target, self.why.get("norm_pix", usual)),  # of which older runs recorded no reason
            ("optimizer", "adamw", f"the paper's, with its betas, {BETAS[0]} and {BETAS[1]}"),
        ]

    # -- data --------------------------------------------------------------------------------------------------------

    def read_more(self, workers: int, cache: str) -> None:
        samples = self.samples["val"] or self.samples["train"]
        pictures = fitted([samples[i] for i in drawn(len(samples), MEASURED)], self.pre, "off")
        _, images = pictures.batch(np.arange(len(pictures)))
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.pre.mean, self.pre.std))
        self.watched = torch.stack(images).float().div_(255).sub_(mean).div_(std).to(self.group.device)
        if self.labelled:
            known = [self.samples["train"][i] for i in drawn(len(self.samples["train"]), KNOWN)]
            pictures, bad = fitted(known, self.pre, cache), [*self.views["train"].bad]
            self.views["train as predicted"] = read(pictures, self.group, workers, None, bad)
        if "val" in self.views:
            val = self.views["val"]
            self.quick = Images(val.loader, val.numbers[drawn(len(val.numbers), ASKED)])

    def read(self) -> None:
        super().read()
        self.expected = Expected.of(self.model, self.watched)
        self.view.line(self.expectation())
        self.view.beside = self.expected.beside

    def expectation(self) -> str:
        return self.expected.sentence(self.model.settings.norm_pix, self.start.pretrained)

    # -- the model ---------------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        recipe = self.recipe
        return Settings(
            epochs=self.epochs, batch_size=recipe.batch_size or 64, lr=recipe.lr or 0.0, betas=BETAS,
            weight_decay=recipe.weight_decay or 0.0, warmup=recipe.warmup or 0.0, seed=recipe.seed,
            micro_batch=recipe.micro_batch, compile=self.compiles, dtype=self.dtype,
        )  # fmt: skip

    def augmenter(self) -> Augmenter:
        pre = self.pre
        return Augmenter(policy_for(self.recipe), pre.size, pre.mean, pre.std, self.recipe.seed)

    def about(self) -> dict[str, Any]:
        return {"task": "reconstruct"}

    def trainer(self) -> Trainer:
        self.loop = super().trainer()
        return self.loop

    def validate(self, model: nn.Module) -> dict[str, float]:
        return self.measured(model, self.quick, self.due(self.loop.epoch + 1))

    def measured(self, model: nn.Module, images: Images, worth: bool, last: bool = False) -> dict[str, float]:
        """The loss under one mask, the same for all images and always, so that what changes is the model; and where
        there are labels, whether the features know of them."""
        mae: Any = model
        patches = mae.settings.grid[0] * mae.settings.grid[1]
        noise = torch.rand(1, patches, generator=torch.Generator().manual_seed(self.recipe.seed)).to(self.group.device)
        wanted = self.labelled and worth

        def outputs(x: Tensor) -> list[Tensor]:
            loss = mae(x, noise=noise.expand(len(x), -1)).each[:, None]
            return [loss, pooled(mae, x)] if wanted else [loss]

        widths = [1, mae.settings.width][: 1 + wanted]
        losses, *features = Forward(images, self.pre, self.group, self.dtype).run(mae, outputs, widths)
        figures = {"loss": losses.mean().item()}
        if wanted:
            figures |= self.worth(mae, features[0], images, last)
        return figures

    def worth(self, mae: MaskedAutoencoder, asked: Tensor, images: Images, last: bool) -> dict[str, float]:
        """Of frozen features: accuracy (mean average precision, with several labels) of neighbours, of a probe."""
        task, known = Classify(self.source.classes, self.source.multi_label), self.views["train as predicted"]
        forward = Forward(known, self.pre, self.group, self.dtype)
        features = forward.run(mae, lambda x: [pooled(mae, x)], [mae.settings.width])[0]
        targets, truth = task.targets(known.labels()), task.targets(images.labels())
        answers = {"knn": nearest_neighbours(features, targets, asked).clamp_min(1e-12).log()}
        if last or self.group.device.type == "cuda" or features.numel() * targets.shape[1] <= PROBED:
            x = features.to(self.group.device)
            solved = (
                solve_probe(x, targets, task.multi_label, seed=self.recipe.seed)
                if last
                else quick_probe(x, targets, task.multi_label)
            )
            answers["probe"] = solved(asked.to(self.group.device)).cpu()
        return {f"{name}_{task.figure}": task.score(logits, truth)[task.figure] for name, logits in answers.items()}

    # -- the folder --------------------------------------------------------------------------------------------------

    def due(self, epoch: int) -> bool:
        return bool(epoch) and (epoch % self.every == 0 or epoch in (1, self.epochs))

    def keep(self, row: dict[str, Any], **more: Any) -> None:
        super().keep(row, **more)
        if self.group.first and self.due(row["epoch"]) and not more:
            self.paint(row["epoch"])

    def paint(self, epoch: int) -> None:
        """The same pictures under the same masks every time, so that one can watch it learn."""
        found = reconstruct(
            self.model,
            self.watched[drawn(len(self.watched), SHOWN)],
            seed=self.recipe.seed,
            mean=self.pre.mean,
            std=self.pre.std,
        )
        image, folder = sheet(found), self.folder / PICTURES
        folder.mkdir(exist_ok=True)
        for path in (folder / f"epoch-{epoch:04d}.png", self.folder / PICTURE):
            with whole(path) as part:
                image.save(part, "PNG", optimize=True)
        if epoch == 1:
            again = f", made anew every {self.every} epochs" if self.every > 1 else ""
            self.view.line(f"  Original, masked, reconstructed: {self.folder / PICTURE}{again}.")
        if self.view.width:
            self.view.picture(strip(found, self.view.width - 4))

    def finish(self, history: list[dict[str, Any]], best: dict[str, Any], began: float) -> dict[str, Any]:
        del self.loop  # and with it the memory of the optimizer
        figures: dict[str, Any] = {}
        if "val" in self.views:
            images = self.views["val"]
            self.view.progress("  measuring what its features are worth" if self.labelled else "  measuring the loss")
            figures = self.measured(self.model, images, True, last=True) | {"n": len(images.numbers)}
            self.view.settle()
        unreadable, seconds = self.unreadable(), time.monotonic() - began
        if self.group.first:
            self.report(history, figures, unreadable, seconds)
        self.keep({**best, **figures}, finished=True, figures=figures)
        if self.group.first:
            self.show_outcome(figures, history, seconds)
        return figures

    def report(
        self, history: list[dict[str, Any]], figures: dict[str, Any], unreadable: dict[str, str], seconds: float
    ) -> None:
        images = plural(len(self.views["train"].numbers), "picture")
        split = f"{plural(figures['n'], 'picture')} ({held_out(self.source)})" if figures else "nothing held out"
        content = ReportContent(
            figures=figures,
            split=split,
            classes=self.source.classes,
            summary=f"{self.start.why} Learned from {images}, in {self.spent(seconds)}.",
            curves=history,
            problems=data_problems(self.samples, self.source.classes, unreadable, self.source.notes),
            notes=[self.expectation(), *self.hardly(figures)],
            gallery=[*self.gallery()],
            **self.told(),
        )
        write_report(self.folder / "report.html", content)

    def gallery(self) -> Iterator[tuple[str, str]]:
        """The last sheet, and one from early on."""
        lent = " Brightness and contrast of a patch are lent by the true one." if self.model.settings.norm_pix else ""
        sheets = sorted((self.folder / PICTURES).glob("epoch-*.png"))
        for path in [sheets[-1], *sheets[:-1][:1]] if sheets else []:
            epoch = int(path.stem.removeprefix("epoch-"))
            with Image.open(path) as image:
                yield f"After epoch {epoch}: original, masked, reconstructed.{lent}", thumbnail(image, 1000)

    def hardly(self, figures: dict[str, Any]) -> list[str]:
        """What to do about it, where it has learned next to nothing."""
        if not figures or figures["loss"] <= 0.97 * self.expected.nothing:
            return []
        begin = f", or begin with --weights {AUTOENCODER}" if self.recipe.weights == "none" else ""
        return [f"It has hardly learned anything yet: give it more epochs, or more pictures{begin}."]

    def show_outcome(self, figures: dict[str, Any], history: list[dict[str, Any]], seconds: float) -> None:
        view = self.view
        view.line()
        if figures:
            view.line(f"Loss: {figures['loss']:.4f}{self.expected.beside}, on {figures['n']:,} held-out pictures")
            for hint in self.hardly(figures):
                view.line(f"({hint})")
        for key, name in NAMES.items():
            if key in figures:
                view.line(f"{name}: {figures[key]:.1%}, of frozen features on {figures['n']:,} held-out pictures")
        kept = f"epoch {self.epochs}" if self.epochs else "what it began with"
        view.line(f"Kept: {kept}, after {self.spent(seconds)}.")
        for name, file in (("Model: ", "model.safetensors"), ("Report:", "report.html"), ("Picture:", PICTURE)):
            if (self.folder / file).exists():
                view.line(f"{name} {self.folder / file}")
        view.line(f"Next:   vitrail train DATA --weights {self.folder}")


def pooled(mae: MaskedAutoencoder, x: Tensor) -> Tensor:
    return mae.encoder.features(x, layers=())["pooled"]
