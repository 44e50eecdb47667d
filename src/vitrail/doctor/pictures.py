"""The images that a model is examined with: a few of DATA, of every class some; or, without any, made-up ones."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.samples import PICTURES, Sample, plural
from vitrail.data.sources.folders import pictures_below
from vitrail.errors import VitrailError
from vitrail.inference.decoding import decoded
from vitrail.models.preprocessing import Preprocessing
from vitrail.predict import Predictor
from vitrail.tasks.scoring import class_indices, scored_samples

Labels = list[tuple[int, ...]]
PER_CLASS = 8  # enough for neighbours of one's own class to be among the five nearest
MADE_UP = 16  # images, where there is no DATA


@dataclass
class Batch:
    x: Tensor  # [B, C, H, W], exactly as the model is given it
    about: str  # where it comes from, in words
    groups: Labels | None = None  # for each image its classes, as numbers of the data
    targets: Labels | None = None  # the same as numbers of the model, where it knows these classes
    real: bool = True
    multi_label: bool = False


def gather(data: Any, predictor: Predictor, run: Any, count: int) -> Batch:
    """`data` is what `open_source` takes, a folder of images without classes, a tensor as the model would be given
    it, (x, labels), or None."""
    pre = predictor.preprocessing
    if data is None:
        return made_up(pre, predictor.device)
    if isinstance(data, Tensor):
        return _tensors(data, None, predictor, count)
    if isinstance(data, tuple | list):
        x, labels = data
        return _tensors(x, labels, predictor, count)
    pre = replace(pre, fit="crop") if pre.fit == "native" else pre
    try:
        source = predictor.kind.examined(os.fspath(data))
    except VitrailError:
        if found := _loose_pictures(Path(os.fspath(data)).expanduser()):
            pixels, kept = _read(found[:: max(1, len(found) // count)][:count], pre)
            return Batch(predictor.normalised(pixels), f"{plural(len(kept), 'picture')} of {data}")
        raise
    samples, split, _ = scored_samples(source, run, None)
    chosen = choose(samples, count)
    # Mixed, so that the first few, which some checks are content with, are of several classes.
    pixels, kept = _read([chosen[i] for i in np.random.default_rng(0).permutation(len(chosen))], pre)
    groups = [sample.labels for sample in kept] if any(sample.labels for sample in kept) else None
    targets: Labels | None = None
    if predictor.labels and groups is not None:
        try:
            index = class_indices(source, predictor)
            targets = [tuple(index[i] for i in labels) for labels in groups]
        except VitrailError:  # classes that this model does not know: its features can be examined all the same
            pass
    about = f"{plural(len(kept), 'picture')} of {source.name} ({split})"
    return Batch(predictor.normalised(pixels), about, groups, targets, True, source.multi_label)


def choose(samples: list[Sample], count: int) -> list[Sample]:
    """`count` of them: a few classes, spread over all, with enough images each to have neighbours of their own."""
    members: dict[tuple[int, ...], list[Sample]] = {}
    for sample in samples:
        members.setdefault(sample.labels[:1], []).append(sample)
    classes = [*members.values()]
    each = max(PER_CLASS, -(-count // len(classes)))
    step = max(1, len(classes) // max(1, count // each))
    chosen: list[Sample] = []
    for start in range(step):  # the classes of every step-th place, then those beside them, until there are enough
        for group in classes[start::step]:
            chosen += group[:: max(1, len(group) // each)][: min(each, count - len(chosen))]
            if len(chosen) == count:
                return chosen
    return chosen


def _read(sources: list[Any], pre: Preprocessing) -> tuple[Tensor, list[Any]]:
    """uint8 [n, H, W, C] of those that can be read, and which these are."""
    pictures = [picture for batch in decoded(sources, pre, 32) for picture in batch]
    good = [picture for picture in pictures if picture.views is not None]
    if not good:
        raise VitrailError(f"Not one of {len(pictures):,} pictures can be read, for instance: {pictures[0].error}")
    return torch.from_numpy(np.stack([picture.views[0] for picture in good])), [p.source for p in good]  # type: ignore


def _tensors(x: Tensor, labels: Any, predictor: Predictor, count: int) -> Batch:
    if x.ndim != 4:
        raise VitrailError(f"Expected a batch of images [B, C, H, W], got a tensor of shape {list(x.shape)}.")
    x = x[:count].detach().to(predictor.device).float()
    about = f"{plural(len(x), 'picture')}, given as a tensor"
    if labels is None:
        return Batch(x, about)
    groups: Labels = [(int(label),) for label in torch.as_tensor(labels).flatten()[:count]]
    if len(groups) != len(x):
        raise VitrailError(f"Expected a label for each of {len(x)} pictures, got {len(groups)}.")
    known = max(label for (label,) in groups) < len(predictor.labels)
    return Batch(x, about, groups, groups if known else None)


def _loose_pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return [folder] if folder.is_file() and folder.suffix.lower() in PICTURES else []
    return pictures_below(folder)


def made_up(pre: Preprocessing, device: torch.device) -> Batch:
    """Smooth colours with some grain, of mean 0 and deviation 1: more like a photograph than noise is."""
    chance = torch.Generator().manual_seed(0)
    x = torch.zeros(MADE_UP, len(pre.mean), *pre.size)
    for side, weight in ((3, 1.0), (7, 0.7), (28, 0.4), (112, 0.2)):
        coarse = torch.randn(MADE_UP, len(pre.mean), side, side, generator=chance)
        x += weight * F.interpolate(coarse, pre.size, mode="bilinear")
    x = (x - x.mean()) / x.std()
    return Batch(x.to(device), f"{MADE_UP} made-up pictures (name DATA for real ones)", real=False)
