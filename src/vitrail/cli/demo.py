"""`vitrail demo`: a Vision Transformer trained on real digits in a minute, put to use, and looked into."""

import sys
import time
from pathlib import Path
from typing import Any

EPOCHS, BATCH, RATE = 60, 64, 3e-3


def demo(out: Path = Path("runs/demo")) -> None:
    """Trains a small ViT on scikit-learn's handwritten digits, classifies held-out ones, and draws what it looks at.

    Args:
        out: Folder for the model and the picture.
    """
    import torch

    from vitrail.errors import VitrailError
    from vitrail.predict import load

    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise VitrailError(
            "The demo needs scikit-learn, which brings the digits: pip install 'vitrail[demo]'."
        ) from None

    torch.manual_seed(0)
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16, torch.from_numpy(classes)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    held_out, train = order[: len(order) // 3], order[len(order) // 3 :]
    print(f"{len(train)} handwritten digits of 8×8 pixels to learn from, {len(held_out)} held out.")

    predictor = learn(images[train], labels[train])
    found = [best.index for best, *_ in predictor.predict(images[held_out], top=1, batch_size=256)]
    accuracy = (torch.tensor(found) == labels[held_out]).float().mean().item()
    print(f"Held-out digits recognised: {accuracy:.1%}")

    bundle = predictor.save(out / "model.safetensors")
    again = load(bundle)  # what a user of the file would do
    sample = images[held_out[:5]]
    for image, (best, second) in zip(sample, again.predict(sample, top=2), strict=True):
        print(as_text(image))
        print(f"  {best.label} ({best.probability:.0%}), or {second.label} ({second.probability:.0%})\n")
    pictures = save_pictures(sample, out / "digits")
    print(f"What it looks at, as a picture:   {draw(again, sample, out / 'how_it_sees.png')}")
    print("Next:")
    command = Path(sys.executable).parent / "vitrail"
    command = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    print(f"  {command} predict {pictures} --model {bundle}     the model just trained, on files")
    print(f"  {command} models                                  all that can be built by name")
    print("  docs/model.md                                      how a picture passes through the model")


def learn(images: Any, labels: Any) -> Any:
    """A plain training loop: AdamW, warm-up and cosine decay, every second digit moved by up to a pixel."""
    import torch
    import torch.nn.functional as F

    from vitrail.models import Preprocessing, create_model
    from vitrail.predict import Predictor

    torch.set_num_threads(1)  # tensors this small gain nothing from a second thread
    shape: dict[str, Any] = {"image_size": 8, "patch_size": 2, "channels": 1, "width": 64, "depth": 4, "heads": 4}
    model = create_model("vit_mini4", num_classes=10, **shape)
    mean, std = images.mean().item(), images.std().item()
    pixels = (images - mean) / std
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)
    steps = EPOCHS * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    model.train()
    start = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            loss = F.cross_entropy(model(moved(pixels[batch])), labels[batch])
            total += loss.item() * len(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        if epoch % 10 == 0:
            spent = time.perf_counter() - start
            rate, left = epoch * len(images) / spent, spent / epoch * (EPOCHS - epoch)
            print(
                f"  epoch {epoch}/{EPOCHS}  loss {total / len(images):.3f}  {rate:,.0f} images/s  {left:.0f} s left",
                flush=True,
            )
    pre = Preprocessing(size=(8, 8), mean=(mean,), std=(std,), crop=1.0, fit="stretch")
    return Predictor(model, pre, [str(i) for i in range(10)], "digits", device="cpu")


def moved(images: Any) -> Any:
    """Half of the digits as they are, the others moved by up to a pixel each way over the paper's colour."""
    import torch
    import torch.nn.functional as F

    paper = images.min().item()
    padded = F.pad(images, (1, 1, 1, 1), value=paper)
    offsets = torch.randint(0, 3, (len(images), 2))
    offsets[torch.rand(len(images)) < 0.5] = 1
    return torch.stack([p[:, i : i + 8, j : j + 8] for p, (i, j) in zip(padded, offsets.tolist(), strict=True)])


def save_pictures(images: Any, folder: Path) -> Path:
    """The digits as PNG files, ink bright on black, as the model knows them."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray((image[0] * 255).byte().numpy()).save(folder / f"{number}.png")
    return folder


def as_text(image: Any) -> str:
    """A digit as characters, two to a pixel."""
    shades = " ░▒▓█"
    return "\n".join("  " + "".join(2 * shades[min(4, int(4.99 * v))] for v in row) for row in image[0].tolist())


def draw(predictor: Any, images: Any, path: Path) -> Path:
    """Each digit, the attention that its class token pays to the patches in every layer, and the probabilities."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from vitrail.models import capture

    with capture(predictor.model) as maps:
        predictions = predictor.predict(images, top=10)
    columns = len(maps) + 2
    figure, axes = plt.subplots(len(images), columns, figsize=(1.7 * columns, 1.75 * len(images)), layout="constrained")
    for row, (image, ranked) in enumerate(zip(images, predictions, strict=True)):
        axes[row, 0].imshow(image[0], cmap="gray_r")
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
        axes[0, layer + 1].set_title(f"layer {layer + 1} looks at", fontsize=9)
    axes[0, -1].set_title("class", fontsize=9)
    figure.suptitle(
        "How much the class token attends to each of the 4×4 patches: mean of the heads, each panel on its own scale",
        fontsize=9,
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
