"""Cheap adaptation: small parts that learn inside of a model which itself stays as it is.

adapter   mlp(x) + up(gelu(down(z)))    z is the MLP's output (sequential) or its input (parallel, AdaptFormer)
lora      Wx + b + s·B·A·x              of low rank, and mergeable: W + s·B·A is a matrix as before
prompt    further tokens in each attention, learned, of which the others read and which are then dropped (VPT, deep)
bias      nothing is added: the biases learn
head      nothing is added: the head alone learns, as it does in all of the others too

Adapters end in zeros, and so does LoRA: training starts from the base model exactly, to the bit. A part joins a model
by making its layer one of a subclass, in place, as FSDP does it: the weights of the base keep their names and their
memory, and taking the part away leaves the very base.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError, nearest
from vitrail.models.attention import Attention, Rotary, TokenLayout
from vitrail.models.checks import check_settings
from vitrail.models.layers import MLP

KINDS = ("full", "head", "adapter", "lora", "prompt", "bias")
PARTS = {"adapter": ".adapter.", "lora": ".lora_", "prompt": ".prompts"}  # what the names of their weights have in them
TARGETS = ("qkv", "proj", "mlp")
BIASES = ("bias", "q_bias", "v_bias")


@dataclass(frozen=True)
class Tuning:
    """What is added to a model; kept in its settings, so that they rebuild it. Each kind reads its own fields."""

    kind: str
    width: int = 32  # adapter: of the bottleneck
    place: str = "sequential"  # adapter: sequential (after the MLP) | parallel (beside it)
    rank: int = 8  # lora
    targets: tuple[str, ...] = ("qkv", "proj")  # lora: of qkv, proj, mlp
    scale: float = 1.0  # lora: the s above; alpha / rank of the paper
    tokens: int = 10  # prompt: in each attention (of Swin: in each window)

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        choices: dict[str, Iterable[object]] = {"kind": list(PARTS), "place": ["sequential", "parallel"]}
        check_settings(self, choices, {"width": 1, "rank": 1, "tokens": 1}, rates=())
        if not self.targets or set(self.targets) - set(TARGETS):
            raise VitrailError(f"LoRA goes on {', '.join(TARGETS)}, one or several of them; got {list(self.targets)}.")

    def __str__(self) -> str:
        if self.kind == "adapter":
            return f"{self.place} adapters, width {self.width}"
        if self.kind == "lora":
            return f"LoRA of rank {self.rank} on {', '.join(self.targets)}"
        return f"{self.tokens} prompts in each attention"

    def differences(self, other: "Tuning") -> bool:
        """Do they mean different parts? Fields of other kinds do not count."""
        return str(self) != str(other) or (self.kind == "lora" and self.scale != other.scale)


class Adapter(nn.Module):
    """Down to a few numbers and up again, to nothing at first."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.down = nn.Linear(width, hidden)
        self.up = nn.Linear(hidden, width)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:  # ... D -> ... D
        return self.up(F.gelu(self.down(x)))


class AdaptedMLP(MLP):
    """An MLP with an adapter after it, or beside it."""

    adapter: Adapter
    place: str

    def branch(self, x: Tensor) -> Tensor:
        y = super().branch(x)
        return y + self.adapter(y if self.place == "sequential" else x)


class Lora(nn.Linear):
    """A linear layer with a product of two thin matrices beside its weight."""

    lora_a: nn.Parameter  # rank in
    lora_b: nn.Parameter  # out rank
    scale: float

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    def product(self) -> Tensor:
        """s·B·A, what is added to the weight [out, in]."""
        with torch.no_grad(), torch.autocast(self.weight.device.type, enabled=False):
            return (self.lora_b.double() @ self.lora_a.double() * self.scale).to(self.weight.dtype)


