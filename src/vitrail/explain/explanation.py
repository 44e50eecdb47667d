"""One image explained: the arrays, the figures of them, and how a notebook or a folder shows them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from markupsafe import escape
from matplotlib.figure import Figure
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain import figures
from vitrail.explain.attention_analysis import attention, attention_by_layer, attention_distance, attention_entropy
from vitrail.explain.deletion_insertion import Curves, faithfulness, usable
from vitrail.explain.drawing import Array, encoded
from vitrail.explain.gradient_maps import grad_cam
from vitrail.explain.image_maps import ImageMaps, Portrait, percent
from vitrail.explain.looking import Grid, at_rest, cell_size, class_logits, seeing, targets
from vitrail.explain.methods import METHODS
from vitrail.explain.page import document, section
from vitrail.explain.tokens import patch_filters, position_similarity, reconstruct, token_pca
from vitrail.models import MaskedAutoencoder, SwinTransformer
from vitrail.models.checks import check_layers
from vitrail.models.preprocessing import IMAGENET
from vitrail.report.drawing import data_uri
from vitrail.whole import whole

STEPS = 10  # of the curves of one image: each method costs 2·10 forwards
LOOKED_AT = 448  # pixels, about: the shorter side of an image that is written to be looked at
LONGEST = 2048  # pixels: no image is enlarged beyond


@dataclass(frozen=True, repr=False)
class Explanation(ImageMaps):
    """What a model made of one image, and how it is shown: on a line, in a notebook, as files."""

    def __repr__(self) -> str:
        """One line; the tensors are there by name."""
        best = f"{self.classes[0][0]} {percent(self.classes[0][1])}" if self.classes else "no classes"
        other = self.target is not None and self.target != self.classes[0][0]
        asked = f", explained: {self.target} {percent(self.share or 0)}" if other else ""
        size = "×".join(map(str, self.picture.shape[:2]))
        return f"Explanation({self.name}, {size}: {best}{asked}; maps: {', '.join(self.maps) or 'none'})"

    def figure(self) -> Figure:
        """The image and every map over it."""
        title = f"{self.classes[0][0]}, {self.classes[0][1]:.0%}" if self.classes else "Picture"
        cells = {method: self.cell(values) for method, values in self.maps.items()}
        return figures.saliency_figure(self.picture, self.maps, cells, title)

    def figures(self) -> dict[str, Figure]:
        """All figures by name."""
        found = {"overview": self.figure()}
        if self.curves:
            found["faithfulness"] = figures.curves_figure(self.curves)
        cells = [self.cell(maps) for maps in self.attention]
        found["attention_heads"] = figures.heads_figure(self.picture, self.attention, cells)
        found["attention_distance"] = figures.distance_figure(self.distance, self.farthest)
        found["attention_entropy"] = figures.entropy_figure(self.entropy, self.most)
        if self.reconstruction is not None:
            found["reconstruction"] = figures.reconstruction_figure(self.reconstruction)
        return found

    def save_pictures(self, folder: str | Path) -> list[Path]:
        """Every overlay and figure as a PNG; overlays of a small image in a size to look at."""
        short, long = sorted(self.picture.shape[:2])
        folder, zoom = Path(folder), max(1, min(round(LOOKED_AT / short), LONGEST // long))
        written = {name: encoded(one) for name, one in self.overlays(zoom).items()}
        written |= {name: figures.png(figure) for name, figure in self.figures().items()}
        return [write(folder / f"{name}.png", content) for name, content in written.items()]

    def save(self, folder: str | Path) -> Path:
        """A folder of PNGs, and one page in it, explain.html, that holds everything; gives the page's path."""
        self.save_pictures(folder)
        summary = f"As {self.model} sees it." if self.model else ""
        return write(Path(folder) / "explain.html", document(f"Looking into {self.name}", [section(self)], summary))

    @cached_property
    def _png(self) -> bytes:
        return figures.png(self.figure())

    def _repr_png_(self) -> bytes:
        return self._png

    def _repr_html_(self) -> str:
        said = ", ".join(f"{escape(label)} {share:.0%}" for label, share in self.classes[:3])
        sure = percent(self.share or 0)
        asked = f"<p>Explained: <b>{escape(self.target)}</b>, {sure}. The model says {said}.</p>" if self.target else ""
        source = data_uri(self._png, "PNG")
        names = ", ".join(map(figures.name_of, self.maps))
        return f'<div>{asked}<img style="max-width:100%" src="{source}" alt="The picture, then over it: {names}"></div>'


