"""What `vitrail predict` prints and writes of a segmenter's answers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.tasks.dense.writing import DenseWriter
from vitrail.tasks.segment.drawing import summary


class MaskWriter(DenseWriter):
    """The share of each class; with --out the mask, an overlay and a summary of each image."""

    def __init__(self, predictor: Any, options: Mapping[str, Any], **answer_options: Any):
        super().__init__(predictor, options, **answer_options)
        self.rows: list[dict[str, Any]] = []

    def write(self, path: Path, answer: Any) -> None:
        print(f"{path}  {answer.image.width}×{answer.image.height}")
        for one in answer.shares:
            print(f"  {one['share']:6.1%}  {'█' * round(20 * one['share']):<20}  {one['label']}")
        if path in self.places:
            answer.save(self.places[path].parent, self.places[path].name, str(path))
        if self.json:
            self.rows.append(summary(answer.mask, self.predictor.labels, str(path)))

    def close(self) -> None:
        if self.json:
            json.dump(self.rows, self.json, indent=2, ensure_ascii=False)
