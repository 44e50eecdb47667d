"""What every look inside needs: the part that sees the image, at rest, its classes, and how large its cells are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models import ConvNet, MaskedAutoencoder, SwinTransformer, VisionTransformer
from vitrail.models.layers import ceil_div
from vitrail.weights.onnx import OnnxModel

Grid = tuple[int, int]
Target = int | Sequence[int] | Tensor | None


def seeing(model: nn.Module) -> Any:
    """The module that takes whole images: the encoder of an MAE, and what `torch.compile` has wrapped."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, MaskedAutoencoder):
        return model.encoder
    if isinstance(model, VisionTransformer | SwinTransformer):
        return model
    if isinstance(model, ConvNet):
        raise VitrailError(
            f"tv:{model.settings.arch} is a convolutional network, without patches or attention: doctor, explain and"
            " studio look into ViT, Swin and MAE; train, evaluate, predict and embed work with it."
        )
    if isinstance(model, OnnxModel):
        raise VitrailError(f"{model.path} is an ONNX file, which shows no layers: name the run it was exported from.")
    raise VitrailError(
        f"{type(model).__name__} shows no layers to look into: doctor, explain and studio look into ViT, Swin and MAE,"
        " of a run or a checkpoint itself, not of an export."
    )


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Without dropout and drop path, whatever mode the model is in; afterwards it is in that mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def graph(x: Tensor) -> Iterator[Tensor]:
    """The images as a leaf to differentiate to, also for a caller under `no_grad` or `inference_mode`. With
    `autograd.grad` to this leaf no parameter gets a gradient."""
    with torch.inference_mode(False), torch.enable_grad():
        yield x.detach().clone().requires_grad_()


def full_precision(x: Tensor) -> torch.autocast:
    """For products of maps: the model may run under autocast, but what is computed from its maps may not."""
    return torch.autocast(x.device.type, enabled=False)


def class_logits(model: Any, x: Tensor) -> Tensor:
    """[B, classes] in fp32; refused where there are none."""
    if not model.settings.num_classes:
        raise VitrailError("This model has no classes to explain; attention, rollout and token PCA need none.")
    return model(x).float()


def targets(logits: Tensor, target: Target) -> Tensor:
    """One class per image, [B]: the predicted one where nothing else is asked for."""
    if target is None:
        return logits.argmax(dim=-1)
    chosen = torch.as_tensor(target, device=logits.device).long()
    if chosen.ndim and chosen.shape != logits.shape[:1]:
        raise VitrailError(f"Expected one target, or one for each of {len(logits)} pictures, got {list(chosen.shape)}.")
    if wrong := [int(i) for i in chosen.flatten() if not 0 <= i < logits.shape[-1]]:
        raise VitrailError(f"This model has classes 0 to {logits.shape[-1] - 1}; there is no class {wrong[0]}.")
    return chosen.expand(len(logits))


def strides(model: Any) -> list[Grid]:
    """How many pixels a token spans, down and across: one size in a ViT, one per stage in Swin."""
    s = model.settings
    if isinstance(model, SwinTransformer):
        return [(s.patch_size[0] * 2**i, s.patch_size[1] * 2**i) for i in range(len(s.depths))]
    return [s.stride]


def cell_size(model: nn.Module, grid: Grid, size: Grid) -> Grid:
    """Pixels that one cell of a map stands for, on an image of `size`. The last row and column may reach past it: the
    model pads with zeros there."""
    for stride in strides(seeing(model)):
        if ceil_div(size, stride) == tuple(grid):
            return stride
    return ceil_div(size, grid)


def spread(cells: Tensor, cell: Grid, size: Grid) -> Tensor:
    """Each cell of [..., h, w] over its pixels: [..., H, W]."""
    pixels = cells.repeat_interleave(cell[0], dim=-2).repeat_interleave(cell[1], dim=-1)
    return pixels[..., : size[0], : size[1]]


def refuse_swin(model: Any, what: str, instead: str) -> None:
    if isinstance(model, SwinTransformer):
        raise VitrailError(
            f"{what} needs attention between all patches, and Swin has it in windows only; use {instead}."
        )


MAP_BYTES = 2**28  # of one layer's maps at a time, unless a single image has more


def portions(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    """The batch in parts whose attention maps of one layer stay below `MAP_BYTES`."""
    s = model.settings
    if isinstance(model, SwinTransformer):
        h, w = ceil_div((x.shape[2], x.shape[3]), s.patch_size)
        pairs = h * w * s.window[0] * s.window[1] * s.heads[0]
    else:
        h, w = model.token_grid(x.shape[2], x.shape[3])
        pairs = (h * w + model.prefix_tokens) ** 2 * s.heads
    return x.split(max(1, MAP_BYTES // (4 * pairs)))


def portions_with(model: Any, x: Tensor, target: Target) -> Iterator[tuple[Tensor, Target]]:
    """The same, each part with its targets."""
    chosen = None if target is None else torch.as_tensor(target, device=x.device)
    if chosen is not None and chosen.ndim and chosen.shape != (len(x),):
        raise VitrailError(f"Expected one target, or one for each of {len(x)} pictures, got {list(chosen.shape)}.")
    done = 0
    for part in portions(model, x):
        yield part, chosen if chosen is None or not chosen.ndim else chosen[done : done + len(part)]
        done += len(part)


@torch.no_grad()
def readout(model: Any, x: Tensor) -> Tensor:
    """How much the head of a ViT reads of each of the last tokens: [B, N], rows that sum to 1.

    All of the class token; half of it and half of the distillation token; the patches alike where they are averaged;
    and where a learned query asks the tokens, by its attention.
    """
    h, w = model.token_grid(x.shape[2], x.shape[3])
    front = model.prefix_tokens
    read = torch.zeros(len(x), front + h * w, device=x.device)
    if model.pool_attention is not None:
        pool, tokens = model.pool_attention, model.features(x, layers=())["tokens"]
        q = pool.q(pool.query).unflatten(-1, (pool.heads, -1)).transpose(1, 2)  # 1 H 1 d
        k = pool.kv(tokens).unflatten(-1, (2, pool.heads, -1))[:, :, 0].transpose(1, 2)  # B H N d
        with full_precision(x):
            scores = q.float() @ k.float().transpose(-2, -1) * q.shape[-1] ** -0.5
            return scores.softmax(dim=-1).mean(dim=1)[:, 0]
    if model.settings.pool == "mean":
        read[:, front:] = 1 / (h * w)
    elif model.settings.distillation_token and model.settings.num_classes:
        read[:, :2] = 0.5
    else:
        read[:, 0] = 1
    return read
