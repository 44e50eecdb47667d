"""Data sets by name: `torchvision:CIFAR10`, or just `CIFAR10`, and `hf:org/name` from the Hugging Face hub."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.data.samples import SPLIT_WORDS, Item, Sample, Source, in_order, plural, some
from vitrail.errors import VitrailError, extra, nearest

_BOTH = {"train": {"train": True}, "test": {"train": False}}


def _words(**splits: str) -> dict[str, dict[str, Any]]:
    return {split: {"split": word} for split, word in splits.items()}


# torchvision's data sets of labelled images → what its constructor wants for each split
_TORCHVISION: dict[str, dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "USPS"), _BOTH),
    "EMNIST": {split: {"split": "balanced", **options} for split, options in _BOTH.items()},
    **dict.fromkeys(
        ("SVHN", "STL10", "Food101", "GTSRB", "StanfordCars", "FER2013"), _words(train="train", test="test")
    ),
    **dict.fromkeys(
        ("Flowers102", "FGVCAircraft", "DTD", "RenderedSST2"), _words(train="train", val="val", test="test")
    ),
    "Country211": _words(train="train", val="valid", test="test"),
    "OxfordIIITPet": _words(train="trainval", test="test"),
    **dict.fromkeys(("Imagenette", "ImageNet"), _words(train="train", val="val")),
    "Places365": _words(train="train-standard", val="val"),
    **{name: {"all": {}} for name in ("EuroSAT", "Caltech101", "Caltech256", "SUN397", "SEMEION")},
}


def open_named(name: str) -> Source:
    """`name` begins with one of NAMED."""
    prefix, _, rest = name.partition(":")
    return open_hub(rest, name) if prefix == "hf" else open_torchvision(rest)


def torchvision_name(word: str) -> str | None:
    """The data set of that name, whatever its capitals."""
    return {known.lower(): known for known in _TORCHVISION}.get(word.lower())


def torchvision_names() -> list[str]:
    return sorted(_TORCHVISION)


def open_torchvision(word: str) -> Source:
    """From $VITRAIL_DATASETS, or ~/.cache/vitrail/datasets, where it is put first if it may be downloaded."""
    import torchvision.datasets

    known = torchvision_name(word)
    if known is None:
        hint = nearest(word, _TORCHVISION)
        raise VitrailError(
            f'torchvision has no data set "{word}" for classification; there are {", ".join(_TORCHVISION)}.{hint}'
        )
    root = Path(os.environ.get("VITRAIL_DATASETS") or "~/.cache/vitrail/datasets").expanduser()
    build = getattr(torchvision.datasets, known)
    classes: list[str] = []
    splits: dict[str, list[Sample]] = {}
    for split, options in _TORCHVISION[known].items():
        dataset = _built(build, known, root, options)
        labels = _labels(dataset)
        classes = classes or _class_names(dataset, labels)
        files = _files(dataset)
        splits[split] = [
            # torchvision's own reading would ignore EXIF and flatten transparency on black, so a file is left to ours
            Sample(f"torchvision:{known}/{split}/{i}", files[i] if files else Item(dataset, i), (label,))
            for i, label in enumerate(labels)
        ]
    return Source(f"torchvision:{known}", classes, in_order(splits))


def _built(build: Callable[..., Any], name: str, root: Path, options: dict[str, Any]) -> Any:
    can_download = name not in ("ImageNet", "FER2013", "StanfordCars")  # licences that want a person's signature
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            return build(root, **options)
        except (RuntimeError, FileNotFoundError, ValueError):
            if not can_download:
                raise
        return build(root, download=True, **options)
    except ImportError as error:
        raise VitrailError(f"{name} needs a package that is not installed: {error}.") from None
    except Exception as error:  # a download fails in as many ways as there are servers
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        failed = "could not be downloaded" if can_download else "has to be fetched by hand"
        raise VitrailError(
            f"{name} is not in {root} and {failed} ({reason}): "
            "put its files there, or name another folder in VITRAIL_DATASETS."
        ) from None


def _labels(dataset: Any) -> list[int]:
    """Every label without decoding an image, where the data set keeps them apart."""
    for attribute in ("targets", "labels", "_labels", "y"):
        values = getattr(dataset, attribute, None)
        if values is not None and len(values) == len(dataset):
            return [int(value) for value in values]
    for attribute in ("samples", "_samples"):
        pairs = getattr(dataset, attribute, None)
        if pairs is not None:
            return [int(label) for _, label in pairs]
    return [int(dataset[i][1]) for i in range(len(dataset))]


def _files(dataset: Any) -> list[Path] | None:
    """The files behind the data set, if it is made of files."""
    for attribute in ("samples", "_samples", "imgs"):
        pairs = getattr(dataset, attribute, None)
        if pairs and isinstance(pairs[0][0], str | Path):
            return [Path(pair[0]) for pair in pairs]
    for attribute in ("_image_files", "_images"):
        files = getattr(dataset, attribute, None)
        if files and isinstance(files[0], str | Path):
            return [Path(file) for file in files]
    return None


def _class_names(dataset: Any, labels: list[int]) -> list[str]:
    classes = getattr(dataset, "classes", None) or getattr(dataset, "categories", None)
    if classes is None:
        return [str(number) for number in range(max(labels) + 1)]
    return [name if isinstance(name, str) else name[0] for name in classes]  # ImageNet has synonyms


class _HubPictures:
    """A split of a Hugging Face data set as (encoded image, ) items."""

    def __init__(self, split: Any, column: str):
        self.split, self.column = split, column

    def __repr__(self) -> str:
        return f"{self.column} of {self.split._fingerprint}"

    def __getitem__(self, index: int) -> tuple[bytes | Path]:
        picture = self.split[index][self.column]
        return (picture["bytes"] if picture["bytes"] is not None else Path(picture["path"]),)


def open_hub(rest: str, name: str) -> Source:
    """`org/name`, `org/name:configuration`, or a folder that `save_to_disk` wrote or `load_dataset` reads."""
    try:
        import datasets
    except ImportError:
        raise VitrailError(f"To read {name}, Hugging Face's datasets is needed: {extra('hf')}.") from None
    path, _, configuration = rest.removeprefix("//").partition(":")
    folder = Path(path).expanduser()
    try:
        if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(str(folder) if folder.is_dir() else path, configuration or None)
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise VitrailError(f"{name} can't be loaded ({reason}): check the name, and the network.") from None
    by_split = dict(loaded) if isinstance(loaded, dict) else {"all": loaded}
    features = next(iter(by_split.values())).features
    picture, label, notes = _picture_and_label(features, name)
    classes, index, multi_label = _hub_classes(features[label], [split[label] for split in by_split.values()], name)

    splits: dict[str, list[Sample]] = {}
    for word, split in by_split.items():
        key = "all" if word == "all" else SPLIT_WORDS.get(word.lower())
        if key is None or key in splits:
            notes.append(
                f'The split "{word}" ({plural(len(split), "picture")}) left out: it is none of train, val, test.'
            )
            continue
        labels = [tuple(sorted(index(value))) for value in split[label]]
        without = 0 if multi_label else sum(not one for one in labels)
        if without:
            notes.append(f'{plural(without, "picture")} of the split "{word}" without a label left out.')
        pictures = _HubPictures(
            split.select_columns([picture]).cast_column(picture, datasets.Image(decode=False)), picture
        )
        splits[key] = [
            Sample(f"{name}/{key}/{i}", Item(pictures, i), one) for i, one in enumerate(labels) if one or multi_label
        ]
    return Source(name, classes, in_order(splits), multi_label, notes)


def _picture_and_label(features: Any, name: str) -> tuple[str, str, list[str]]:
    """The column of images and the column of labels, and a note where there was a choice."""
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    pictures = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [c for c, feature in features.items() if hasattr(getattr(feature, "feature", feature), "str2int")]
    labels = labels or [column for column in ("label", "labels", "class") if column in kinds]
    for found, what in ((pictures, "pictures (Image)"), (labels, "labels (ClassLabel, or one called label)")):
        if not found:
            raise VitrailError(
                f"{name} has no column of {what}: its columns are {some(f'{c} ({k})' for c, k in kinds.items())}."
            )
    chosen, notes = [], []
    for found, usual in ((pictures, ("image", "img")), (labels, ("label", "labels", "fine_label"))):
        column = next((column for column in usual if column in found), found[0])
        chosen.append(column)
        if len(found) > 1:
            notes.append(f'The column "{column}" is used, and not {some(other for other in found if other != column)}.')
    return chosen[0], chosen[1], notes


def _hub_classes(feature: Any, columns: list[Any], name: str) -> tuple[list[str], Callable[[Any], set[int]], bool]:
    """Class names, label → indices, and whether an image may have several. A negative label is a hidden one."""
    multi_label = hasattr(feature, "feature")
    each = feature.feature if multi_label else feature
    if hasattr(each, "names"):
        classes = list(each.names)

        def index(value: Any) -> set[int]:
            return {one for one in _as_list(value) if one >= 0}

        return classes, index, multi_label
    values = {str(one) for column in columns for value in column for one in _as_list(value)}
    classes = sorted(values)
    at = {value: position for position, value in enumerate(classes)}
    return classes, lambda value: {at[str(one)] for one in _as_list(value)}, multi_label


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
