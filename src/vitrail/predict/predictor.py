"""`Predictor`: a model, its preprocessing and its labels in one object; what every user-facing verb loads."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data import fit_image, to_image
from vitrail.errors import VitrailError, nearest
from vitrail.inference.image_model import Function, ImageModel, Outcome, check_views, collected, rows
from vitrail.models import Preprocessing
from vitrail.tasks import registry
from vitrail.tasks.base import Task
from vitrail.weights import save_weights
from vitrail.weights.adapter_file import Adapters
from vitrail.weights.onnx import OnnxModel
from vitrail.weights.published import imagenet_labels

if TYPE_CHECKING:
    from vitrail.explain import Explanation
    from vitrail.tasks.detect.results import Detections
    from vitrail.tasks.segment.results import Segmentation


@dataclass(frozen=True)
class Prediction:
    label: str
    index: int
    probability: float


class Predictor(ImageModel):
    """Images in, classes or features out. Images are paths, PIL images, arrays or tensors; one, or many.

    Many may be an iterator over more than memory holds: they are decoded in threads, a few batches ahead of the model.
    `flip` also shows the mirror image, and `crops` (5 or 9) windows at the corners (and edges); the answer is then the
    mean of the probabilities, or of the features. Of the probabilities and not of the logits, because the mean of
    distributions is one, in a model of several labels too, and because no view outweighs the others by being sure.

    An image that can't be read is an error, unless `on_error="skip"`: then a warning names it, and in its place stands
    an empty list, or a row of NaN.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        labels: list[str] | None = None,
        name: str | None = None,
        device: str | torch.device | None = None,
        about: dict[str, Any] | None = None,
        source: str | None = None,
    ):
        super().__init__(model, preprocessing, device)
        self.name, self.source = name, source  # the source is where it was loaded from, if it was
        self.about = dict(about or {})  # what the run that made it said of itself: task, recipe, metrics, …
        classes: int = model.settings.num_classes  # type: ignore[union-attr,assignment]
        if labels is not None and len(labels) != classes:
            raise VitrailError(f"{len(labels)} labels were given for a model of {classes} classes.")
        self.labels = labels or (imagenet_labels() if classes == 1000 else [f"class {i}" for i in range(classes)])
        self._adapters: Adapters | None = None
        self._backbone: Predictor | None = None

    def __repr__(self) -> str:
        classes, size = len(self.labels), "×".join(map(str, self.preprocessing.size))
        return f"Predictor({self.name or type(self.model).__name__}, {classes} classes, {size}, on {self.device})"

    @property
    def multi_label(self) -> bool:
        """May an image have several classes, or none? Then each class has a probability of its own."""
        return bool(self.about.get("multi_label"))

    @property
    def thresholds(self) -> list[float]:
        """From which probability on a class counts as present, in a model of several labels; a half if nobody chose."""
        stored = self.about.get("thresholds") or [0.5] * len(self.labels)
        if len(stored) != len(self.labels):
            raise VitrailError(f"The model has {len(self.labels)} classes but {len(stored)} thresholds in its header.")
        return list(stored)

    def predict(
        self,
        images: Any,
        top: int | None = None,
        batch_size: int = 32,
        flip: bool = False,
        crops: int = 1,
        on_error: str = "raise",
    ) -> list[list[Any]]:
        """For each image its `top` classes, the likeliest first: 5 of them or, in a model of several labels, those that
        reach their threshold; each a `Prediction`. Of a model that was trained to regress, for each image all of its
        columns in their order, with `.label`, `.index` and `.value`, and without a probability."""
        _check_top(top)
        found = collected(self.stream(images, self.kind.answer, batch_size, flip, crops), on_error)
        return [[] if one.values is None else self.kind.predictions(self, one.values, top) for one in found]

    def ranked(self, probabilities: Tensor, top: int | None = None) -> list[Prediction]:
        """The likeliest classes of one image, from its row of `probabilities`. Of a model that tells live faces from
        attacks, the first is its answer at the threshold that the development set chose."""
        _check_top(top)
        order = self.order(probabilities)
        if top is None and self.multi_label:
            thresholds = self.thresholds
            order = [i for i in order if probabilities[i].item() >= thresholds[i]]
        else:
            order = order[: top or 5]
        return [Prediction(self.labels[i], i, probabilities[i].item()) for i in order]

    def order(self, probabilities: Tensor) -> list[int]:
        """All classes of one image, its answer first, then the likeliest."""
        return self.kind.order(self, probabilities)

    def probabilities(
        self, images: Any, batch_size: int = 32, flip: bool = False, crops: int = 1, on_error: str = "raise"
    ) -> Tensor:
        """The probability of each class for each image: [n, classes]."""
        return rows(collected(self.stream(images, "probabilities", batch_size, flip, crops), on_error))

    def values(
        self, images: Any, batch_size: int = 32, flip: bool = False, crops: int = 1, on_error: str = "raise"
    ) -> Tensor:
        """Of a model that was trained to regress, the numbers for each image, in units: [n, columns]."""
        return rows(collected(self.stream(images, "values", batch_size, flip, crops), on_error))

    def embed(
        self, images: Any, batch_size: int = 32, flip: bool = False, crops: int = 1, on_error: str = "raise"
    ) -> Tensor:
        """The pooled features that the head would see, one row per image: [n, D]."""
        return rows(collected(self.stream(images, "features", batch_size, flip, crops), on_error))

    def explain(
        self,
        image: Any,
        target: int | str | None = None,
        methods: Sequence[str] | None = None,
        layer: int | None = None,
        faithfulness: bool = True,
    ) -> "Explanation":
        """What the model sees in one image, and why it says what it says: maps, attention, and curves that tell which
        map to believe. A notebook draws it; `.figure()` gives the figure, `.save(folder)` writes PNGs and a page.

        `target` is the class to explain, by label or index, the likeliest by default. `methods` are names of
        `vitrail.explain.METHODS`. Without `faithfulness` the curves, the longest part, are left out. Of a segmenter or
        a detector, it is the backbone that is looked into; of a model that tells live faces from attacks, the target is
        the likeliest attack, also on a live face: what speaks for one.
        """
        from vitrail.explain.explanation import STEPS, explain_picture

        if self.backbone is not self:
            return self.backbone.explain(image, target, methods, layer, faithfulness)
        pre = self.preprocessing
        picture = np.array(fit_image(to_image(image), pre))  # a copy: Pillow's own memory is read-only
        picture = picture.reshape(*picture.shape[:2], -1)
        x = self.normalised(torch.from_numpy(picture)[None])
        index = None if target is None else self.class_index(target)
        if index is None:
            index = self.kind.explained_class(self, x)
        found = explain_picture(
            self.model,
            picture,
            x,
            self.labels,
            index,
            methods,
            layer,
            Path(image).name if isinstance(image, str | PathLike) else "picture",
            self.multi_label or self.kind.answer != "probabilities",  # one output by itself: numbers do not compete
            STEPS if faithfulness else 0,
            pre.mean,
            pre.std,
        )
        return replace(found, model=self.name or "")

    def segment(self, image: Any, window: int | None = None, overlap: float = 0.25) -> "Segmentation":
        """The class of every pixel of one image, of a model that was trained to segment: `.mask`, `.shares`,
        `.overlay()`, `.save(folder)`.

        The image is brought to the model's size and the answer back to its own. With a `window`, such as 512, it is
        looked at in its own size instead, through windows of that side that overlap by at least this share.
        """
        return next(self.segmentations([image], window, overlap))

    def segmentations(
        self, images: Iterable[Any], window: int | None = None, overlap: float = 0.25, batch_size: int = 32
    ) -> "Iterator[Segmentation]":
        """The same of many images, in order and as they come; those of one size go through the model together."""
        return self.answers("segment", images, batch_size, window=window, overlap=overlap)

    def detect(self, image: Any, threshold: float | None = None) -> "Detections":
        """What a model that was trained to detect finds on one image, the surest first: each with `.label`,
        `.probability` and `.box` (x0, y0, x1, y1 in the image's pixels); `.drawing()` shows them.

        `threshold` is the probability from which on; by default the one that suited the run's validation images best.
        """
        return next(self.detections([image], threshold))

    def detections(
        self, images: Iterable[Any], threshold: float | None = None, batch_size: int = 32
    ) -> "Iterator[Detections]":
        """The same of many images, in order and as they come; those of one size go through the model together."""
        return self.answers("detect", images, batch_size, threshold=threshold)

    def answers(self, task: str, images: Iterable[Any], batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """What a model of this task, whose answers lie inside the image, says of each."""
        if self.kind.name != task:
            raise self.kind.refuse(self, task)
        return self.kind.answers(self, images, batch_size, **options)

    @property
    def kind(self) -> Task:
        """The task that it was trained for."""
        return registry.task_of(self.about, self.model.settings)

    @property
    def task(self) -> str:
        """The name of that task: classify, segment, detect, spoof, …"""
        return self.kind.name

    @property
    def backbone(self) -> "Predictor":
        """Of a model whose answers lie inside the image its backbone as a predictor of features; else itself."""
        if not self.kind.answers_inside:
            return self
        if isinstance(self.model, OnnxModel):
            raise VitrailError(f"The backbone of {self.model.path} can't be had: load the run itself.")
        model: Any = self.kind.backbone(self.model)
        pre = self.preprocessing
        if pre.fit == "native":  # of a size that a transformer can attend over
            pre = replace(pre, size=model.settings.image_size, fit="stretch")
        self._backbone = self._backbone or Predictor(model, pre, None, self.name, self.device)
        return self._backbone

    def class_index(self, target: int | str) -> int:
        """The index of a class, from its label or from the index itself."""
        if not self.labels:
            raise VitrailError(
                f"There is no class {target!r}: this model has none, nor has the backbone of a segmenter or a detector,"
                " which is what is looked into; leave the target out."
            )
        found = [i for i, label in enumerate(self.labels) if str(target) == label]
        found = found or [i for i, label in enumerate(self.labels) if str(target).lower() == label.lower()]
        if isinstance(target, int) or (not found and re.fullmatch(r"\d+", str(target))):
            if not 0 <= int(target) < len(self.labels):
                raise VitrailError(f"There is no class {target}: the model has {len(self.labels)}, counted from 0.")
            return int(target)
        if not found:
            raise VitrailError(f"The model has no class {target!r}.{nearest(str(target), self.labels)}")
        if len(found) > 1:
            raise VitrailError(f"{target!r} is the name of classes {' and '.join(map(str, found))}: give the index.")
        return found[0]

    @torch.inference_mode()
    def stream(
        self,
        images: Any,
        what: str = "probabilities",
        batch_size: int = 32,
        flip: bool = False,
        crops: int = 1,
    ) -> Iterator[Outcome]:
        """One outcome per image, in order and as they come: its `probabilities` (its `values`, of a model that was
        trained to regress) or its `features`, or its error."""
        check_views(batch_size, crops)
        if what == "features" and self.backbone is not self:
            yield from self.backbone.stream(images, what, batch_size, flip, crops)
        else:
            yield from self._outcomes(images, self._function(what), batch_size, flip, crops)

    def _function(self, what: str) -> Function:
        model: Any = self.model
        if what == "features":
            encoder = self.kind.backbone(model)
            return lambda x: encoder.features(x, layers=())["pooled"]
        kind = self.kind
        if what not in ("probabilities", "values"):
            raise VitrailError(f'{what!r} can\'t be predicted: use "probabilities", "values" or "features".')
        if kind.answers_inside:
            raise kind.refuse(self, "classify")
        if what != kind.answer:
            raise VitrailError(
                f"{self.name or 'This model'} gives {kind.answer} and no {what}: use `{kind.answer}`.",
                code="other_answer", answer=kind.answer, wanted=what,
            )  # fmt: skip
        if not self.labels:
            raise VitrailError(f"{self.name or 'This model'} has no classes to predict; it gives features (`embed`).")
        return lambda x: kind.interpreted(self, model(x).float())

    def adapt(self, name: str, path: str | PathLike[str]) -> None:
        """Adds an adapter.safetensors that was made on this model, to be switched to by `use(name)`."""
        if self._adapters is None:
            self._adapters = Adapters(self.model)
            self._own = self.labels, self.preprocessing, self.about
        self._adapters.add(name, path)
        if self._adapters.active == name:  # again, from another file: with the classes of that
            self.use(name)

    def use(self, name: str | None) -> "Predictor":
        """Switches to an adapter by its name, with its classes and preprocessing; None is the model by itself again."""
        if self._adapters is None:
            raise VitrailError(f"There is no adapter {name!r} yet: add one with adapt(name, path).")
        self._adapters.use(name)
        if name is None:
            self.labels, self.preprocessing, self.about = self._own
        else:
            header = self._adapters.files[name].header
            count = header.settings.num_classes
            self.labels = header.labels or [f"class {i}" for i in range(count)]
            self.preprocessing, self.about = header.preprocessing, dict(header.about)
        return self

    def save(self, path: str | PathLike[str], half: bool = False) -> Path:
        """One file that holds all of this object; `vitrail.load` reads it back. `half`: in half of the bytes, fp16."""
        labels, pre = self.labels or None, self.preprocessing
        return save_weights(self.model, Path(path), "vitrail", labels, pre, self.name, self.about, half)


def _check_top(top: int | None) -> None:
    if top is not None and top < 1:
        raise VitrailError(f"top must be at least 1, got {top}.")
