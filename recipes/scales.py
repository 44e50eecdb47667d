"""A study for a smaller machine: the same variants and the same question, with less of everything.

`small` answers it on a CPU, from real pictures, in an hour or two; `toy` answers nothing, in seconds, and shows that
all of it works.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from variants import Study, Variant

from vitrail.models.registry import model_settings

TOY_TRAIN, TOY_TEST = 160, 80  # of scikit-learn's digits
ALL = {"cifar10.npz": 50_000, "tiny_imagenet.npz": 100_000}  # training images
CALLED = {"cifar10.npz": "CIFAR-10", "tiny_imagenet.npz": "Tiny-ImageNet"}
TRAINED = ("train", "pretrain")


def small(study: Study, data: Path | None = None) -> Study:
    """For two CPU cores: a tenth of the images, models a third as wide and half as deep with heads of 32, stems without
    residual blocks, three seeds. What only looks at a run stays as it is. ResNets can't be made narrow, and are left
    out."""
    if study.without_data:
        raise SystemExit(f"{study.name} has no small form: it is about the cost of whole models.")
    if fixed := [v.options["weights"] for v in study.variants if "weights" in v.options and not v.starts]:
        raise SystemExit(f"{study.name} has no small form: {fixed[0]} has the size that it has.")
    kept = [variant for variant in study.variants if not variant.model.startswith("tv:")]
    few = _training_images(study, data) // 10
    many = f"up to {few:,}" if any(variant.images for variant in kept) else f"{few:,}"
    notes = f"{study.notes} Small: {many} training images, models a third as wide and half as deep, heads of 32"
    notes += "." if kept == study.variants else ", no ResNets."
    variants = [_small(variant, few) if variant.verb in TRAINED else variant for variant in kept]
    return replace(study, variants=variants, notes=notes, seeds=(0, 1, 2))


def told(study: Study, data: Path) -> Study:
    """What it says of itself is about the pictures that it is given, where these are others than its own."""
    if data.name == study.data or study.data not in CALLED:
        return study
    return replace(study, notes=study.notes.replace(CALLED[study.data], data.stem))


def _training_images(study: Study, data: Path | None) -> int:
    """As the file has them, if it is there."""
    path = data or Path(study.data)
    if not path.is_file() and study.data in ALL:
        return ALL[study.data]
    with np.load(path) as arrays:
        return len(arrays["train_labels"])


def _small(variant: Variant, few: int) -> Variant:
    options = {key: value for key, value in variant.options.items() if key != "compile"}
    batch = max(8, options["batch_size"] // 4) if "batch_size" in options else 128
    options["batch_size"] = min(batch, max(1, few // 4))  # steps enough in an epoch
    whole = model_settings(variant.model, **variant.settings)
    width, depth = max(32, whole.width // 96 * 32), (whole.depth + 1) // 2
    settings = variant.settings | {"width": width, "depth": depth, "heads": width // 32}
    if str(whole.stem).startswith("res"):  # its residual blocks are nearly all of its arithmetic, whatever the width
        settings["stem"] = whole.stem.replace("res", "conv")
    name = variant.name.replace(f"{whole.width}×{whole.depth}", f"{width}×{depth}")
    found = replace(variant, name=name, options=options, settings=settings, images=few)
    return _fewer(found, variant.images) if variant.images else found


def _fewer(variant: Variant, images: int) -> Variant:
    """Of a part of the images a tenth, also where it is said: in the name, on the axis, in that of the run it needs."""
    few = images // 10
    options = {key: value.replace(f"-{images}", f"-{few}") if str(value).startswith("run:") else value
               for key, value in variant.options.items()}  # fmt: skip
    options["batch_size"] = min(options["batch_size"], few // 4)  # as the whole study has it
    name, x = variant.name.replace(f"-{images}", f"-{few}"), few if variant.x == images else variant.x
    return replace(variant, name=name, options=options, images=few, x=x)


def toy(study: Study) -> Study:
    return replace(study, variants=[_toy(variant) for variant in study.variants])


def _toy(variant: Variant) -> Variant:
    """8×8 pictures, a transformer of one block, one epoch."""
    options = {key: value for key, value in variant.options.items() if key != "compile"}
    if variant.verb in TRAINED:
        options |= {"epochs": 1, "batch_size": 32, "refit": "off", "workers": 0}
        options.pop("calm", None)  # more epochs than one
        if variant.verb == "pretrain":
            del options["refit"]
    if "image_size" in options:
        options["image_size"] //= 4
    model, settings = variant.model, dict(variant.settings)
    if variant.verb == "cost":
        model, settings = "vit_nano4", {"depth": 1}
        options |= {"batch_size": 1, "image_size": options["image_size"] // 2}
    elif model.startswith("tv:"):
        model = "tv:shufflenet_v2_x0_5"
    else:
        settings = {**settings, "depth": 1, "width": 32, "heads": 2}
        settings |= {"patch_size": 1} if "stem" in settings else {}
        model = "vit_nano2"
    images = None if variant.images is None else max(40, variant.images * TOY_TRAIN // ALL["cifar10.npz"])
    return replace(variant, options=options, settings=settings, model=model, images=images)


def toy_data(path: Path) -> Path:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8).repeat(3, axis=3)
    end = TOY_TRAIN + TOY_TEST
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, train_images=images[:TOY_TRAIN], train_labels=labels[:TOY_TRAIN],
             test_images=images[TOY_TRAIN:end], test_labels=labels[TOY_TRAIN:end])  # fmt: skip
    return path
