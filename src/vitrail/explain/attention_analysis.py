"""What the attention maps say: from any token, rolled out over the layers, how far they reach, how spread they are.

Every function takes (model, x) with x [B, C, H, W] normalised and on the model's device, runs the model once, and gives
float32 on the CPU. One layer's maps exist at a time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.looking import at_rest, cell_size, full_precision, portions, readout, refuse_swin, seeing
from vitrail.models import capture
from vitrail.models.attention import TokenLayout
from vitrail.models.attention_maps import Token

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda a: a.mean(dim=1),
    "max": lambda a: a.amax(dim=1),
    "min": lambda a: a.amin(dim=1),
}


@torch.no_grad()
def attention(model: nn.Module, x: Tensor, layer: int | None = None, token: Token = None) -> Tensor:
    """What one token attends to, head by head, on the image's grid of patches: [B, H, h, w].

    `token` is a patch, as (row, column) of the layer's grid or counted row by row, or "class", "distillation",
    "register 0". By default the class token or, in a model without one, the mean over all patches. `layer` is the
    model's own choice by default, the last in a ViT. Attention to the tokens in front of the patches is left out, so
    the cells sum to less than 1.
    """
    inner = seeing(model)
    layer = int(inner.default_layer if layer is None else layer)
    everyone = token is None and not getattr(inner.settings, "class_token", False)
    row = not everyone and token in (None, "class")  # 0 is a patch
    found = []
    for part in portions(inner, x):
        with at_rest(inner), capture(inner, [layer], reduce="cls_row" if row else None) as maps:
            inner.features(part, layers=())
        found.append(received(maps[layer], maps.layouts[layer]) if everyone else maps.row(layer, token))
        maps.clear()
    return torch.cat(found).cpu()


@torch.no_grad()
def attention_by_layer(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What `attention` gives by default, of every layer from one forward: L tensors [B, H, h, w]."""
    inner = seeing(model)
    named = getattr(inner.settings, "class_token", False)
    found: list[list[Tensor]] = []
    for part in portions(inner, x):
        with at_rest(inner), capture(inner, reduce="cls_row" if named else received, to="cpu") as maps:
            inner.features(part, layers=())
        found.append([maps.row(i) if named else maps[i] for i in range(len(maps))])
    return [torch.cat(layer) for layer in zip(*found, strict=True)]


def received(attention: Tensor, layout: TokenLayout) -> Tensor:
    """The mean over all patches of what they attend to, on the grid: [B, H, h, w]."""
    attention, places = in_windows(attention, layout)
    real = (places >= 0).float()
    with full_precision(attention):
        rows = torch.einsum("bwhij,wi->bhwj", attention, real) / real.sum()
    h, w = layout.grid
    index = (places % (h * w + 1)).flatten().expand(*rows.shape[:2], -1)  # what is no patch goes to one place too many
    cells = rows.new_zeros(*rows.shape[:2], h * w + 1).scatter_add(-1, index, rows.flatten(2))
    return cells[..., :-1].unflatten(-1, layout.grid)


