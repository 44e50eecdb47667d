"""At which size should a model look at photographs? Accuracy and loss by the side that they are brought to.

    python benchmarks/photographs.py pets/images/train imagenet_val_1k --sizes 64 80 96 112 128 160 --json sizes.json

A model that learned from random crops of small pictures has seen things larger than they are on whole pictures, and so
may do better where these are brought to more pixels than it learned from. A source is a folder of class folders, of
which those count that the model knows by name (classes.json beside them may name them otherwise); or an .npz with test
images whose labels are the model's own numbers. What is chosen by one source is to be judged by another.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import keep

import vitrail

SAME = {"persian": "persian cat", "egyptian mau": "egyptian cat"}  # what Oxford's pets are called in ImageNet


def pictures(source: Path, labels: list[str]) -> tuple[list[Any], torch.Tensor]:
    """The pictures of known classes, and their numbers."""
    if source.suffix == ".npz":
        with np.load(source) as arrays:
            return [Image.fromarray(image) for image in arrays["test_images"]], torch.tensor(arrays["test_labels"])
    names = {label.lower(): number for number, label in enumerate(labels)}
    table = source / "classes.json"
    called = json.loads(table.read_text()) if table.exists() else {}
    found = []
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        name = str(called.get(folder.name, folder.name)).lower().replace("_", " ")
        if (number := names.get(SAME.get(name, name))) is not None:
            found += [(path, number) for path in sorted(folder.glob("*.jpg"))]
    return [path for path, _ in found], torch.tensor([number for _, number in found])


def measured(predictor: Any, images: list[Any], truth: torch.Tensor) -> dict[str, float]:
    found = predictor.probabilities(images)
    return {
        "top1": (found.argmax(1) == truth).float().mean().item(),
        "top5": (found.topk(5).indices == truth[:, None]).any(1).float().mean().item(),
        "loss": torch.nn.functional.nll_loss(found.clamp_min(1e-9).log(), truth).item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--model", help="by default the one that ships inside")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 80, 96, 112, 128])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for source in asked.sources:
        images, truth = pictures(source, vitrail.load(asked.model).labels)
        for size in asked.sizes:
            figures = measured(vitrail.load(asked.model, image_size=size, device=asked.device), images, truth)
            rows.append({"source": str(source), "n": len(images), "size": size} | figures)
            words = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
            print(f"{source}, {len(images):,} pictures at {size}×{size}:  {words}", flush=True)
    keep(asked.json, {"rows": rows}, asked.device)


if __name__ == "__main__":
    main()
