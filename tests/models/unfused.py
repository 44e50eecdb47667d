"""Small models of every kind that `capture` looks into, and the same models with plain float64 attention, against
which its maps are held."""

import copy
from functools import partial

import torch

from tests.models.restatements import attention, image, randomised
from vitrail.models import MaskedAutoencoder, SwinTransformer, VisionTransformer
from vitrail.models.attention import Attention
from vitrail.models.position import KINDS

VIT = {"image_size": 12, "patch_size": 4, "width": 16, "depth": 3, "heads": 2, "num_classes": 5}
SWIN = {"image_size": 32, "patch_size": 2, "width": 8, "depths": (2, 2), "heads": (2, 4), "window": 3, "num_classes": 5}
MAE = VIT | {"num_classes": 0, "depth": 2, "decoder_width": 8, "decoder_depth": 2, "decoder_heads": 2}

MODELS = {
    **{kind: partial(VisionTransformer, **VIT, position=kind) for kind in KINDS},
    "distilled": partial(VisionTransformer, **VIT, distillation_token=True),
    "registers": partial(VisionTransformer, **VIT, registers=3, position="rotary"),
    "qk_norm": partial(VisionTransformer, **VIT, qk_norm=True, qkv_bias="qv"),
    "post_norm": partial(VisionTransformer, **VIT, norm_first=False),
    "no_class_token": partial(VisionTransformer, **VIT, class_token=False, pool="mean", position="relative"),
    "hybrid": partial(VisionTransformer, **VIT | {"stem": (1, 1), "patch_size": 1, "image_size": 32}),
    "mae": partial(MaskedAutoencoder, **MAE),
    **{
        f"swin_v{version}_{padding}{'_masked' * masked}": partial(
            SwinTransformer, **SWIN, version=version, padding=padding, mask_padding=masked
        )
        for version in (1, 2)
        for padding in ("torchvision", "timm")
        for masked in (False, True)
    },
}
SIZES = [(24, 24), (18, 29)]  # the second is padded to whole patches, and in Swin to whole windows


def model_of(name):
    return randomised(MODELS[name]()).float()


def run(model, x):
    """A forward; what MAE hides depends on the size alone."""
    if not hasattr(model, "encoder"):  # also of a compiled model
        return model(x)
    h, w = model.token_grid(*x.shape[2:])
    return model(x, noise=image(len(x), h * w, seed=5).to(x.device))


def layers_of(model):
    return [m for m in model.modules() if isinstance(m, Attention)]


def turned(x, cos, sin):
    """Rotary positions, channel by channel: (x_i, x_{i+d/2}) turned by the patch's angle; tokens in front stay."""
    half, front = x.shape[-1] // 2, x.shape[-2] - cos.shape[-2]
    out = x.clone()
    for i in range(half):
        a, b = x[..., front:, i], x[..., front:, i + half]
        out[..., front:, i] = a * cos[:, i] - b * sin[:, i]
        out[..., front:, i + half] = b * cos[:, i + half] + a * sin[:, i + half]
    return out


def unfused(model):
    """A float64 copy whose attention is the plain restatement, and the list that its maps go to, each as a list of
    windows [B, H, N, N]."""
    model, maps = copy.deepcopy(model).double(), []

    def forward(m, x, bias=None, rotary=None, layout=None):
        turn = None if rotary is None else partial(turned, cos=rotary[0].double(), sin=rotary[1].double())
        windows = 1 if layout.windows is None else layout.windows
        outputs, seen = [], []
        for w in range(windows):
            b = None if bias is None else bias[w % len(bias)].double()
            o, a = attention(x[w::windows], m, b, turn)
            outputs.append(o)
            seen.append(a)
        maps.append(seen)
        return torch.stack(outputs, dim=1).flatten(0, 1)

    for m in layers_of(model):
        m.forward = partial(forward, m)
    return model, maps


def joined(windows, like):
    """[B, H, N, N] or, where `like` has windows, [B, windows, H, n, n]."""
    return torch.stack(windows, dim=1) if like.ndim == 5 else windows[0]


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=atol)


def as_tuple(output):
    return output if isinstance(output, tuple) else (output,)
