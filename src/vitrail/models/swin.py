"""Swin v1 and v2: attention inside windows that shift by half in every second block, on a pyramid of four stages.

Any H×W: how a map is padded and cut into windows is in `shifted_windows`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import VitrailError
from vitrail.models.attention import Attention, TokenLayout
from vitrail.models.checks import check_image, check_layers, check_settings, pair, whole_numbers
from vitrail.models.classifier import Classifier
from vitrail.models.grid import RULES, Grid, offsets_of, relative_index
from vitrail.models.heads import Head
from vitrail.models.layers import (
    ACTIVATIONS,
    MLP,
    DropPath,
    PatchEmbed,
    ceil_div,
    drop_path_rates,
    init_weights,
    open_size,
)
from vitrail.models.shifted_windows import ShiftedWindows, whole_windows
from vitrail.models.tuning import Tuning, add_parts, as_tuning

torch.fx.wrap("check_image")  # to `torch.fx.symbolic_trace` one step


@dataclass(frozen=True)
class SwinSettings:
    """Everything that decides the shape and the arithmetic of a `SwinTransformer`. The defaults are Swin-T."""

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (4, 4)
    channels: int = 3
    num_classes: int = 1000
    width: int = 96  # of the first stage; doubles with every stage
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: tuple[int, int] = (7, 7)
    mlp_ratio: float = 4.0
    activation: str = "gelu"
    version: int = 1  # 2: cosine attention, continuous relative bias, norm at the end of each branch
    pretrained_window: tuple[
        int, ...
    ] = ()  # v2, per stage: the window its bias was trained with, where another is used
    padding: str = "torchvision"  # torchvision | timm
    mask_padding: bool = False
    position_rule: str = "hf"  # how a table of biases is resized when the window changes
    norm_eps: float = 1e-5
    qkv_bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    tuning: Tuning | None = None  # adapters, LoRA or prompts that were added

    def __post_init__(self) -> None:
        object.__setattr__(self, "tuning", as_tuning(self.tuning))
        for name in ("image_size", "patch_size", "window"):
            object.__setattr__(self, name, pair(getattr(self, name), name))
        for name, least in (("depths", 1), ("heads", 1), ("pretrained_window", 0)):
            object.__setattr__(self, name, whole_numbers(getattr(self, name), name, least))
        choices: dict[str, Iterable[object]] = {
            "activation": [*ACTIVATIONS, "swiglu"],
            "version": [1, 2],
            "padding": ["torchvision", "timm"],
            "position_rule": RULES,
        }
        counts = {"channels": 1, "num_classes": 0, "width": 1}
        rates = ["dropout", "attention_dropout", "drop_path"]
        check_settings(self, choices, counts, rates, positive=["mlp_ratio"])
        if not self.depths or len(self.depths) != len(self.heads):
            raise VitrailError(f"depths {self.depths} and heads {self.heads} must name the same stages, one or more.")
        for i, heads in enumerate(self.heads):
            if self.width * 2**i % heads:
                raise VitrailError(f"A width of {self.width * 2**i} (stage {i}) can't be divided among {heads} heads.")

    @property
    def stride(self) -> tuple[int, int]:
        """How many pixels a token of the last stage spans."""
        halvings = 2 ** (len(self.depths) - 1)
        return self.patch_size[0] * halvings, self.patch_size[1] * halvings

    @property
    def grid(self) -> Grid:
        """The token grid of the first stage."""
        return ceil_div(self.image_size, self.patch_size)


class RelativeBias(nn.Module):
    """Swin v1: a learned bias per head and offset inside the window."""

    index: Tensor  # n n

    def __init__(self, heads: int, window: Grid):
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.empty(math.prod(offsets_of(window)), heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        self.reset_buffers(torch.get_default_device())

    def reset_buffers(self, device: torch.device | str) -> None:
        self.register_buffer("index", relative_index(self.window, device), persistent=False)

    def forward(self) -> Tensor:  # H n n
        return self.table[self.index.flatten()].unflatten(0, self.index.shape).permute(2, 0, 1)


class ContinuousBias(nn.Module):
    """Swin v2: a small MLP from the log-spaced offset to the bias, so that it carries over to other windows."""

    index: Tensor  # n n
    offsets: Tensor  # (2h-1)(2w-1) 2

    def __init__(self, heads: int, window: Grid, trained_window: Grid):
        super().__init__()
        self.window, self.trained_window = window, trained_window
        self.fc1 = nn.Linear(2, 512)
        self.fc2 = nn.Linear(512, heads, bias=False)
        self.reset_buffers(torch.get_default_device())

    def reset_buffers(self, device: torch.device | str) -> None:
        def log_spaced(size: int, trained: int) -> Tensor:  # offsets -(size-1) … size-1, to sign·log2(8|x| + 1)/log2(8)
            offset = torch.arange(-(size - 1), size, dtype=torch.float32, device=device) / max(trained - 1, 1) * 8
            return offset.sign() * (offset.abs() + 1).log2() / math.log2(8)

        rows = log_spaced(self.window[0], self.trained_window[0])
        columns = log_spaced(self.window[1], self.trained_window[1])
        offsets = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("index", relative_index(self.window, device), persistent=False)

    def forward(self) -> Tensor:  # H n n
        table = 16 * torch.sigmoid(self.fc2(F.relu(self.fc1(self.offsets))))
        return table[self.index.flatten()].unflatten(0, self.index.shape).permute(2, 0, 1)


class SwinBlock(nn.Module):
    """Attention in (shifted) windows and an MLP, each with a norm and a residual."""

    def __init__(
        self,
        settings: SwinSettings,
        width: int,
        heads: int,
        window: Grid,
        trained_window: Grid,
        shift: Grid,
        drop_path: float,
    ):
        super().__init__()
        s = settings
        self.version, self.padding, self.mask_padding = s.version, s.padding, s.mask_padding
        self.window, self.shift = window, shift
        self.norm1 = nn.LayerNorm(width, eps=s.norm_eps)
        qkv_bias = "qv" if s.qkv_bias and s.version == 2 else s.qkv_bias
        self.attention = Attention(
            width, heads, qkv_bias, cosine=s.version == 2, dropout=s.dropout, attention_dropout=s.attention_dropout
        )
        self.bias = RelativeBias(heads, window) if s.version == 1 else ContinuousBias(heads, window, trained_window)
        self.norm2 = nn.LayerNorm(width, eps=s.norm_eps)
        self.mlp = MLP(width, round(width * s.mlp_ratio), s.activation, s.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:  # B h w D
        if self.version == 2:
            x = x + self.drop_path(self.norm1(self.attend(x)))
            return x + self.drop_path(self.norm2(self.mlp(x)))
        x = x + self.drop_path(self.attend(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def attend(self, x: Tensor) -> Tensor:
        device = x.device
        windows = ShiftedWindows((x.shape[1], x.shape[2]), self.window, self.shift, self.padding, self.mask_padding)
        bias, mask = self.bias()[None], windows.mask(device)
        if mask is not None:
            bias = bias + mask
        layout = TokenLayout(windows.real, places=lambda: windows.places(device), windows=windows.count)
        return windows.join(self.attention(windows.cut(x), bias, layout=layout))


class PatchMerging(nn.Module):
    """Joins each 2×2 tokens into one of twice the width."""

    def __init__(self, width: int, version: int, eps: float):
        super().__init__()
        self.version = version
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width if version == 1 else 2 * width, eps=eps)

    def forward(self, x: Tensor) -> Tensor:  # B h w D -> B ⌈h/2⌉ ⌈w/2⌉ 2D
        real = (x.shape[1], x.shape[2])
        even = whole_windows(real, (2, 2))
        if open_size(real) or even != real:
            x = F.pad(x, (0, 0, 0, even[1] - real[1], 0, even[0] - real[0]))
        b, h, w, d = x.shape
        # (column, row, channel) is the order in which the published weights read the four tokens.
        x = x.view(b, h // 2, 2, w // 2, 2, d).permute(0, 1, 3, 4, 2, 5).reshape(b, h // 2, w // 2, 4 * d)
        return self.reduction(self.norm(x)) if self.version == 1 else self.norm(self.reduction(x))


class SwinTransformer(Classifier):
    """Images [B, C, H, W] of any size to logits [B, classes], or to features [B, 8D] when `num_classes` is 0."""

    prefix_tokens = 0

    def __init__(self, settings: SwinSettings | None = None, **changes):
        super().__init__()
        s = replace(settings or SwinSettings(), **changes)
        self.settings = s
        self.gradient_checkpointing = False
        self.patch = PatchEmbed(s.channels, s.width, s.patch_size)
        self.norm_before = nn.LayerNorm(s.width, eps=s.norm_eps)
        self.stages = nn.ModuleList()
        self.merges = nn.ModuleList()
        rates = drop_path_rates(s.drop_path, sum(s.depths))
        for i, (depth, heads) in enumerate(zip(s.depths, s.heads, strict=True)):
            width = s.width * 2**i
            window, shift = stage_window(s, i)
            trained = s.pretrained_window[i] if i < len(s.pretrained_window) and s.pretrained_window[i] else 0
            blocks = [
                SwinBlock(
                    s, width, heads, window, (trained, trained) if trained else window, shift if j % 2 else (0, 0), rate
                )
                for j, rate in enumerate(rates[sum(s.depths[:i]) :][:depth])
            ]
            self.stages.append(nn.Sequential(*blocks))
            if i + 1 < len(s.depths):
                self.merges.append(PatchMerging(width, s.version, s.norm_eps))
        last = s.width * 2 ** (len(s.depths) - 1)
        self.norm = nn.LayerNorm(last, eps=s.norm_eps)
        self.head = Head(last, s.num_classes)
        self.apply(init_weights)
        if s.version == 2:
            # Branches end in a norm whose gain starts at zero, so that training starts from the identity.
            for block in self.blocks:
                nn.init.zeros_(block.norm1.weight)
                nn.init.zeros_(block.norm2.weight)
        if s.tuning is not None:
            add_parts(self, s.tuning)

    @property
    def blocks(self) -> list[SwinBlock]:
        """All blocks in order, over the stages."""
        return [module for module in self.modules() if isinstance(module, SwinBlock)]

    @property
    def default_layer(self) -> int:
        """The layer whose attention is worth looking at first: the last of the stage before the last. Deeper ones have
        too few tokens to show where anything is."""
        return sum(self.settings.depths[:-1] or self.settings.depths) - 1

    def token_grid(self, height: int, width: int) -> Grid:
        """The grid of tokens in the last stage."""
        return ceil_div((height, width), self.settings.stride)

    def forward_features(self, x: Tensor) -> Tensor:
        """The last map after the last norm, [B, h, w, 8D]."""
        return self.encode(self.embed(x))

    def embed(self, x: Tensor) -> Tensor:  # B C H W -> B h w D
        check_image(x, self.settings.channels, self.settings.patch_size)
        x = self.norm_before(self.patch(x))
        return F.dropout(x, self.settings.dropout, self.training) if self.settings.dropout else x

    def encode(self, x: Tensor, keep: dict[int, Tensor] | None = None) -> Tensor:
        """Through all stages and the last norm: [B, h, w, D] -> [B, h/8, w/8, 8D]. Fills `keep` as in the ViT."""
        count = 0
        for i, stage in enumerate(self.stages):
            if i > 0:
                x = self.merges[i - 1](x)
            for block in stage.children():
                if self.gradient_checkpointing and self.training:
                    x = checkpoint(block, x, use_reentrant=False)
                else:
                    x = block(x)
                if keep is not None and count in keep:
                    keep[count] = x
                count += 1
        return self.norm(x)

    def pool(self, x: Tensor) -> Tensor:  # B h w D -> B D
        return x.mean(dim=(1, 2))

    def features(self, x: Tensor, layers: Iterable[int] | int = (-1,)) -> dict[str, Tensor]:
        """Named intermediates, as in the ViT: `tokens/3` [B, N, D], `map/3` [B, D, h, w], `tokens`, `pooled`."""
        layers = check_layers(layers, sum(self.settings.depths))
        keep: dict[int, Tensor] = dict.fromkeys(layers, x)
        last = self.encode(self.embed(x), keep)
        out: dict[str, Tensor] = {}
        for i in layers:
            out[f"tokens/{i}"] = keep[i].flatten(1, 2)
            out[f"map/{i}"] = keep[i].permute(0, 3, 1, 2)
        return out | {"tokens": last.flatten(1, 2), "pooled": self.pool(last)}


def stage_window(settings: SwinSettings, stage: int) -> tuple[Grid, Grid]:
    """Window and shift of a stage. Under timm's rule both adapt to the map that `image_size` gives."""
    window = settings.window
    shift = (window[0] // 2, window[1] // 2)
    if settings.padding == "torchvision":
        return window, shift
    grid = settings.grid
    size = (max(grid[0] // 2**stage, 1), max(grid[1] // 2**stage, 1))
    return (
        (min(window[0], size[0]), min(window[1], size[1])),
        (0 if size[0] <= window[0] else shift[0], 0 if size[1] <= window[1] else shift[1]),
    )
