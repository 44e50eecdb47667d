"""ViT-Adapter (Chen et al., 2023): a plain ViT for dense tasks, its own weights untouched.

Beside the ViT runs a small convolutional branch that keeps detail at strides 8, 16 and 32. Four times on the way the
two exchange: an injector adds detail to the ViT's tokens, an extractor gathers what the ViT's blocks have made of it,
both by deformable attention. The injectors' gates start at zero, so that at first the ViT sees what it always saw.

Unlike the reference: norms over one image instead of batch norm over processes, for batches of a few large images; any
patch size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.dense.deformable import DeformableAttention, centres
from vitrail.models.dense.pyramid import STRIDES, ChannelNorm, Maps, Pyramid, resample
from vitrail.models.grid import Grid
from vitrail.models.layers import DropPath, ceil_div, init_weights, pad_to_multiple
from vitrail.models.vit import VisionTransformer

INTERACTIONS = 4
COARSEST = STRIDES[-1]


def conv(wide: int, narrow: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(wide, narrow, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(16, narrow),
        nn.ReLU(inplace=True),
    )


class SpatialPrior(nn.Module):
    """The convolutional branch: maps of width D at strides 4, 8, 16 and 32."""

    def __init__(self, channels: int, width: int, inner: int = 64):
        super().__init__()
        self.stem = nn.Sequential(
            conv(channels, inner, 2), conv(inner, inner, 1), conv(inner, inner, 1),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )  # fmt: skip
        self.downs = nn.ModuleList(
            [conv(inner, 2 * inner, 2), conv(2 * inner, 4 * inner, 2), conv(4 * inner, 4 * inner, 2)]
        )
        self.outputs = nn.ModuleList(nn.Conv2d(wide, width, 1) for wide in (inner, 2 * inner, 4 * inner, 4 * inner))

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = [self.stem(x)]
        for down in self.downs:
            maps.append(down(maps[-1]))
        return [output(each) for output, each in zip(self.outputs, maps, strict=True)]


class Injector(nn.Module):
    """Adds to the ViT's patches what they find in the detail; nothing while the gate is zero."""

    def __init__(self, width: int, heads: int, levels: int, ratio: float, eps: float):
        super().__init__()
        self.norm, self.norm_detail = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attention = DeformableAttention(width, heads, levels, ratio=ratio)
        self.gate = nn.Parameter(torch.zeros(width))

    def forward(self, patches: Tensor, places: Tensor, detail: Tensor, grids: list[Grid]) -> Tensor:
        return patches + self.gate * self.attention(self.norm(patches), places, self.norm_detail(detail), grids)


class Extractor(nn.Module):
    """Gathers for the detail what the ViT has made of it, then a small MLP with a convolution inside."""

    def __init__(self, width: int, heads: int, ratio: float, eps: float, drop_path: float, hidden_ratio: float = 0.25):
        super().__init__()
        hidden = round(width * hidden_ratio)
        self.norm, self.norm_patches = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attention = DeformableAttention(width, heads, levels=1, ratio=ratio)
        self.norm_mlp = nn.LayerNorm(width, eps=eps)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.mix = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.drop_path = DropPath(drop_path)

    def forward(self, detail: Tensor, places: Tensor, patches: Tensor, grid: Grid, grids: list[Grid]) -> Tensor:
        detail = detail + self.attention(self.norm(detail), places, self.norm_patches(patches), [grid])
        return detail + self.drop_path(self.mlp(self.norm_mlp(detail), grids))

    def mlp(self, detail: Tensor, grids: list[Grid]) -> Tensor:
        hidden = self.fc1(detail)
        levels = hidden.split([h * w for h, w in grids], dim=1)
        mixed = [
            self.mix(level.transpose(1, 2).unflatten(2, size)).flatten(2).transpose(1, 2)
            for level, size in zip(levels, grids, strict=True)
        ]
        return self.fc2(F.gelu(torch.cat(mixed, dim=1)))


