"""Renaming weights between ecosystems, in both directions, from one table.

A rule pairs our name of a tensor with theirs: `Rule("blocks.{i}.norm1.{p}", "encoder.layer.{i}.layernorm_before.{p}")`.
`{i}`, `{j}` are numbers, `{p}` is `weight` or `bias`; `{2i+1}` is a number that is 2i+1. Where one side keeps in
several tensors what the other keeps in one, the rule lists them and says how they are put together and taken apart.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Tensors = list[Tensor]
State = dict[str, Tensor]

FIELD = re.compile(r"\{(\d*)([a-z])(?:\+(\d+))?\}")


@dataclass(frozen=True)
class Template:
    """A name with fields; matches a name and fills itself in."""

    text: str

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], list[tuple[int, str, int]]]:
        fields: list[tuple[int, str, int]] = []
        pattern, end = "", 0
        for match in FIELD.finditer(self.text):
            times, name, plus = match.groups()
            fields.append((int(times or 1), name, int(plus or 0)))
            pattern += re.escape(self.text[end : match.start()]) + ("(weight|bias)" if name == "p" else r"(\d+)")
            end = match.end()
        return re.compile(pattern + re.escape(self.text[end:])), fields

    def match(self, name: str) -> dict[str, str | int] | None:
        pattern, fields = self._compiled
        found = pattern.fullmatch(name)
        if found is None:
            return None
        values: dict[str, str | int] = {}
        for (times, letter, plus), text in zip(fields, found.groups(), strict=True):
            if letter == "p":
                values[letter] = text
            elif (int(text) - plus) % times or int(text) < plus:
                return None
            else:
                values[letter] = (int(text) - plus) // times
        return values

    def fill(self, values: dict[str, str | int]) -> str:
        def one(match: re.Match[str]) -> str:
            times, name, plus = match.groups()
            value = values[name]
            return value if isinstance(value, str) else str(int(times or 1) * value + int(plus or 0))

        return FIELD.sub(one, self.text)


@dataclass(frozen=True)
class Operation:
    """How their tensors become ours, and back."""

    read: Callable[[Tensors], Tensors]
    write: Callable[[Tensors], Tensors]


SAME = Operation(list, list)
# Three matrices stacked into the one that makes q, k and v; two into the gate and the value of a gated MLP.
STACK3 = Operation(lambda t: [torch.cat(t)], lambda t: list(t[0].chunk(3)))
STACK2 = Operation(lambda t: [torch.cat(t)], lambda t: list(t[0].chunk(2)))


def reshaped(read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Operation:
    """An operation on one tensor."""
    return Operation(lambda t: [read(t[0])], lambda t: [write(t[0])])


class Rule:
    def __init__(self, ours: str | Iterable[str], theirs: str | Iterable[str], operation: Operation = SAME):
        self.ours = [Template(t) for t in ([ours] if isinstance(ours, str) else ours)]
        self.theirs = [Template(t) for t in ([theirs] if isinstance(theirs, str) else theirs)]
        self.operation = operation

    def read(self, state: State) -> tuple[State, set[str]]:
        """What this rule finds of theirs in `state`, under our names; and the names it used."""
        return _apply(self.theirs, self.ours, self.operation.read, state)

    def write(self, state: State) -> tuple[State, set[str]]:
        return _apply(self.ours, self.theirs, self.operation.write, state)


def _apply(
    source: list[Template], target: list[Template], operation: Callable[[Tensors], Tensors], state: State
) -> tuple[State, set[str]]:
    out: State = {}
    used: set[str] = set()
    for name in state:
        values = source[0].match(name)
        if values is None:
            continue
        names = [template.fill(values) for template in source]
        if all(n in state for n in names):
            out |= zip([t.fill(values) for t in target], operation([state[n] for n in names]), strict=True)
            used |= set(names)
    return out, used


def prefixed(prefix: str, their_prefix: str, rules: Iterable[Rule]) -> list[Rule]:
    """The same rules one module deeper: an encoder inside a model."""
    return [
        Rule([prefix + t.text for t in r.ours], [their_prefix + t.text for t in r.theirs], r.operation) for r in rules
    ]


@dataclass(frozen=True)
class WeightLayout:
    """How one ecosystem names the weights of one family of models, and what goes with them unsaid."""

    dialect: str  # timm | hf | torchvision | google | vitrail
    family: str  # vit | swin | swinv2 | mae
    signature: tuple[str, ...]  # templates that such a file has a tensor for
    rules: tuple[Rule, ...] | None  # None: the names are our own
    facts: dict[str, Any]  # settings that the weights were trained under and no shape tells
    preprocessing: dict[str, Any] = field(default_factory=dict)  # what all published weights of this layout expect
    ignore: str = r"$^"  # names that hold nothing to learn: buffers, heads of other tasks
    older: tuple[tuple[str, str], ...] = ()  # other spellings of the same: (pattern, replacement)
    prefixes: str = ""  # module names that may stand in front

    def clean(self, name: str) -> str:
        """A name as the rules spell it."""
        if self.prefixes:
            name = re.sub(rf"^({self.prefixes})\.", "", name)
        for pattern, replacement in self.older:
            name = re.sub(pattern, replacement, name)
        return name

    def fits(self, names: Iterable[str]) -> bool:
        cleaned = [self.clean(name) for name in names]
        return all(any(Template(s).match(name) is not None for name in cleaned) for s in self.signature)

    def read(self, state: State) -> tuple[State, list[str]]:
        """Our names for what the file holds, and the names that no rule knows."""
        theirs = {self.clean(name): tensor for name, tensor in state.items()}
        if self.rules is None:
            return theirs, []
        out: State = {}
        left = {name for name in theirs if not re.search(self.ignore, name)}
        for rule in self.rules:
            found, used = rule.read(theirs)
            out |= found
            left -= used
        return out, sorted(left)

    def write(self, state: State) -> tuple[State, list[str]]:
        """Their names for our weights, and those of ours that they have no place for."""
        out: State = {}
        left = set(state)
        for rule in self.rules or ():
            found, used = rule.write(state)
            out |= found
            left -= used
        return out, sorted(left)


def group_names(names: Iterable[str], most: int = 6) -> str:
    """A few of the names, their first numbers folded into ranges: `blocks.0–11.norm1.weight, head.output.bias`."""
    groups: dict[str, list[int]] = {}
    for name in names:
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), []).extend(map(int, numbers[:1]))
    shown = []
    for group, numbers in groups.items():
        low, high = (min(numbers), max(numbers)) if numbers else (0, 0)
        shown.append(group.replace("*", f"{low}" if low == high else f"{low}–{high}", 1))
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more kinds" if len(shown) > most else "")
