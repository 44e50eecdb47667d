"""How large activations and gradients are, block by block, over one batch: vanishing, exploding, dead, not a number.

Measured on healthy models: over the blocks of DeiT-Ti activations differ by a factor of 2.3 and gradients by 2.1; in
fresh ViTs (pre- and post-norm), CPVT, DeiT-III and Swin by at most 2.4 and 9. Blocks of DeiT-Ti add 0.26 to 0.90 of
what they are given.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.samples import plural
from vitrail.doctor.findings import Finding, blocks, fault, ok, warn
from vitrail.doctor.objective import objective
from vitrail.doctor.patient import Patient
from vitrail.weights.rules import group_names

PICTURES = 16
HUGE = 1e4  # of an activation; healthy: 1.8, with room for large models, which have more
GROWTH = 1e3  # of activations over the blocks; healthy: 2.4, with room for the same
STEEP = 1e4  # of gradients over the blocks; healthy: 9
IDLE = 1e-5  # of what a block is given, added to it; healthy: 0.26


def signals(patient: Patient) -> Iterator[Finding]:
    x = patient.batch.x[:PICTURES]
    model, stack = patient.model, patient.stack
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with _sizes(stack) as sizes, torch.enable_grad():
        loss = objective(patient, x, truthful=True)(model)
        found = torch.autograd.grad(loss, [*learning.values()], allow_unused=True) if loss.requires_grad else ()
    gradients = dict(zip(learning, found, strict=bool(found)))
    yield from activations(patient, sizes)
    for finding in _gradients(patient, stack, gradients, loss.item()):
        yield replace(finding, check="gradients")


# -- activations -------------------------------------------------------------------------------------------------------


class _sizes:
    """While it is open: for each block the size of its output, and how much of its input's size it has added."""

    def __init__(self, stack: list[nn.Module]):
        self.stack, self.found = stack, [(math.nan, math.nan)] * len(stack)

    def __enter__(self) -> list[tuple[float, float]]:
        self.hooks = [block.register_forward_hook(self._hear(place)) for place, block in enumerate(self.stack)]
        return self.found

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _hear(self, place: int) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            given, out = inputs[0].detach().float(), output.detach().float()
            size = given.square().mean().sqrt().clamp(min=1e-30)
            added = (out - given).square().mean().sqrt() / size
            self.found[place] = (out.square().mean().sqrt().item(), added.item())

        return hook


def activations(patient: Patient, sizes: list[tuple[float, float]]) -> Iterator[Finding]:
    patient.charts["activations"] = [size for size, _ in sizes]
    broken = [place for place, (size, _) in enumerate(sizes) if not math.isfinite(size)]
    if broken:
        yield fault(
            "not_finite",
            f"no numbers from {blocks(broken[:1])} on",
            "weights or pictures that are no numbers, or overflow",
            "look at the weights above; compute in fp32; lower the learning rate",
            block=broken[0] + 1,
        )
        return
    known = [size for size, _ in sizes]
    low, high = min(known), max(known)
    idle = [place for place, (_, added) in enumerate(sizes) if added < IDLE]
    if idle and not patient.untrained:
        yield fault(
            "idle_block",
            f"{blocks(idle)} of {len(sizes)} {'adds' if len(idle) == 1 else 'add'} nothing to the tokens",
            "output projections that are zero: not loaded, pruned, or scaled away",
            "load the weights of these blocks again",
            idle=len(idle),
        )
    if high > min(HUGE, GROWTH * max(low, 1e-30)):
        grows = high > HUGE or known.index(high) > known.index(low)
        yield fault(
            "exploding" if grows else "vanishing",
            f"their size goes from {known[0]:.1g} to {known[-1]:.1g} over the blocks (factor "
            f"{high / max(low, 1e-30):.0g})",
            "weights that are too large, or a missing norm" if grows else "weights that are too small",
            "check initialisation and norms; train with warm-up and a lower --lr",
            least=low,
            most=high,
        )
    elif not (idle and not patient.untrained):
        yield ok(f"size {low:.2g} to {high:.2g} over {plural(len(sizes), 'block')}", least=low, most=high)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _gradients(
    patient: Patient, stack: list[nn.Module], gradients: Mapping[str, Tensor | None], loss: float
) -> Iterator[Finding]:
    names = {id(parameter): name for name, parameter in patient.model.named_parameters()}
    sizes = []
    for block in stack:
        own = [gradients.get(names[id(p)]) for p in block.parameters()]
        sizes.append(sum(g.float().square().sum().item() for g in own if g is not None) ** 0.5)
    patient.charts["gradients"] = sizes
    if not math.isfinite(loss) or not all(map(math.isfinite, sizes)):
        place = next((i for i, size in enumerate(sizes) if not math.isfinite(size)), 0)
        yield fault(
            "not_finite",
            f"the loss is {loss:.3g}, and the gradient of {blocks([place])} no number",
            "weights or pictures that are no numbers, or overflow",
            "look at the lines above first",
            block=place + 1,
        )
        return
    # A parameter that is held back by a flag is no surprise: that is the business of another check. In a fresh Swin v2
    # the gains are zero, so nothing behind them has a gradient yet; a temperature at its ceiling has none.
    silent = [
        name
        for name, gradient in gradients.items()
        if (gradient is None or not gradient.any())
        and not name.endswith("logit_scale")
        and not _waits(patient.model, name)
    ]
    idle = [i for i, block in enumerate(stack) if sizes[i] == 0 and any(p.requires_grad for p in block.parameters())]
    if silent and not patient.untrained:
        make: Any = fault if idle else warn
        where = f", all of {blocks(idle)}" if idle else ""
        yield make(
            "dead_parameters",
            f"{plural(len(silent), 'tensor')} without any gradient{where}: {group_names(silent, most=3)}",
            "parts that the output does not depend on, or whose output is multiplied by zero",
            "look at the activations and heads above; take unused parts out of the model",
            tensors=len(silent),
        )
        return
    known = [size for size in sizes if size > 0]
    if not known:
        yield ok("none: nothing in the blocks may learn")
    elif max(known) > STEEP * min(known):
        first = known[0] < known[-1]
        yield fault(
            "vanishing" if first else "exploding",
            f"their size goes from {known[-1]:.1g} in the last block to {known[0]:.1g} in the first (factor "
            f"{max(known) / min(known):.0g})",
            "too deep without norms, or weights that are too small or too large",
            "check initialisation and norms; use pre-norm, warm-up and a lower --lr",
            least=min(known),
            most=max(known),
        )
    else:
        yield ok(
            f"loss {loss:.3g}, size {min(known):.2g} to {max(known):.2g} over {plural(len(sizes), 'block')}, none dead",
            loss=loss,
            least=min(known),
            most=max(known),
        )


def _waits(model: nn.Module, name: str) -> bool:
    """LoRA and adapters end in zeros when they are made: what stands before those has no gradient until they move."""
    last = re.sub(r"\.adapter\.down\.\w+$", ".adapter.up.weight", name.replace(".lora_a", ".lora_b"))
    return last != name and not model.get_parameter(last).any()