class PromptedAttention(Attention):
    """Attention with learned tokens in front. They enter behind the norm of the block, since what becomes of them is
    dropped again: only their keys and values matter."""

    prompts: nn.Parameter  # P D

    def forward(
        self, x: Tensor, bias: Tensor | None = None, rotary: Rotary | None = None, layout: TokenLayout | None = None
    ) -> Tensor:
        count = len(self.prompts)
        x = torch.cat([self.prompts.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
        if bias is not None:  # M H N N; prompts lie nowhere, so they get what a query gives to others on average
            seen = bias > -50  # a mask keeps the others apart
            mean = (bias * seen).sum(dim=-1, keepdim=True) / seen.sum(dim=-1, keepdim=True)
            bias = F.pad(torch.cat([mean.expand(*mean.shape[:-1], count), bias], dim=-1), (0, 0, count, 0))
        if layout is not None:
            layout = TokenLayout(layout.grid, layout.prefix, layout.places, layout.windows, prompts=count)
        return super().forward(x, bias, rotary, layout)[:, count:]


def as_tuning(value: object) -> Tuning | None:
    """What a model's settings have: a `Tuning`, none, or a dictionary of its fields, as JSON has it."""
    if value is None or isinstance(value, Tuning):
        return value
    with suppress(TypeError):
        return Tuning(**value)  # type: ignore[arg-type]
    raise VitrailError(
        f"tuning={value!r} is not known; give its fields, tuning={{'kind': 'lora', 'rank': 8}}, or train with --tune."
    )


def add_parts(model: nn.Module, tuning: Tuning) -> None:
    """Puts the parts in; with what they start from they change nothing, but for prompts."""
    for block in _blocks(model):
        if tuning.kind == "adapter":
            mlp = block.mlp
            mlp.__class__ = AdaptedMLP
            mlp.adapter, mlp.place = Adapter(mlp.fc2.out_features, tuning.width).to(mlp.fc2.weight), tuning.place
        elif tuning.kind == "lora":
            for linear in _linears(block, tuning.targets):
                like: dict[str, Any] = {"device": linear.weight.device, "dtype": linear.weight.dtype}
                linear.__class__ = Lora
                linear.lora_a = nn.Parameter(torch.empty(tuning.rank, linear.in_features, **like))
                linear.lora_b = nn.Parameter(torch.zeros(linear.out_features, tuning.rank, **like))
                nn.init.kaiming_uniform_(linear.lora_a, a=5**0.5)  # as nn.Linear itself
                linear.scale = tuning.scale
        else:
            attention = block.attention
            weight = attention.qkv.weight
            attention.__class__ = PromptedAttention
            prompts = torch.empty(tuning.tokens, weight.shape[1], device=weight.device, dtype=weight.dtype)
            attention.prompts = nn.Parameter(nn.init.trunc_normal_(prompts, std=0.02))


def take_parts(model: nn.Module) -> None:
    """Takes away what `add_parts` has put in; the base is what it was."""
    modules: list[Any] = [*model.modules()]
    for module in modules:
        if isinstance(module, AdaptedMLP):
            del module.adapter, module.place
            module.__class__ = MLP  # type: ignore[assignment]
        elif isinstance(module, Lora):
            del module.lora_a, module.lora_b, module.scale
            module.__class__ = nn.Linear  # type: ignore[assignment]
        elif isinstance(module, PromptedAttention):
            del module.prompts
            module.__class__ = Attention  # type: ignore[assignment]


def tune(model: nn.Module, kind: str, **options: Any) -> nn.Module:
    """Prepares a model for cheap training, in place: adds the parts of this kind, and freezes all that does not learn.

    >>> tune(model, "lora", rank=8, targets=("qkv", "mlp"))

    `options` are fields of `Tuning`. "full" sets everything free, "head" and "bias" add nothing.
    """
    if kind not in KINDS:
        raise VitrailError(f"tune={kind!r} is not known; choose one of {', '.join(KINDS)}.")
    if kind in PARTS:
        if unknown := [name for name in options if name not in Tuning.__dataclass_fields__]:
            hint = nearest(unknown[0], Tuning.__dataclass_fields__)
            raise VitrailError(f"{unknown[0]!r} is not a setting of tune={kind!r}.{hint}")
        wanted, there = Tuning(kind, **options), tuning_of(model)
        if there is None:
            _blocks(model)
            add_parts(model, wanted)
            _set_tuning(model, wanted)
        elif wanted.differences(there):
            raise VitrailError(
                f"The model holds {there} already and can't have {wanted} too: go on with the same, or start from its "
                "base."
            )
    elif options:
        raise VitrailError(f"tune={kind!r} adds nothing, so {', '.join(options)} can't be set.")
    freeze(model, kind)
    return model


def untune(model: nn.Module) -> nn.Module:
    """Takes the parts away again, in place, and sets everything free: the base model, exactly."""
    take_parts(model)
    _set_tuning(model, None)
    return model.requires_grad_(True)


def merge(model: nn.Module) -> nn.Module:
    """LoRA into the weights it stands beside, in place: an ordinary model, of the same outputs up to rounding. Adapters
    and prompts have no weight to go into, and stay."""
    if (tuning := tuning_of(model)) is not None and tuning.kind == "lora":
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, Lora):
                    module.weight += module.product()
        untune(model)
    return model


def freeze(model: nn.Module, kind: str) -> None:
    """Only what learns has a gradient; a frozen part in front of all that learns runs without a graph by itself."""
    inside = getattr(model.settings, "inside", "")  # of a segmenter or a detector, all around its backbone is the head
    free = {name for name, _ in model.named_parameters() if learns(name, kind) or not name.startswith(inside)}
    if not free:
        raise VitrailError(f"Nothing in this {type(model).__name__} learns under tune={kind!r}: it has no head.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in free)


def learns(name: str, kind: str) -> bool:
    """Does the weight of this name change under this kind of tuning?"""
    if kind == "full" or name.startswith("head"):
        return True
    if kind == "bias":
        return name.split(".")[-1] in BIASES and ".bias." not in name  # a Swin's table of positions is no such bias
    return kind in PARTS and is_part(name, kind)


def is_part(name: str, kind: str | None = None) -> bool:
    """Was it added by this kind of tuning; by any?"""
    return any(PARTS[k] in name for k in ([kind] if kind else PARTS))


def tuning_of(model: nn.Module) -> Tuning | None:
    return getattr(model.settings, "tuning", None)


def _set_tuning(model: nn.Module, tuning: Tuning | None) -> None:
    settings: Any = model.settings
    if hasattr(settings, "tuning"):
        model.settings = replace(settings, tuning=tuning)


def _blocks(model: nn.Module) -> list[Any]:
    blocks: Any = getattr(model, "blocks", None)
    if blocks is None or not hasattr(model.settings, "tuning") or not all(hasattr(block, "mlp") for block in blocks):
        raise VitrailError(
            f"Adapters, LoRA and prompts go into the blocks of a ViT or a Swin; {type(model).__name__} has none: "
            "use full, head or bias."
        )
    return list(blocks)


def _linears(block: Any, targets: tuple[str, ...]) -> list[Any]:
    layers = {"qkv": [block.attention.qkv], "proj": [block.attention.proj], "mlp": [block.mlp.fc1, block.mlp.fc2]}
    return [linear for target in TARGETS if target in targets for linear in layers[target]]
