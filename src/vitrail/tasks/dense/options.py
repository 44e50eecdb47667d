"""The options of tasks whose answers lie inside the image."""

from dataclasses import dataclass
from typing import Literal

from vitrail.options import Options


@dataclass(frozen=True)
class DenseOptions(Options):
    pyramid: Literal["adapter", "simple", "own"] | None = None
    """Maps at several strides out of a backbone: ViT-Adapter, ViTDet's simple one, or a Swin's own."""
    tune: Literal["full", "head"] = "full"
    """What is trained: everything, or all but the backbone."""
