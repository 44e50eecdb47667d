"""Draws the pictures of README and docs from real tensors.

    python docs/make_pictures.py --weights DEIT_TINY --photographs IMAGENET_VAL --tiny tiny_imagenet.npz

The photograph of Grace Hopper ships with matplotlib and is in the public domain. The weights are DeiT-Ti's: a file, a
folder, or the catalog name `deit_ti16` where the hub can be reached. IMAGENET_VAL has a folder for each class and
classes.json with their names; of those that vitrail_tiny knows too, every fifteenth is shown to it, right or wrong.
Some of Tiny-ImageNet's validation images are shown to vitrail_tiny_mae.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image

import vitrail
from vitrail.data import fit_image, to_tensor
from vitrail.explain import reconstruct
from vitrail.explain.colours import component_colours, principal_components
from vitrail.tasks.reconstruct.objective import sheet

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
INK, PAPER = "#22272e", "#ffffff"
# Classes of Tiny-ImageNet. Every fifth was looked at, and in these one sees best what is shown.
SHOWN = (10, 20, 25, 45, 70, 90, 145, 155)


def walk(predictor: vitrail.Predictor, photo: Image.Image) -> None:
    """One row: photograph, patches, embedding, + positions, what the class token attends to, classes."""
    picture = fit_image(photo, predictor.preprocessing)
    x = to_tensor(picture, predictor.preprocessing)[None]
    model = predictor.model
    with torch.inference_mode(), vitrail.capture(model, layers=[-1]) as maps:
        embedded = model.patch(x)  # B h w D
        model(x)
    attention = next(iter(maps.values()))[0, :, 0, 1:].mean(0).view(14, 14)
    table = model.position.table[0, 1:].detach()
    similarity = torch.cosine_similarity(table[14 * 7 + 7][None], table, dim=1).view(14, 14)

    figure, axes = plt.subplots(1, 6, figsize=(16, 3.3), layout="constrained", facecolor=PAPER)
    pixels = np.asarray(picture)
    axes[0].imshow(pixels)
    axes[0].set_title("image\n[1, 3, 224, 224]")
    gap = np.full((14 * 19, 14 * 19, 3), 255, np.uint8)
    for row in range(14):
        for column in range(14):
            patch = pixels[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            gap[19 * row : 19 * row + 16, 19 * column : 19 * column + 16] = patch
    axes[1].imshow(gap)
    axes[1].set_title("14 × 14 patches\nof 16·16·3 = 768 numbers")
    axes[2].imshow(colours(embedded[0].flatten(0, 1)).reshape(14, 14, 3))
    axes[2].set_title("embeddings, as colours\n[1, 196, 192]")
    axes[3].imshow(similarity, cmap="viridis")
    axes[3].plot(7, 7, "o", color="white", markersize=5)
    axes[3].set_title("+ positions\nsimilar to the one at ○")
    heat = torch.nn.functional.interpolate(attention[None, None], scale_factor=16, mode="bicubic")[0, 0].clamp(min=0)
    heat = heat / heat.max()
    axes[4].imshow(pixels)
    axes[4].imshow(heat, cmap="magma", alpha=0.65)
    axes[4].set_title("12 blocks: what the class\ntoken attends to at the end")
    best = predictor.predict([photo], top=5)[0]
    axes[5].barh(range(5), [p.probability for p in best], color=["#d1495b"] + ["#8d99ae"] * 4)
    for place, p in enumerate(best):
        axes[5].text(0.02, place, f"{p.label}  {p.probability:.0%}", va="center", fontsize=10, color=INK)
    axes[5].set(xlim=(0, 1), ylim=(4.6, -0.6), box_aspect=1)
    axes[5].set_title("classes\n[1, 1000] → softmax")
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
        for side in ax.spines.values():
            side.set_visible(False)
    figure.savefig(HERE / "pictures" / "walk.png", dpi=110)
    plt.close(figure)


def photographs(folder: Path) -> None:
    """What the classifier that ships inside says to whole photographs: their true names, and its first three."""
    predictor = vitrail.load(device="cpu")
    names = {key: str(name).lower() for key, name in json.loads((folder / "classes.json").read_text()).items()}
    known = {label.lower() for label in predictor.labels}
    shown = [key for key, name in sorted(names.items()) if name in known][::15]
    paths = [sorted((folder / key).glob("*.jpg"))[0] for key in shown]
    figure = plt.figure(figsize=(13, 5.7), layout="constrained", facecolor=PAPER)
    axes = figure.subplots(3, 8, width_ratios=[1, 1.15] * 4).reshape(-1, 2)
    for (left, right), key, path, best in zip(axes, shown, paths, predictor.predict(paths, top=3), strict=True):
        left.imshow(fit_image(Image.open(path).convert("RGB"), vitrail.models.Preprocessing(size=(256, 256), crop=1.0)))
        left.set_title(names[key], fontsize=9, color=INK)
        marks = ["#8fd3c1" if p.label.lower() == names[key] else "#c9ced6" for p in best]
        right.barh(range(3), [p.probability for p in best], color=marks, height=0.62)
        for place, p in enumerate(best):
            right.text(0.02, place, f"{p.label}  {p.probability:.0%}", va="center", fontsize=8.5, color=INK)
        right.set(xlim=(0, 1), ylim=(2.9, -0.9))
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        for side in ax.spines.values():
            side.set_visible(False)
    figure.savefig(HERE / "pictures" / "photographs.jpg", dpi=110, pil_kwargs={"quality": 88})
    plt.close(figure)


def reconstruction(data: Path) -> None:
    """What the autoencoder that ships inside paints, of the first validation image of some classes."""
    predictor = vitrail.load("vitrail_tiny_mae", device="cpu")
    with np.load(data) as arrays:
        first = [int(np.flatnonzero(arrays["test_labels"] == number)[0]) for number in SHOWN]
        x = predictor.normalised(torch.from_numpy(arrays["test_images"][first]))
    pre = predictor.preprocessing
    found = reconstruct(predictor.model, x, mean=pre.mean, std=pre.std)
    sheet(found).save(HERE / "pictures" / "reconstruction.png", optimize=True)


def colours(tokens: torch.Tensor) -> np.ndarray:
    """[n, D] -> [n, 3], as everywhere else."""
    return component_colours(principal_components(tokens)).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="deit_ti16")
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--tiny", type=Path)
    asked = parser.parse_args()
    (HERE / "pictures").mkdir(exist_ok=True)
    with get_sample_data("grace_hopper.jpg") as file:
        walk(vitrail.load(asked.weights, device="cpu"), Image.open(file).convert("RGB"))
    if asked.photographs:
        photographs(asked.photographs)
    if asked.tiny:
        reconstruction(asked.tiny)


if __name__ == "__main__":
    main()
