"""What the model is made of: patches and tokens at this size, which parts were ever trained, and which may learn."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitrail.data.samples import plural
from vitrail.doctor.findings import Finding, blocks, fault, ok, skipped, warn
from vitrail.doctor.patient import Patient
from vitrail.doctor.traces import as_drawn, as_initialised, gain_distance, is_zero
from vitrail.models import SwinSettings
from vitrail.models.layers import PatchEmbed, ceil_div
from vitrail.models.tuning import tuning_of

# -- patches -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def patches(patient: Patient) -> Iterator[Finding]:
    """Patch shape, grid and number of tokens at the size at hand, against what the settings promise."""
    body, size = patient.body, (patient.batch.x.shape[2], patient.batch.x.shape[3])
    settings, kernel = body.settings, tuple(body.patch.weight.shape[2:])
    cut = tuple(body.patch.patch_size)
    if not (kernel == cut == tuple(settings.patch_size)):
        yield fault(
            "patch_size",
            f"patches are cut {by(cut)}, the embedding's weights are {by(kernel)}, the settings say "
            f"{by(settings.patch_size)}",
            "a wrong patch size for these weights",
            f"build the model with patch_size={kernel[0]}",
            weights=kernel[0],
            cut=cut[0],
        )
        return
    stride = settings.patch_size if isinstance(settings, SwinSettings) else settings.stride
    grid = ceil_div(size, stride)
    front = 0 if isinstance(settings, SwinSettings) else settings.prefix_tokens
    embedded = body.embed(patient.batch.x[:1])
    tokens = embedded.shape[1] * embedded.shape[2] if isinstance(embedded, Tensor) else embedded[0].shape[1]
    expected = grid[0] * grid[1] + front
    if tokens != expected:
        yield fault(
            "token_left_out",
            f"{tokens} tokens enter the first block, {by(grid)} patches and {front} in front make {expected}",
            "a token was left out, or added, on the way",
            "compare class_token, distillation_token and registers with the settings of the checkpoint",
            tokens=tokens,
            expected=expected,
        )
        return
    words = f"{by(size)} pixels in patches of {by(stride)}: {by(grid)} = {grid[0] * grid[1]} tokens"
    words += f" and {front} in front, {tokens} in all" if front else ""
    rest = [n for n, p in zip(size, stride, strict=True) if n % p]
    trained = ceil_div(settings.image_size, stride)
    factor = max(max(a / b, b / a) for a, b in zip(grid, trained, strict=True))
    if factor > 2:  # within, published models lose a few points at most
        yield warn(
            "far_size",
            f"{words}; the model was made for {by(trained)}",
            f"an image size {factor:.1f} times away from that of training",
            "use a size closer to it, or fine-tune at this one",
            tokens=tokens,
            factor=factor,
        )
        return
    yield ok(words + ("; the last ones are padded" if rest else ""), tokens=tokens)


def by(size: Any) -> str:
    return "×".join(map(str, size))


# -- weights -----------------------------------------------------------------------------------------------------------


def weights(patient: Patient) -> Iterator[Finding]:
    """Not a number anywhere; parts that are as they were initialised, in a model that is otherwise trained; tokens that
    are nothing; and, of a run, blocks that have not moved."""
    model, body = patient.model, patient.body
    broken = [name for name, tensor in model.state_dict().items() if not tensor.float().isfinite().all()]
    if broken:
        yield fault(
            "not_finite",
            f"{plural(len(broken), 'tensor')} with values that are no numbers, the first {broken[0]}",
            "training diverged, or the file is damaged",
            "go back to an earlier checkpoint; train with a lower --lr",
            tensors=len(broken),
        )
    stack, still = patient.stack, patient.still
    if patient.untrained:
        yield ok(f"untrained: all {len(stack)} blocks are as initialised", fresh=len(stack))
        return
    fresh = [number for number, block in enumerate(stack) if as_initialised(block)]
    if len(still) < len(stack):
        fresh = [number for number in fresh if number not in still]  # the next check's
    parts = [*([blocks(fresh)] if fresh else []), *_fresh_parts(body, patient.long_trained, patient.normed)]
    if parts:
        yield fault(
            "half_loaded",
            f"as initialised, in a model that is otherwise trained: {', '.join(parts)}",
            "weights that were loaded half, for instance with strict=False, or a part that was frozen from the start",
            "load with vitrail.load_weights, which refuses what does not fit, and read its notes",
            fresh=len(fresh),
        )
    empty = [name for name in ("class_token", "distillation_token", "registers") if is_zero(getattr(body, name, None))]
    if empty:
        yield fault(
            "token_left_out",
            f"all zero: {', '.join(empty)}",
            "the token was left out when the weights were written or loaded",
            "take it from the original checkpoint",
        )
    new_head = _as_drawn_head(body) and not parts
    if new_head:
        yield warn(
            "head_new",
            "the head is as initialised, the rest is trained",
            "it has not been fine-tuned yet",
            "train before believing its classes",
        )
    if not (broken or parts or empty or new_head):
        gains = [gain_distance(block) for block in stack]
        yield ok(
            f"{plural(len(stack), 'block')}, all trained: norm gains {min(gains):.2f} to {max(gains):.2f} from 1",
            least=min(gains),
            most=max(gains),
        )


def _fresh_parts(body: Any, long_trained: bool, normed: bool) -> list[str]:
    """Of a model that has seen a few steps only, what is still close to its start is no surprise. Long training takes
    patches away from σ = 0.02; where they began as large as their pixels it may not, and only the bias tells."""
    parts = []
    patch: PatchEmbed = body.patch
    large = is_zero(patch.bias) and as_drawn(patch.weight, patch.weight[0].numel() ** -0.5)
    if large or ((long_trained or patch.bias is None or is_zero(patch.bias)) and as_drawn(patch.weight)):
        parts.append("the patch embedding")
    last = body.norm if getattr(body, "norm", None) is not None else getattr(body, "norm_pool", None)
    if normed and last is not None and as_initialised(last):
        parts.append("the last norm")
    return parts


def _as_drawn_head(body: Any) -> bool:
    output = body.head.output
    return output is not None and (output.bias is None or is_zero(output.bias)) and as_drawn(output.weight)


# -- what moved --------------------------------------------------------------------------------------------------------


def moved(patient: Patient) -> Iterator[Finding]:
    """Blocks that training may not change, or has not changed: by their flag and, of a run, against its start."""
    stack = patient.stack
    frozen = [i for i, block in enumerate(stack) if not any(p.requires_grad for p in block.parameters())]
    if frozen and len(frozen) < len(stack):
        deliberate = frozen == [*range(len(frozen))] and not any(
            p.requires_grad for p in patient.body.patch.parameters()
        )
        make: Any = warn if deliberate else fault
        yield make(
            "frozen",
            f"{blocks(frozen)} of {len(stack)} can't learn: requires_grad is off",
            "the patch embedding and the first blocks are frozen on purpose"
            if deliberate
            else "a block was frozen and forgotten",
            "parameter.requires_grad_(True) for all of it, before the optimizer is made",
            frozen=len(frozen),
        )
        return
    if patient.run is None or not patient.run.kept:
        can = sum(p.numel() for p in patient.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in patient.model.parameters())
        yield ok(f"{can:,} of {total:,} parameters may learn", learning=can)
        return
    change, still = patient.changes, patient.still
    if change is None:
        yield skipped(f"what the run started from ({patient.run.started_from}) is not at hand")
    elif still and len(still) < len(stack):
        yield fault(
            "frozen",
            f"{blocks(still)} of {len(stack)} did not move in training, others by up to {max(change):.1%}",
            "frozen, or left out of the optimizer",
            "train again with all of it (--tune full)",
            frozen=len(still),
        )
    elif still:
        record = patient.run.record
        why, tune = "", record.recipe.get("tune")
        if tune in ("head", "probe"):
            why = f": the run tuned the head alone (--tune {tune})"
        elif tuning_of(patient.model) is not None:
            why = f": the run tuned what it had added to them (--tune {tune})"
        elif record.model["pretrained"]:
            why = ": the run kept the linear classifier on frozen features"
        yield ok(f"no block moved in training{why}")
    else:
        yield ok(f"all blocks moved in training, by {min(change):.1%} to {max(change):.1%}", least=min(change))
