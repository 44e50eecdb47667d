"""What `vitrail predict` prints and writes of a detector's answers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.tasks.dense.writing import DenseWriter
from vitrail.tasks.detect.drawing import Answer, coco_results, write_coco

LISTED = 12  # boxes of an image that are printed; the files have all


class BoxWriter(DenseWriter):
    """Boxes with their labels; with --out a drawing of each image, and COCO's JSON of all."""

    def __init__(self, predictor: Any, options: Mapping[str, Any], **answer_options: Any):
        super().__init__(predictor, options, **answer_options)
        self.answers: list[Answer] = []

    def write(self, path: Path, answer: Any) -> None:
        print(f"{path}  {answer.image.width}×{answer.image.height}")
        for one in answer[:LISTED]:
            box = ", ".join(f"{side:.0f}" for side in one.box)
            print(f"  {one.probability:6.1%}  {one.label}  [{box}]")
        if len(answer) > LISTED:
            print(f"  and {len(answer) - LISTED} more")
        elif not len(answer):
            print("  nothing found")
        if path in self.places:
            place = self.places[path]
            answer.save(place.with_name(f"{place.name}_boxes.png"))
        self.answers.append(Answer(str(path), (answer.image.height, answer.image.width), answer.found))

    def close(self) -> None:
        labels, ids = self.predictor.labels, self.predictor.about.get("category_ids")
        if self.json:
            json.dump(coco_results(self.answers, labels, ids), self.json, ensure_ascii=False)
        if self.out is not None and self.answers:
            write_coco(self.out / "predictions.json", self.answers, labels, ids)
