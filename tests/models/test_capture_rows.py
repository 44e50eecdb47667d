"""`maps.row`: what a token attends to, on the grid of the image, in every family."""

import pytest
import torch

from tests.models.restatements import image, randomised
from tests.models.unfused import MODELS, VIT, close, model_of
from vitrail.errors import VitrailError
from vitrail.models import VisionTransformer, capture


def test_rows_of_a_vit_lie_on_the_grid_for_every_way_to_name_a_token():
    model = randomised(VisionTransformer(**VIT, distillation_token=True, registers=2)).float()
    with capture(model) as maps:
        model(image(2, 3, 18, 29, dtype=torch.float32))  # 5×8 patches
    assert maps.prefix == model.prefix_tokens == 4
    assert maps.grid(1) == maps.grid(-2) == model.token_grid(18, 29) == (5, 8)
    tokens = {
        "class": 0,
        "distillation": 1,
        "register 0": 2,
        "register 1": 3,
        (0, 0): 4,
        0: 4,
        (3, 6): 34,
        30: 34,
        39: 43,
    }
    for token, index in tokens.items():
        row = maps.row(1, token)
        assert row.shape == (2, 2, 5, 8)
        for r in range(5):
            for c in range(8):
                assert torch.equal(row[:, :, r, c], maps[1][:, :, index, 4 + 8 * r + c])
    assert torch.equal(maps.row(-1), maps.row(2, "class"))


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("swin")])
def test_rows_of_swin_put_together_the_output_of_every_token(name):
    """Σ_u row[t, u]·v[u] over the whole grid is what token t gets, wherever roll and padding have put it; what is left
    of the row lies on padding, which is zero before it becomes a value."""
    model = randomised(MODELS[name]())
    x = image(2, 3, 20, 28)
    with capture(model) as maps:
        model(x)
    z = model.embed(x)
    for layer, block in enumerate(model.blocks):
        if layer == 2:
            z = model.merges[0](z)
        h, w = maps.grid(layer)
        assert (h, w) == ((10, 14), (5, 7))[layer // 2] == z.shape[1:3]
        entering = block.norm1(z) if block.version == 1 else z
        m, d = block.attention, z.shape[-1]
        offset = m.qkv.bias[2 * d :] if m.v_bias is None else m.v_bias
        v = (entering @ m.qkv.weight[2 * d :].T + offset).unflatten(-1, (m.heads, -1))  # B h w H d
        rows = torch.stack([maps.row(layer, t) for t in range(h * w)], dim=2).double()  # B H hw h w
        on_padding = 1 - rows.sum((-2, -1))
        assert on_padding.min() > -1e-6 and (not block.mask_padding or on_padding.max() < 1e-6)
        seen = torch.einsum("bhtij,bijhd->bthd", rows, v)
        seen = seen + on_padding.transpose(1, 2)[..., None] * offset.unflatten(-1, (m.heads, -1))
        close(m.proj(seen.flatten(2)).unflatten(1, (h, w)), block.attend(entering))
        z = block(z)


def test_a_row_of_swin_reaches_no_further_than_its_window():
    model = randomised(MODELS["swin_v1_torchvision"]()).float()
    with capture(model, reduce="mean_heads") as maps:
        model(image(1, 3, 24, 24, dtype=torch.float32))  # 12×12 tokens, 4×4 windows
    row = maps.row(0, (4, 7))[0, 0]
    assert row[3:6, 6:9].min() > 0 and row.count_nonzero() == 9
    shifted = maps.row(1, (4, 7))[0, 0]  # windows now start at 1
    assert shifted[4:7, 7:10].min() > 0 and shifted[4:7, 7:10].sum() > 1 - 1e-6


def test_rows_of_a_masked_autoencoder_put_the_kept_patches_back_at_their_places():
    model, x = model_of("mae"), image(2, 3, 12, 12, dtype=torch.float32)
    noise = torch.tensor([[5, 0, 6, 1, 2, 7, 8, 9, 4], [0, 1, 9, 8, 2, 7, 6, 5, 4]]) / 10  # 3×3 patches, 4 are kept
    with capture(model) as maps:
        model(x, mask_ratio=0.5, noise=noise)
    places = [[1, 3, 4, 8], [0, 1, 4, 8]]  # from the lowest noise on
    row, attention = maps.row(1, "class").flatten(2), maps[1][:, :, 0, 1:]
    of_patch, from_patch = maps.row(1, (1, 1)).flatten(2), [3, 3]  # patch 4: after the class token, the third kept
    for i in range(2):
        expected = torch.zeros(2, 9)
        expected[:, places[i]] = attention[i]
        assert torch.equal(row[i], expected)
        expected[:, places[i]] = maps[1][i, :, from_patch[i], 1:]
        assert torch.equal(of_patch[i], expected)
    assert maps.row(3, (0, 2)).count_nonzero() == 2 * 2 * 9  # the decoder sees all of them
    with pytest.raises(VitrailError, match=r"Patch \(0, 0\) is hidden from the encoder in image 0"):
        maps.row(1, 0)


def test_rows_that_are_not_there_are_refused():
    model, x = randomised(VisionTransformer(**VIT, distillation_token=True)).float(), image(1, 3, 12, 20).float()
    options = ({"layers": [0]}, {"reduce": "cls_row"}, {"reduce": torch.mean})
    maps = []
    for o in options:
        with capture(model, **o) as seen:
            model(x)
        maps.append(seen)
    whole, rows, function = maps
    refused = {
        "Layer 2 was not captured; there are": lambda: whole.row(2),
        "Layer 1 was not captured, or ran outside": lambda: whole.grid(1),
        r"There is no patch \(3, 0\) on a grid of 3×5": lambda: whole.row(0, (3, 0)),
        r"There is no patch \(0, -1\)": lambda: whole.row(0, (0, -1)),
        "There is no patch 15 on": lambda: whole.row(0, 15),
        "There is no patch -1 on": lambda: whole.row(0, -1),
        "no register 0 token; choose class or distillation or a patch": lambda: whole.row(0, "register 0"),
        "keeps the row of the class token alone": lambda: rows.row(0, 0),
        "There are no rows in what a function": lambda: function.row(0),
    }
    for sentence, call in refused.items():
        with pytest.raises(VitrailError, match=sentence):
            call()


def test_a_block_on_its_own_gives_maps_but_no_rows():
    model = model_of("learned")
    with capture(model) as maps:
        model.blocks[1](image(1, 10, 16, dtype=torch.float32))
    assert list(maps) == [1] and maps[1].shape == (1, 2, 10, 10) and maps.prefix == 0
    with pytest.raises(VitrailError, match="ran outside of its model"):
        maps.row(1, (0, 0))
