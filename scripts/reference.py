"""Reference runs: does a change of the code change what a run computes, by as much as a bit?

    PYTHONPATH=OLD/src python scripts/reference.py record old.json     # in a checkout of the commit before the change
    PYTHONPATH=NEW/src python scripts/reference.py record new.json
    python scripts/reference.py compare old.json new.json

Each run is small, seeded and on the CPU: from scratch, fine-tuned (with the second training on all images), LoRA, a
cached head, distilled, several labels, segmentation, detection, anti-spoofing, pre-training, and two processes under
torchrun. Recorded are the rows of metrics.jsonl without timings, a digest of the final weights, predictions, figures of
`evaluate`, and what the exported ONNX file answers. Both recordings must come from one machine: another processor
rounds differently.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

TIMING = {"seconds", "images_per_second", "data_wait"}
SMALL = {"device": "cpu", "workers": 1, "cache": "memory", "seed": 3}
SCRATCH = {"model": "vit_nano4", "weights": "none", "epochs": 3, **SMALL}


# -- data --------------------------------------------------------------------------------------------------------------


def texture(rng: np.random.Generator, kind: int, side: int = 20) -> Image.Image:
    """Stripes whose direction and colour depend on the class, with noise."""
    rows, columns = np.mgrid[0:side, 0 : side + 4] / side
    angle = kind * np.pi / 3 + rng.normal(0, 0.15)
    wave = np.sin(2 * np.pi * (3 * (rows * np.cos(angle) + columns * np.sin(angle)) + rng.uniform()))
    colours = 110 + 50 * wave[..., None] + 30 * np.cos(kind + np.arange(3)) + rng.normal(0, 25, (*wave.shape, 3))
    return Image.fromarray(colours.clip(0, 255).astype(np.uint8))


def make_classes(root: Path, per_class: dict[str, int], kinds: int = 3, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for split, count in per_class.items():
        for kind in range(kinds):
            folder = root / split / f"kind {kind}"
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                texture(rng, kind).save(folder / f"{number:02d}.png")
    return root


def make_several(root: Path) -> Path:
    """A table with several labels per image."""
    rng, lines = np.random.default_rng(5), ["path,label"]
    root.mkdir(parents=True)
    for number in range(40):
        labels = sorted({int(kind) for kind in rng.integers(0, 3, rng.integers(1, 3))})
        pixels = np.mean([np.asarray(texture(rng, kind), dtype=float) for kind in labels], axis=0)
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{number}.png")
        lines.append(f"{number}.png,{'|'.join(f'kind {kind}' for kind in labels)}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root / "labels.csv"


def make_masks(root: Path) -> Path:
    rng = np.random.default_rng(1)
    colours = np.array([[90, 90, 90], [220, 80, 60], [60, 90, 220]])
    for split, count in (("train", 10), ("val", 4), ("test", 4)):
        for number in range(count):
            mask = np.zeros((20, 24), np.uint8)
            top, left = rng.integers(0, 10, 2)
            mask[top : top + 10, left : left + 12] = 1 + number % 2
            pixels = (colours[mask] + rng.normal(0, 8, (20, 24, 3))).clip(0, 255).astype(np.uint8)
            for folder, array in (("images", pixels), ("masks", mask)):
                (root / folder / split).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / folder / split / f"{number}.png")
    (root / "classes.txt").write_text("ground\nred\nblue\n")
    return root


def make_boxes(root: Path) -> Path:
    rng = np.random.default_rng(2)
    (root / "annotations").mkdir(parents=True)
    for split, count in (("train", 10), ("val", 4), ("test", 4)):
        (root / split).mkdir()
        images, boxes = [], []
        for number in range(count):
            image = Image.new("RGB", (44, 40), (60, 70, 80))
            size = int(rng.integers(13, 20))
            x, y = (int(each) for each in rng.integers(0, 40 - size, 2))
            draw, kind = ImageDraw.Draw(image), number % 2
            (draw.rectangle if kind else draw.ellipse)([x, y, x + size, y + size], fill=(220, 60 + 90 * kind, 60))
            image.save(root / split / f"{number}.png")
            images.append({"id": number, "file_name": f"{number}.png", "width": 44, "height": 40})
            row = {"id": number + 1, "image_id": number, "category_id": kind + 1, "iscrowd": 0}
            boxes.append({**row, "area": size * size, "bbox": [x, y, size, size]})
        kinds = [{"id": 1, "name": "disc"}, {"id": 2, "name": "square"}]
        content = {"images": images, "annotations": boxes, "categories": kinds}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def make_faces(root: Path) -> Path:
    rng = np.random.default_rng(4)
    for split, people in (("train", range(8)), ("test", range(20, 24))):
        for person in people:
            skin = rng.integers(80, 170, 3)
            for kind in ("live", "print"):
                for number in range(3):
                    pixels = skin + rng.normal(0, 12, (16, 16, 3))
                    pixels[::2] += 45 * (kind == "print")
                    path = root / split / kind / f"{person:04d}" / f"{number}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return root


# -- what is recorded --------------------------------------------------------------------------------------------------


def rows(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMING} for line in lines]


def weights_digest(path: Path) -> str:
    from safetensors.torch import load_file

    total = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.contiguous().view(-1).numpy().tobytes())
    return total.hexdigest()


def numbers(figures: dict) -> dict:
    return {key: value for key, value in figures.items() if isinstance(value, int | float | str)}


def onnx_answers(folder: Path) -> str:
    """Of the exported file on a fixed input, by onnxruntime."""
    import onnxruntime

    import vitrail

    path = folder / "reference.onnx"
    vitrail.export(folder, "onnx", path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shape = [side if isinstance(side, int) else 1 for side in session.get_inputs()[0].shape]
    sides = vitrail.load(folder).preprocessing.size
    if len(shape) == 4:
        shape[2:] = sides
    elif len(shape) == 3:
        shape[1:] = sides
    x = np.random.default_rng(9).random(shape, dtype=np.float32)
    total = hashlib.sha256()
    for answer in session.run(None, {session.get_inputs()[0].name: x}):
        total.update(np.ascontiguousarray(answer).tobytes())
    return total.hexdigest()


def record(folder: Path, data: Path | str, images: list[Path], export: bool = True) -> dict:
    import vitrail

    found = {"rows": rows(folder), "weights": weights_digest(folder / "model.safetensors")}
    predictor = vitrail.load(folder, device="cpu")
    task = json.loads((folder / "run.json").read_text())["recipe"].get("task", "reconstruct")
    if task == "segment":
        masks = [np.asarray(each.mask).tobytes() for each in predictor.segmentations(images)]
        found["predictions"] = hashlib.sha256(b"".join(masks)).hexdigest()
    elif task == "detect":
        every = [
            [(o.label, o.probability, list(map(float, o.box))) for o in each]
            for each in predictor.detections(images, 0.05)
        ]
        found["predictions"] = every
    elif predictor.labels:
        found["predictions"] = [
            [(one.label, one.probability) for one in each] for each in predictor.predict(images, top=3)
        ]
    else:
        found["predictions"] = hashlib.sha256(predictor.embed(images).numpy().tobytes()).hexdigest()
    if predictor.labels:
        found["evaluate"] = numbers(vitrail.evaluate(folder, data, device="cpu"))
    if export:
        found["onnx"] = onnx_answers(folder)
    return found


def runs(root: Path) -> dict:
    import torch

    import vitrail

    torch.set_num_threads(1)
    classes = make_classes(root / "classes", {"train": 16, "test": 6})
    other = make_classes(root / "other", {"train": 30, "val": 10}, kinds=4, seed=11)
    several, masks, boxes = make_several(root / "several"), make_masks(root / "masks"), make_boxes(root / "boxes")
    faces, out = make_faces(root / "faces"), root / "runs"
    images = sorted((classes / "test").rglob("*.png"))[:9]
    found: dict = {}

    def train(name: str, data: Path, shown: list[Path] = images, export: bool = True, **options) -> None:
        vitrail.train(data, out=out / name, **{**SMALL, **options})
        found[name] = record(out / name, data, shown, export)
        print(f"reference: {name}", file=sys.stderr, flush=True)

    vitrail.train(other, out=out / "base", **{**SCRATCH, "epochs": 6})
    found["base"] = record(out / "base", other, images)
    base = {"weights": str(out / "base"), "epochs": 3}
    train("scratch", classes, **SCRATCH)
    train(
        "scratch-options",
        classes,
        **SCRATCH
        | {
            "mixup": 0.4,
            "cutmix": 1.0,
            "augment": "strong",
            "calm": 1,
            "optimizer": "muon",
            "balance": "sampling",
            "micro_batch": 5,
            "layer_decay": 0.9,
        },
        export=False,
    )
    train("convolutional", classes, model="tv:resnet18", weights="none", epochs=1, image_size=16, export=False)
    train(
        "relative", classes, model="vit_nano4:position=relative", weights="none", epochs=2, image_size=32, export=False
    )
    train("finetuned", classes, **base)
    train("head", classes, **base | {"tune": "head", "augment": "none"}, export=False)
    train("probe", classes, **base | {"tune": "probe", "epochs": None}, export=False)
    train("lora", classes, **base | {"tune": "lora"})
    train("adapter", classes, **base | {"tune": "adapter", "balance": "weights"}, export=False)
    train("distilled", classes, **SCRATCH | {"teacher": str(out / "finetuned")})
    train("soft", classes, **SCRATCH | {"teacher": str(out / "finetuned"), "distill": "soft"}, export=False)
    train("several", several, **SCRATCH)
    train("several-tuned", several, **base, export=False)
    shown = sorted((masks / "images/test").glob("*.png"))
    dense = SCRATCH | {"epochs": 2, "batch_size": 4, "pyramid": "simple"}
    train("segment", masks, shown, **dense | {"task": "segment", "head": "fcn", "image_size": 16, "balance": "weights"})
    train(
        "segment-upernet",
        masks,
        shown,
        False,
        **dense | {"task": "segment", "image_size": 16, "weights": str(out / "base"), "pyramid": "adapter"},
    )
    shown = sorted((boxes / "test").glob("*.png"))
    train("detect", boxes, shown, **dense | {"task": "detect", "image_size": 32})
    train("detect-retinanet", boxes, shown, False, **dense | {"task": "detect", "image_size": 32, "head": "retinanet"})
    shown = sorted((faces / "test").rglob("*.png"))
    train("spoof", faces, shown, **SCRATCH | {"task": "spoof", "batch_size": 16})
    train("spoof-tuned", faces, shown, False, **base | {"task": "spoof"})
    vitrail.pretrain(classes, out=out / "pretrained", **SMALL | {"model": "vit_nano4", "epochs": 4})
    found["pretrained"] = record(out / "pretrained", classes, images, export=False)
    train("after-pretraining", classes, **base | {"weights": str(out / "pretrained"), "epochs": 4}, export=False)
    small = ["--model", "vit_nano4", "--weights", "none"]
    maps = ["--task", "segment", "--head", "fcn", "--pyramid", "simple", "--image-size", "16", "--batch-size", "4"]
    boxed = ["--task", "detect", "--image-size", "32", "--batch-size", "4"]
    for name, more in (
        ("two-processes", ["train", str(classes), *small]),
        ("two-processes-tuned", ["train", str(classes), "--weights", str(out / "base")]),
        ("two-processes-segment", ["train", str(masks), *maps, *small]),
        ("two-processes-detect", ["train", str(boxes), *boxed, *small]),
        ("two-processes-pretrained", ["pretrain", str(classes), "--model", "vit_nano4"]),
    ):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "vitrail", *more]
        command += ["--epochs", "2", "--device", "cpu", "--workers", "1", "--seed", "3", "--out", str(out / name)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        found[name] = {"rows": rows(out / name), "weights": weights_digest(out / name / "model.safetensors")}
        print(f"reference: {name}", file=sys.stderr, flush=True)
    return found


def differences(one: object, other: object, place: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        missing = [f"{place}/{key}: in one of them only" for key in sorted(one.keys() ^ other.keys())]
        return missing + [d for key in one if key in other for d in differences(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, pair in enumerate(zip(one, other, strict=True)) for d in differences(*pair, f"{place}/{i}")]
    same = one == other or (one != one and other != other)
    return [] if same else [f"{place}: {str(one)[:60]} and {str(other)[:60]}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=["record", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "record":
        with tempfile.TemporaryDirectory() as folder:
            found = runs(Path(folder))
        arguments.files[0].write_text(json.dumps(found, indent=1) + "\n")
        return
    one, other = (json.loads(path.read_text()) for path in arguments.files)
    found = differences(one, other)
    print("\n".join(found[:60]) or f"{len(one)} runs: identical to the last bit")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
