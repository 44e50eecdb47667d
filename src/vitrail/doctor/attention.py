"""Attention heads: rows that sum to one, and heads that give nothing, look nowhere in particular, or at one token only.

Measured on healthy models. DeiT-Ti on photographs: entropy 0.24 to 0.92 of log N, what a head adds 0.36 to 2.4 times
the median of its layer, at most 0.48 of all attention on one token (0.86 on made-up images), attention 0.14 to 0.6
apart between images. Fresh ones: entropy 0.999, 0.9 to 1.4 times the median, 0.002 (Swin) to 0.03 apart.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.samples import plural, some
from vitrail.doctor.findings import Finding, blocks, fault, ok, warn
from vitrail.doctor.patient import Patient
from vitrail.explain import attention_entropy
from vitrail.explain.looking import portions
from vitrail.models import capture
from vitrail.models.attention import Attention, TokenLayout
from vitrail.models.tuning import tuning_of

DEAD = 0.01  # of the median head of its layer; a thirty-fifth of the weakest healthy one
SAME = 1e-5  # distance between images; a two-hundredth of the least healthy one
UNIFORM = 0.995  # of log N, in a model whose heads on the whole are below 0.95; the healthy most is 0.95
COLLAPSED = 0.999  # of all attention on one token; the healthy most is 0.86
ROWS = 1e-3  # from 1; healthy ones are 1e-6 away
PICTURES = 8


class Heads(NamedTuple):
    """One layer's, [H] each."""

    apart: Tensor  # how far the attention of one image is from the mean over images, 0 to 1
    onto_one: Tensor  # the largest share that all queries together give to a single token
    rows: Tensor  # how far a row's sum is from 1, at most; beside prompts, which take a part of it, how far above
    tokens: Tensor  # log N


def attention(patient: Patient) -> Iterator[Finding]:
    body = patient.body
    x = patient.batch.x[:PICTURES]
    x = x[: max(2, len(portions(body, x)[0]))]  # maps of one layer stay below what the analyses allow themselves
    entropy = attention_entropy(body, x)
    # Of images that are all but the same, attention is too: one of another kind among them keeps heads apart.
    other = torch.randn(x[:1].shape, generator=torch.Generator().manual_seed(0)).to(x)
    layers, gives = look(body, torch.cat([x[: max(1, len(x) - 1)], other]))
    most = torch.stack([heads.tokens[0] for heads in layers])  # log N of each layer
    relative = entropy / most[:, None].clamp(min=1e-12)
    if entropy.isfinite().any():
        patient.charts["entropy"] = (entropy, float(most.max()))
    # Where scores are no numbers nothing else can be said of heads, and comparisons with them are false, hence healthy.
    broken = [l for l, heads in enumerate(layers) if not (heads.rows.isfinite().all() and gives[l].isfinite().all())]
    if broken:
        yield fault(
            "not_finite",
            f"what heads see or add is no number in {blocks(broken)} of {len(layers)}",
            "weights or pictures that are no numbers, or overflow in half precision",
            "look at the weights above; compute in fp32; lower the learning rate",
            layers=len(broken),
        )
        return
    sums = max(heads.rows.max().item() for heads in layers)
    to = "sum to at most 1, prompts taking the rest," if _prompted(body) else "sum to 1"
    count = sum(len(heads.apart) for heads in layers)
    healthy = True
    if not sums < ROWS:
        healthy = False
        yield fault(
            "rows",
            f"rows of attention {to} only within {sums:.1g}",
            "overflow in half precision",
            "run it in fp32; look at the activations below",
            rows=sums,
        )
    for code, names in ailments(layers, gives, relative, patient.untrained).items():
        healthy = False
        make, one, several, cause, fix = AILMENTS[code]
        what = (
            f"{plural(len(names), 'head')} of {count} (block.head {some(names)}) {one if len(names) == 1 else several}"
        )
        yield make(code, what, cause, fix, heads=len(names))
    if healthy and patient.untrained:
        words = f"{count} heads, rows {to} within {sums:.0e}; untrained, so nearly uniform"
        yield ok(words, rows=sums)
    elif healthy:
        known = relative[~relative.isnan()]
        low, high = known.min().item(), known.max().item()
        words = f"{count} heads, rows {to} within {sums:.0e}, entropy {low:.2f} to {high:.2f} of log N, none dead"
        yield ok(words, rows=sums, least=low, most=high)


