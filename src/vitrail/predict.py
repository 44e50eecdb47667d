"""`Predictor`: a model, its preprocessing and its labels in one object; what every user-facing verb loads."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data import prepare, several
from vitrail.errors import VitrailError
from vitrail.models import MaskedAutoencoder, Preprocessing, resolve
from vitrail.models.catalog import change
from vitrail.models.checks import pair
from vitrail.weights import model_from, read_checkpoint, save_weights


@dataclass(frozen=True)
class Prediction:
    label: str
    index: int
    probability: float


class Predictor:
    """Pictures in, classes or features out. Pictures are paths, PIL images, arrays or tensors; one, or many."""

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        labels: list[str] | None = None,
        name: str | None = None,
        device: str | torch.device | None = None,
    ):
        try:
            self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            self.model = model.to(self.device).eval()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise VitrailError(f"The device {device!r} can't be used: {reason}; use cpu, or cuda with a GPU.") from None
        self.preprocessing, self.name = preprocessing, name
        classes: int = model.settings.num_classes  # type: ignore[union-attr,assignment]
        if labels is not None and len(labels) != classes:
            raise VitrailError(f"{len(labels)} labels were given for a model of {classes} classes.")
        self.labels = labels or (imagenet_labels() if classes == 1000 else [f"class {i}" for i in range(classes)])

    def __repr__(self) -> str:
        classes, size = len(self.labels), "×".join(map(str, self.preprocessing.size))
        return f"Predictor({self.name or type(self.model).__name__}, {classes} classes, {size}, on {self.device})"

    def predict(self, images: Any, top: int = 5, batch_size: int = 32) -> list[list[Prediction]]:
        """For each image its `top` classes, the likeliest first."""
        if top < 1:
            raise VitrailError(f"top must be at least 1, got {top}.")
        if not self.labels:
            raise VitrailError(f"{self.name or 'This model'} has no classes to predict; it gives features (`embed`).")
        results = []
        for logits in self._forward(self.model, images, batch_size):
            probability, index = logits.float().softmax(dim=-1).topk(min(top, len(self.labels)))
            for chances, indices in zip(probability.tolist(), index.tolist(), strict=True):
                results.append([Prediction(self.labels[i], i, p) for p, i in zip(chances, indices, strict=True)])
        return results

    def embed(self, images: Any, batch_size: int = 32) -> Tensor:
        """The pooled features that the head would see, one row per image: [n, D]."""
        model: Any = self.model.encoder if isinstance(self.model, MaskedAutoencoder) else self.model
        return torch.cat([*self._forward(lambda x: model.features(x)["pooled"], images, batch_size)])

    def save(self, path: str | Path) -> Path:
        """One file that holds all of this object; `vitrail.load` reads it back."""
        return save_weights(self.model, path, "vitrail", self.labels or None, self.preprocessing, self.name)

    @torch.inference_mode()
    def _forward(self, function: Any, images: Any, batch_size: int) -> Iterator[Tensor]:
        if batch_size < 1:
            raise VitrailError(f"batch_size must be at least 1, got {batch_size}.")
        images = list(several(images))
        if not images:
            raise VitrailError("No images were given: pass at least one.")
        like = next(self.model.parameters())
        for start in range(0, len(images), batch_size):
            yield function(prepare(images[start : start + batch_size], self.preprocessing).to(like)).cpu()


def load(
    source: str | Path | None = None,
    model: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    device: str | torch.device | None = None,
) -> Predictor:
    """A predictor from a run folder, a bundle, a checkpoint of any dialect, `hf://org/name`, or a catalog name.

    `model` names the architecture of a bare checkpoint that could be of several. `image_size` changes the size that
    pictures are brought to; the model takes any.
    """
    if source is None:
        raise VitrailError(
            "No model ships inside this version yet: name a checkpoint, a folder, hf://org/name or a catalog name."
        )
    if not str(source).startswith("hf://") and not Path(source).expanduser().exists():
        source = _published(str(source))
    checkpoint = read_checkpoint(source, model)
    pre = checkpoint.preprocessing
    if image_size is not None:
        pre = replace(pre, size=pair(image_size, "image_size"))
    return Predictor(model_from(checkpoint), pre, checkpoint.labels, checkpoint.name, device)


def _published(name: str) -> str:
    """Where the public weights of a catalog name lie: of that very model, not of one like it."""
    if name.endswith((".safetensors", ".pth", ".pt", ".bin", ".npz")):
        raise VitrailError(f"There is no file {name}.")
    try:
        entry, implied = resolve(name)
    except VitrailError as error:
        raise VitrailError(f"{name!r} is neither a file or folder nor a model name: {error}") from None
    hub = entry.hub or ""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and name != hub and not name.startswith(("ViT", "R50", "R26")):
        raise VitrailError(f"There is no file or folder {name}; for the hub write hf://{name}.")
    tag, recorded = name.partition(".")[2], hub.partition(".")[2]
    changed = {key: value for key, value in implied.items() if change(entry.settings, **{key: value}) != entry.settings}
    if not hub or changed or (tag and tag != recorded):
        what = f"{name} (another than {hub})" if hub else entry.name
        raise VitrailError(f"No public weights are recorded for {what}; give a file, a folder, or hf://org/name.")
    return f"hf://{hub}"


def imagenet_labels() -> list[str]:
    """The names of ImageNet's 1000 classes, in order, as torchvision keeps them beside its weights."""
    from torchvision.models import ViT_B_16_Weights

    return list(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
