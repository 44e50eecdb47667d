"""The Vision Transformer. ViT, DeiT, the hybrid, CPVT, DINO, CLIP's and SigLIP's image towers are settings of it.

z_0   = [class; x_p1 E; …; x_pN E] + E_pos                (1)  embed
z'_l  = MSA(LN(z_{l-1})) + z_{l-1}                        (2)  Block, first half
z_l   = MLP(LN(z'_l)) + z'_l                              (3)  Block, second half
y     = LN(z_L)[class]                                    (4)  encode, pool
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import VitrailError
from vitrail.models.attention import Attention, Rotary, TokenLayout
from vitrail.models.checks import check_image, check_layers, check_settings, pair, whole_numbers
from vitrail.models.classifier import Classifier
from vitrail.models.grid import RULES, Grid
from vitrail.models.heads import AttentionPool, Head
from vitrail.models.layers import (
    ACTIVATIONS,
    MLP,
    DropPath,
    LayerScale,
    PatchEmbed,
    ceil_div,
    drop_path_rates,
    init_weights,
)
from vitrail.models.neighbours import Neighbours
from vitrail.models.position import KINDS, make_position
from vitrail.models.resnet import LIGHT, Stem, make_stem, stem_stride
from vitrail.models.tuning import Tuning, add_parts, as_tuning

torch.fx.wrap("check_image")  # to `torch.fx.symbolic_trace` one step


@dataclass(frozen=True)
class ViTSettings:
    """Everything that decides the shape and the arithmetic of a `VisionTransformer`. The defaults are ViT-B/16."""

    # Sizes are (height, width); one number stands for a square. Tables are made for image_size; a call may bring any.
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    channels: int = 3
    num_classes: int = 1000  # 0: no head, the model gives the pooled features
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: float = 4.0
    activation: str = "gelu"  # gelu | gelu_tanh | quick_gelu | relu | swiglu

    patch_embed: str = "linear"  # linear | conv: the same map; linear is the faster of the two on a CPU
    patch_bias: bool = True
    # Hybrid: blocks per stage of a ResNet, or convN | resN, N the stride; patch_size then counts on its feature map.
    stem: Stem | None = None

    position: str = "learned"  # a kind of `models.position`: none | learned | sincos | rotary | …
    position_prefix: bool = True  # does a learned table have rows for the class and distillation tokens?
    position_rule: str = "timm"  # how a table is resized to another grid: timm | hf | torchvision | google
    rotary_base: float = 100.0

    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    pool: str = "token"  # token | mean | attention

    norm_first: bool = True  # pre-norm; False is the original Transformer's post-norm
    norm_eps: float = 1e-6
    norm_before: bool = False  # a norm before the blocks (CLIP)
    norm_after_pool: bool = False  # the last norm acts on the pooled vector instead of the tokens (fine-tuned MAE)
    qkv_bias: bool | str = True  # True | False | "qv"
    qk_norm: bool = False
    layer_scale: float | None = None  # initial value of the factor on each branch
    local: bool = False  # before each block, a depth-wise 3×3 convolution of the patches is added to them (CMT)

    head: str = "linear"  # linear | mlp: the pre-training head with one hidden layer
    head_activation: str = "tanh"  # tanh (as in the paper) | gelu: of the mlp head
    head_bias: bool = True

    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0  # of the last block; rises linearly from 0 in the first
    tuning: Tuning | None = None  # adapters, LoRA or prompts that were added

    def __post_init__(self) -> None:
        object.__setattr__(self, "tuning", as_tuning(self.tuning))
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        object.__setattr__(self, "patch_size", pair(self.patch_size, "patch_size"))
        if self.stem is not None and not isinstance(self.stem, str):
            object.__setattr__(self, "stem", whole_numbers(self.stem, "stem", least=1))
        choices: dict[str, Iterable[object]] = {
            "activation": [*ACTIVATIONS, "swiglu"],
            "patch_embed": ["conv", "linear"],
            "position": KINDS,
            "position_rule": RULES,
            "pool": ["token", "mean", "attention"],
            "qkv_bias": [True, False, "qv"],
            "head": ["linear", "mlp"],
            "head_activation": ["tanh", "gelu"],
        }
        if isinstance(self.stem, str):
            choices["stem"] = LIGHT
        counts = {"channels": 1, "num_classes": 0, "width": 1, "depth": 1, "heads": 1, "registers": 0}
        rates = ["dropout", "attention_dropout", "drop_path"]
        check_settings(self, choices, counts, rates, positive=["mlp_ratio"])
        if self.width % self.heads:
            raise VitrailError(f"A width of {self.width} can't be divided among {self.heads} heads.")
        if self.pool == "token" and not self.class_token:
            raise VitrailError(
                'pool="token" reads the class token; with class_token=False use pool="mean" or "attention".'
            )
        if self.distillation_token and self.pool != "token":
            raise VitrailError('A distillation token goes with pool="token": both tokens have a head of their own.')
        KINDS[self.position].check(self.width)

    @property
    def stride(self) -> tuple[int, int]:
        """How many pixels a token spans, down and across."""
        s = 1 if self.stem is None else stem_stride(self.stem)
        return s * self.patch_size[0], s * self.patch_size[1]

    @property
    def grid(self) -> Grid:
        """The token grid of an image of `image_size`: N = HW/P² when the patch divides it."""
        return ceil_div(self.image_size, self.stride)

    @property
    def prefix_names(self) -> tuple[str, ...]:
        """The tokens in front of the patches, in order."""
        names = ("class",) * self.class_token + ("distillation",) * self.distillation_token
        return names + tuple(f"register {i}" for i in range(self.registers))

    @property
    def prefix_tokens(self) -> int:
        return self.class_token + self.distillation_token + self.registers

    @property
    def mlp_width(self) -> int:
        return round(self.width * self.mlp_ratio)


class Block(nn.Module):
    """One encoder layer: attention and MLP, each with a norm and a residual."""

    def __init__(self, settings: ViTSettings, drop_path: float):
        super().__init__()
        s, eps = settings, settings.norm_eps
        self.norm_first = s.norm_first
        self.local = Neighbours(s.width) if s.local else None
        self.norm1 = nn.LayerNorm(s.width, eps=eps)
        self.attention = Attention(
            s.width,
            s.heads,
            qkv_bias=s.qkv_bias,
            qk_norm=s.qk_norm,
            norm_eps=eps,
            dropout=s.dropout,
            attention_dropout=s.attention_dropout,
        )
        self.norm2 = nn.LayerNorm(s.width, eps=eps)
        self.mlp = MLP(s.width, s.mlp_width, s.activation, s.dropout)
        self.scale1 = nn.Identity() if s.layer_scale is None else LayerScale(s.width, s.layer_scale)
        self.scale2 = nn.Identity() if s.layer_scale is None else LayerScale(s.width, s.layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, rotary: Rotary | None = None, layout: TokenLayout | None = None
    ) -> Tensor:  # B N D
        if self.local is not None:
            assert layout is not None
            x = self.local(x, layout.grid)
        if self.norm_first:
            x = x + self.drop_path(self.scale1(self.attention(self.norm1(x), bias, rotary, layout)))
            return x + self.drop_path(self.scale2(self.mlp(self.norm2(x))))
        x = self.norm1(x + self.drop_path(self.scale1(self.attention(x, bias, rotary, layout))))
        return self.norm2(x + self.drop_path(self.scale2(self.mlp(x))))


class VisionTransformer(Classifier):
    """Images [B, C, H, W] of any size to logits [B, classes], or to features [B, D] when `num_classes` is 0."""

    def __init__(self, settings: ViTSettings | None = None, **changes):
        super().__init__()
        s = replace(settings or ViTSettings(), **changes)
        self.settings = s
        self.gradient_checkpointing = False

        self.stem = None if s.stem is None else make_stem(s.channels, s.stem)
        channels = s.channels if self.stem is None else self.stem.out_channels
        self.patch = PatchEmbed(channels, s.width, s.patch_size, s.patch_embed, s.patch_bias)
        self.position = make_position(
            s.position,
            width=s.width,
            heads=s.heads,
            grid=s.grid,
            prefix_tokens=s.prefix_tokens,
            prefix_rows=s.class_token + s.distillation_token if s.position_prefix else 0,
            rule=s.position_rule,
            rotary_base=s.rotary_base,
        )
        self.class_token = learned_token(1, s.width) if s.class_token else None
        self.distillation_token = learned_token(1, s.width) if s.distillation_token else None
        self.registers = learned_token(s.registers, s.width) if s.registers else None
        self.norm_before = nn.LayerNorm(s.width, eps=s.norm_eps) if s.norm_before else None
        self.blocks = nn.ModuleList(Block(s, rate) for rate in drop_path_rates(s.drop_path, s.depth))
        # In post-norm every block ends in a norm, so there is nothing left for a last one to do.
        self.norm = nn.LayerNorm(s.width, eps=s.norm_eps) if s.norm_first and not s.norm_after_pool else None
        self.pool_attention = (
            AttentionPool(s.width, s.heads, s.mlp_width, s.activation, s.norm_eps) if s.pool == "attention" else None
        )
        self.norm_pool = nn.LayerNorm(s.width, eps=s.norm_eps) if s.norm_after_pool else None
        hidden = s.head_activation if s.head == "mlp" else None
        self.head = Head(s.width, s.num_classes, hidden, s.head_bias)
        self.head_distillation = Head(s.width, s.num_classes) if s.distillation_token else None
        self.apply(init_weights)
        self.reset_patches()
        if self.pool_attention is not None:
            self.pool_attention.reset_parameters()
        if s.tuning is not None:
            add_parts(self, s.tuning)

    def reset_patches(self) -> None:
        """Beside sines and cosines, which have a size of 0.7 and keep it, patches begin as large as their pixels; from
        σ = 0.02 those of 4×4 pixels would be a fifth as large, and three to four points of accuracy were lost."""
        if self.position.outweighs_patches:
            nn.init.trunc_normal_(self.patch.weight, std=self.patch.weight[0].numel() ** -0.5)

    @property
    def prefix_tokens(self) -> int:
        """Tokens in front of the patches: class, distillation, registers."""
        return self.settings.prefix_tokens

    @property
    def default_layer(self) -> int:
        """The layer whose attention is worth looking at first: the last, which makes the class token."""
        return self.settings.depth - 1

    def token_grid(self, height: int, width: int) -> Grid:
        """The grid of patch tokens that an image of this size is cut into."""
        return ceil_div((height, width), self.settings.stride)

    def forward_features(self, x: Tensor) -> Tensor:
        """The tokens after the last norm, [B, N, D]."""
        return self.encode(*self.embed(x))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits [B, classes]; with a distillation token, the mean of the two heads, as DeiT does at inference."""
        if self.head_distillation is None or not self.settings.num_classes:
            return super().forward_head(features, pre_logits)
        if pre_logits:
            return (self.head.pre_logits(self.pool(features)) + features[:, 1]) / 2
        of_class, of_teacher = self.heads_on(features)
        return (of_class + of_teacher) / 2

    def forward_heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """The output of each head: one or, with a distillation token, (class head, distillation head)."""
        return self.heads_on(self.forward_features(x))

    def heads_on(self, features: Tensor) -> tuple[Tensor, ...]:
        logits = super().forward_head(features)
        if self.head_distillation is None or not self.settings.num_classes:
            return (logits,)
        return logits, self.head_distillation(features[:, 1])

    def embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Eq. 1: the tokens [B, N, D] that enter the first block, and the grid h×w of those that are patches."""
        patches = self.embed_patches(x)
        grid = (patches.shape[1], patches.shape[2])
        return self.add_prefix(patches.flatten(1, 2)), grid

    def embed_patches(self, x: Tensor) -> Tensor:
        """Patches with their positions added, [B, h, w, D]."""
        check_image(x, self.settings.channels, self.settings.stride)
        if self.stem is not None:
            x = self.stem(x)
        return self.position.add(self.patch(x))

    def add_prefix(self, patches: Tensor) -> Tensor:
        """Puts class, distillation and register tokens in front: [B, hw, D] -> [B, N, D]."""
        prefix: list[Tensor] = [t for t in (self.class_token, self.distillation_token) if t is not None]
        if prefix:
            rows = self.position.prefix()
            tokens = torch.cat(prefix, dim=1)
            prefix = [tokens if rows is None else tokens + rows]
        if self.registers is not None:
            prefix.append(self.registers)
        if prefix:
            patches = torch.cat([*(t.expand(patches.shape[0], -1, -1) for t in prefix), patches], dim=1)
        x = F.dropout(patches, self.settings.dropout, self.training) if self.settings.dropout else patches
        return x if self.norm_before is None else self.norm_before(x)

    def encode(
        self,
        x: Tensor,
        grid: Grid,
        keep: dict[int, Tensor] | None = None,
        places: Tensor | None = None,
        before: Callable[[int, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Eqs. 2, 3 and the last norm, [B, N, D] -> [B, N, D]. Fills `keep` with the output of the blocks it names.
        Where patches were left out, `places` [B, n] says which ones these are. `before(i, tokens)` may change what
        block i is given."""
        bias, rotary = self.position.bias(grid), self.position.rotary(grid)
        layout = TokenLayout(grid, self.settings.prefix_names, places)
        for i, block in enumerate(self.blocks):
            if before is not None:
                x = before(i, x)
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, bias, rotary, layout, use_reentrant=False)
            else:
                x = block(x, bias, rotary, layout)
            if i == 0 and self.position.acts == "between":
                prefix, patches = x[:, : self.prefix_tokens], x[:, self.prefix_tokens :]
                patches = self.position.between(patches.unflatten(1, grid))
                x = torch.cat([prefix, patches.flatten(1, 2)], dim=1)
            if keep is not None and i in keep:
                keep[i] = x
        return x if self.norm is None else self.norm(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """Eq. 4: one vector per image, [B, N, D] -> [B, D]."""
        if self.pool_attention is not None:
            x = self.pool_attention(tokens)
        elif self.settings.pool == "mean":
            x = tokens[:, self.prefix_tokens :].mean(dim=1)
        else:
            x = tokens[:, 0]
        return x if self.norm_pool is None else self.norm_pool(x)

    def features(self, x: Tensor, layers: Iterable[int] | int = (-1,)) -> dict[str, Tensor]:
        """Named intermediates: for each layer `tokens/3` [B, N, D] and `map/3` [B, D, h, w], before the last norm;
        then `tokens` [B, N, D] after it, and `pooled` [B, D]."""
        layers = check_layers(layers, len(self.blocks))
        keep: dict[int, Tensor] = dict.fromkeys(layers, x)
        tokens, grid = self.embed(x)
        tokens = self.encode(tokens, grid, keep)
        out: dict[str, Tensor] = {}
        for i in layers:
            out[f"tokens/{i}"] = keep[i]
            out[f"map/{i}"] = keep[i][:, self.prefix_tokens :].unflatten(1, grid).permute(0, 3, 1, 2)
        return out | {"tokens": tokens, "pooled": self.pool(tokens)}


def learned_token(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, width), std=0.02))
