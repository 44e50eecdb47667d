"""What the Studio shows of one image through one model: computed when asked for, and kept for a while."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail import explain
from vitrail.data import fit_image, to_tensor
from vitrail.errors import VitrailError
from vitrail.explain.looking import seeing, spread
from vitrail.models import Preprocessing, SwinTransformer, capture
from vitrail.models.dense.detector import viewing_size
from vitrail.predict import Predictor
from vitrail.serve.maps import LARGEST_LAYER, SENT_AT_ONCE, packed, packed_bytes, places, windows_first
from vitrail.serve.pictures import jpeg
from vitrail.serve.strip import Stage, stages

TOP = 5
KEPT_VIEWS = 24
KEPT_BYTES = 96 * 2**20  # of everything that the views hold
SHARP = 720  # short side of the image behind the overlays, where the file has as many pixels
LONGEST = 4.0  # a whole image longer than 4:1 is squeezed to that


@dataclass(frozen=True)
class Fitted:
    """An image as a model gets it, and as a person is shown it."""

    x: Tensor  # [1, C, H, W], normalised
    image: Image.Image  # its pixels, with the margin that the model adds where the patch does not divide them
    sharp: bytes  # a JPEG of the same part with more pixels, for the eye
    mean: list[int]  # the colour that normalisation takes to zero

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + 4 * self.image.width * self.image.height + len(self.sharp)


class Lens:
    """One model of the Studio, and what a page needs to know of it before it has seen an image."""

    def __init__(self, predictor: Predictor, name: str | None = None):
        self.name = name or predictor.name or type(predictor.model).__name__
        # Of a segmenter or a detector the backbone is looked into, and the whole says what there is.
        self.whole, self.predictor = predictor, predictor.backbone
        self.net = seeing(self.predictor.model)
        self.stride: tuple[int, int] = self.net.settings.stride
        self.sizes_itself = predictor.kind.sizes_itself
        self.preprocessing = predictor.preprocessing if self.sizes_itself else self.predictor.preprocessing
        self.heads: list[int] = [block.attention.heads for block in self.net.blocks]

    @property
    def longer(self) -> float:
        """How much longer than its short side an image may be that is shown in its own shape."""
        short, long = sorted(self.preprocessing.size)
        return long / short if self.sizes_itself else 1.0

    @cached_property
    def largest(self) -> int:
        """The short side up to which a page can hold the maps of a layer."""
        largest = 3 * min(self.preprocessing.size)
        if isinstance(self.net, SwinTransformer):  # whose windows make its maps grow with the area only
            return largest
        patches = math.sqrt(LARGEST_LAYER / max(self.heads)) - self.net.prefix_tokens
        return min(largest, int(math.sqrt(patches * self.stride[0] * self.stride[1] / self.longer)))

    @cached_property
    def own(self) -> int:
        side = min(self.preprocessing.size)
        return min(side, self.largest) if self.sizes_itself else side

    @cached_property
    def sizes(self) -> list[int]:
        """Short sides that the slider offers: multiples of what a token spans, as far as a page can hold the maps."""
        step = max(self.stride)
        return sorted({self.own, *range(2 * step, max(self.largest, self.own) + 1, step)})

    @cached_property
    def about(self) -> dict[str, Any]:
        s, model = self.net.settings, self.whole.model
        registers = [f"register {i}" for i in range(getattr(s, "registers", 0))]
        tokens = [name for name in ("class_token", "distillation_token") if getattr(s, name, False)]
        return {
            "name": self.name,
            "family": type(self.predictor.model).__name__,
            "task": self.whole.task,
            "overlay": self.whole.kind.overlay_kind,
            "head": getattr(model.settings, "head", None) if self.whole.kind.answers_inside else None,
            "parameters": sum(p.numel() for p in model.parameters()),
            "heads": self.heads,
            "prefix": [name.replace("_", " ") for name in tokens] + registers,
            "classes": len(self.whole.labels),
            "size": self.own,
            "sizes": self.sizes,
            "stride": list(self.stride),
            "reconstructs": self.whole.kind.self_supervised,
            "norm_pix": self.whole.kind.self_supervised and getattr(model.settings, "norm_pix", False),
            "mask_ratio": getattr(model.settings, "mask_ratio", None),
        }

    def fit(self, image: Image.Image, size: int, fit: str) -> Fitted:
        """As the model was "trained", with `size` as the short side; or the "whole" image in its own shape, over as
        many patches. A detector takes all images in their own shape."""
        pre = self.preprocessing
        if self.sizes_itself:
            viewed = viewing_size((image.height, image.width), size, round(size * self.longer))
            pre = replace(pre, size=viewed, fit="stretch")
        elif fit == "trained" and pre.fit != "native":
            height, width = (round(side * size / self.own) for side in pre.size)
            pre = replace(pre, size=(height, width))
        else:
            shape = math.sqrt(min(max(image.width / image.height, 1 / LONGEST), LONGEST))
            rows, columns = round(size / shape / self.stride[0]), round(size * shape / self.stride[1])
            pre = replace(pre, size=(max(1, rows) * self.stride[0], max(1, columns) * self.stride[1]), fit="stretch")
        fitted = fit_image(image, pre)
        x = to_tensor(fitted, pre)[None].to(self.predictor.device, next(self.net.parameters()).dtype)
        mean = [round(255 * value) for value in pre.mean] * (3 // len(pre.mean))
        sharp = sharper(image, fitted, pre)
        margins = tuple(1 + (-side % step) / side for side, step in zip(x.shape[2:], self.stride, strict=True))
        return Fitted(x, framed(fitted, margins, mean), jpeg(framed(sharp, margins, mean)), mean)


def sharper(image: Image.Image, fitted: Image.Image, pre: Preprocessing) -> Image.Image:
    """The same part of the image at up to `SHARP` pixels, if the file has them."""
    times = min(SHARP, *image.size) / min(fitted.size)
    if times <= 1:
        return fitted
    return fit_image(image, replace(pre, size=(round(pre.size[0] * times), round(pre.size[1] * times))))


def framed(image: Image.Image, margins: tuple[float, ...], mean: list[int]) -> Image.Image:
    """With room at the bottom and at the right, in the mean colour: zeros, after normalisation."""
    if max(margins) == 1:
        return image.convert("RGB")
    larger = Image.new("RGB", (round(image.width * margins[1]), round(image.height * margins[0])), tuple(mean))
    larger.paste(image, (0, 0))
    return larger


@dataclass(frozen=True)
class Request:
    """What decides a view, and names it."""

    picture: str
    model: int
    size: int
    fit: str = "trained"
    hidden: tuple[int, ...] = ()  # patches, counted row by row


class View:
    """One image, at one size, with some patches hidden, through one model."""

    def __init__(self, lens: Lens, fitted: Fitted, hidden: tuple[int, ...]):
        self.lens, self.net, self.fitted, x = lens, lens.net, fitted, fitted.x
        self.grid: tuple[int, int] = self.net.token_grid(x.shape[2], x.shape[3])
        count = self.grid[0] * self.grid[1]
        if wrong := [i for i in hidden if not 0 <= i < count]:
            raise VitrailError(f"There is no patch {wrong[0]} to hide; there are {count}.")
        if hidden:
            shown = torch.ones(count, device=x.device, dtype=x.dtype)
            shown[list(hidden)] = 0
            # Zero after normalisation is the mean colour of the images that the model was trained on.
            x = x * spread(shown.view(self.grid), lens.stride, (x.shape[2], x.shape[3]))
        self.x, self.hidden = x, hidden
        self.attentions: dict[int, dict[str, Tensor]] = {}
        self.overlays: dict[tuple[str, int | None], np.ndarray] = {}

    @property
    def pixels(self) -> np.ndarray:
        """What the model is given, uint8 [H, W, 3], with hidden patches in the mean colour."""
        pixels = np.array(self.fitted.image)
        p, q = self.lens.stride
        for row, column in (divmod(i, self.grid[1]) for i in self.hidden):
            pixels[row * p : row * p + p, column * q : column * q + q] = self.fitted.mean
        return pixels

    @cached_property
    def probabilities(self) -> Tensor | None:
        """Of each class; of a model that gives numbers, these."""
        if not self.lens.predictor.labels:
            return None
        with torch.inference_mode():
            outputs = self.net(self.x).float()[0].cpu()
        return self.lens.predictor.kind.interpreted(self.lens.predictor, outputs)

    @cached_property
    def said(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The mask or the boxes, of a model that gives such. It sees exactly what the view does."""
        frame = (self.fitted.image.height, self.fitted.image.width)  # with the margin that the backbone adds
        with torch.inference_mode():
            return self.lens.whole.kind.overlay(self.lens.whole, self.x, frame)

    @cached_property
    def stages(self) -> list[Stage]:
        return stages(self.net, self.x)

    @cached_property
    def pooled(self) -> Tensor:
        return self.stages[-1].vector  # type: ignore[return-value]

    @cached_property
    def grids(self) -> list[tuple[int, int]]:
        return [(s.colours.shape[0], s.colours.shape[1]) for s in self.stages if s.key == "block"]  # type: ignore

    @property
    def at_once(self) -> bool:
        return packed_bytes(self.net, self.grids) <= SENT_AT_ONCE

    def classes(self, also: list[int]) -> list[dict[str, Any]]:
        """The answer and the likeliest, as `predict` has them, and those that the page goes on watching."""
        if self.probabilities is None:
            return []
        predictor = self.lens.predictor
        order = predictor.order(self.probabilities)
        chosen = [*order[:TOP], *(i for i in also if 0 <= i < len(predictor.labels) and i not in order[:TOP])]
        return [predictor.kind.studio_row(predictor, self.probabilities, i) for i in chosen]

    def attention(self, layers: list[int]) -> dict[str, Tensor]:
        """`map/3` uint8 [windows, H, n, n], `top/3` [windows, H, n], `place/3` [windows, n] of each layer."""
        missing = [layer for layer in layers if layer not in self.attentions]
        if missing:
            # Each map is packed as it is made: one of them exists in fp32 at a time.
            with torch.inference_mode(), capture(self.net, missing, reduce=_pack) as maps:
                self.net(self.x)
            for layer in missing:
                values, top = maps[layer]
                place = places(maps.layouts[layer])
                self.attentions[layer] = {"map": values, "top": top, "place": place}
        return {f"{key}/{layer}": value for layer in layers for key, value in self.attentions[layer].items()}

    def overlay(self, name: str, target: int | None) -> np.ndarray:
        """[h, w] in fp32."""
        if (name, target) not in self.overlays:
            function = getattr(explain, name)
            found = function(self.net, self.x) if name == "rollout" else function(self.net, self.x, target)
            self.overlays[name, target] = found[0].float().cpu().numpy()
        return self.overlays[name, target]

    @cached_property
    def spreads(self) -> dict[str, list[list[float | None]]]:
        """By layer and head: how far attention reaches, in pixels, and how evenly it is spread, in nats."""
        return {
            "distance": _rows(explain.attention_distance(self.net, self.x), self.lens.heads),
            "entropy": _rows(explain.attention_entropy(self.net, self.x), self.lens.heads),
        }

    @property
    def nbytes(self) -> int:
        """Of what it holds for itself; what it was fitted from, several views may share."""
        arrays: list[Any] = [
            *self.overlays.values(),
            *(a for layer in self.attentions.values() for a in layer.values()),
        ]
        if self.x is not self.fitted.x:
            arrays.append(self.x)
        arrays += self.__dict__.get("said", ({},))[0].values()
        for stage in self.__dict__.get("stages", ()):  # those that were asked for
            arrays += (a for a in (stage.colours, stage.table, stage.vector, stage.units) if a is not None)
        return sum(array.nbytes for array in arrays)


