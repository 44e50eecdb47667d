"""A small ViT that has learned to tell coloured pictures apart, and the pictures."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import vitrail
from tests.odd_files import photograph
from vitrail.doctor import Diagnosis, diagnose
from vitrail.doctor.examine import CHECKS
from vitrail.doctor.findings import Finding
from vitrail.doctor.patient import admit
from vitrail.models import Preprocessing

SHAPE: dict[str, Any] = {
    "width": 48, "depth": 4, "heads": 3, "patch_size": 8, "image_size": 32, "num_classes": 4,
}  # fmt: skip
SWIN: dict[str, Any] = {
    "width": 16, "depths": (2, 2), "heads": (2, 4), "window": 4, "image_size": 32, "num_classes": 4,
}  # fmt: skip
PRE = Preprocessing(size=(32, 32), crop=1.0)
HUES = 8  # parts of the circle of colours, of which four neighbouring ones are the classes
LABELS = ["amber", "leaf", "sea", "wine"]


def picture(number: int, label: int) -> Image.Image:
    return photograph(number, 32, 32, hue=0.1 + label / HUES)


def write_pictures(folder: Path, count: int = 64) -> Path:
    """Class folders."""
    for number in range(count):
        path = folder / LABELS[number % 4] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(1000 + number, number % 4).save(path)
    return folder


@cache
def pixels(count: int = 64, start: int = 1000) -> tuple[Tensor, Tensor]:
    """Pictures [n, 3, 32, 32] from 0 to 1, and their labels: the hue."""
    found = [np.asarray(picture(start + n, n % 4)) for n in range(count)]
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 255, torch.arange(count) % 4


def normalised(pictures: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (PRE.mean, PRE.std))
    return (pictures - mean) / std


def batch() -> tuple[Tensor, Tensor]:
    """As the model is to be given them."""
    pictures, labels = pixels()
    return normalised(pictures), labels


def teach(model: nn.Module, steps: int, lr: float = 1e-3) -> nn.Module:
    pictures, labels = pixels(256, 0)
    x, chance = normalised(pictures), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        some = torch.randint(0, len(x), (32,), generator=chance)
        out = model(x[some])
        loss = F.cross_entropy(out, labels[some]) if isinstance(out, Tensor) else out.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def make(name: str = "vit_ti16", **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    model = vitrail.create_model(name, **{**(SWIN if name.startswith("swin") else SHAPE), **changes})
    model.preprocessing = PRE
    return model


@cache
def _trained() -> nn.Module:
    return teach(make(), 150)


def trained() -> nn.Module:
    """A copy of its own for every test, to plant a fault in."""
    return copy.deepcopy(_trained())


def codes(found: Diagnosis) -> set[str]:
    """All that was found, but for what is healthy."""
    return {finding.code for finding in [*found.faults, *found.warnings]}


def check(name: str, model: nn.Module, data: Any = None) -> list[Finding]:
    """One check alone."""
    patient, _ = admit(model, batch() if data is None else data)
    assert patient is not None
    list(CHECKS["weights"](patient))  # the others ask it whether the model was ever trained
    return [*CHECKS[name](patient)]


def examine(model: Any, data: Any = None, **options: Any) -> Diagnosis:
    return diagnose(model, batch() if data is None else data, **options)
