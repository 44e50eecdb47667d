"""What tokens and weights look like: token PCA as colours, similarity of tokens and of positions, patch filters, and
what a masked autoencoder paints."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.colours import component_colours, principal_components
from vitrail.explain.looking import Grid, at_rest, seeing
from vitrail.models import MaskedAutoencoder, SwinTransformer
from vitrail.models.attention import TokenLayout
from vitrail.models.attention_maps import Token, find_patch
from vitrail.models.checks import check_layers
from vitrail.models.preprocessing import IMAGENET


@torch.no_grad()
def token_pca(model: nn.Module, x: Tensor, layer: int | None = None) -> Tensor:
    """The patch tokens as colours, by their first three principal components: sRGB [B, h, w, 3] in 0 … 1.

    Tokens alike have colours alike: the main direction goes from blue to gold, the second from green to red, the third
    from dark to light. The components are those of the whole batch, so that equal colours in two images mean equal
    things.
    """
    tokens = _tokens(model, x, layer)[1]
    b, d, h, w = tokens.shape
    components = principal_components(tokens.permute(0, 2, 3, 1).reshape(-1, d))
    return component_colours(components).float().view(b, h, w, 3)


@torch.no_grad()
def token_similarity(model: nn.Module, x: Tensor, token: Token = None, layer: int | None = None) -> Tensor:
    """The cosine between one token and every patch: [B, h, w] in −1 … 1. Tokens are named as in `attention`."""
    tokens, patches = _tokens(model, x, layer)
    names = getattr(seeing(model).settings, "prefix_names", ())
    grid = (patches.shape[2], patches.shape[3])
    chosen = tokens[:, find_patch(TokenLayout(grid, names), token) + len(names)]  # B D
    return torch.cosine_similarity(chosen[:, :, None, None], patches, dim=1)


def _tokens(model: nn.Module, x: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
    """What leaves a layer, all of it [B, N, D] and the patches on their grid [B, D, h, w], in fp32 on the CPU."""
    inner = seeing(model)
    (number,) = check_layers([inner.default_layer if layer is None else layer], len(inner.blocks))
    with at_rest(inner):
        out = inner.features(x, layers=[number])
    return out[f"tokens/{number}"].float().cpu(), out[f"map/{number}"].float().cpu()


@torch.no_grad()
def position_similarity(model: nn.Module, grid: Grid | None = None) -> Tensor:
    """The cosine between the positions of every two patches: [h, w, h, w]; `[r, c]` is the map of patch (r, c).

    Of the vectors that are added to the patches, resized to `grid` as an image of that size would have them. Rotary
    positions turn instead of adding: there it is the cosine of the angles between two places, averaged.
    """
    inner = seeing(model)
    if isinstance(inner, SwinTransformer):
        raise VitrailError("Swin has a bias for every offset in its windows and no vector for a place to compare.")
    position, (h, w) = inner.position, grid or inner.settings.grid
    vectors = position.vectors((h, w), inner.settings.width)
    if vectors is None:
        raise VitrailError(
            f"position={position.kind!r} gives no vector to a place that could be compared: {position.no_vector}."
        )
    vectors = nn.functional.normalize(vectors, dim=-1)
    return (vectors @ vectors.T).view(h, w, h, w).cpu()


@torch.no_grad()
def patch_filters(model: nn.Module, components: int = 28) -> tuple[Tensor, Tensor]:
    """The principal components of the patch-embedding filters, [k, C, p, q], and the share of variance of each, [k].

    What the first layer can see of a patch, most important first; figure 7 of the ViT paper shows 28.
    """
    if components < 1:
        raise VitrailError(f"components must be at least 1, got {components}.")
    weight = seeing(model).patch.weight.double().cpu()  # D C p q
    rows = weight.flatten(1)
    _, sizes, directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    share = sizes.square() / sizes.square().sum().clamp(min=1e-30)
    filters = _signed(directions[:components]).unflatten(1, weight.shape[1:])
    return filters.float(), share[:components].float()


def _signed(directions: Tensor) -> Tensor:
    """Principal directions are known up to their sign: the largest entry of each is made positive."""
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return directions * torch.where(largest < 0, -1.0, 1.0)


class Reconstruction(NamedTuple):
    """Images [B, C, H, W] with values from 0 to 1, and the mask [B, h, w], true where a patch was hidden."""

    original: Tensor
    masked: Tensor  # hidden patches in grey
    painted: Tensor  # hidden patches as the model paints them, the others as they are
    mask: Tensor


@torch.no_grad()
def reconstruct(
    mae: nn.Module,
    x: Tensor,
    mask_ratio: float | None = None,
    mask: Tensor | None = None,
    seed: int = 0,
    mean: tuple[float, ...] = IMAGENET["mean"],
    std: tuple[float, ...] = IMAGENET["std"],
) -> Reconstruction:
    """What a masked autoencoder paints where patches are hidden: at random with `mask_ratio` and `seed`, or where
    `mask` [h, w] or [B, h, w] is true. `mean` and `std` are those that x was normalised with.

    A model trained on normalised patches (`norm_pix`) predicts no brightness or contrast of a patch; both are lent by
    the true one, as in the paper's figures.
    """
    mae = getattr(mae, "_orig_mod", mae)
    if not isinstance(mae, MaskedAutoencoder):
        raise VitrailError(
            f"Reconstruction needs a masked autoencoder (`vitrail models mae*`), not {type(mae).__name__}."
        )
    h, w = mae.encoder.token_grid(x.shape[2], x.shape[3])
    if mask is None:
        noise = torch.rand(len(x), h * w, generator=torch.Generator().manual_seed(seed)).to(x.device)
        with at_rest(mae):
            painted, hidden = mae.reconstruct(x, mask_ratio, noise)
    else:
        mask = torch.as_tensor(mask, device=x.device).bool()
        if mask.shape not in ((h, w), (len(x), h, w)):
            raise VitrailError(f"The mask is {list(mask.shape)}; the pictures have {h}×{w} patches.")
        with at_rest(mae):  # one by one: images may have masks of different sizes
            done = [_hiding(mae, one, rows) for one, rows in zip(x.split(1), mask.expand(len(x), h, w), strict=True)]
        painted, hidden = (torch.cat(parts) for parts in zip(*done, strict=True))
    p, q = mae.settings.patch_size
    shift, scale = (torch.tensor(values, device=x.device).view(-1, 1, 1) for values in (mean, std))
    original, painted = ((picture.float() * scale + shift).clamp(0, 1).cpu() for picture in (x, painted))
    hidden = hidden.cpu() > 0
    return Reconstruction(original, torch.where(hidden, 0.5, original), painted, hidden[:, 0, ::p, ::q])


def _hiding(mae: MaskedAutoencoder, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    n, kept = mask.numel(), int((~mask).sum())
    if not kept:
        raise VitrailError("The mask hides every patch: leave at least one for the encoder to see.")
    # `reconstruct` counts in ratios; half a patch more keeps the rounding on the right side.
    return mae.reconstruct(x, max(0.0, 1 - (kept + 0.5) / n), mask.flatten()[None].float())