def _pack(attention: Tensor) -> tuple[Tensor, Tensor]:
    return packed(windows_first(attention))


def _rows(values: Tensor, heads: list[int]) -> list[list[float | None]]:
    """[L, H] as lists, of each layer as many as it has heads; JSON knows no NaN."""
    return [
        [float(v) if math.isfinite(v) else None for v in row[:count].tolist()]
        for row, count in zip(values, heads, strict=True)
    ]


class Views:
    """The last views by their request; the oldest go when there are too many or they hold too much."""

    def __init__(self) -> None:
        self.kept: OrderedDict[Request, View] = OrderedDict()

    def get(self, request: Request, lens: Lens, image: Callable[[], Image.Image]) -> View:
        if request not in self.kept:
            self.kept[request] = View(lens, self.fitted(request, lens, image), request.hidden)
        self.kept.move_to_end(request)
        self.trim()
        return self.kept[request]

    def fitted(self, request: Request, lens: Lens, image: Callable[[], Image.Image]) -> Fitted:
        """That of a view which differs in its hidden patches only, where there is one."""
        for other, view in self.kept.items():
            if replace(other, hidden=request.hidden) == request:
                return view.fitted
        return lens.fit(image(), request.size, request.fit)

    @property
    def nbytes(self) -> int:
        fitted = {id(view.fitted): view.fitted.nbytes for view in self.kept.values()}
        return sum(view.nbytes for view in self.kept.values()) + sum(fitted.values())

    def trim(self) -> None:
        """A view grows with what is asked of it, so this comes after every answer."""
        while len(self.kept) > 1 and (len(self.kept) > KEPT_VIEWS or self.nbytes > KEPT_BYTES):
            self.kept.popitem(last=False)
        for view in self.kept.values():  # one alone may have many large layers, fetched one by one
            while len(view.attentions) > 1 and self.nbytes > KEPT_BYTES:
                view.attentions.pop(next(iter(view.attentions)))
