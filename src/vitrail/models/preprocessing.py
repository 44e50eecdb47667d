"""What was done to an image before a model saw it."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # to [-1, 1]
CLIP: dict[str, Any] = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


class TakesImages(Protocol):
    """The settings of a model, of any family."""

    @property
    def image_size(self) -> tuple[int, int]: ...

    @property
    def channels(self) -> int: ...


@dataclass(frozen=True)
class Preprocessing:
    """What was done to an image before the model saw it; travels with the weights."""

    size: tuple[int, int] = (224, 224)  # height, width
    mean: tuple[float, ...] = IMAGENET["mean"]
    std: tuple[float, ...] = IMAGENET["std"]
    crop: float = 0.9  # the short side is brought to size / crop before the centre is cut out
    interpolation: str = "bicubic"
    fit: str = "crop"  # crop | pad | stretch | native

    def suited(self, settings: "TakesImages") -> "Preprocessing":
        """For a model of another size, or of other channels: each gets the average of the colours."""
        pre = replace(self, size=settings.image_size)
        if len(pre.mean) == settings.channels:
            return pre
        mean, std = sum(pre.mean) / len(pre.mean), sum(pre.std) / len(pre.std)
        return replace(pre, mean=(mean,) * settings.channels, std=(std,) * settings.channels)
