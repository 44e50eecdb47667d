"""`capture`: the true attention of a forward that is running, out of fused kernels that never form it.

A probe in each chosen layer is handed the very q and k that its kernel was given, and recomputes softmax(QKᵀ/√d + bias)
from them in fp32. Layers that nobody asked about keep their kernel and do no more than before.
"""

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.attention import Attention, TokenLayout
from vitrail.models.attention_scores import ClassRows, attention_map, outer_product
from vitrail.models.checks import check_layers, one_or_several, whole_numbers

Reduce = str | Callable[..., Any] | None  # "cls_row", "mean_heads", or a function of a map
Token = tuple[int, int] | int | str | None  # a patch, by place or number, or the name of a token in front


class Layers(UserDict[int, Any]):
    """One value per layer. Layers count from 0, and from the end as -1, -2, …, as in the call of `capture`."""

    def __init__(self, depth: int, missing: str):
        super().__init__()
        self.depth, self.missing = depth, missing

    def __missing__(self, layer: int) -> Any:
        if layer < 0 and layer + self.depth in self:
            return self[layer + self.depth]
        raise VitrailError(self.missing.format(layer=layer, there=sorted(self)))

    def __repr__(self) -> str:
        """One line: which layers, and how large. Millions of numbers tell nobody anything."""
        kind, there = type(self).__name__, sorted(self)
        if not there:
            return f"{kind}(none of {self.depth} layers yet)"
        run = len(there) > 2 and there[-1] - there[0] == len(there) - 1
        names = f"{there[0]} to {there[-1]}" if run else ", ".join(map(str, there))
        sizes = dict.fromkeys(
            str([*value.shape]) if isinstance(value, Tensor) else type(value).__name__ for value in self.values()
        )
        return f"{kind}(layer{'' if len(there) == 1 else 's'} {names}: {', '.join(sizes)})"

    def get(self, layer: int, default: Any = None) -> Any:  # UserDict's of Python 3.11 would ask `__missing__`
        return self.data.get(layer, default)


class AttentionMaps(Layers):
    """The maps that a `capture` has seen: `maps[layer]` is [B, H, N, N], in Swin [B, windows, H, n, n], in fp32."""

    def __init__(self, depth: int, reduce: Reduce = None, rows: ClassRows | None = None):
        self.rows = rows
        super().__init__(depth, "Layer {layer} was not captured; there are {there}.")
        self.reduce = reduce
        self.layouts = Layers(
            depth, "Layer {layer} was not captured, or ran outside of its model, so where its tokens lie is not known."
        )
        self.gradients = Layers(
            depth, "No gradient has reached layer {layer}: capture with gradients=True, then call backward()."
        )

    @property
    def data(self) -> dict[int, Any]:
        """What all reading passes through: rows that wait are made first."""
        if self.rows is not None and self.rows.waiting:
            self.rows.make()
        return self._data

    @data.setter
    def data(self, value: dict[int, Any]) -> None:
        self._data = value if self.rows is None else self.rows.made

    @property
    def prefix(self) -> int:
        """How many tokens stand in front of the patches."""
        return max((len(layout.prefix) for layout in self.layouts.values()), default=0)

    def grid(self, layer: int) -> tuple[int, int]:
        """h, w of the layer's patches; in Swin, of its stage."""
        return self.layouts[layer].grid

    def row(self, layer: int, token: Token = None) -> Tensor:
        """What one token attends to, on the image's grid of patches: [B, H, h, w].

        `token` is a patch, as (row, column) of this layer's grid or counted row by row, or one of those in front by
        name: "class" (the default), "distillation", "register 0". Patches that it can't see get 0: those of other
        windows in Swin, hidden ones in MAE. What it gives to the tokens in front and to padding is left out.
        """
        attention, layout = self[layer], self.layouts[layer]
        if callable(self.reduce):
            raise VitrailError("There are no rows in what a function made of the maps; capture without reduce.")
        patch = find_patch(layout, token)
        if self.reduce == "cls_row" and patch != find_patch(layout, "class"):
            raise VitrailError(
                'reduce="cls_row" keeps the row of the class token alone; capture without it for others.'
            )
        if self.reduce == "mean_heads":
            attention = attention.unsqueeze(-3)  # the mean counts as one head
        front, places = len(layout.prefix), layout.places
        if places is not None:
            places = places.to(attention.device)
        if layout.windows is not None:
            window, at = (places == patch).nonzero()[0].tolist()
            row, places = attention[:, window, :, at], places[window]
        elif self.reduce == "cls_row":
            row = attention
        elif patch < 0 or places is None:
            row = attention[:, :, patch + front]
        else:
            here = places == patch  # B n
            if hidden := (~here.any(dim=1)).nonzero().flatten().tolist():
                place = divmod(patch, layout.grid[1])
                raise VitrailError(
                    f"Patch {place} is hidden from the encoder in image {hidden[0]}; choose a visible one."
                )
            row = attention[torch.arange(len(here), device=here.device), :, front + here.long().argmax(dim=1)]
        row = row[..., front:]  # B H n
        if places is not None:
            h, w = layout.grid
            # Padding, -1, goes to one place too many, which is then cut off.
            index = (places % (h * w + 1)).view(-1, 1, places.shape[-1]).expand_as(row)
            row = row.new_zeros(*row.shape[:2], h * w + 1).scatter(-1, index, row)[..., :-1]
        return row.unflatten(-1, layout.grid)


