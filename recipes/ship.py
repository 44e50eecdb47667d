r"""Puts a run into the package, as one of the models that ship inside.

    python recipes/ship.py runs/tiny/seed-0 vitrail_tiny --image-size 96 \
        --record records/speedrun/tiny_imagenet_hybrid.json
    python recipes/ship.py runs/tiny-mae vitrail_tiny_mae

Half precision, readable labels in place of WordNet's ids, and in the header the recipe, the figures, and those on test
images that a speed run's record has of that seed, without a word about the machine. `--image-size` is what pictures are
brought to before it looks at them, where that is not the size it learned from. What it writes is read back, and must
answer as the run does; only then it takes the place of the last.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.models import MaskedAutoencoder
from vitrail.predict import Predictor
from vitrail.weights.shipped import FOLDER, LARGEST
from vitrail.whole import whole

LABELS = Path(__file__).with_name("tiny_imagenet_labels.tsv")
# Of what a run says of itself.
KEPT = ("task", "multi_label", "recipe", "data", "held_out", "metrics", "tested", "teacher")
ROOT = Path(__file__).parents[1]


def readable(labels: list[str], table: Path = LABELS) -> list[str]:
    """Names in place of WordNet's ids; other labels are names already."""
    rows = (line.split("\t") for line in table.read_text(encoding="utf-8").splitlines())
    names = dict((number, name) for number, name in rows)
    return [names.get(label, label) for label in labels]


def tested(record: str, recipe: dict[str, Any]) -> dict[str, float]:
    """The figures on test images that the record of a speed run has of the run with this recipe; other kinds of record
    have them elsewhere."""
    found = json.loads((ROOT / record).read_text(encoding="utf-8"))
    if any(recipe.get(name) != value for name, value in found.get("recipe", {}).items()):
        raise VitrailError(f"{record} is about runs with another recipe than this one's.")
    same = (run for run in found.get("runs", []) if run.get("of") == "test" and run["seed"] == recipe["seed"])
    return next((run["figures"] for run in same), {})


def ship(
    run: str | Path, name: str, record: str | None = None, folder: Path = FOLDER, image_size: int | None = None
) -> Path:
    """The file that was written."""
    if name not in LARGEST:
        raise VitrailError(f"{name} is none of the models that ship inside: {', '.join(LARGEST)}.")
    run_model = vitrail.load(run, device="cpu", image_size=image_size)
    labels = readable(run_model.labels) if run_model.labels else None
    about = {key: run_model.about[key] for key in KEPT if key in run_model.about}
    if record:
        about["record"] = record
        if found := tested(record, about["recipe"]):
            about["tested"] = found
    path = folder / f"{name}.safetensors"
    with whole(path) as unfinished:
        halved = Predictor(run_model.model, run_model.preprocessing, labels, name, "cpu", about)
        halved.save(unfinished, half=True)
        if (size := unfinished.stat().st_size) > LARGEST[name]:
            raise VitrailError(f"{name} takes {size / 1e6:.1f} MB, and {LARGEST[name] / 1e6:g} MB is the limit.")
        if (found := difference(run_model, vitrail.load(unfinished, device="cpu"))) > 0.02:
            raise VitrailError(f"{name} answers otherwise than the run, by {found:.3f} of what it says.")
    print(f"{path}: {size / 1e6:.2f} MB; its answers differ from the run's by at most {found:.1e} of their size.")
    return path


@torch.no_grad()
def difference(one: Predictor, other: Predictor) -> float:
    """The largest difference of the logits, or of an autoencoder's features, beside the largest of them."""
    noise = torch.randn(4, 3, *one.preprocessing.size, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.avg_pool2d(noise, 5, 1, 2) * 3  # soft blots: nearer to a photograph than grains
    a, b = (m.encoder(x) if isinstance(m, MaskedAutoencoder) else m(x) for m in (one.model, other.model))
    return ((a - b).abs().max() / a.abs().max()).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("name", choices=LARGEST)
    parser.add_argument("--record", help="the record of its figures, a path in this repository")
    parser.add_argument("--image-size", type=int, help="that pictures are brought to; by default the run's")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    try:
        ship(asked.run, asked.name, asked.record, asked.folder, asked.image_size)
    except VitrailError as error:
        parser.exit(2, f"{error}\n")
