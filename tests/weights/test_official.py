"""The files that the papers' authors published: DeiT, DeiT-III, MAE, Swin, DINOv2. Their networks are timm's, or built
of its parts, so the test builds those, writes the weights as the authors did, and compares outputs."""

import argparse
import re

import numpy as np
import pytest
import torch
from timm.layers import SwiGLUPacked
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import Block, PatchEmbed, VisionTransformer
from torch import nn

import vitrail
from tests.parity.peers import assert_same, pictures, shake
from tests.weights.small import output, pth
from vitrail import VitrailError
from vitrail.models.position import SinCosPosition
from vitrail.weights import model_from, read_checkpoint

# Small models are in no catalog, and reading one says so; the tests of that are in test_checkpoint.py.
pytestmark = pytest.mark.filterwarnings("ignore:.* fits no model of the catalog")

SHAPE = {"img_size": 64, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 4}
OURS = {"image_size": 64, "width": 64, "depth": 2, "heads": 4}


def test_deit_with_what_its_training_script_saves(tmp_path):
    peer = shake(VisionTransformer(**SHAPE, num_classes=10))
    args = argparse.Namespace(model="deit_tiny_patch16_224", lr=5e-4)
    path = pth(tmp_path / "deit.pth", {"model": peer.state_dict(), "args": args, "epoch": np.int64(299)})
    model = vitrail.create_model("deit_ti16", **OURS, num_classes=10)
    report = vitrail.load_weights(model, path)
    assert (report.dialect, report.used, report.notes) == ("timm", len(peer.state_dict()), [])
    assert_same(output(model, pictures(64, 64)), output(peer, pictures(64, 64)))


def test_deit3_spells_layer_scale_its_own_way(tmp_path):
    peer = shake(VisionTransformer(**SHAPE, num_classes=10, init_values=0.5, no_embed_class=True))
    state = {re.sub(r"\.ls([12])\.gamma", r".gamma_\1", key): value for key, value in peer.state_dict().items()}
    assert "blocks.1.gamma_2" in state
    checkpoint = read_checkpoint(pth(tmp_path / "deit_3.pth", {"model": state}), heads=4)
    assert checkpoint.settings.position_prefix is False
    assert_same(output(model_from(checkpoint), pictures(64, 64)), output(peer, pictures(64, 64)))


