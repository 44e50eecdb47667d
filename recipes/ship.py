"""Puts a run into the package, as one of the models that ship inside.

    python recipes/ship.py runs/tiny vitrail_tiny --record records/tiny_imagenet/tiny.json
    python recipes/ship.py runs/tiny-mae vitrail_tiny_mae

Half precision, readable labels in place of WordNet's ids, and in the header the recipe and the figures, without a word
about the machine. What it writes is read back, and must answer as the run does.
"""

import argparse
from pathlib import Path

import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.models import MaskedAutoencoder
from vitrail.predict import Predictor
from vitrail.weights.shipped import FOLDER, LARGEST

LABELS = Path(__file__).with_name("tiny_imagenet_labels.tsv")
KEPT = ("task", "multi_label", "recipe", "data", "metrics", "teacher")  # of what a run says of itself


def readable(labels: list[str], table: Path = LABELS) -> list[str]:
    """Names in place of WordNet's ids; other labels are names already."""
    rows = (line.split("\t") for line in table.read_text(encoding="utf-8").splitlines())
    names = dict((number, name) for number, name in rows)
    return [names.get(label, label) for label in labels]


def ship(run: str | Path, name: str, record: str | None = None, folder: Path = FOLDER) -> Path:
    """The file that was written."""
    if name not in LARGEST:
        raise VitrailError(f"{name} is none of the models that ship inside: {', '.join(LARGEST)}.")
    whole = vitrail.load(run, device="cpu")
    labels = readable(whole.labels) if whole.labels else None
    about = {key: whole.about[key] for key in KEPT if key in whole.about} | ({"record": record} if record else {})
    path = folder / f"{name}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    Predictor(whole.model, whole.preprocessing, labels, name, "cpu", about).save(path, half=True)
    try:
        if (size := path.stat().st_size) > LARGEST[name]:
            raise VitrailError(f"{name} takes {size / 1e6:.1f} MB, and {LARGEST[name] / 1e6:g} MB is the limit.")
        if (found := difference(whole, vitrail.load(path, device="cpu"))) > 0.02:
            raise VitrailError(f"{name} answers otherwise than the run, by {found:.3f} of what it says.")
    except VitrailError:
        path.unlink()
        raise
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
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    try:
        ship(asked.run, asked.name, asked.record, asked.folder)
    except VitrailError as error:
        parser.exit(2, f"{error}\n")
