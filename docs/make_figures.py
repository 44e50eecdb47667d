"""Measures and draws what docs/looking-inside.md shows:

    python docs/make_figures.py --weights DEIT_TINY --pictures IMAGENET_VAL

measures attention and the faithfulness of the explanations of DeiT-Ti on 200 pictures, into records/explain/, and
draws the figures. Without --pictures it draws from the numbers on record. The photograph of Grace Hopper ships with
matplotlib and is in the public domain. On two CPU cores the measuring takes about twenty minutes, on a GPU one.
"""

import argparse
import io
import json
import time
from pathlib import Path

import torch

import vitrail
from vitrail import explain
from vitrail.data import prepare

HERE = Path(__file__).parent
RECORD = HERE.parent / "records" / "explain" / "deit_ti16.json"


def measure(predictor: vitrail.Predictor, folder: Path, count: int, record: Path) -> None:
    """`count` pictures spread evenly over the folder, in batches of 20; everything in fp32."""
    paths = sorted(folder.rglob("*.jpg"))
    paths = paths[:: max(1, len(paths) // count)][:count]
    batches = [
        prepare(paths[i : i + 20], predictor.preprocessing).to(predictor.device) for i in range(0, len(paths), 20)
    ]
    start = time.monotonic()
    distance = sum(explain.attention_distance(predictor.model, x) * len(x) for x in batches) / len(paths)
    entropy = sum(explain.attention_entropy(predictor.model, x) * len(x) for x in batches) / len(paths)
    found = explain.compare(predictor.model, batches)
    print(found)
    device = torch.cuda.get_device_name() if predictor.device.type == "cuda" else "CPU"
    about = {
        "command": "python docs/make_figures.py --weights DEIT_TINY --pictures IMAGENET_VAL",
        "model": predictor.name,
        "pictures": f"{len(paths)} of {folder.name}",
        "torch": torch.__version__,
        "device": device,
        "seconds": round(time.monotonic() - start, 1),
    }
    tables = {"distance": distance.tolist(), "entropy": entropy.tolist()}
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({**about, **tables, "faithfulness": found.as_dict()}, indent=1) + "\n")


def draw(predictor: vitrail.Predictor, record: Path) -> None:
    from matplotlib.cbook import get_sample_data
    from matplotlib.figure import Figure
    from PIL import Image

    from vitrail.explain import figures
    from vitrail.explain.explanation import portrait

    def save(name: str, *beside: Figure) -> None:
        """Side by side, as tall as the tallest."""
        images = [Image.open(io.BytesIO(figures.png(figure, dpi=110))).convert("RGB") for figure in beside]
        width = sum(image.width for image in images) + 40 * (len(images) - 1)
        sheet = Image.new("RGB", (width, max(image.height for image in images)), "white")
        left = 0
        for image in images:
            sheet.paste(image, (left, 0))
            left += image.width + 40
        path = HERE / "pictures" / f"{name}.png"
        sheet.save(path, optimize=True)
        if path.stat().st_size > 300_000:  # a palette of 256 colours is a third of the bytes
            sheet.quantize(256, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)

    with get_sample_data("grace_hopper.jpg") as file:
        photo = Image.open(file).convert("RGB")
    found = predictor.explain(photo, faithfulness=False)
    picture, model = found.picture, predictor.model
    x = prepare(photo, predictor.preprocessing).to(predictor.device)
    save("inside-maps", found.figure())
    uniform, tie = (predictor.class_index(name) for name in ("military uniform", "bow tie"))
    maps = {
        f"{figures.name_of(method)}: {name}": explain.METHODS[method](model, x, target)[0]
        for method in ("relevance", "grad_cam")
        for name, target in (("uniform", uniform), ("bow tie", tie))
    }
    save("inside-classes", figures.saliency_figure(picture, maps, dict.fromkeys(maps, (16, 16))))
    layers = [0, 2, 4, 6, 8, 10, 11]
    rows = [found.attention[i] for i in layers]
    save("inside-heads", figures.heads_figure(picture, rows, [(16, 16)] * len(rows), layers))
    alike = explain.token_similarity(model, x, (2, 5))[0]
    save(
        "inside-tokens",
        figures.pca_figure(picture, found.pca, (16, 16)),
        figures.similarity_figure(picture, alike, (16, 16), (2, 5)),
    )

    about = portrait(model, picture.shape[:2])
    numbers = json.loads(record.read_text())
    save(
        "inside-reach",
        figures.distance_figure(torch.tensor(numbers["distance"]), about.farthest),
        figures.entropy_figure(torch.tensor(numbers["entropy"]), about.most),
    )
    save("inside-weights", figures.position_figure(about.positions, 3.4), figures.filters_figure(*about.filters))
    judged = numbers["faithfulness"]
    deletion, insertion = (
        {name: torch.tensor(one[f"{kind}_curve"]) for name, one in judged["methods"].items()}
        for kind in ("deletion", "insertion")
    )
    save("inside-faithfulness", figures.mean_curves_figure(deletion, insertion, judged["n"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="deit_ti16")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--device")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--no-figures", action="store_true")
    options = parser.parse_args()
    predictor = vitrail.load(options.weights, device=options.device)
    if options.pictures:
        measure(predictor, options.pictures, options.count, options.record)
    if not options.no_figures:
        draw(predictor, options.record)


if __name__ == "__main__":
    main()
