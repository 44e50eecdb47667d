"""Token PCA, similarities, patch filters and reconstruction, against what they are by definition."""

import math

import pytest
import torch

import vitrail
from tests.explain.small import SIZE, lively, swin
from tests.parity.peers import pictures, shake
from vitrail import explain
from vitrail.explain.colours import from_oklab
from vitrail.models import MaskedAutoencoder, VisionTransformer


def test_token_similarity_is_the_cosine_of_what_leaves_the_layer():
    model, x = lively(), pictures(48, 32)
    tokens = model.features(x, layers=[1])["tokens/1"]
    expected = torch.cosine_similarity(tokens[:, 1 + 4, None], tokens[:, 1:], dim=-1).unflatten(1, (3, 2))
    found = explain.token_similarity(model, x, (2, 0), layer=1)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found[:, 2, 0], torch.ones(2))
    of_class = torch.cosine_similarity(tokens[:, :1], tokens[:, 1:], dim=-1).unflatten(1, (3, 2))
    assert torch.allclose(explain.token_similarity(model, x, "class", layer=1), of_class, atol=1e-6)


def test_token_similarity_of_swin_lies_on_the_grid_of_its_layer():
    assert explain.token_similarity(swin(), pictures(64, 48), (3, 2)).shape == (
        2,
        16,
        12,
    )  # the default: stage before last
    with pytest.raises(vitrail.VitrailError, match="no class token"):
        explain.token_similarity(swin(), pictures(64, 48), "class")


def test_token_pca_shares_its_colours_over_the_batch():
    model = lively()
    x = pictures(64, 64, batch=1)
    found = explain.token_pca(model, torch.cat([x, x]))
    assert found.shape == (2, 4, 4, 3) and found.min() >= 0 and found.max() <= 1
    assert found[0].std(dim=(0, 1)).min() > 0.05 and torch.allclose(found[0], found[1], atol=1e-6)


def test_token_pca_of_tokens_that_differ_in_one_way_goes_from_blue_to_gold():
    model = VisionTransformer(**{**SIZE, "depth": 1, "position": "none"}).eval()
    with torch.no_grad():
        model.blocks[0].attention.proj.weight.zero_()
        model.blocks[0].mlp.fc2.weight.zero_()
    x = torch.zeros(1, 3, 32, 64)
    x[..., 32:] = 1
    left, right = explain.token_pca(model, x)[0, 0, [0, -1]]
    blue, gold = (left, right) if left[2] > right[2] else (right, left)
    assert blue[2] > blue[1] > blue[0] and gold[0] > gold[1] > gold[2]


@pytest.mark.parametrize(
    ("lab", "rgb"),
    [((1.0, 0.0, 0.0), (1, 1, 1)), ((0.0, 0.0, 0.0), (0, 0, 0)), ((0.62796, 0.22486, 0.12585), (1, 0, 0))],
)
def test_oklab_is_that_of_known_colours(lab, rgb):
    assert torch.allclose(from_oklab(*(torch.tensor(v) for v in lab)), torch.tensor(rgb).float(), atol=2e-3)


def test_position_similarity_of_a_learned_table_is_its_cosine_at_the_table_s_grid_and_resized():
    model = lively(image_size=48)
    table = model.position.table[0, 1:].detach()
    found = explain.position_similarity(model)
    assert found.shape == (3, 3, 3, 3)
    assert math.isclose(
        found[1, 2, 0, 1].item(), torch.cosine_similarity(table[5], table[1], dim=0).item(), abs_tol=1e-6
    )
    assert torch.allclose(found.flatten(2).flatten(0, 1).diagonal(), torch.ones(9))
    assert explain.position_similarity(model, (2, 5)).shape == (2, 5, 2, 5)


def test_position_similarity_of_rotary_angles_is_their_mean_cosine():
    model = lively(position="rotary", width=16, heads=2)
    cos, sin = model.position.rotary((2, 3))
    angles = torch.atan2(sin, cos)
    expected = (angles[1] - angles[5]).cos().mean()
    found = explain.position_similarity(model, (2, 3))
    assert torch.allclose(found[0, 1, 1, 2], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "relative", "conditional"])
