"""`vitrail demo`: the model that ships inside looks at photographs; then one is trained on real digits in a minute,
measured, put to use, and looked into."""

import sys
from pathlib import Path
from typing import Any


def demo(out: Path = Path("runs/demo")) -> None:
    """Shows photographs to the model that ships inside, then trains a small ViT on scikit-learn's handwritten digits,
    measures it on held-out ones, and draws what it sees.

    Args:
        out: Folder for the images, the run and its report. What an earlier demo left there is replaced.
    """
    import shutil

    import vitrail
    from vitrail.training.signals import Stopped

    if (out / "run").exists():
        shutil.rmtree(out / "run")
    photographs(out / "photographs")
    data = write_digits(out / "digits")
    print(f"scikit-learn's handwritten digits are now pictures in {data}: two thirds in train/, the rest in test/.\n")

    # Left and right matter in a digit, so nothing is mirrored. Everything else is what `train` chooses by itself.
    try:
        run = vitrail.train(data, weights="none", epochs=80, flip=0.0, out=out / "run")
    except Stopped:
        raise KeyboardInterrupt("Stopped; `vitrail demo` begins anew.") from None
    figures = vitrail.evaluate(run, data)
    low, high = figures["top1_low"], figures["top1_high"]
    print(
        f"\nOn the {figures['n']} pictures of test/, which the training has not seen: {figures['top1']:.1%} "
        f"are recognised (95 % interval {low:.1%} to {high:.1%}).\n"
    )
    predictor = vitrail.load(run)
    sample = [sorted((data / "test" / digit).iterdir())[0] for digit in "03589"]
    for path, (best, second) in zip(sample, predictor.predict(sample, top=2), strict=True):
        print(f"  {path}: {best.label} ({best.probability:.0%}), or {second.label} ({second.probability:.0%})")
    picture = draw(predictor, sample, out / "how_it_sees.png")

    command = Path(sys.executable).parent / "vitrail"
    command = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    print(f"\nThe report, for a browser:        {run.folder / 'report.html'}")
    print(f"What it looks at, as a picture:   {picture}")
    print("Next:")
    for arguments, what in (
        (f"predict {data / 'test' / '7'} --model {run.folder}", "the model just trained, on files"),
        (f"train {data} --flip 0 --epochs 80", "the same by hand; or any folder with one folder per class"),
        (f"export {run.folder} --to timm", "its weights for another library"),
        ("models", "all that can be built by name"),
    ):
        print(f"  {command} {arguments:<58} # {what}")


def photographs(out: Path) -> list[str]:
    """What the model that ships inside says of the photographs that come with installed packages, and what it looks at
    in the first; gives its first answers. Nothing where none ships."""
    import vitrail
    from vitrail.serve.pictures import find_samples
    from vitrail.weights.shipped import shipped

    if shipped() is None:
        return []
    predictor, answers = vitrail.load(), []
    print(f"{predictor.name} ships inside: {len(predictor.labels)} classes, {predictor.preprocessing.size[0]} pixels.")
    print(f"It knows nothing else: what is not among them gets the nearest of its {len(predictor.labels)} names.")
    samples = find_samples(None)
    for sample in samples:
        ranked = predictor.predict(sample.path, top=3)[0]
        answers.append(ranked[0].label)
        print(f"  {sample.name}: {', or '.join(f'{p.label} ({p.probability:.0%})' for p in ranked)}")
    if samples:
        predictor.explain(samples[0].path, faithfulness=False).save(out)
        print(f"What it looks at in the first: {out}\n")
    return answers


def write_digits(folder: Path) -> Path:
    """scikit-learn's 1,797 digits of 8×8 pixels as PNG files: a third of them, drawn by a fixed seed, in test/."""
    import numpy as np
    from PIL import Image

    from vitrail.errors import VitrailError, extra

    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise VitrailError(f"The demo needs scikit-learn, which brings the digits: {extra('demo')}.") from None
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(2).permutation(len(pixels))
    for place, number in enumerate(order):
        split = "test" if place < len(order) // 3 else "train"
        path = folder / split / str(labels[number]) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels[number].reshape(8, 8) * (255 / 16)).astype(np.uint8)).save(path)
    return folder


def draw(predictor: Any, paths: list[Path], path: Path) -> Path:
    """Each digit, the attention that its class token pays to the patches in every layer, and the probabilities."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    from vitrail.models import capture

    with capture(predictor.model) as maps:
        predictions = predictor.predict(paths, top=10)
    columns = len(maps) + 2
    figure, axes = plt.subplots(len(paths), columns, figsize=(1.7 * columns, 1.75 * len(paths)), layout="constrained")
    for row, (picture, ranked) in enumerate(zip(paths, predictions, strict=True)):
        axes[row, 0].imshow(Image.open(picture), cmap="gray_r")
        for layer, attention in maps.items():
            grid = attention[row, :, 0, 1:].mean(dim=0).view(4, 4)  # from the class token, the mean of the heads
            axes[row, layer + 1].imshow(grid, cmap="magma", vmin=0)
        chances = sorted(ranked, key=lambda p: p.index)
        best = ranked[0].index
        axes[row, -1].bar(
            range(10), [p.probability for p in chances], color=["C1" if i == best else "C0" for i in range(10)]
        )
        axes[row, -1].set(xticks=range(10), yticks=[], ylim=(0, 1))
        axes[row, -1].tick_params(length=0, labelsize=7)
        for ax in axes[row, :-1]:
            ax.set_axis_off()
    axes[0, 0].set_title("digit", fontsize=9)
    for layer in maps:
        axes[0, layer + 1].set_title(f"block {layer + 1} looks at", fontsize=9)
    axes[0, -1].set_title("class", fontsize=9)
    figure.suptitle(
        "How much the class token attends to each of the 4×4 patches: mean of the heads, each panel on its own scale",
        fontsize=9,
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
