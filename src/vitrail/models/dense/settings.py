"""What rebuilds a segmenter or a detector: the settings of its backbone, and of what stands on it.

They are apart from the networks, `segmenter.py` and `detector.py`, so that reading a header builds and imports neither.
"""

from dataclasses import dataclass, replace
from typing import Any

from vitrail.errors import VitrailError, nearest
from vitrail.models.checks import check_settings, known_fields
from vitrail.models.grid import Grid
from vitrail.models.swin import SwinSettings
from vitrail.models.vit import ViTSettings

SEGMENT_HEADS = ("upernet", "fcn", "linear")
DETECT_HEADS = ("faster_rcnn", "mask_rcnn", "retinanet")
NORMS = ("group", "channel")


@dataclass(frozen=True)
class SegmenterSettings:
    """All that rebuilds a `Segmenter`; the backbone's classifier is left out."""

    backbone: ViTSettings | SwinSettings
    num_classes: int
    head: str = "upernet"  # upernet | fcn | linear
    pyramid: str = "auto"  # adapter | simple, of a ViT; own, of a Swin; auto: adapter, or own
    width: int = 256  # of the pyramid's maps and of the head
    norm: str = "group"  # group | channel: both over one image, so that batches may be small
    dropout: float = 0.1  # of whole channels, before the classifier

    def __post_init__(self) -> None:
        _settle(self)
        counts = {"num_classes": 1, "width": 1}
        check_settings(self, {"head": SEGMENT_HEADS, "norm": NORMS}, counts, rates=["dropout"])

    @property
    def inside(self) -> str:
        """What the names of the backbone's weights begin with."""
        return "body." if self.head == "linear" else "body.model."

    @property
    def image_size(self) -> Grid:
        return self.backbone.image_size

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.backbone.channels


@dataclass(frozen=True)
class DetectorSettings:
    """What rebuilds a `Detector`, down to the rules that turn its maps into boxes."""

    backbone: ViTSettings | SwinSettings
    num_classes: int
    head: str = "faster_rcnn"  # faster_rcnn | mask_rcnn | retinanet
    pyramid: str = "auto"  # adapter | simple for a ViT, own for a Swin
    pyramid_channels: int = 256
    hidden: int = 1024  # width of the box head
    # How an image is sized to be looked at: the short side as asked, unless the long one would grow beyond its own.
    short_side: int = 480
    long_side: int = 800
    anchor: float | None = None  # side of the smallest anchor of a level, in its strides; None: 8, RetinaNet 4
    proposals: int = 1000  # regions that go on from the first stage
    regions: int = 128  # of those, the ones of each image that the second stage learns from; 512 take twice the time
    score_threshold: float = 0.05
    overlap: float = 0.5  # IoU above which the weaker of two boxes of one class is dropped
    detections: int = 100  # most boxes of an image

    def __post_init__(self) -> None:
        _settle(self)
        if self.head not in DETECT_HEADS:
            raise VitrailError(
                f"{self.head!r} is no detection head: use {', '.join(DETECT_HEADS)}.{nearest(self.head, DETECT_HEADS)}"
            )
        counts = dict.fromkeys(("num_classes", "pyramid_channels", "hidden", "proposals", "regions", "detections"), 1)
        counts |= {"short_side": 32, "long_side": self.short_side}
        check_settings(self, {}, counts, rates=["score_threshold", "overlap"])

    @property
    def inside(self) -> str:
        """What the names of the backbone's weights begin with."""
        return "net.backbone.pyramid.model."

    @property
    def channels(self) -> int:
        return self.backbone.channels

    @property
    def image_size(self) -> Grid:
        return self.short_side, self.long_side

    def looking_at(self, short_side: int) -> "DetectorSettings":
        """The same for images in another size; the long side may be as many times longer as before."""
        return replace(self, short_side=short_side, long_side=round(short_side * self.long_side / self.short_side))

    @property
    def background(self) -> int:
        """How many classes torchvision counts before ours."""
        return 0 if self.head == "retinanet" else 1


def _settle(settings: Any) -> None:
    """What is left open follows from the backbone, which may be the plain JSON of a header."""
    object.__setattr__(settings, "backbone", _backbone(settings.backbone))
    if settings.pyramid == "auto":
        object.__setattr__(settings, "pyramid", "own" if isinstance(settings.backbone, SwinSettings) else "adapter")


def _backbone(values: Any) -> Any:
    """Settings, or their plain JSON out of a header; without a classifier, which has no part in a dense model."""
    if isinstance(values, dict):
        kind: Any = SwinSettings if "depths" in values else ViTSettings
        values = kind(**known_fields(kind, values, "The backbone's"))
    if not isinstance(values, ViTSettings | SwinSettings):
        raise VitrailError(f"A backbone's settings are those of a ViT or a Swin, got {values!r}.")
    plain: dict[str, Any] = {"head": "linear"} if isinstance(values, ViTSettings) else {}
    return replace(values, num_classes=0, **plain)
