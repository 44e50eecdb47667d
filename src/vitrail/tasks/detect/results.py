"""What a detector found on one image: a list to go through, and a drawing to look at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.sources.boxes.outlines import from_runs
from vitrail.report.drawing import png
from vitrail.tasks.detect.drawing import draw
from vitrail.tasks.detect.metrics import Objects
from vitrail.whole import whole


@dataclass(frozen=True)
class Detection:
    label: str
    index: int
    probability: float
    box: tuple[float, float, float, float]  # x0, y0, x1, y1, in pixels of the image
    mask: np.ndarray | None = field(default=None, repr=False, compare=False)  # bool [h, w], of a Mask R-CNN


@dataclass(frozen=True, eq=False)
class Detections(Sequence[Detection]):
    """The surest first. A notebook draws them."""

    image: Image.Image  # upright
    found: Objects
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        found, index = self.found, int(self.found.classes[number])
        x0, y0, x1, y1 = found.boxes[number].tolist()
        mask = None if found.masks is None else from_runs(found.masks[number])
        return Detection(self.labels[index], index, float(found.scores[number]), (x0, y0, x1, y1), mask)

    def __iter__(self) -> Iterator[Detection]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Detections({', '.join(f'{d.label} {d.probability:.0%}' for d in self) or 'nothing'})"

    def above(self, probability: float) -> "Detections":
        return replace(self, found=self.found.above(probability))

    def drawing(self) -> Image.Image:
        return draw(self.image, self.found, self.labels)

    def save(self, path: str | Path) -> Path:
        """The drawing, as a PNG."""
        with whole(Path(path), ValueError) as part:
            self.drawing().save(part, "PNG")
        return Path(path)

    def _repr_png_(self) -> bytes:
        return png(self.drawing())