def find_patch(layout: TokenLayout, token: Token) -> int:
    """The number of a patch, counted row by row; negative for the tokens in front, the last of which is -1."""
    h, w = layout.grid
    if token is None or isinstance(token, str):
        if (name := token or "class") in layout.prefix:
            return layout.prefix.index(name) - len(layout.prefix)
        choice = " or ".join([*layout.prefix, "a patch as (row, column)"])
        raise VitrailError(f"This layer has no {name} token; choose {choice}.")
    row, column = token if isinstance(token, tuple | list) else divmod(token, w)
    if not (0 <= row < h and 0 <= column < w):
        raise VitrailError(f"There is no patch {token} on a grid of {h}×{w}; both count from 0.")
    return row * w + column


class Probe:
    """What one `capture` does in one layer, each time that a forward passes there."""

    def __init__(
        self,
        maps: AttentionMaps,
        layer: int,
        heads: list[int] | None,
        to: torch.device | None,
        gradients: bool,
    ):
        self.maps, self.layer, self.heads, self.to, self.gradients = maps, layer, heads, to, gradients
        self.reduce = maps.reduce
        self.wants_layout = wants_layout(maps.reduce)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        scale: float,
        dropout: float,
        output: Tensor,
        layout: TokenLayout | None,
    ) -> None:
        """q, k, v and the kernel's output are [B, H, N, d]."""
        self.check(dropout, layout)
        if layout is not None:
            if callable(layout.places):  # not by _replace, whose tuple PyTorch 2.11 can't hand out of a compiled graph
                layout = TokenLayout(layout.grid, layout.prefix, layout.places(), layout.windows, layout.prompts)
            self.maps.layouts[self.layer] = layout
        windows, prompts = (None, 0) if layout is None else (layout.windows, layout.prompts)
        if self.maps.rows is not None and not torch.compiler.is_compiling():  # which launches no kernels one by one
            self.maps.rows.add(self.layer, q, k, bias, scale, prompts)
            return
        with torch.no_grad():  # nothing of it may enter the graph: checkpointing would miss it in its second run
            q, k, v = (t if self.heads is None else t[:, self.heads] for t in (q.detach(), k.detach(), v.detach()))
            if bias is not None:
                bias = bias.detach() if self.heads is None else bias.detach()[:, self.heads]
                bias = bias[:, :, prompts:]
            q, v = q[:, :, prompts:], v[:, :, prompts:]  # others give some of their attention to prompts: rows miss it

            def attention() -> Tensor:
                product = lambda q, k, bias: attention_map(q, k, bias, scale)[..., prompts:]  # noqa: E731
                return self.form(product, q, k, bias, windows)

            if not (callable(self.reduce) and self.gradients):
                self.maps[self.layer] = self.keep(layout, attention())
        if not self.gradients:
            return

        @torch.no_grad()
        def receive(flow: Tensor) -> None:
            # The kernel's output is O = A·V, so dA = dO·Vᵀ: the fused kernel need not be taken apart for it.
            flow = (flow if self.heads is None else flow[:, self.heads])[:, :, prompts:]
            gradient = self.form(outer_product, flow, v, None, windows)
            if callable(self.reduce):
                self.maps[self.layer] = self.keep(layout, attention(), gradient)
            else:
                self.maps.gradients[self.layer] = self.keep(layout, gradient)

        if not output.requires_grad:  # all parameters so far are frozen: the graph starts here
            output.requires_grad_()
        output.register_hook(receive)

    def check(self, dropout: float, layout: TokenLayout | None) -> None:
        if self.reduce == "cls_row" and (layout is None or "class" not in layout.prefix):
            raise VitrailError(
                'This model has no class token for reduce="cls_row"; use "mean_heads", a function of the maps such as'
                " lambda a: a.mean(-2), or maps.row(layer, (row, column)) of whole maps."
            )
        if self.gradients and not torch.is_grad_enabled():
            raise VitrailError("gradients=True needs a graph; run the model outside of no_grad and inference_mode.")
        if self.gradients and torch.compiler.is_compiling():
            raise VitrailError(
                "gradients=True rests on hooks, which a graph compiled whole can't hold; leave out fullgraph=True."
            )
        if self.gradients and dropout:
            raise VitrailError("Attention dropout makes the gradient of a map random; call model.eval() first.")

    def form(self, product: Callable, left: Tensor, right: Tensor, bias: Tensor | None, windows: int | None) -> Tensor:
        """product(left, right, bias) is [B, H, N, N]; this makes no more of it than `reduce` wants."""
        if self.reduce == "cls_row":
            matrix = product(left[:, :, :1], right, None if bias is None else bias[:, :, :1])[:, :, 0]
        elif self.reduce == "mean_heads":

            def one(h: int) -> Tensor:
                head = slice(h, h + 1)
                return product(left[:, head], right[:, head], None if bias is None else bias[:, head])[:, 0]

            matrix = one(0)
            for h in range(1, left.shape[1]):
                matrix.add_(one(h))
            matrix.div_(left.shape[1])
        else:
            matrix = product(left, right, bias)
        return matrix if windows is None else matrix.unflatten(0, (-1, windows))

    def keep(self, layout: TokenLayout | None, *matrices: Tensor) -> Any:
        if callable(self.reduce):
            value = self.reduce(*matrices, layout=layout) if self.wants_layout else self.reduce(*matrices)
        else:
            value = matrices[0]
        return value.to(self.to) if self.to is not None and isinstance(value, Tensor) else value