class OfficialMAE(nn.Module):
    """facebookresearch/mae's MaskedAutoencoderViT, shortened; the names are its own."""

    def __init__(self, width: int, depth: int, heads: int, decoder_width: int, decoder_depth: int, decoder_heads: int):
        super().__init__()
        self.patch_embed = PatchEmbed(64, 16, 3, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(fixed_table(width), requires_grad=False)
        self.blocks = nn.ModuleList(Block(width, heads, qkv_bias=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.decoder_embed = nn.Linear(width, decoder_width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_width))
        self.decoder_pos_embed = nn.Parameter(fixed_table(decoder_width), requires_grad=False)
        self.decoder_blocks = nn.ModuleList(
            Block(decoder_width, decoder_heads, qkv_bias=True) for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(decoder_width, eps=1e-6)
        self.decoder_pred = nn.Linear(decoder_width, 16 * 16 * 3)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6

    def forward(self, images, noise):
        x = self.patch_embed(images) + self.pos_embed[:, 1:]
        order = noise.argsort(dim=1)
        kept, back = order[:, :4], order.argsort(dim=1)
        x = x.gather(1, kept[..., None].expand(-1, -1, x.shape[2]))
        x = torch.cat([(self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        x = self.decoder_embed(self.norm(x))
        patches = torch.cat([x[:, 1:], self.mask_token.expand(len(x), 12, -1)], dim=1)
        patches = patches.gather(1, back[..., None].expand(-1, -1, x.shape[2]))
        x = torch.cat([x[:, :1], patches], dim=1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_pred(self.decoder_norm(x))[:, 1:]


def fixed_table(width: int) -> torch.Tensor:
    """MAE's get_2d_sincos_pos_embed for a grid of 4×4, in NumPy as there, with a row of zeros for the class token."""
    columns, rows = np.meshgrid(np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32))
    omega = 1.0 / 10000 ** (np.arange(width // 4) / (width / 4.0))
    halves = []
    for place in (columns, rows):
        angle = np.einsum("m,d->md", place.reshape(-1), omega)
        halves.append(np.concatenate([np.sin(angle), np.cos(angle)], axis=1))
    table = np.concatenate([np.zeros((1, width)), np.concatenate(halves, axis=1)])
    return torch.from_numpy(table).float()[None]


@pytest.fixture
def mae(tmp_path):
    peer = OfficialMAE(width=64, depth=2, heads=4, decoder_width=32, decoder_depth=1, decoder_heads=2)
    tables = peer.pos_embed.clone(), peer.decoder_pos_embed.clone()
    shake(peer)
    peer.pos_embed.data, peer.decoder_pos_embed.data = tables
    path = pth(tmp_path / "mae_pretrain_vit_base_full.pth", {"model": peer.state_dict()})
    return peer, path


MAE = {**OURS, "decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}


def test_mae_for_pre_training_predicts_the_same_patches(mae):
    peer, path = mae
    model = vitrail.create_model("mae_b16", **MAE).eval()
    assert vitrail.load_weights(model, path).notes == []
    noise = torch.rand(2, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert_same(model(pictures(64, 64), noise=noise).prediction, peer(pictures(64, 64), noise))
    described = read_checkpoint(path, heads=4, decoder_heads=2)
    assert described.settings.position_rule == "hf"
    assert (described.settings.decoder_width, described.settings.decoder_depth) == (32, 1)


def test_encoder_of_mae_starts_a_classifier(mae):
    peer, path = mae
    model = vitrail.create_model("vit_b16", **OURS, num_classes=7, pool="mean", norm_after_pool=True).eval()
    report = vitrail.load_weights(model, path)
    assert report.notes == [
        "the encoder of a masked autoencoder was taken, its decoder left",
        "the last norm moved to after the pooling",
        "the head is new (the file has none)",
    ]
    with torch.no_grad():
        x = peer.patch_embed(pictures(64, 64)) + peer.pos_embed[:, 1:]
        x = torch.cat([peer.cls_token.expand(2, -1, -1), x], dim=1)
        for block in peer.blocks:
            x = block(x)
        assert_same(model.features(pictures(64, 64))["pooled"], peer.norm(x[:, 1:].mean(dim=1)))


def test_mae_whose_table_is_not_the_formula_is_refused(mae, tmp_path):
    peer, _ = mae
    state = peer.state_dict()
    path = pth(tmp_path / "changed.pth", {"model": state | {"pos_embed": state["pos_embed"] + 0.1}})
    with pytest.raises(VitrailError, match="not the sine-cosine table"):
        vitrail.load_weights(vitrail.create_model("mae_b16", **MAE), path)


def test_vit_can_not_fill_a_masked_autoencoder(tmp_path):
    path = vitrail.save_weights(vitrail.create_model("vit_b16", **OURS), tmp_path / "vit.safetensors")
    with pytest.raises(VitrailError, match="holds a ViT, which can't fill a masked autoencoder"):
        vitrail.load_weights(vitrail.create_model("mae_b16", **MAE), path)


def official_swin(state: dict) -> dict:
    """timm merges patches at the start of a stage, the authors at the end of the one before."""
    out = {}
    for key, value in state.items():
        key = re.sub(r"^layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", key)
        out[key.replace("head.fc.", "head.")] = value
    return out


SWIN = {"img_size": 64, "embed_dim": 16, "depths": (2, 2, 2), "num_heads": (2, 4, 8), "num_classes": 6}


def test_swin_with_its_buffers(tmp_path):
    peer = shake(SwinTransformer(**SWIN, window_size=8))  # maps of 16, 8 and 4: the last window shrinks to its map
    state = official_swin(peer.state_dict())
    state |= {
        "layers.0.blocks.1.attn_mask": torch.zeros(4, 64, 64),
        "layers.0.blocks.0.attn.relative_position_index": torch.zeros(64, 64, dtype=torch.long),
    }
    path = pth(tmp_path / "swin.pth", {"model": state})
    checkpoint = read_checkpoint(path)
    assert (checkpoint.settings.window, checkpoint.settings.image_size) == ((8, 8), (64, 64))
    assert checkpoint.unknown == []
    assert_same(output(model_from(checkpoint), pictures(64, 64)), output(peer, pictures(64, 64)))

    model = vitrail.create_model(
        "swin_t", image_size=64, width=16, depths=(2, 2, 2), heads=(2, 4, 8), window=8, num_classes=6
    )
    assert vitrail.load_weights(model, path).notes == []
    assert model.settings.padding == "timm"
    assert model.stages[2][0].window == (4, 4)
    assert_same(output(model, pictures(64, 64)), output(peer, pictures(64, 64)))


def test_swin_v2_tells_its_windows_by_a_buffer(tmp_path):
    peer = shake(SwinTransformerV2(**SWIN, window_size=8, pretrained_window_sizes=(6, 6, 3)))
    state = official_swin(peer.state_dict())
    for i, stage in enumerate(peer.layers):
        for j, block in enumerate(stage.blocks):
            state[f"layers.{i}.blocks.{j}.attn.relative_coords_table"] = block.attn.relative_coords_table
    checkpoint = read_checkpoint(pth(tmp_path / "model.pth", {"model": state}))
    settings = checkpoint.settings
    assert (settings.window, settings.image_size, settings.pretrained_window) == ((8, 8), (64, 64), (6, 6, 3))
    assert_same(output(model_from(checkpoint), pictures(64, 64)), output(peer, pictures(64, 64)))


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("gated", [False, True])
def test_dinov2_with_its_mask_token_and_registers(registers, gated, tmp_path):
    mlp = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 5.5} if gated else {}
    peer = shake(
        VisionTransformer(**SHAPE, num_classes=0, init_values=0.5, reg_tokens=registers, no_embed_class=True, **mlp)
    )
    state = peer.state_dict()
    row = torch.randn(1, 1, 64)  # the authors' table has a row for the class token, and none for registers
    state["cls_token"], state["pos_embed"] = state["cls_token"] - row, torch.cat([row, state["pos_embed"]], dim=1)
    state["mask_token"] = torch.zeros(1, 64)
    names = {"reg_token": "register_tokens", ".mlp.fc1.": ".mlp.w12.", ".mlp.fc2.": ".mlp.w3."}
    for old, new in names.items():
        if old == "reg_token" or gated:
            state = {key.replace(old, new): value for key, value in state.items()}
    checkpoint = read_checkpoint(pth(tmp_path / "dinov2_vits14_pretrain.pth", state), heads=4)
    settings = checkpoint.settings
    assert checkpoint.unknown == []
    assert (settings.registers, settings.position_prefix) == (registers, True)
    assert settings.position_rule == ("timm" if registers else "hf")  # with registers its authors anti-alias
    assert (settings.activation == "swiglu") == gated
    assert_same(output(model_from(checkpoint), pictures(64, 64)), output(peer, pictures(64, 64)))


def test_fixed_positions_of_this_file_are_those_of_the_model():
    """Guards the tests above: their table, written in NumPy, is the one that our formula gives."""
    ours = SinCosPosition(64, (4, 4), "timm").table.flatten(0, 1)
    assert (ours - fixed_table(64)[0, 1:]).abs().max() < 1e-6
