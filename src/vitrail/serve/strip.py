"""An image's way through a model, stage by stage, each drawn from the tensors of one forward pass.

Tokens have more dimensions than a screen has colours, so a stage is shown by its first three principal components. A
component's sign and order are arbitrary: those of the block that `explain` shows are left as it draws them, and each
stage's are turned to agree with the next one, so that a colour keeps its meaning as far as there is one.
"""

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explain.colours import component_colours, principal_components
from vitrail.models import SwinTransformer
from vitrail.models.layers import pad_to_multiple


@dataclass
class Stage:
    key: str  # image | patches | stem | embeddings | positions | block | class
    title: str
    shape: list[int]
    note: str = ""
    colours: Tensor | None = None  # uint8 [h, w, 3]
    table: Tensor | None = None  # uint8 [h, w, 3]: the positions alone
    vector: Tensor | None = None  # [D]
    units: Tensor | None = None  # int8 [h·w, D]: the patch tokens' directions, to compare them with each other


@torch.inference_mode()
def stages(net: Any, x: Tensor) -> list[Stage]:
    """From pixels to the pooled vector, for one image [1, C, H, W]."""
    s, swin = net.settings, isinstance(net, SwinTransformer)
    p, q = s.patch_size
    source = x
    found = [Stage("image", "image", list(x.shape), "what the model is given: resized, cropped, normalised")]
    if getattr(net, "stem", None) is not None:
        source = net.stem(x)
        colours = as_bytes(principal(source[0].permute(1, 2, 0)))
        found.append(Stage("stem", "stem", list(source.shape), "a ResNet's feature map instead of pixels", colours))
    embedded = net.patch(source)  # 1 h w D
    h, w, d = embedded.shape[1:]
    cut = pad_to_multiple(source, s.patch_size)
    numbers = p * q * cut.shape[1]
    what = f"{p}·{q}·{cut.shape[1]} = {numbers} numbers each"
    found.append(Stage("patches", f"{w}×{h} patches", [1, h * w, numbers], what))
    shown = [principal(embedded[0])]  # of embeddings, then of tokens with their positions, then of every block
    note = f"each patch projected to {d} numbers, shown as colours"
    coloured = [Stage("embeddings", "embeddings", [1, h * w, d], note)]
    found.append(coloured[0])
    if swin:
        note = (
            "a learned bias per offset, inside the windows" if s.version == 1 else "a continuous bias, in the windows"
        )
        found.append(Stage("positions", "positions", [1, h * w, d], note))
    else:
        added = net.position.add(embedded)
        table = net.position.add(torch.zeros_like(embedded))[0]
        changed = bool(table.abs().max() > 0)
        front = net.prefix_tokens
        note = net.position.summary + (f"; {names(front)} in front" if front else "")
        alone = as_bytes(principal(table)) if changed else None
        shown.append(principal(added[0]) if changed else shown[0])
        coloured.append(Stage("positions", "+ positions", [1, front + h * w, d], note, table=alone))
        found.append(coloured[-1])
    depth = len(net.blocks)
    features = net.features(x, layers=range(depth))
    for layer in range(depth):
        tokens = features[f"map/{layer}"][0].permute(1, 2, 0).float()  # h w D
        shown.append(principal(tokens))
        shape = list(features[f"tokens/{layer}"].shape)
        units = (F.normalize(tokens.flatten(0, 1), dim=-1) * 127).round().to(torch.int8).cpu()
        coloured.append(Stage("block", f"block {layer + 1}", shape, units=units))
        found.append(coloured[-1])
    for stage, components in zip(coloured, agreeing(shown, net.default_layer - depth), strict=True):
        stage.colours = as_bytes(components)
    pooled = features["pooled"]
    vector = pooled[0].float().cpu()
    found.append(Stage("class", pooling(net), list(pooled.shape), "one vector for the whole picture", vector=vector))
    return found


def pooling(net: Any) -> str:
    if isinstance(net, SwinTransformer) or net.settings.pool == "mean":
        return "mean of the patches"
    if net.settings.pool == "attention":
        return "attention pooling"
    return "class token" if not net.settings.distillation_token else "class and distillation tokens"


def names(count: int) -> str:
    return "one token" if count == 1 else f"{count} tokens"


def principal(tokens: Tensor) -> Tensor:
    """The first three principal components of [h, w, D]: [h, w, 3]."""
    return principal_components(tokens.flatten(0, 1).cpu()).float().unflatten(0, tokens.shape[:2])


def agreeing(components: list[Tensor], fixed: int) -> list[Tensor]:
    """Those of each stage turned to agree with its neighbour on the way to the one that stays as it is."""
    found, fixed = [*components], fixed % len(components)
    for i in range(fixed - 1, -1, -1):
        found[i] = turned(found[i], found[i + 1])
    for i in range(fixed + 1, len(found)):
        found[i] = turned(found[i], found[i - 1])
    return found


def turned(components: Tensor, before: Tensor) -> Tensor:
    """The components in the order and with the signs that agree best with those of another stage."""
    if before.shape != components.shape:
        h, w, _ = components.shape
        before = F.adaptive_avg_pool2d(before.permute(2, 0, 1)[None], (h, w))[0].permute(1, 2, 0)
    now, then = (F.normalize(t.flatten(0, 1) - t.flatten(0, 1).mean(0), dim=0) for t in (components, before))
    alike = then.T @ now  # 3 3
    order = max(permutations(range(3)), key=lambda order: sum(abs(float(alike[i, j])) for i, j in enumerate(order)))
    signs = torch.tensor([1.0 if alike[i, j] >= 0 else -1.0 for i, j in enumerate(order)], device=components.device)
    return components[..., list(order)] * signs


def as_bytes(components: Tensor) -> Tensor:
    """As colours, uint8 [h, w, 3]."""
    return (component_colours(components) * 255).round().to(torch.uint8).cpu()
