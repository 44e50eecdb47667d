"""Is there anything that tells one place from another? By what is really added, or by the biases in attention.

Measured on healthy models: the position vectors of DeiT-Ti have size 0.60, and neighbours are 0.93 alike; those of a
freshly initialised table have size 0.02 and are 0.00 alike.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitrail.doctor.findings import Finding, blocks, fault, ok, warn
from vitrail.doctor.patient import Patient
from vitrail.doctor.structure import by
from vitrail.doctor.traces import as_drawn
from vitrail.explain import position_similarity
from vitrail.models import SwinTransformer

TINY = 1e-5  # of the patches' size: positions below are none; the smallest healthy ratio, a fresh table's, is 0.04
EQUAL = 1e-4  # of the positions' own size: a spread below is none; healthy ones have 0.7 and more


@torch.no_grad()
def positions(patient: Patient) -> Iterator[Finding]:
    body = patient.body
    if isinstance(body, SwinTransformer):
        yield from _window_biases(body)
        return
    if body.position.acts == "nowhere":
        yield ok("none, as the settings say: this model can't tell places apart")
    elif (carrier := body.position.carrier()) is not None:
        what, numbers = carrier
        yield _strength(numbers, what)
    else:
        yield from _added(patient, body, patient.batch.x)


def _added(patient: Patient, body: Any, x: Tensor) -> Iterator[Finding]:
    grid = body.token_grid(*x.shape[2:])
    table = body.position.vectors(grid, body.settings.width)  # N D
    kind, count, noise = body.position.kind, len(table), body.position.noise()
    size = table.square().mean().sqrt().item()
    spread = (table - table.mean(dim=0)).square().mean().sqrt().item()
    image = body.stem(x[:4]) if body.stem is not None else x[:4]
    picture = body.patch(image).float().square().mean().sqrt().item()
    seen: dict[str, float] = {"size": size, "spread": spread, "patches": picture}
    if size < TINY * max(picture, 1e-12):
        yield fault(
            "positions_zero",
            f"all {count} position vectors are zero (size {size:.1g}, patches {picture:.2g})",
            "the table was not loaded, or was set to zero",
            "load position.table from the checkpoint; without it the model sees a bag of patches",
            **seen,
        )
        return
    if count > 1 and spread < EQUAL * size:
        yield fault(
            "positions_equal",
            f"all {count} position vectors are equal (spread {spread:.1g} of {size:.2g})",
            "the table was filled with one value, or resized from a single row",
            "load position.table from the checkpoint",
            **seen,
        )
        return
    alike = position_similarity(patient.model, grid)
    patient.charts["positions"] = alike
    near, far = neighbour_similarity(alike), alike.mean().item()
    seen |= {"neighbours": near, "all": far}
    as_made = noise is not None and abs(near - far) < 0.05 and count > 16 and as_drawn(noise)
    if as_made and patient.long_trained:
        yield warn(
            "positions_random",
            f"the table is as drawn at random: neighbours {near:.2f} alike, deviation 0.02",
            "it was left out when the weights were loaded",
            "load position.table from the checkpoint",
            **seen,
        )
        return
    yield ok(f"{kind}, {by(grid)}: size {size:.2g}, neighbours {near:.2f} alike, all pairs {far:.2f}", **seen)


def neighbour_similarity(alike: Tensor) -> float:
    """The mean cosine of the positions of patches that touch, from [h, w, h, w]."""
    h, w = alike.shape[:2]
    flat = alike.reshape(h * w, h * w)
    index = torch.arange(h * w).view(h, w)
    pairs = torch.cat(
        [
            torch.stack([index[1:].flatten(), index[:-1].flatten()]),
            torch.stack([index[:, 1:].flatten(), index[:, :-1].flatten()]),
        ],
        dim=1,
    )
    return flat[pairs[0], pairs[1]].mean().item() if pairs.numel() else 1.0


def _strength(tensor: Tensor, what: str) -> Finding:
    size = tensor.float().square().mean().sqrt().item()
    spread = tensor.float().std().item() if tensor.numel() > 1 else size
    if size == 0 or spread < EQUAL * size:
        return fault(
            "positions_zero",
            f"{what} is all {'zero' if size == 0 else 'equal'} (size {size:.1g})",
            "it was not loaded, or was set to zero",
            "load it from the checkpoint",
            size=size,
            spread=spread,
        )
    return ok(f"{what}: size {size:.2g}, spread {spread:.2g}", size=size, spread=spread)


def _window_biases(body: SwinTransformer) -> Iterator[Finding]:
    """Swin has no vector for a place: a bias for each offset in its windows."""
    spreads = [block.bias().float().std().item() for block in body.blocks]
    none = [number for number, spread in enumerate(spreads) if spread < 1e-7]  # fresh: 0.02, or a little less
    if none:
        yield fault(
            "positions_zero",
            f"the relative positions of {blocks(none)} are all equal (spread {min(spreads):.1g})",
            "their tables were not loaded, or were set to zero",
            "load bias.table from the checkpoint",
            least=min(spreads),
        )
    else:
        yield ok(
            f"a bias for every offset, in all {len(spreads)} blocks: spread {min(spreads):.2g} to {max(spreads):.2g}",
            least=min(spreads),
            most=max(spreads),
        )
