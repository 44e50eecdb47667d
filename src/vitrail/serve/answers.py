"""What a page may ask of the Studio, and the answers.

Arrays travel as safetensors, which a page reads in ten lines: eight bytes of header length, a JSON header, raw numbers.
"""

import asyncio
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from fastapi import Request
from pydantic import BaseModel, Field
from safetensors.numpy import save

from vitrail import explain
from vitrail.errors import VitrailError
from vitrail.serve.pictures import ImageSet, Sample
from vitrail.serve.views import Lens, View, Views
from vitrail.serve.views import Request as Wanted

MOST_WAITING = 64
KEPT_POSITIONS = 16 * 2**20  # bytes
T = TypeVar("T")


class Asked(BaseModel, extra="forbid"):
    """What a view is of; `also` are classes to go on watching."""

    picture: str = Field(max_length=64)
    model: int = 0
    size: int = Field(ge=1, le=4096)
    fit: Literal["trained", "whole"] = "trained"
    hidden: list[int] = Field(default=[], max_length=20_000)
    also: list[int] = Field(default=[], max_length=20)


class AskedLayers(Asked):
    layers: list[int] | None = Field(default=None, max_length=1000)


class AskedOverlay(Asked):
    name: Literal["rollout", "relevance", "grad_cam"]
    target: int | None = None


class AskedPaint(Asked):
    ratio: float = Field(default=0.75, ge=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**31)
    mask: list[int] | None = Field(default=None, max_length=20_000)


class Busy(Exception):
    pass


class Left(Exception):
    """Whoever asked has gone."""