def test_positions_without_a_vector_per_place_are_refused(kind):
    with pytest.raises(vitrail.VitrailError, match="gives no vector to a place"):
        explain.position_similarity(lively(position=kind))
    with pytest.raises(vitrail.VitrailError, match="Swin has a bias"):
        explain.position_similarity(swin())


def test_patch_filters_are_found_again_with_their_shares():
    """Weights made of two orthogonal filters, with variances 9 and 1."""
    model = lively(patch_size=2)
    directions = torch.linalg.qr(torch.randn(12, 2)).Q.T  # 2 × C·p·q
    amounts = torch.randn(16, 2)
    amounts = torch.linalg.qr(amounts - amounts.mean(dim=0)).Q * torch.tensor([3.0, 1.0])
    with torch.no_grad():
        model.patch.weight.copy_((amounts @ directions).view(16, 3, 2, 2) + 0.7)
    filters, share = explain.patch_filters(model, 2)
    assert filters.shape == (2, 3, 2, 2)
    assert torch.allclose(share, torch.tensor([0.9, 0.1]), atol=1e-5)
    assert torch.allclose((filters.flatten(1) @ directions.T).abs(), torch.eye(2), atol=1e-5)


def mae(**changes):
    torch.manual_seed(0)
    settings = {**SIZE, "num_classes": 0, "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
    return shake(MaskedAutoencoder(**{**settings, **changes}))


def test_reconstruction_paints_where_the_mask_is_and_nowhere_else():
    model, x = mae(), pictures(64, 40)
    mask = torch.zeros(2, 4, 3, dtype=torch.bool)
    mask[0, 1:3, 1] = True
    mask[1, 0] = True
    found = explain.reconstruct(model, x, mask=mask, mean=(0.5,) * 3, std=(0.2,) * 3)
    assert torch.equal(found.mask, mask)
    assert torch.allclose(found.original, (x * 0.2 + 0.5).clamp(0, 1))
    hidden = mask.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, None, :64, :40].expand_as(x)
    assert torch.equal(found.painted[~hidden], found.original[~hidden])
    assert not torch.allclose(found.painted[hidden], found.original[hidden])
    assert (found.masked[hidden] == 0.5).all() and torch.equal(found.masked[~hidden], found.original[~hidden])
    painted, _ = model.reconstruct(x[:1], 2 / 12, mask[:1].flatten(1).float())
    assert torch.allclose(found.painted[0], (painted[0] * 0.2 + 0.5).clamp(0, 1), atol=1e-6)


@pytest.mark.parametrize("hidden", range(1, 12))
def test_a_mask_of_any_size_hides_exactly_its_patches(hidden):
    mask = (torch.randperm(12) < hidden).view(4, 3)
    assert torch.equal(explain.reconstruct(mae(), pictures(64, 40), mask=mask).mask, mask.expand(2, 4, 3))


def test_the_same_seed_hides_the_same_patches():
    model, x = mae(), pictures(64, 64)
    first = explain.reconstruct(model, x, 0.75, seed=3)
    assert first.mask.flatten(1).sum(dim=1).tolist() == [12, 12]
    assert torch.equal(explain.reconstruct(model, x, 0.75, seed=3).painted, first.painted)
    assert not torch.equal(explain.reconstruct(model, x, 0.75, seed=4).mask, first.mask)


def test_reconstruction_refusals_say_what_to_do():
    x = pictures(64, 64)
    with pytest.raises(vitrail.VitrailError, match="needs a masked autoencoder"):
        explain.reconstruct(lively(), x)
    with pytest.raises(vitrail.VitrailError, match="hides every patch"):
        explain.reconstruct(mae(), x, mask=torch.ones(4, 4))
    with pytest.raises(vitrail.VitrailError, match=r"The mask is \[3, 3\]; the pictures have 4×4 patches"):
        explain.reconstruct(mae(), x, mask=torch.ones(3, 3))


def test_an_autoencoder_is_looked_at_through_its_encoder_with_all_patches():
    model, x = mae(), pictures(64, 64)
    assert torch.equal(explain.rollout(model, x), explain.rollout(model.encoder, x))
    assert explain.attention(model, x).shape == (2, 2, 4, 4)
