"""A picture's way through a model, stage by stage, each drawn from the tensors of one forward pass.

Tokens have more dimensions than a screen has colours, so a stage is shown by its first three principal components. A
component's sign and order are arbitrary: each block's are turned to agree with the block before,
so that a colour keeps its meaning from stage to stage as far as there is one.
"""

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explain.tokens import principal_components
from vitrail.models import SwinTransformer
from vitrail.models.layers import pad_to_multiple

POSITIONS = {
    "none": "no positions: the order of the patches is unknown to this model",
    "learned": "a learned vector per patch",
    "sincos": "fixed waves over rows and columns",
    "sincos1d": "fixed waves over the raster index",
    "factorised": "a learned vector per row plus one per column",
    "relative": "a learned bias per offset, inside attention",
    "rotary": "queries and keys are turned, inside attention",
    "conditional": "a 3×3 convolution after the first block",
}


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
    """From pixels to the pooled vector, for one picture [1, C, H, W]."""
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
    first = principal(embedded[0])
    note = f"each patch projected to {d} numbers, shown as colours"
    found.append(Stage("embeddings", "embeddings", [1, h * w, d], note, as_bytes(first)))
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
        note = POSITIONS[s.position] + (f"; {names(front)} in front" if front else "")
        first = turned(principal(added[0]), first) if changed else first
        found.append(
            Stage(
                "positions", "+ positions", [1, front + h * w, d], note, as_bytes(first),
                as_bytes(principal(table)) if changed else None,
            )
        )  # fmt: skip
    depth = len(net.blocks)
    features = net.features(x, layers=range(depth))
    for layer in range(depth):
        tokens = features[f"map/{layer}"][0].permute(1, 2, 0).float()  # h w D
        first = turned(principal(tokens), first)
        shape = list(features[f"tokens/{layer}"].shape)
        units = (F.normalize(tokens.flatten(0, 1), dim=-1) * 127).round().to(torch.int8).cpu()
        found.append(Stage("block", f"block {layer + 1}", shape, "", as_bytes(first), units=units))
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


def turned(components: Tensor, before: Tensor) -> Tensor:
    """The components in the order and with the signs that agree best with those of the stage before."""
    if before.shape != components.shape:
        h, w, _ = components.shape
        before = F.adaptive_avg_pool2d(before.permute(2, 0, 1)[None], (h, w))[0].permute(1, 2, 0)
    now, then = (F.normalize(t.flatten(0, 1) - t.flatten(0, 1).mean(0), dim=0) for t in (components, before))
    alike = then.T @ now  # 3 3
    order = max(permutations(range(3)), key=lambda order: sum(abs(float(alike[i, j])) for i, j in enumerate(order)))
    signs = torch.tensor([1.0 if alike[i, j] >= 0 else -1.0 for i, j in enumerate(order)], device=components.device)
    return components[..., list(order)] * signs


def as_bytes(components: Tensor) -> Tensor:
    """As colours, uint8 [h, w, 3]: the first component from blue to gold, the second from green to red, the third from
    dark to light. In Oklab, where equal steps look equal; each between its 2nd and 98th percentile.

    The weaker ones are paler: at full range the third, which is often noise, would be as loud as the first.
    """
    flat = components.flatten(0, 1)
    low, high = flat.quantile(0.02, dim=0), flat.quantile(0.98, dim=0)
    spread = (high - low).clamp(min=1e-12)
    share = ((components - (low + high) / 2) / spread).clamp(-0.5, 0.5) * (spread / spread.max()).sqrt()
    first, second, third = share.unbind(-1)
    rgb = from_oklab(0.64 + 0.24 * first + 0.30 * third, 0.36 * second, 0.36 * first)
    return (rgb * 255).round().to(torch.uint8).cpu()


def from_oklab(lightness: Tensor, green_red: Tensor, blue_yellow: Tensor) -> Tensor:
    """sRGB from 0 to 1, [..., 3] (B. Ottosson's matrices)."""
    lab = torch.stack([lightness, green_red, blue_yellow], dim=-1)
    to_cones = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
    to_linear = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
    linear = ((lab @ lab.new_tensor(to_cones).T) ** 3 @ lab.new_tensor(to_linear).T).clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp(min=1e-9) ** (1 / 2.4) - 0.055)