def leave_a_core() -> None:
    """To the browser and to this server: where threads have to wait for a core, all the others wait for them."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))


class Studio:
    """The models, the images, and the one thread that computes: two forward passes at once would need twice the
    memory and take as long."""

    def __init__(self, lenses: list[Lens], samples: list[Sample]):
        self.lenses, self.pictures, self.views = lenses, ImageSet(samples), Views()
        self.positions: dict[tuple[int, int, int], np.ndarray] = {}
        self.thread = ThreadPoolExecutor(1, "model", initializer=leave_a_core)
        self.turn, self.waiting = asyncio.Lock(), 0

    async def work(self, request: Request, function: Callable[..., T], *arguments: Any) -> T:
        """In turn, and not at all for a page that no longer waits: a slider asks more often than a model answers."""
        if self.waiting >= MOST_WAITING:
            raise Busy
        self.waiting += 1
        try:
            async with self.turn:
                if await request.is_disconnected():
                    raise Left
                return await asyncio.get_running_loop().run_in_executor(self.thread, self.answer, function, *arguments)
        finally:
            self.waiting -= 1

    def answer(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        finally:
            self.views.trim()

    def lens(self, asked: Asked) -> Lens:
        if not 0 <= asked.model < len(self.lenses):
            raise VitrailError(f"There is no model {asked.model}; there are {len(self.lenses)}.")
        lens = self.lenses[asked.model]
        if asked.size not in lens.sizes:
            raise VitrailError(f"This model is shown at sizes from {lens.sizes[0]} to {lens.sizes[-1]} here.")
        return lens

    def view(self, asked: Asked) -> View:
        lens = self.lens(asked)
        wanted = Wanted(asked.picture, asked.model, asked.size, asked.fit, tuple(sorted(set(asked.hidden))))
        return self.views.get(wanted, lens, lambda: self.pictures.get(asked.picture))

    def look(self, asked: Asked) -> bytes:
        """Classes, the image as the model gets it, and the stages on the way."""
        view = self.view(asked)
        arrays: dict[str, Any] = {
            "picture": view.pixels,
            "sharp": np.frombuffer(view.fitted.sharp, np.uint8),
            "pooled": view.pooled,
        }
        strip = []
        stages = view.stages[:-1] if view.lens.whole.kind.answers_inside else view.stages  # no class is made of patches
        for number, stage in enumerate(stages):
            strip.append({"key": stage.key, "title": stage.title, "shape": stage.shape, "note": stage.note})
            for name, value in (("colours", stage.colours), ("table", stage.table)):
                if value is not None:
                    arrays[f"{name}/{number}"] = value
        about = {
            "grid": view.grid,
            "grids": view.grids,
            "first": next(list(s.colours.shape[:2]) for s in view.stages if s.key == "embeddings"),  # type: ignore
            "mean": view.fitted.mean,
            "labels": len(view.lens.predictor.labels),
            "at_once": view.at_once,
            "classes": view.classes(asked.also),
            "multi_label": view.lens.predictor.multi_label,
            "stages": strip,
        }
        return tensors(arrays, about)

    def said(self, asked: Asked) -> bytes:
        """Of a model that segments or detects: its mask or its boxes."""
        view = self.view(asked)
        if not view.lens.whole.kind.answers_inside:
            raise VitrailError(f"{view.lens.about['name']} gives one class for an image, neither masks nor boxes.")
        return tensors(*view.said)

    def classes(self, asked: Asked) -> dict[str, Any]:
        return {"classes": self.view(asked).classes(asked.also)}

    def attention(self, asked: AskedLayers) -> bytes:
        view = self.view(asked)
        depth = len(view.lens.heads)
        layers = list(range(depth)) if asked.layers is None else asked.layers
        if wrong := [i for i in layers if not 0 <= i < depth]:
            raise VitrailError(f"This model has layers 0 to {depth - 1}; there is no layer {wrong[0]}.")
        if len(layers) > 1 and not view.at_once:
            raise VitrailError("At this size attention is sent one layer at a time: ask for one.")
        return tensors(view.attention(layers), {})

    def tokens(self, asked: AskedLayers) -> bytes:
        """The directions of the patch tokens after the chosen blocks, to compare them with each other."""
        blocks = [stage for stage in self.view(asked).stages if stage.key == "block"]
        chosen = [i for i in asked.layers or [] if 0 <= i < len(blocks)]
        return tensors({f"units/{i}": blocks[i].units for i in chosen}, {})

    def overlay(self, asked: AskedOverlay) -> bytes:
        """Not every analysis is defined for every model. That is an answer and no mistake of the page: the sentence
        goes where the image would."""
        view = self.view(asked)
        try:
            return tensors({"overlay": view.overlay(asked.name, asked.target)}, {})
        except VitrailError as error:
            return tensors({}, {"error": str(error)})

    def spreads(self, asked: Asked) -> dict[str, Any]:
        return self.view(asked).spreads

    def position(self, asked: Asked) -> bytes:
        """How alike the position vectors of two patches are, uint8 [hw, hw] for -1 … 1; or why there are none."""
        view = self.view(asked)
        key = (asked.model, *view.grid)
        try:
            return tensors({"similarity": self.similarity(key, view)}, {"grid": view.grid})
        except VitrailError as error:
            return tensors({}, {"error": str(error)})

    def similarity(self, key: tuple[int, int, int], view: View) -> np.ndarray:
        if key not in self.positions:
            found = explain.position_similarity(view.net, view.grid)
            flat = found.flatten(2).flatten(0, 1).clamp(-1, 1)
            kept = ((flat + 1) * 127.5).round().to(torch.uint8).numpy()
            if sum(a.nbytes for a in self.positions.values()) + kept.nbytes > KEPT_POSITIONS:
                self.positions.clear()
            self.positions[key] = kept
        return self.positions[key]

    def paint(self, asked: AskedPaint) -> bytes:
        lens, view = self.lens(asked), self.view(asked)
        if not lens.about["reconstructs"]:
            raise VitrailError(f"{lens.about['name']} is no masked autoencoder: name one with --mae.")
        pre = lens.predictor.preprocessing
        mask = None
        if asked.mask is not None:
            mask = torch.zeros(1, view.grid[0] * view.grid[1])
            mask[0, [i for i in asked.mask if 0 <= i < mask.shape[1]]] = 1
            mask = mask.view(1, *view.grid)
        found = explain.reconstruct(
            lens.predictor.model, view.x, asked.ratio, mask, asked.seed, mean=pre.mean, std=pre.std
        )
        pictures = {name: as_picture(getattr(found, name)) for name in ("original", "masked", "painted")}
        return tensors({**pictures, "mask": (found.mask[0] > 0).to(torch.uint8)}, {"grid": view.grid})


def as_picture(pixels: torch.Tensor) -> np.ndarray:
    """[1, C, H, W] from 0 to 1 -> uint8 [H, W, 3]."""
    shown = (pixels[0].float().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    return np.ascontiguousarray(shown if shown.shape[2] == 3 else np.repeat(shown[..., :1], 3, axis=2))


def tensors(arrays: dict[str, Any], about: dict[str, Any]) -> bytes:
    plain = {name: np.ascontiguousarray(a.numpy() if isinstance(a, torch.Tensor) else a) for name, a in arrays.items()}
    return save(plain, metadata={"about": json.dumps(about)})