class ViTAdapter(Pyramid):
    """Maps at strides 4, 8, 16, 32 from any ViT, and any image size."""

    model: VisionTransformer

    def __init__(self, model: VisionTransformer, channels: int = 256):
        super().__init__()
        s = model.settings
        self.model, self.channels = model, channels
        heads, ratio = max(6, s.heads), 1.0 if s.width < 768 else 0.5
        if round(s.width * ratio) % heads:
            heads = s.heads
        self.prior = SpatialPrior(s.channels, s.width)
        self.level = nn.Parameter(torch.empty(3, s.width))
        nn.init.normal_(self.level)
        self.interactions = min(INTERACTIONS, s.depth)  # each before a block of its own
        # Two more extractors at the end, as in the paper.
        self.injectors = nn.ModuleList(Injector(s.width, heads, 3, ratio, s.norm_eps) for _ in range(self.interactions))
        self.extractors = nn.ModuleList(
            Extractor(s.width, heads, ratio, s.norm_eps, s.drop_path) for _ in range(self.interactions + 2)
        )
        self.up = nn.ConvTranspose2d(s.width, s.width, kernel_size=2, stride=2)
        self.outputs = nn.ModuleList(
            nn.Sequential(ChannelNorm(s.width), nn.Conv2d(s.width, channels, 1)) for _ in STRIDES
        )
        for part in (self.prior, self.injectors, self.extractors, self.outputs):
            part.apply(_init)
        for module in self.modules():
            if isinstance(module, DeformableAttention):
                module.reset_parameters()

    def pyramid(self, x: Tensor) -> Maps:
        vit, size = self.model, (x.shape[-2], x.shape[-1])
        padded = pad_to_multiple(x, (COARSEST, COARSEST))
        fine, *coarse = self.prior(padded)
        tokens, grid = vit.embed(x)
        frame = (padded.shape[-2], padded.shape[-1])
        grids = [(each.shape[-2], each.shape[-1]) for each in coarse]
        detail = torch.cat(
            [each.flatten(2).transpose(1, 2) + level for each, level in zip(coarse, self.level, strict=True)], dim=1
        )
        # Each frame has its own right and bottom edge: the ViT pads to whole patches, the branch to multiples of 32.
        patch = vit.settings.stride
        vit_frame = (grid[0] * patch[0], grid[1] * patch[1])
        of_patches = centres(grid, patch, frame, x.device)[:, None].expand(-1, 3, -1)
        of_detail = torch.cat(
            [centres(each, (s, s), vit_frame, x.device) for each, s in zip(grids, STRIDES[1:], strict=True)]
        )[:, None]
        depth, prefix, times = len(vit.blocks), vit.prefix_tokens, self.interactions
        starts = {depth * i // times: i for i in range(times)}
        kept: list[Tensor] = []  # the ViT's own maps after each interaction

        def extract(number: int, tokens: Tensor) -> None:
            nonlocal detail
            detail = self.extractors[number](detail, of_detail, tokens[:, prefix:], grid, grids)

        def before(block: int, tokens: Tensor) -> Tensor:
            if block not in starts:
                return tokens
            number = starts[block]
            if number:
                extract(number - 1, tokens)
                kept.append(tokens[:, prefix:])
            patches = self.injectors[number](tokens[:, prefix:], of_patches, detail, grids)
            return torch.cat([tokens[:, :prefix], patches], dim=1)

        last = {depth - 1: tokens}
        vit.encode(tokens, grid, last, before=before)
        for number in range(times - 1, times + 2):
            extract(number, last[depth - 1])
        kept.append(last[depth - 1][:, prefix:])
        return self.join(fine, detail, grids, kept, grid, vit_frame, frame, size)

    def join(
        self, fine: Tensor, detail: Tensor, grids: list[Grid], kept: list[Tensor], grid: Grid, vit_frame: Grid,
        frame: Grid, size: Grid,
    ) -> Maps:  # fmt: skip
        """The branch's maps, plus the ViT's own brought to each stride."""
        levels = detail.split([h * w for h, w in grids], dim=1)
        coarse = [level.transpose(1, 2).unflatten(2, each) for level, each in zip(levels, grids, strict=True)]
        maps = [fine + self.up(coarse[0]), *coarse]
        found = {}
        kept = [kept[min(i, len(kept) - 1)] for i in range(len(STRIDES))]  # fewer, in a ViT of less than four blocks
        for stride, branch, patches, output in zip(STRIDES, maps, kept, self.outputs, strict=True):
            own = patches.transpose(1, 2).unflatten(2, grid)
            own = resample(own, vit_frame, frame, (branch.shape[-2], branch.shape[-1]))
            wanted = ceil_div(size, (stride, stride))
            found[stride] = output(branch + own)[..., : wanted[0], : wanted[1]]
        return found


def _init(module: nn.Module) -> None:
    init_weights(module)
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