def wants_layout(reduce: Reduce) -> bool:
    """Does this function of a map have a parameter of that name?"""
    try:
        return callable(reduce) and "layout" in signature(reduce).parameters
    except ValueError:  # some that are written in C do not say
        return False


def attention_layers(model: nn.Module) -> list[Attention]:
    """In order. `model.modules()` takes three times as long, which a forward on a GPU would notice."""
    found: dict[Attention, None] = {}  # a layer that is used twice counts once
    ahead: list[nn.Module | None] = [model]
    while ahead:
        module = ahead.pop()
        if isinstance(module, Attention):
            found[module] = None
        elif module is not None:
            ahead.extend(reversed(module._modules.values()))
    return [*found]


@contextmanager
def capture(
    model: nn.Module,
    layers: Iterable[int] | int | None = None,
    heads: Iterable[int] | int | None = None,
    reduce: Reduce = None,
    to: torch.device | str | None = None,
    gradients: bool = False,
) -> Iterator[AttentionMaps]:
    """Collects the true attention of the chosen layers and heads (all by default) during the forwards inside.

    >>> with vitrail.capture(model, layers=[0, 11]) as maps:
    ...     model(images)
    >>> maps[11][0].mean(0)  # [N, N], the last layer of the first image, averaged over its heads
    >>> maps.row(11, (3, 5))  # [B, H, h, w], what the patch in row 3, column 5 attends to

    A map is B×H×N×N, so at large sizes keep less: `reduce="cls_row"` makes the row of the class token alone [B, H, N],
    "mean_heads" goes head by head [B, N, N], and a function gets each map, its own to change, and only its answer is
    kept; if it has a parameter `layout`, it is told there how the layer's tokens lie. `to="cpu"` moves what is kept
    there as it is made. Class rows of several layers are made together, while up to 256 MiB of their q, k and v wait. A
    second forward replaces what the first has left. Layers count from 0, in MAE on from the encoder to the decoder;
    negative numbers count from the end.

    Rows sum to 1, but for a model tuned with prompts: maps are those of its own tokens, to and from which prompts are
    left out, so a row misses what it gives to them, and sums to less.

    `gradients=True` also keeps, once backward() has run, d(output)/d(attention) in `maps.gradients`; a function then
    gets both, (map, gradient), while backward() runs, and so never more than one layer of either exists.

    A compiled model is compiled once more for each choice of layers and reduction, and then captured at that speed.
    """
    modules = attention_layers(model)
    if not any(isinstance(module, Attention) for module in modules or model.modules()):  # where an ONNX file refuses
        raise VitrailError(f"{type(model).__name__} has no attention layer of Vitrail's to look into.")
    if not (reduce in (None, "cls_row", "mean_heads") or callable(reduce)):
        raise VitrailError(f'reduce={reduce!r} is not known; use "cls_row", "mean_heads" or a function of the map.')
    chosen = check_layers(range(len(modules)) if layers is None else layers, len(modules))
    picked = None if heads is None else [*whole_numbers(one_or_several(heads), "heads")]
    if picked == []:
        raise VitrailError("heads=[] names no head to capture; leave it out for all of them.")
    try:
        device = None if to is None else torch.device(to)
    except RuntimeError:
        raise VitrailError(f'to={to!r} is not a device; use "cpu", or "cuda" where there is one.') from None
    together = reduce == "cls_row" and not gradients
    maps = AttentionMaps(len(modules), reduce, ClassRows(picked, device, max(chosen, default=0)) if together else None)
    probes = {}
    for i in chosen:
        count = modules[i].heads
        if wrong := [h for h in picked or () if not -count <= h < count]:
            raise VitrailError(f"Layer {i} has heads 0 to {count - 1}; there is no head {wrong[0]}.")
        probes[i] = Probe(maps, i, picked, device, gradients)
    for i, probe in probes.items():
        modules[i].probes.append(probe)
    try:
        yield maps
    finally:
        for i, probe in probes.items():
            modules[i].probes.remove(probe)
        if maps.rows is not None:
            maps.rows.make()  # no tensor of the forward outlives the capture
