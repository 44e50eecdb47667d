"""The masked autoencoder: an encoder that sees a quarter of the patches, a light decoder that paints the rest."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import VitrailError
from vitrail.models.attention import TokenLayout
from vitrail.models.checks import check_settings, is_number
from vitrail.models.classifier import Backbone
from vitrail.models.grid import Grid
from vitrail.models.layers import cut_patches, init_weights, join_patches, pad_to_multiple
from vitrail.models.position import KINDS, SinCosPosition
from vitrail.models.vit import Block, VisionTransformer, ViTSettings, learned_token

PAPER = ViTSettings(num_classes=0, position="sincos")  # fixed positions and no head


@dataclass(frozen=True, init=False)
class MAESettings:
    """The settings of the encoder, which is worth keeping, and of what is there to train it.

    Settings of the encoder may be given, read, and changed by `dataclasses.replace` under their own names, too.

    >>> MAESettings(width=192, heads=3, mask_ratio=0.6).width
    192
    """

    encoder: ViTSettings = PAPER
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    mask_ratio: float = 0.75
    norm_pix: bool = True  # predict each patch relative to its own mean and deviation: better features

    def __init__(self, encoder: ViTSettings = PAPER, **changes: Any):
        own = {field.name: field.default for field in fields(self)}
        values = {name: changes.pop(name, default) for name, default in own.items()}
        values["encoder"] = replace(encoder, **changes) if changes else encoder
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def __getattr__(self, name: str) -> Any:
        if name == "encoder" or name.startswith("__"):  # while it is being copied, say
            raise AttributeError(name)
        return getattr(self.encoder, name)

    def _check(self) -> None:
        check_settings(self, {}, {}, ())
        if self.encoder.num_classes:
            raise VitrailError(
                f"A masked autoencoder has no classes, got num_classes={self.encoder.num_classes}: leave it out, or use"
                " a ViT."
            )
        if KINDS[self.encoder.position].acts not in ("nowhere", "patches"):
            raise VitrailError(
                f"MAE drops patches, so it needs positions that are added to them, not {self.encoder.position!r}."
            )
        if self.encoder.stem is not None:
            raise VitrailError(
                "MAE masks patches of the picture; a hybrid's stem would look behind the mask: use a ViT."
            )
        if self.encoder.local:
            raise VitrailError(
                "MAE drops patches, so that those that stay have lost the neighbours that local=True sees."
            )
        check_mask_ratio(self.mask_ratio)

    @property
    def decoder(self) -> ViTSettings:
        return replace(
            self.encoder, width=self.decoder_width, depth=self.decoder_depth, heads=self.decoder_heads, drop_path=0.0
        )


def decoder_for(width: int, depth: int) -> dict[str, int]:
    """A decoder for an encoder of this size, in the paper's proportions: two thirds of its width (a multiple of 32, at
    most 512), heads of 32, and 8 blocks from ViT-B on. Smaller encoders get 4, or half of their own: a decoder that
    does more of the work leaves them less to learn."""
    decoder = min(512, -(-2 * width // 96) * 32)
    return {
        "decoder_width": decoder,
        "decoder_depth": 8 if width >= 768 else max(1, min(4, depth // 2)),
        "decoder_heads": decoder // 32,
    }


class MAEOutput(NamedTuple):
    loss: Tensor  # mean squared error over the hidden patches
    prediction: Tensor  # [B, N, p·q·C], each patch as rows, columns, channels
    mask: Tensor  # [B, N], 1 where a patch was hidden
    each: Tensor  # [B], the loss of each image


class MaskedAutoencoder(Backbone):
    """Images [B, C, H, W] of any size to a reconstruction loss; `encoder` is the ViT that is worth keeping."""

    def __init__(self, settings: MAESettings | None = None, **changes):
        super().__init__()
        s = replace(settings or MAESettings(), **changes)
        self.settings = s
        e, (p, q) = s.encoder, s.encoder.patch_size
        self.encoder = VisionTransformer(e)
        self.decoder_embed = nn.Linear(e.width, s.decoder_width)
        self.mask_token = learned_token(1, s.decoder_width)
        self.decoder_position = SinCosPosition(s.decoder_width, e.grid, e.position_rule)
        self.decoder_blocks = nn.ModuleList(Block(s.decoder, 0.0) for _ in range(s.decoder_depth))
        self.decoder_norm = nn.LayerNorm(s.decoder_width, eps=e.norm_eps)
        self.decoder_predict = nn.Linear(s.decoder_width, p * q * e.channels)
        self.apply(init_weights)
        self.encoder.reset_patches()

    @property
    def gradient_checkpointing(self) -> bool:  # type: ignore[override]
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder.gradient_checkpointing = on

    @property
    def prefix_tokens(self) -> int:
        return self.encoder.prefix_tokens

    @property
    def default_layer(self) -> int:
        """The last block of the encoder. In `capture` the decoder's blocks count on from there."""
        return self.encoder.default_layer

    def token_grid(self, height: int, width: int) -> Grid:
        return self.encoder.token_grid(height, width)

    def forward(self, x: Tensor, mask_ratio: float | None = None, noise: Tensor | None = None) -> MAEOutput:
        """`noise` [B, N] decides what is hidden: the patches with the highest values (random by default)."""
        visible, order, mask, grid = self.encode(x, mask_ratio, noise)
        prediction = self.decode(visible, order, grid)
        target = self.target(x)
        error = (prediction - target).square().mean(dim=-1)  # B N
        each = (error * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return MAEOutput((error * mask).sum() / mask.sum().clamp(min=1), prediction, mask, each)

    def encode(
        self, x: Tensor, mask_ratio: float | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Grid]:
        """Only the kept patches pass the encoder. Gives tokens [B, P + kept, D], the order [B, N] in which patches were
        ranked, the mask [B, N], and the grid."""
        patches = self.encoder.embed_patches(x)
        b, h, w, d = patches.shape
        patches = patches.flatten(1, 2)
        ratio = self.settings.mask_ratio if mask_ratio is None else mask_ratio
        check_mask_ratio(ratio)
        kept = visible_patches(h * w, ratio)
        if noise is None:
            noise = torch.rand(b, h * w, device=x.device)
        order = noise.argsort(dim=1)
        visible = patches.gather(1, order[:, :kept, None].expand(-1, -1, d))
        mask = torch.ones(b, h * w, device=x.device).scatter(1, order[:, :kept], 0.0)
        tokens = self.encoder.encode(self.encoder.add_prefix(visible), (h, w), places=order[:, :kept])
        return tokens, order, mask, (h, w)

    def decode(self, tokens: Tensor, order: Tensor, grid: Grid) -> Tensor:
        """Mask tokens fill the gaps, positions are added, and every patch is predicted: [B, N, p·q·C]."""
        x = self.decoder_embed(tokens)
        prefix, visible = x[:, : self.encoder.prefix_tokens], x[:, self.encoder.prefix_tokens :]
        b, n, d = x.shape[0], order.shape[1], x.shape[2]
        ranked = torch.cat([visible, self.mask_token.expand(b, n - visible.shape[1], d).to(x.dtype)], dim=1)
        patches = torch.empty_like(ranked).scatter(1, order[..., None].expand(-1, -1, d), ranked)
        patches = self.decoder_position.add(patches.unflatten(1, grid)).flatten(1, 2)
        x = torch.cat([prefix, patches], dim=1)
        layout = TokenLayout(grid, self.encoder.settings.prefix_names)
        for block in self.decoder_blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, None, None, layout, use_reentrant=False)
            else:
                x = block(x, layout=layout)
        return self.decoder_predict(self.decoder_norm(x))[:, self.encoder.prefix_tokens :]

    def target(self, x: Tensor) -> Tensor:
        """The pixels of each patch, [B, N, p·q·C]; with `norm_pix`, minus their mean and divided by their deviation."""
        patches = self.pixels(x)
        if not self.settings.norm_pix:
            return patches
        mean, deviation = patch_statistics(patches)
        return (patches - mean) / deviation

    def pixels(self, x: Tensor) -> Tensor:
        size = self.encoder.settings.patch_size
        patches = cut_patches(pad_to_multiple(x, size), size)  # B h w C p q
        return patches.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)

    @torch.no_grad()
    def reconstruct(
        self, x: Tensor, mask_ratio: float | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The image with its hidden patches painted in, [B, C, H, W] in the scale of `x`, and the mask [B, 1, H, W].

        With `norm_pix` the model predicts patches without their brightness and contrast. Both are taken from the true
        patch, as the paper's figures do: what is shown is the structure that was predicted.
        """
        _, prediction, mask, _ = self(x, mask_ratio, noise)
        truth = self.pixels(x)
        if self.settings.norm_pix:
            mean, deviation = patch_statistics(truth)
            prediction = prediction * deviation + mean
        painted = torch.where(mask[..., None] > 0, prediction, truth)
        height, width = x.shape[2:]
        grid = self.encoder.token_grid(height, width)
        p, q = self.encoder.settings.patch_size
        images = join_patches(painted.reshape(len(x), *grid, p, q, -1).permute(0, 1, 2, 5, 3, 4))
        hidden = mask.reshape(len(x), 1, *grid).repeat_interleave(p, 2).repeat_interleave(q, 3)
        return images[..., :height, :width], hidden[..., :height, :width]


def check_mask_ratio(ratio: float) -> None:
    if not is_number(ratio) or not 0 <= ratio < 1:
        raise VitrailError(f"mask_ratio must be at least 0 and below 1, got {ratio!r}.")


def visible_patches(patches: int, mask_ratio: float) -> int:
    """How many of them the encoder is shown."""
    return max(1, int(patches * (1 - mask_ratio)))


def patch_statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the numbers of each patch, [..., 1]."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return mean, (variance + 1e-6).sqrt()
