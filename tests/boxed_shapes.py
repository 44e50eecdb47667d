"""Squares and discs on a plain ground, with their boxes and outlines."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.sources.boxes.samples import Boxed

CLASSES = ["square", "disc"]


def shapes(folder: Path, count: int = 4, side: int = 96, seed: int = 0) -> list[Boxed]:
    """Pictures of two shapes each, one in either half."""
    random = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        image = Image.new("RGB", (side, side), (60, 70, 80))
        pen, boxes, classes, outlines = ImageDraw.Draw(image), [], [], []
        for half in range(2):
            w = int(random.integers(side // 4, side * 2 // 5))
            x = half * side // 2 + int(random.integers(1, side // 2 - w)) if w < side // 2 - 1 else half * side // 2
            y = int(random.integers(1, side - w))
            kind = (number + half) % 2
            if kind == 0:
                pen.rectangle([x, y, x + w - 1, y + w - 1], fill=(220, 60, 60))
                points = [(x, y), (x + w, y), (x + w, y + w), (x, y + w)]
            else:
                pen.ellipse([x, y, x + w - 1, y + w - 1], fill=(60, 120, 220))
                turn = np.linspace(0, 2 * np.pi, 40, endpoint=False)
                points = [*zip(x + w / 2 * (1 + np.cos(turn)), y + w / 2 * (1 + np.sin(turn)), strict=True)]
            boxes.append([x, y, x + w, y + w])
            classes.append(kind)
            outlines.append([np.array(points, np.float32) / side])
        path = folder / f"{number}.png"
        image.save(path)
        samples.append(
            Boxed(
                path.name, path, tuple(sorted({*classes})), np.array(boxes, np.float32) / side, np.array(classes),
                np.zeros(len(boxes), bool), tuple(outlines), (side, side), number + 1,
            )
        )  # fmt: skip
    return samples