def _prompted(body: Any) -> bool:
    tuning = tuning_of(body)
    return tuning is not None and tuning.kind == "prompt"


# Severity, what one does, what several do, the likely cause, the fix.
AILMENTS: dict[str, tuple[Callable[..., Finding], str, str, str, str]] = {
    "dead_head": (
        fault,
        "adds nothing",
        "add nothing",
        "weights of the head that are zero: pruned, or not loaded",
        "load the weights of its block again",
    ),
    "collapsed_head": (
        warn,
        "looks at one token only",
        "look at one token only",
        "attention that has collapsed, often from too high a learning rate",
        "train with a lower --lr",
    ),
    "blind_head": (
        fault,
        "attends alike in every picture",
        "attend alike in every picture",
        "queries or keys that are zero",
        "load the weights of its block again",
    ),
    "uniform_head": (
        warn,
        "attends to everything alike",
        "attend to everything alike",
        "scores that vanish, or a head that has not learned",
        "train longer, or check its weights",
    ),
}


def ailments(layers: list[Heads], gives: list[Tensor], relative: Tensor, untrained: bool) -> dict[str, list[str]]:
    """What is wrong with which heads, as "block.head", from 1; with each the first thing that is."""
    usual = torch.cat(gives).median()
    settled = bool(relative.nanmedian() < 0.95)  # else none has learned to choose yet
    found: dict[str, list[str]] = {}
    for l, heads in enumerate(layers):
        least = DEAD * max(gives[l].median(), DEAD * usual)  # a layer may be dead as a whole
        tokens = heads.tokens[0].exp().round()
        for h in range(len(heads.apart)):
            signs = {
                "dead_head": gives[l][h] < least,
                "collapsed_head": tokens > 2 and heads.onto_one[h] > COLLAPSED and not untrained,
                "blind_head": tokens > 1 and heads.apart[h] < SAME and not untrained,
                "uniform_head": settled and relative[l, h] > UNIFORM and not untrained,
            }
            if code := next((code for code, sign in signs.items() if sign), None):
                found.setdefault(code, []).append(f"{l + 1}.{h + 1}")
    return found


@torch.no_grad()
def look(body: Any, x: Tensor) -> tuple[list[Heads], list[Tensor]]:
    """What every layer's heads do with these images, and how much each adds to the tokens."""

    def reduce(maps: Tensor, layout: TokenLayout) -> Heads:
        maps = maps if maps.ndim == 5 else maps[:, None]  # B W H n n
        apart = (maps - maps.mean(dim=0, keepdim=True)).abs().sum(dim=-1).mean(dim=(0, 1, 3)) / 2
        onto_one = maps.mean(dim=3).amax(dim=-1).mean(dim=(0, 1))
        above = maps.sum(dim=-1) - 1
        rows = (above.clamp(min=0) if layout.prompts else above.abs()).amax(dim=(0, 1, 3))
        return Heads(apart.cpu(), onto_one.cpu(), rows.cpu(), torch.full((maps.shape[2],), math.log(maps.shape[-1])))

    with listening(body) as gives, capture(body, reduce=reduce) as maps:
        body.features(x, layers=())
    return [maps[layer] for layer in sorted(maps)], gives


@contextmanager
def listening(body: Any) -> Iterator[list[Tensor]]:
    """Fills a list with, for each layer, the size of what each head adds to the tokens, [H]."""
    modules = [module for module in body.modules() if isinstance(module, Attention)]
    sizes: list[Tensor] = []

    def hear(heads: int) -> Any:
        def hook(projection: Any, inputs: tuple[Tensor, ...]) -> None:
            parts = inputs[0].float().chunk(heads, dim=-1)  # what the projection is given is the heads, side by side
            columns = projection.weight.float().chunk(heads, dim=1)
            added = [(part @ column.T).square().mean().sqrt() for part, column in zip(parts, columns, strict=True)]
            sizes.append(torch.stack(added).cpu())

        return hook

    hooks = [module.proj.register_forward_pre_hook(hear(module.heads)) for module in modules]
    try:
        yield sizes
    finally:
        for each in hooks:
            each.remove()
