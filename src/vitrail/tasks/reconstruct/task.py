"""The task of pre-training: a masked autoencoder, without labels. Where there are labels, they are only looked at: are
images with like features of one class?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.data.augment.images import Augmenter
from vitrail.data.image_set import fitted
from vitrail.data.loader import Subset, random_places, read_subset
from vitrail.data.preprocess import normalized
from vitrail.data.samples import Sample, Source
from vitrail.data.sources.classification import open_pictures
from vitrail.errors import VitrailError
from vitrail.explain.tokens import reconstruct
from vitrail.inference.forward import Forward
from vitrail.models import MaskedAutoencoder, Preprocessing
from vitrail.models.mae import visible_patches
from vitrail.options import Config
from vitrail.report.drawing import thumbnail
from vitrail.tasks.backbones import Start, typical_side
from vitrail.tasks.base import Evaluation, Measured, Row, Task
from vitrail.tasks.classify.evaluate import evaluate_classifier
from vitrail.tasks.classify.objective import Classify
from vitrail.tasks.classify.task import LISTED
from vitrail.tasks.context import Context
from vitrail.tasks.image_level import AugmentImages
from vitrail.tasks.linear_probe import nearest_neighbours, quick_probe, solve_probe
from vitrail.tasks.planning import Choices, Facts
from vitrail.tasks.problems import class_problems
from vitrail.tasks.reconstruct.objective import Expected, Reconstruct, sheet, strip
from vitrail.tasks.reconstruct.options import EXPECTS, OPTIONS
from vitrail.tasks.reconstruct.plan import BETAS, crops_and_flips, plan_autoencoder
from vitrail.tasks.reconstruct.start import start_autoencoder
from vitrail.weights.shipped import AUTOENCODER
from vitrail.whole import whole

SHEET, SHEETS = "reconstruction.png", "reconstructions"  # the latest, and all of them
LOOKS = 20  # times that a run draws images and asks neighbours
SHOWN, MEASURED = 8, 32  # images drawn, and those that the expected loss is measured on
PROBED = 1_000_000_000  # numbers × classes: on a CPU a probe of more takes too long to be solved again and again
KNOWN, ASKED = 10_000, 2_000  # images whose features are compared; after an epoch, those whose loss is measured
TITLES = {
    "loss": "Loss", "knn_top1": "k-NN accuracy", "knn_map": "k-NN mean average precision",
    "probe_top1": "Linear probe accuracy", "probe_map": "Linear probe mean average precision",
}  # fmt: skip


@dataclass(frozen=True)
class Watched(Reconstruct):
    """The loss, and the images that a run watches itself on."""

    images: Tensor | None = None  # normalised, drawn again and again
    quick: Subset | None = None  # validation images for the loss after an epoch
    expected: Expected | None = None


class ReconstructTask(Task):
    name = "reconstruct"
    verb = "pretrain"
    method = "embed"
    titles = TITLES
    listed = {name: LISTED[name] for name in ("knn_top1", "probe_top1")}
    options = OPTIONS
    expects = EXPECTS
    by_name = True
    self_supervised = True

    # -- data, plan and model ----------------------------------------------------------------------------------------

    def open(self, data: str, config: Config, console: Any = None) -> Source:
        return open_pictures(data)

    def check(self, config: Config) -> None:
        if config.layer_decay not in (None, 1.0):
            raise VitrailError(
                "--layer-decay counts the blocks of one transformer, and an autoencoder has two: leave it out.",
                code="no_blocks",
            )

    def start(self, config: Config, source: Source, learnt: list[Sample], gpu: bool) -> Start:
        return start_autoencoder(config, typical_side(learnt), gpu)

    def plan(self, config: Config, facts: Facts) -> Choices:
        return plan_autoencoder(config, facts)

    def plan_rows(self, ctx: Context) -> list[Row]:
        model: Any = ctx.model
        settings, encoder = model.settings, sum(p.numel() for p in model.encoder.parameters())
        decoder = sum(p.numel() for p in model.parameters()) - encoder
        patches, (p, q) = settings.grid[0] * settings.grid[1], settings.patch_size
        visible = visible_patches(patches, settings.mask_ratio)
        return [
            ("patches", f"{p}×{q}", f"{visible} of {patches} are seen"),
            ("positions", settings.position, "fixed, as in the paper" if settings.position == "sincos" else "its own"),
            ("decoder", f"{settings.decoder_width}×{settings.decoder_depth}", f"{decoder / 1e6:.1f} M parameters"),
            ("target", "norm_pix" if settings.norm_pix else "colours", ctx.why.get("norm_pix", "usual")),
        ]

    def hidden_choices(self, ctx: Context) -> set[str]:
        return {"precision", "val", "norm_pix", "layer_decay", "clip", "ema"}

    # -- learning ----------------------------------------------------------------------------------------------------

    def objective(self, ctx: Context) -> Watched:
        return Watched()

    def informed(self, ctx: Context) -> Watched:
        samples = ctx.samples["val"] or ctx.samples["train"]
        images = fitted([samples[i] for i in random_places(len(samples), MEASURED)], ctx.preprocessing, "off")
        watched = normalized(torch.stack(images.batch(np.arange(len(images)))[1]), ctx.preprocessing, ctx.device)
        if self._labelled(ctx):
            known = [ctx.samples["train"][i] for i in random_places(len(ctx.samples["train"]), KNOWN)]
            left_out = [*ctx.subsets["train"].bad]
            images = fitted(known, ctx.preprocessing, ctx.cache)
            ctx.subsets["train as predicted"] = read_subset(images, ctx.processes, ctx.workers, None, left_out)
        val = ctx.subsets.get("val")
        quick = val and Subset(val.loader, val.numbers[random_places(len(val.numbers), ASKED)])
        model: Any = ctx.model
        objective = Watched(watched, quick, Expected.of(model, watched))
        ctx.console.line(self._expectation(ctx, objective))
        return objective

    def _labelled(self, ctx: Context) -> bool:
        enough = "val" in ctx.subsets and len(ctx.subsets["train"].numbers) > 1
        return enough and len(ctx.source.classes) > 1

    def _expectation(self, ctx: Context, objective: Watched) -> str:
        assert objective.expected is not None
        return objective.expected.sentence(ctx.settings.norm_pix, ctx.start.pretrained)

    def log_beside(self, ctx: Context) -> str:
        return ctx.objective.expected.beside

    def augment(self, ctx: Context) -> AugmentImages:
        pre, subset = ctx.preprocessing, ctx.subsets["train"]
        augmenter = Augmenter(crops_and_flips(ctx.config), pre.size, pre.mean, pre.std, ctx.config.seed)
        return AugmentImages(augmenter, ctx.objective, subset, subset.samples)

    def hyperparameters(self, ctx: Context) -> dict[str, Any]:
        return {"betas": BETAS}

    def validate(self, ctx: Context, model: nn.Module) -> dict[str, float]:
        return self._figures(ctx, model, ctx.objective.quick, self._due(ctx, ctx.epoch + 1))

    def _due(self, ctx: Context, epoch: int) -> bool:
        every = max(1, ctx.epochs // LOOKS)
        return bool(epoch) and (epoch % every == 0 or epoch in (1, ctx.epochs))

    def _figures(
        self, ctx: Context, model: nn.Module, images: Subset, worth: bool, last: bool = False
    ) -> dict[str, float]:
        """The loss under one mask, the same for all images and always, so that what changes is the model; and where
        there are labels, whether the features separate them."""
        mae: Any = model
        patches = mae.settings.grid[0] * mae.settings.grid[1]
        noise = torch.rand(1, patches, generator=torch.Generator().manual_seed(ctx.config.seed)).to(ctx.device)
        wanted = self._labelled(ctx) and worth

        def outputs(x: Tensor) -> list[Tensor]:
            loss = mae(x, noise=noise.expand(len(x), -1)).each[:, None]
            return [loss, pooled(mae, x)] if wanted else [loss]

        widths = [1, mae.settings.width][: 1 + wanted]
        losses, *features = Forward(images, ctx.preprocessing, ctx.processes, ctx.dtype).run(mae, outputs, widths)
        figures = {"loss": losses.mean().item()}
        return figures | (self._worth(ctx, mae, features[0], images, last) if wanted else {})

    def _worth(
        self, ctx: Context, mae: MaskedAutoencoder, asked: Tensor, images: Subset, last: bool
    ) -> dict[str, float]:
        """Of frozen features: accuracy (mean average precision, with several labels) of neighbours, of a probe."""
        classify, known = Classify(ctx.source.classes, ctx.source.multi_label), ctx.subsets["train as predicted"]
        forward = Forward(known, ctx.preprocessing, ctx.processes, ctx.dtype)
        features = forward.run(mae, lambda x: [pooled(mae, x)], [mae.settings.width])[0]
        targets, truth = classify.targets(known.labels()), classify.targets(images.labels())
        answers = {"knn": nearest_neighbours(features, targets, asked).clamp_min(1e-12).log()}
        if last or ctx.device.type == "cuda" or features.numel() * targets.shape[1] <= PROBED:
            x = features.to(ctx.device)
            solved = (
                solve_probe(x, targets, classify.multi_label, seed=ctx.config.seed)
                if last
                else quick_probe(x, targets, classify.multi_label)
            )
            answers["probe"] = solved(asked.to(ctx.device)).cpu()
        return {f"{k}_{classify.figure}": classify.score(v, truth)[classify.figure] for k, v in answers.items()}

    # -- the folder --------------------------------------------------------------------------------------------------

    def kept(self, ctx: Context, row: dict[str, Any]) -> None:
        """Draws the same images under the same masks every time, so that one can watch the model learn."""
        if not ctx.processes.first or not self._due(ctx, row["epoch"]):
            return
        pre, epoch, every = ctx.preprocessing, row["epoch"], max(1, ctx.epochs // LOOKS)
        watched = ctx.objective.images
        model: Any = ctx.model
        found = reconstruct(
            model, watched[random_places(len(watched), SHOWN)], seed=ctx.config.seed, mean=pre.mean, std=pre.std
        )
        image, folder = sheet(found), ctx.folder / SHEETS
        folder.mkdir(exist_ok=True)
        for path in (folder / f"epoch-{epoch:04d}.png", ctx.folder / SHEET):
            with whole(path) as part:
                image.save(part, "PNG", optimize=True)
        if epoch == 1:
            again = f", drawn again every {every} epochs" if every > 1 else ""
            ctx.console.line(f"  Original, masked, reconstructed: {ctx.folder / SHEET}{again}.")
        if ctx.console.width:
            ctx.console.image(strip(found, ctx.console.width - 4))

    def measure(self, ctx: Context) -> Measured:
        images = ctx.subsets["val"]
        labelled = self._labelled(ctx)
        ctx.console.progress("  measuring what its features are worth" if labelled else "  measuring the loss")
        figures = self._figures(ctx, ctx.model, images, True, last=True) | {"n": len(images.numbers)}
        ctx.console.settle()
        return Measured(figures)

    def page(self, ctx: Context, measured: Measured) -> dict[str, Any]:
        notes = [self._expectation(ctx, ctx.objective), *self.closing_notes(ctx, measured)]
        return {"notes": notes, "gallery": [*self._gallery(ctx)]}

    def _gallery(self, ctx: Context) -> Iterator[tuple[str, str]]:
        """The last sheet, and one from early on."""
        lent = " Brightness and contrast of a patch are taken from the true one." if ctx.settings.norm_pix else ""
        sheets = sorted((ctx.folder / SHEETS).glob("epoch-*.png"))
        for path in [sheets[-1], *sheets[:-1][:1]] if sheets else []:
            epoch = int(path.stem.removeprefix("epoch-"))
            with Image.open(path) as image:
                yield f"After epoch {epoch}: original, masked, reconstructed.{lent}", thumbnail(image, 1000)

    def problems(self, ctx: Context, unreadable: dict[str, str]) -> Any:
        return class_problems(ctx.samples, ctx.source.classes, unreadable, ctx.source.notes)

    def closing_notes(self, ctx: Context, measured: Measured) -> list[str]:
        """What to do where it has learned next to nothing."""
        figures = measured.figures
        if not figures or figures["loss"] <= 0.97 * ctx.objective.expected.nothing:
            return []
        begin = f", or begin with --weights {AUTOENCODER}" if not ctx.start.pretrained else ""
        return [f"The model has hardly learned anything yet: give it more epochs, or more images{begin}."]

    # -- use ---------------------------------------------------------------------------------------------------------

    def evaluate(self, predictor: Any, run: Any, data: str, options: Mapping[str, Any]) -> Evaluation:
        return evaluate_classifier(predictor, run, data, options)  # of its features, by --knn and --probe

    def backbone(self, model: Any) -> Any:
        return getattr(model, "encoder", model)  # an exported file is the encoder alone

    def own_loss(self, model: Any, x: Tensor) -> Any:
        grid = model.encoder.token_grid(*x.shape[2:])
        noise = torch.rand(len(x), grid[0] * grid[1], generator=torch.Generator().manual_seed(0)).to(x.device)
        return lambda model: model(x, noise=noise).loss

    def writer(self, predictor: Any, options: Mapping[str, Any]) -> Any:
        raise self.refuse(predictor, "predict")

    def inspected(self, data: str) -> Source:
        return open_pictures(data)

    def exported(self, model: Any) -> tuple[Any, list[str]]:
        note = "Of the masked autoencoder its encoder, which turns images into features; it has no classes."
        return model.encoder, [note]

    def check_export(
        self, model: Any, path: Path, pre: Preprocessing, other: Any, reader: str
    ) -> tuple[float | None, str]:
        """By the features of the encoders: what an autoencoder paints depends on the mask."""
        one, two = (each.encoder if isinstance(each, MaskedAutoencoder) else each for each in (model, other))
        return super().check_export(one, path, pre, two, reader)


def pooled(mae: MaskedAutoencoder, x: Tensor) -> Tensor:
    return mae.encoder.features(x, layers=())["pooled"]
