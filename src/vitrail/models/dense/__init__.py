"""An answer for every place of an image: segmenters and detectors on the maps of any backbone."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy

if TYPE_CHECKING:
    from vitrail.models.dense.backbone import make_pyramid
    from vitrail.models.dense.detector import Detector
    from vitrail.models.dense.segmenter import Segmenter
    from vitrail.models.dense.settings import DETECT_HEADS, SEGMENT_HEADS, DetectorSettings, SegmenterSettings
else:
    __getattr__, __dir__ = lazy(  # torchvision's detection alone takes a second
        __name__,
        {
            "vitrail.models.dense.backbone": ("make_pyramid",),
            "vitrail.models.dense.detector": ("Detector",),
            "vitrail.models.dense.segmenter": ("Segmenter",),
            "vitrail.models.dense.settings": (
                "DETECT_HEADS", "SEGMENT_HEADS", "DetectorSettings", "SegmenterSettings",
            ),
        },
    )  # fmt: skip

__all__ = [
    "DETECT_HEADS",
    "SEGMENT_HEADS",
    "Detector",
    "DetectorSettings",
    "Segmenter",
    "SegmenterSettings",
    "make_pyramid",
]
