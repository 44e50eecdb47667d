"""`open_source`: whatever a person calls their data → classes and samples.

A folder of class folders, a CSV or Parquet table, tar shards, an array, or a data set by its name; each kind has a file
of its own, and nothing here decodes an image.
"""

import os
from pathlib import Path

from vitrail.data.existence import check_exists
from vitrail.data.kinds import IMAGES
from vitrail.data.samples import NAMED, PICTURES, Item, Sample, Source, TarMember, checked, some
from vitrail.data.sources import arrays, named_datasets, shards, tables
from vitrail.data.sources.folders import open_folders, open_loose
from vitrail.errors import VitrailError

__all__ = ["Item", "Sample", "Source", "TarMember", "open_pictures", "open_source"]


def open_source(data: str | Path, one_class: bool = False) -> Source:
    """The classes, splits and samples of DATA, checked as `samples.checked` says.

    DATA/CLASS/image.jpg           class folders, or DATA/train/CLASS/image.jpg with val/ and test/ beside it
    labels.csv, labels.parquet       path,label[,split], several labels as a|b
    train-{000..009}.tar             WebDataset shards; also one .tar, or a folder of them
    images.npz                     arrays train_images, train_labels, test_images, …, uint8, of images of one size
    torchvision:CIFAR10, CIFAR10     a data set of torchvision
    hf:org/name                      a data set of the Hugging Face hub, or a folder in one of its formats
    """
    check_exists(data)
    source = _opened(os.fspath(data))
    if len(source) and not source.classes:
        raise VitrailError(f"{source.name} has pictures and no labels, which only `pretrain` can learn from.")
    return checked(source, one_class)


def open_pictures(data: str | Path) -> Source:
    """The same for learning without labels: they are taken where DATA has them, and a folder of images is enough."""
    check_exists(data, IMAGES)
    path = Path(data).expanduser()
    if path.is_dir() and not any(path.iterdir()):
        raise VitrailError(f"The folder {data} is empty: expected pictures, in folders or not.")
    loose = open_loose(path, os.fspath(data)) if path.is_dir() and not shards.tars_in(path) else None
    source = loose or _opened(os.fspath(data))
    if not len(source):
        raise VitrailError(f"{source.name} holds no pictures.")
    return source


def _opened(data: str) -> Source:
    if data.startswith(NAMED):
        return named_datasets.open_named(data)
    path = Path(data).expanduser()
    if path.is_dir():
        return _folder(path, data)
    if path.is_file():
        return _file(path, data)
    if "{" in data:
        return shards.open_shards(str(path), data)
    return named_datasets.open_torchvision(data)


def _folder(path: Path, data: str) -> Source:
    try:
        tars = shards.tars_in(path)
        folders = shards.folders_beside(path)
    except OSError as error:
        raise VitrailError(f"The folder {data} can't be read ({error.strerror or error}).") from None
    if tars and not folders:
        return shards.open_shards(path, data)
    plain = [
        tar.name for tar in tars if tar.suffix.lower() == ".tar"
    ]  # the archive that came down is often left behind
    if plain:
        raise VitrailError(
            f"{data} holds both tar files ({some(plain)}) and folders ({some(folders)}): move one kind elsewhere."
        )
    return open_folders(path, data)


def _file(path: Path, data: str) -> Source:
    suffix = path.suffix.lower()
    if suffix in tables.SUFFIXES:
        return tables.open_table(path, data)
    if suffix == arrays.SUFFIX:
        return arrays.open_arrays(path, data)
    if shards.is_tar(path):
        return shards.open_shards(path, data)
    if suffix in PICTURES:
        raise VitrailError(f"{data} is a single picture: pass a folder of them.")
    advice = (
        "unpack it, and pass the folder"
        if suffix in (".zip", ".7z", ".rar")
        else "pass a folder, .csv, .parquet, .tar or .npz"
    )
    raise VitrailError(f"{data} is no data source: {advice}.")
