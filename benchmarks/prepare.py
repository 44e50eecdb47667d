"""Public data sets, as they are distributed, in the form that the records were measured on.

    python benchmarks/prepare.py nuaa NUAA nuaa_faces
    python benchmarks/prepare.py pets OXFORD_PETS pets_full
    python benchmarks/prepare.py tiny tiny-imagenet-200 tiny_imagenet.npz

nuaa   NUAA Imposter: of every picture the face alone, with its box in boxes.csv, and the lists. OpenCV's frontal face
       cascade finds it (pip install "opencv-python-headless<5"); where it finds none, the box of the nearest picture
       is taken.
pets   Oxford-IIIT Pet: images/{train,test}/BREED and masks/{train,test}/BREED by its own lists, 256×256; 0 is the pet,
       1 the background, 2 the border. A folder original/ of the same names goes for its images/.
tiny   Tiny-ImageNet-200 as arrays, classes in the order of their WordNet ids; its validation images, the only others
       whose labels are public, are those to test on.
"""

import argparse
import csv
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Box = tuple[int, int, int, int]  # left, top, width, height


def in_processes(job: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    with ProcessPoolExecutor() as pool:
        return list(pool.map(job, items, chunksize=8))


# -- NUAA --------------------------------------------------------------------------------------------------------------


def nuaa(source: Path, target: Path) -> str:
    folders = sorted(p for kind in ("ClientRaw", "ImposterRaw") for p in (source / kind).iterdir() if p.is_dir())
    with ProcessPoolExecutor() as pool:
        parts = list(pool.map(partial(cut_faces, target=target), folders))
    rows = sorted(row for part, _ in parts for row in part)
    with (target / "boxes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "box"])
        writer.writerows(rows)
    for path in source.glob("*.txt"):
        shutil.copy(path, target / path.name)
    return f"{len(rows):,} faces; {sum(lost for _, lost in parts):,} have the box of a picture nearby"


def cut_faces(folder: Path, target: Path) -> tuple[list[tuple[str, str]], int]:
    """The faces of one person, and how many were not found by themselves."""
    pictures = sorted(folder.glob("*.jpg"))
    found = {i: box for i, path in enumerate(pictures) if (box := face_box(path))}
    rows = []
    for i, path in enumerate(pictures):
        left, top, width, height = found[min(found, key=lambda j: abs(j - i))]
        name = path.relative_to(folder.parent.parent)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        face = Image.open(path).convert("RGB").crop((left, top, left + width, top + height))
        face.save(target / name, quality=93, subsampling=0)
        rows.append((name.as_posix(), f"0 0 {width} {height}"))
    return rows, len(pictures) - len(found)


@cache
def cascade(name: str) -> Any:
    import cv2

    cv2.setNumThreads(1)
    return cv2.CascadeClassifier(f"{cv2.data.haarcascades}haarcascade_frontalface_{name}.xml")


def face_box(path: Path) -> Box | None:
    import cv2

    grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    for name, scale, neighbours in (("default", 1.2, 5), ("alt2", 1.15, 3)):
        boxes = cascade(name).detectMultiScale(grey, scale, neighbours, minSize=(90, 90))
        if len(boxes):
            left, top, width, height = max(boxes.tolist(), key=lambda box: box[2] * box[3])
            return left, top, width, height
    return None


# -- Oxford-IIIT Pet ---------------------------------------------------------------------------------------------------


def pets(source: Path, target: Path) -> str:
    images = next(source / name for name in ("images", "original") if (source / name).is_dir())
    wanted = [
        (split, line.split()[0])
        for file, split in (("trainval", "train"), ("test", "test"))
        for line in (source / "annotations" / f"{file}.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    in_processes(partial(pet, images=images, masks=source / "annotations" / "trimaps", target=target), wanted)
    return f"{len(wanted):,} pictures with their masks"


def pet(one: tuple[str, str], images: Path, masks: Path, target: Path) -> None:
    split, name = one
    breed = name.rpartition("_")[0]
    image = Image.open(images / f"{name}.jpg").convert("RGB").resize((256, 256), Image.Resampling.BICUBIC)
    mask = np.array(Image.open(masks / f"{name}.png").resize((256, 256), Image.Resampling.NEAREST))
    for kind in ("images", "masks"):
        (target / kind / split / breed).mkdir(parents=True, exist_ok=True)
    image.save(target / "images" / split / breed / f"{name}.jpg", quality=90)
    Image.fromarray((mask - 1).astype(np.uint8)).save(target / "masks" / split / breed / f"{name}.png", optimize=True)


# -- Tiny-ImageNet -----------------------------------------------------------------------------------------------------


def tiny(source: Path, target: Path) -> str:
    classes = sorted(p.name for p in (source / "train").iterdir() if p.is_dir())
    train = [(path, classes.index(path.parent.parent.name)) for path in sorted(source.glob("train/*/images/*.JPEG"))]
    lines = [line.split("\t") for line in (source / "val" / "val_annotations.txt").read_text().splitlines()]
    held = [(source / "val" / "images" / name, classes.index(of)) for name, of, *_ in lines]
    arrays: dict[str, np.ndarray] = {}
    for split, part in (("train", train), ("test", held)):
        arrays[f"{split}_images"] = np.stack(in_processes(pixels, [path for path, _ in part]))
        arrays[f"{split}_labels"] = np.array([label for _, label in part])
    np.savez(target, classes=np.array(classes), **arrays)
    return f"{len(train):,} images and {len(held):,} to test on, {len(classes)} classes"


def pixels(path: Path) -> np.ndarray:
    return np.array(Image.open(path).convert("RGB"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("nuaa", "pets", "tiny"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    make = {"nuaa": nuaa, "pets": pets, "tiny": tiny}[arguments.name]
    print(f"{arguments.target}: {make(arguments.source, arguments.target)}")


if __name__ == "__main__":
    main()
