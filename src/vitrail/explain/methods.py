"""The explanations that can be put side by side: each a function (model, x, target) -> [B, h, w], higher for what
matters more."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.explain.attention_analysis import attention, received, rollout
from vitrail.explain.gradient_maps import grad_cam, relevance
from vitrail.explain.looking import Target, at_rest, full_precision, portions, readout, seeing
from vitrail.models import SwinTransformer, capture

Method = Callable[[nn.Module, Tensor, Target], Tensor]


@torch.no_grad()
def last_attention(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Raw attention of the last layer, averaged over heads, as the head reads it. Knows nothing of classes."""
    inner = seeing(model)
    if isinstance(inner, SwinTransformer):
        found = []
        for part in portions(inner, x):
            with at_rest(inner), capture(inner, [-1]) as maps:
                inner.features(part, layers=())
            found.append(received(maps[-1], maps.layouts[-1]).mean(dim=1))
        return torch.cat(found).cpu()
    if inner.settings.pool == "token" and not inner.settings.distillation_token:
        return attention(inner, x, layer=-1, token="class").mean(dim=1)
    found = []
    for part in portions(inner, x):
        with at_rest(inner):
            with capture(inner, [-1], reduce="mean_heads") as maps:
                inner.features(part, layers=())
            read = readout(inner, part)[:, None]
        with full_precision(x):
            found.append((read @ maps[-1])[:, 0, inner.prefix_tokens :])
    return torch.cat(found).unflatten(1, inner.token_grid(*x.shape[2:])).cpu()


def followed_attention(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Rollout, with heads fused by their mean. Knows nothing of classes."""
    return rollout(model, x)


def random_order(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """No explanation at all, to compare with: noise, and the same noise whenever the same image comes."""
    grid = seeing(model).token_grid(x.shape[2], x.shape[3])
    seeds = (x.double().abs().sum(dim=(1, 2, 3)) * 1e3).long().tolist()
    return torch.stack([torch.rand(grid, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


METHODS: dict[str, Method] = {
    "relevance": relevance,
    "grad_cam": grad_cam,
    "rollout": followed_attention,
    "attention": last_attention,
    "random": random_order,
}
NEED_CLASSES = {"relevance", "grad_cam"}
NEED_ALL_PAIRS = {"relevance", "rollout"}  # of patches, which Swin's windows don't have


def methods_for(model: nn.Module) -> dict[str, Method]:
    """Those of `METHODS` that this kind of model allows."""
    inner = seeing(model)
    left_out = NEED_ALL_PAIRS if isinstance(inner, SwinTransformer) else set()
    left_out = left_out | (set() if inner.settings.num_classes else NEED_CLASSES)
    return {name: method for name, method in METHODS.items() if name not in left_out}
