"""Small data with masks or boxes, and the options with which a dense run on it takes seconds."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COUNTS = {"train": 8, "val": 4, "test": 4}
COLOURS = np.array([[90, 90, 90], [220, 80, 60], [60, 90, 220]])
# The smallest ViT of the catalog: what a dense task puts on it is larger than itself.
SMALL = [
    "--model", "vit_nano4", "--weights", "none", "--device", "cpu", "--workers", "1", "--cache", "memory",
    "--epochs", "2", "--batch-size", "4",
]  # fmt: skip
SEGMENT = [*SMALL, "--task", "segment", "--head", "fcn", "--pyramid", "simple", "--image-size", "16"]
DETECT = [*SMALL, "--task", "detect", "--pyramid", "simple", "--image-size", "32"]


def make_masks(root: Path, counts: dict[str, int] = COUNTS, height: int = 20, width: int = 24) -> Path:
    """A red or blue rectangle on grey ground."""
    chance = np.random.default_rng(0)
    for split, count in counts.items():
        for folder in ("images", "masks"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            mask = np.zeros((height, width), np.uint8)
            top, left = chance.integers(0, height // 2, 2)
            mask[top : top + height // 2, left : left + width // 2] = 1 + number % 2
            colours = COLOURS[mask] + chance.normal(0, 8, (height, width, 3))
            Image.fromarray(colours.clip(0, 255).astype(np.uint8)).save(root / "images" / split / f"{number}.png")
            Image.fromarray(mask).save(root / "masks" / split / f"{number}.png")
    (root / "classes.txt").write_text("ground\nred\nblue\n")
    return root


def make_boxes(root: Path, counts: dict[str, int] = COUNTS, side: int = 32) -> Path:
    """COCO: a square or a disc on each, as an outline too; the last training image has none."""
    chance = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, count in counts.items():
        (root / split).mkdir(exist_ok=True)
        images, rows = [], []
        for number in range(count):
            image = Image.new("RGB", (side + 4, side), (60, 70, 80))
            images.append({"id": number + 1, "file_name": f"{number}.png", "width": side + 4, "height": side})
            if split != "train" or number < count - 1:
                size = int(chance.integers(side // 3, side // 2))
                x, y = (int(each) for each in chance.integers(0, side - size, 2))
                draw, kind = ImageDraw.Draw(image), number % 2
                shape = draw.rectangle if kind == 0 else draw.ellipse
                shape([x, y, x + size - 1, y + size - 1], fill=(220, 60, 60) if kind == 0 else (60, 120, 220))
                outline = [x, y, x + size, y, x + size, y + size, x, y + size]
                rows.append(
                    {
                        "id": len(rows) + 1, "image_id": number + 1, "category_id": kind + 1, "area": size * size,
                        "bbox": [x, y, size, size], "segmentation": [outline], "iscrowd": 0,
                    }
                )  # fmt: skip
            image.save(root / split / f"{number}.png")
        kinds = [{"id": 1, "name": "square"}, {"id": 2, "name": "disc"}]
        content = {"images": images, "annotations": rows, "categories": kinds}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root