def explain_picture(
    model: nn.Module,
    picture: Array,
    x: Tensor,
    labels: Sequence[str] = (),
    target: int | None = None,
    methods: Sequence[str] | None = None,
    layer: int | None = None,
    name: str = "picture",
    multi_label: bool = False,
    steps: int = STEPS,
    mean: tuple[float, ...] = IMAGENET["mean"],
    std: tuple[float, ...] = IMAGENET["std"],
) -> Explanation:
    """Everything that can be said of one image: `picture` uint8 [H, W, C] as it is shown, x [1, C, H, W] as the model
    takes it. `layer` is where raw attention, Grad-CAM and token colours look; the model's own choice by default. With
    `steps=0` the deletion and insertion curves, the longest part, are left out."""
    inner = seeing(model)
    names = labels or [f"class {i}" for i in range(inner.settings.num_classes)]
    if target is not None and not names:
        raise VitrailError("This model has no classes to explain; leave the target out.")
    classes: list[tuple[str, float]] = []
    share: float | None = None
    if names:
        with torch.no_grad(), at_rest(inner):
            answers = class_logits(inner, x)
        targets(answers, target)  # refuses what is no class
        logits = answers[0]
        shares = logits.sigmoid() if multi_label else logits.softmax(dim=-1)
        best = shares.topk(min(5, len(shares))).indices.tolist()
        target = best[0] if target is None else target
        classes = [(names[i], float(shares[i])) for i in dict.fromkeys([*best, target])]
        share = float(shares[target])

    maps: dict[str, Tensor] = {}
    for method, function in usable(model, methods).items():
        # Swin's own choice is not its last layer, which `METHODS` looks at.
        if method == "attention" and (layer is not None or isinstance(inner, SwinTransformer)):
            maps[method] = attention(inner, x, layer)[0].mean(dim=0)
        elif method == "grad_cam" and layer is not None:
            maps[method] = grad_cam(inner, x, target, layer)[0]
        else:
            maps[method] = function(inner, x, target)[0]
    curves: dict[str, Curves] = {}
    if steps and names:
        ordered = {**maps, "random": METHODS["random"](inner, x, target)[0]}
        curves = {key: faithfulness(inner, x, one[None], target, steps, multi_label) for key, one in ordered.items()}
    maps.pop("random", None)  # a measure to compare with, and nothing to look at

    rows = [one[0] for one in attention_by_layer(inner, x)]
    pca = token_pca(inner, x, layer)[0]
    size = (x.shape[2], x.shape[3])
    farthest, most = alike(inner, size)
    grids = {(one.shape[-2], one.shape[-1]) for one in [*maps.values(), *rows]} | {(pca.shape[0], pca.shape[1])}
    return Explanation(
        name=name,
        picture=picture,
        classes=classes,
        target=None if target is None else names[target],
        share=share,
        maps=maps,
        curves=curves,
        attention=rows,
        attention_of="the class token" if getattr(inner.settings, "class_token", False) else "the mean patch",
        layer=check_layers([inner.default_layer if layer is None else layer], len(rows))[0],
        pca=pca,
        distance=attention_distance(inner, x),
        entropy=attention_entropy(inner, x),
        farthest=farthest,
        most=most,
        reconstruction=reconstruct(model, x, mean=mean, std=std) if isinstance(model, MaskedAutoencoder) else None,
        cells={grid: cell_size(inner, grid, size) for grid in grids},
    )


def portrait(model: nn.Module, size: Grid | None) -> Portrait:
    """Of the model as it takes images of this size; without one, for images of several, at its own, and without the
    figures of attending to all alike, which differ from size to size."""
    inner = seeing(model)
    filters = patch_filters(inner) if inner.patch.weight.shape[1] in (1, 3) else None
    if isinstance(inner, SwinTransformer):
        return Portrait(None, filters, None, None)
    h, w = inner.token_grid(*(size or inner.settings.image_size))
    try:
        positions = position_similarity(inner, (h, w))
    except VitrailError:  # of a kind that gives no vector to a place
        positions = None
    if size is None:
        return Portrait(positions, filters, None, None)
    return Portrait(positions, filters, *alike(inner, size))


def alike(inner: Any, size: Grid) -> tuple[float, float] | tuple[None, None]:
    """Distance and entropy of attending to all alike, on images of this size; none in Swin, whose stages differ."""
    if isinstance(inner, SwinTransformer):
        return None, None
    h, w = inner.token_grid(*size)
    place = torch.cartesian_prod(torch.arange(h), torch.arange(w)) * torch.tensor(cell_size(inner, (h, w), size))
    apart = torch.cdist(place.float(), place.float()).mean().item()
    return apart, math.log(h * w + inner.prefix_tokens)


def write(path: Path, content: bytes | str) -> Path:
    """The file, whole or not at all, and the folders above it. What no text can hold, but a file's name can, is
    replaced."""
    with whole(path) as part:
        part.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
    return path