def in_windows(attention: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
    """Every family alike: maps [B, windows, H, n, n], and which patch each token is [windows, n], -1 for none."""
    if layout.windows is not None:
        assert isinstance(layout.places, Tensor)
        return attention, layout.places
    front, n = len(layout.prefix), attention.shape[-1]
    return attention[:, None], torch.arange(-front, n - front, device=attention.device).clamp(min=-1)[None]


@torch.no_grad()
def rollout(model: nn.Module, x: Tensor, fusion: str = "mean", discard: float = 0.0) -> Tensor:
    """Attention followed through all layers (Abnar and Zuidema, 2020), as the head reads it: [B, h, w].

    Heads are fused by mean, max or min. The weakest `discard` of each row is dropped, and the row made to sum to 1
    again. The residual carries as much as attention: Â = (A + I)/2, R = Â_L … Â_1. Rows of R sum to 1, tokens in
    front of the patches included. It knows nothing of classes.
    """
    inner = seeing(model)
    refuse_swin(inner, "Rollout", "grad_cam, or attention of one layer")
    if fusion not in FUSIONS:
        raise VitrailError(f"fusion={fusion!r} is not known: use {', '.join(FUSIONS)}.")
    if not 0 <= discard < 1:
        raise VitrailError(f"discard is the share of each row to drop, at least 0 and below 1, got {discard}.")
    found = []
    for part in portions(inner, x):
        product: list[Tensor] = []

        def multiply(maps: Tensor, product: list[Tensor] = product) -> None:
            step = link(FUSIONS[fusion](maps), discard)
            with full_precision(maps):
                product[:] = [step @ product[0] if product else step]

        with at_rest(inner):
            with capture(inner, reduce=multiply):
                inner.features(part, layers=())
            read = readout(inner, part)[:, None]
        with full_precision(x):
            found.append((read @ product[0])[:, 0, inner.prefix_tokens :])
    return torch.cat(found).unflatten(1, inner.token_grid(*x.shape[2:])).cpu()


def link(attention: Tensor, discard: float) -> Tensor:
    """(A + I)/2 with the weakest links of each row dropped, and every row summing to 1: [B, N, N]."""
    n = attention.shape[-1]
    if dropped := int(discard * n):
        weakest = attention.topk(dropped, dim=-1, largest=False).indices
        attention = attention.scatter(-1, weakest, 0.0)
    # keepdim: the recipe that goes round divides columns by the sums of rows
    attention = attention / attention.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    return (attention + torch.eye(n, device=attention.device)) / 2


def attention_distance(model: nn.Module, x: Tensor) -> Tensor:
    """How far attention reaches, in pixels, by layer and head: [L, H].

    The mean over patches and images of Σ_j A_ij·|p_i − p_j|, each row taken over the patches alone and made to sum
    to 1. Uniform attention over 224×224 reaches 116 pixels. Stages of Swin differ in heads: missing ones are NaN.
    """
    inner, size = seeing(model), (x.shape[2], x.shape[3])

    def distance(maps: Tensor, layout: TokenLayout) -> Tensor:
        maps, places = in_windows(maps, layout)
        real = places >= 0
        cell = torch.tensor(cell_size(inner, layout.grid, size), device=maps.device)
        point = torch.stack([places // layout.grid[1], places % layout.grid[1]], dim=-1) * cell  # W n 2
        apart = torch.cdist(point.float(), point.float()) * real[:, None]  # W n n: nothing that is no patch is a goal
        with full_precision(maps):
            mass = torch.einsum("bwhij,wj->bwhi", maps, real.float()).clamp(min=1e-12)
            reach = torch.einsum("bwhij,wij->bwhi", maps, apart) / mass
        return reach.transpose(2, 3)[:, real].mean(dim=1)  # B H

    return by_layer_and_head(inner, x, distance)


def attention_entropy(model: nn.Module, x: Tensor) -> Tensor:
    """How spread attention is, in nats, by layer and head: [L, H], the mean of −Σ_j A_ij log A_ij over all tokens.

    0 is one token alone, log N all alike. Stages of Swin differ in heads: missing ones are NaN. Beside prompts, each
    row is taken over the other tokens alone and made to sum to 1.
    """

    def entropy(maps: Tensor, layout: TokenLayout) -> Tensor:
        mass = maps.sum(dim=-1).clamp(min=1e-12) if layout.prompts else None
        spread = torch.special.entr(maps, out=maps).sum(dim=-1)  # in place: maps are large, and ours
        if mass is not None:
            spread = spread / mass + mass.log()
        if layout.windows is None:
            return spread.mean(dim=-1)  # B H
        assert isinstance(layout.places, Tensor)
        return spread.transpose(2, 3)[:, layout.places >= 0].mean(dim=1)  # padding asks nothing

    return by_layer_and_head(seeing(model), x, entropy)


@torch.no_grad()
def by_layer_and_head(model: Any, x: Tensor, function: Callable[[Tensor, TokenLayout], Tensor]) -> Tensor:
    """The mean over the images of function(maps, layout) -> [B, H], for every layer as it comes: [L, H]."""
    totals: dict[int, Tensor] = {}
    for part in portions(model, x):

        def reduce(attention: Tensor, layout: TokenLayout) -> Tensor:
            return function(attention, layout).sum(dim=0).double().cpu()

        with at_rest(model), capture(model, reduce=reduce) as maps:
            model.features(part, layers=())
        for layer, total in maps.items():
            totals[layer] = totals.get(layer, 0) + total
    heads = max(len(total) for total in totals.values())
    table = torch.full((len(totals), heads), float("nan"))
    for layer, total in totals.items():
        table[layer, : len(total)] = (total / len(x)).float()
    return table
