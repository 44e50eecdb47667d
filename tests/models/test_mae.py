"""The masked autoencoder: what is hidden stays hidden, the loss is what the paper says, pictures come back right."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open

from tests.models.restatements import block, image, linear, norm, patches, randomised
from vitrail.errors import VitrailError
from vitrail.models import MAESettings, ViTSettings, create_model
from vitrail.models.mae import MaskedAutoencoder, patch_statistics
from vitrail.weights import model_from, read_checkpoint, save_weights

TINY = {
    "image_size": (16, 24),  # 4×6 patches
    "patch_size": 4,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "decoder_width": 12,
    "decoder_depth": 2,
    "decoder_heads": 3,
}


def tiny(**changes):
    return randomised(MaskedAutoencoder(**{**TINY, **changes}))


class Oracle(MaskedAutoencoder):
    """A decoder that knows the answer: it predicts the very target that it is trained on."""

    def forward(self, x, mask_ratio=None, noise=None):
        self.answer = self.target(x)
        return super().forward(x, mask_ratio, noise)

    def decode(self, tokens, order, grid):
        return self.answer


@pytest.mark.parametrize(("ratio", "hidden"), [(0.75, 18), (0.5, 12), (0.0, 0), (0.25, 6), (0.99, 23)])
def test_exactly_the_asked_share_is_hidden(ratio, hidden):
    model, x = tiny(), image(3, 3, 16, 24)
    tokens, order, mask, grid = model.encode(x, mask_ratio=ratio)
    assert mask.sum(1).tolist() == [hidden] * 3 and grid == (4, 6)
    assert tokens.shape == (3, 1 + 24 - hidden, 16)
    assert order.sort(1).values.tolist() == [list(range(24))] * 3


def test_the_highest_noise_is_hidden_and_the_choice_differs_between_images():
    model, x = tiny(), image(2, 3, 16, 24)
    noise = torch.rand(2, 24)
    mask = model(x, noise=noise).mask
    for b in range(2):
        hidden = set(noise[b].topk(18).indices.tolist())
        assert set(mask[b].nonzero().flatten().tolist()) == hidden
    random = model(x.expand(2, -1, -1, -1)).mask
    assert not torch.equal(random[0], random[1])


def test_the_encoder_never_sees_a_hidden_pixel():
    model, x, noise = tiny(), image(2, 3, 16, 24), torch.rand(2, 24)
    tokens, _, mask, _ = model.encode(x, noise=noise)
    hidden = mask.reshape(2, 1, 4, 6).repeat_interleave(4, 2).repeat_interleave(4, 3).bool()
    changed = torch.where(hidden, 100 * image(2, 3, 16, 24, seed=5), x)
    assert torch.equal(model.encode(changed, noise=noise)[0], tokens)
    also_visible = torch.where(hidden, x, x + 0.1)
    assert (model.encode(also_visible, noise=noise)[0] - tokens).abs().max() > 1e-3


def test_encoder_and_decoder_are_the_papers_written_out():
    model, x, noise = tiny(), image(2, 3, 16, 24), torch.rand(2, 24)
    out = model(x, noise=noise)
    encoder = model.encoder
    z = patches(x, encoder.patch) + encoder.position.table.flatten(0, 1)
    for b in range(2):
        shown = noise[b].argsort()[:6]
        y = torch.cat([encoder.class_token[0], z[b, shown]])[None]
        for m in encoder.blocks:
            y = block(y, m)
        y = linear(norm(y, encoder.norm), model.decoder_embed)[0]
        full = model.mask_token[0].repeat(24, 1)
        full[shown] = y[1:]
        full = torch.cat([y[:1], full + model.decoder_position.table.flatten(0, 1)])[None]
        for m in model.decoder_blocks:
            full = block(full, m)
        prediction = linear(norm(full, model.decoder_norm), model.decoder_predict)[0, 1:]
        torch.testing.assert_close(out.prediction[b], prediction, rtol=0, atol=1e-10)

    error = (out.prediction - model.target(x)).square().mean(-1)
    hidden = out.mask.bool()
    assert out.loss.item() == pytest.approx(error[hidden].sum().item() / 36, rel=1e-12)


def test_target_lists_rows_columns_channels_with_mean_0_and_deviation_1():
    x = image(1, 3, 16, 24)
    plain = tiny(norm_pix=False).target(x)
    assert plain.shape == (1, 24, 48)
    assert torch.equal(plain[0, 7], x[0, :, 4:8, 4:8].permute(1, 2, 0).flatten())  # patch (1, 1)
    normalised = tiny().target(x)
    torch.testing.assert_close(normalised.mean(-1), torch.zeros(1, 24, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(normalised.std(-1), torch.ones(1, 24, dtype=torch.float64), rtol=0, atol=1e-5)


def test_on_a_constant_image_the_loss_is_the_mean_square_of_the_prediction():
    model = tiny()
    x = torch.full((2, 3, 16, 24), 0.7, dtype=torch.float64)
    out = model(x)
    hidden = out.prediction[out.mask.bool()]  # 36 patches
    assert hidden.shape == (36, 48)
    assert out.loss.item() == pytest.approx(hidden.square().mean().item(), rel=1e-9)
    assert out.loss > 0.1

    without = tiny(norm_pix=False)
    out = without(x)
    expected = (out.prediction[out.mask.bool()] - 0.7).square().mean().item()
    assert out.loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("norm_pix", [True, False])
@pytest.mark.parametrize("size", [(16, 24), (15, 26)])
def test_a_perfect_prediction_is_painted_back_as_the_original_picture(norm_pix, size):
    model = randomised(Oracle(**TINY, norm_pix=norm_pix))
    x = 3 * image(2, 3, *size) + 5
    picture, mask = model.reconstruct(x)
    assert picture.shape == x.shape and mask.shape == (2, 1, *size)
    assert 0.5 < mask.mean() < 0.9
    torch.testing.assert_close(picture, x, rtol=0, atol=1e-10)
    assert model(x).loss < 1e-20


@pytest.mark.parametrize("norm_pix", [True, False])
def test_visible_pixels_are_the_true_ones_and_hidden_ones_the_prediction(norm_pix):
    model, x, noise = tiny(norm_pix=norm_pix), image(2, 3, 16, 24), torch.rand(2, 24)
    picture, mask = model.reconstruct(x, noise=noise)
    out = model(x, noise=noise)
    assert torch.equal(picture[mask.expand_as(x) == 0], x[mask.expand_as(x) == 0])
    for b, n in out.mask.nonzero().tolist():
        top, left = 4 * (n // 6), 4 * (n % 6)
        truth = x[b, :, top : top + 4, left : left + 4]
        painted = out.prediction[b, n].reshape(4, 4, 3).permute(2, 0, 1)
        if norm_pix:
            painted = painted * torch.sqrt(truth.var() + 1e-6) + truth.mean()
        torch.testing.assert_close(picture[b, :, top : top + 4, left : left + 4], painted, rtol=0, atol=1e-10)
        assert mask[b, :, top : top + 4, left : left + 4].min() == 1


def test_any_size_is_taken_and_padded_like_the_image_padded_by_hand():
    model, x, noise = tiny(), image(2, 3, 21, 18), torch.rand(2, 30)
    out = model(x, noise=noise)
    by_hand = model(F.pad(x, (0, 2, 0, 3)), noise=noise)
    assert out.prediction.shape == (2, 30, 48)
    assert torch.equal(out.loss, by_hand.loss) and torch.equal(out.prediction, by_hand.prediction)
    assert model(image(1, 3, 4, 9)).mask.sum() == 2  # three patches, one kept


def test_rectangular_patches_and_other_channels_come_back_in_place():
    model = randomised(Oracle(**TINY | {"patch_size": (2, 8), "channels": 5}))
    x = image(2, 5, 10, 24)
    torch.testing.assert_close(model.reconstruct(x)[0], x, rtol=0, atol=1e-10)


def test_training_reaches_every_weight_that_takes_part():
    model = tiny().train()
    model(image(2, 3, 16, 24)).loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert missing == []


def test_patch_statistics_are_mean_and_unbiased_deviation():
    mean, deviation = patch_statistics(torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64))
    assert mean.item() == 3 and deviation.item() == pytest.approx((14 / 3 + 1e-6) ** 0.5, rel=1e-12)


def test_gradient_checkpointing_reaches_encoder_and_decoder_and_changes_no_gradient():
    small = {"width": 32, "depth": 2, "heads": 2, "decoder_width": 16, "decoder_depth": 2, "decoder_heads": 2}
    model = MaskedAutoencoder(image_size=32, patch_size=8, **small).train()
    images, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 16)
    saved = []
    for on in (False, True):
        model.gradient_checkpointing = on
        model.zero_grad()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.numel()) or t, lambda t: t):
            loss = model(images, noise=noise).loss
        loss.backward()
        saved.append((sum(kept), model.mask_token.grad.clone(), model.encoder.patch.weight.grad.clone()))
    assert saved[1][0] < saved[0][0] / 2
    assert torch.allclose(saved[0][1], saved[1][1], atol=1e-6)
    assert torch.allclose(saved[0][2], saved[1][2], atol=1e-6)


def test_settings_hold_an_encoder_and_what_trains_it():
    settings = MAESettings(ViTSettings(width=24, heads=2, num_classes=0, position="learned"), mask_ratio=0.5)
    assert not isinstance(settings, ViTSettings)
    assert [field.name for field in fields(settings)] == [
        "encoder", "decoder_width", "decoder_depth", "decoder_heads", "mask_ratio", "norm_pix",
    ]  # fmt: skip
    assert settings.encoder.width == settings.width == 24
    assert MaskedAutoencoder(settings, encoder=replace(settings.encoder, depth=1)).encoder.settings.depth == 1
    with pytest.raises(FrozenInstanceError):
        settings.mask_ratio = 0.9


def test_settings_of_the_encoder_go_by_their_own_names_too():
    settings = MAESettings(width=24, heads=2, image_size=32, decoder_width=12)
    assert settings == MAESettings(replace(MAESettings().encoder, width=24, heads=2, image_size=32), decoder_width=12)
    larger = replace(settings, image_size=(32, 48), mask_ratio=0.5)
    assert (larger.image_size, larger.grid, larger.mask_ratio, larger.width) == ((32, 48), (2, 3), 0.5, 24)
    assert {settings: 1}[copy.deepcopy(settings)] == {settings: 1}[pickle.loads(pickle.dumps(settings))] == 1
    assert not hasattr(settings, "windows")
    with pytest.raises(VitrailError, match="'widht' is not a setting of MAE models"):
        create_model("mae_b16", widht=24)


def test_settings_are_stored_flat_as_in_version_0_2(tmp_path):
    """One name each, the encoder's first: what 0.2.1 wrote and reads."""
    path = save_weights(tiny(mask_ratio=0.5, registers=1), tmp_path / "mae.safetensors")
    with safe_open(path, "pt") as file:
        stored = json.loads(file.metadata()["vitrail"])["settings"]
    names = ["family", *(field.name for field in fields(ViTSettings))]
    assert [*stored] == [*names, "decoder_width", "decoder_depth", "decoder_heads", "mask_ratio", "norm_pix"]
    assert (stored["family"], stored["width"], stored["registers"], stored["mask_ratio"]) == ("mae", 16, 1, 0.5)
    checkpoint = read_checkpoint(path)
    assert checkpoint.settings == tiny(mask_ratio=0.5, registers=1).settings
    assert model_from(checkpoint, image_size=32).encoder.settings.image_size == (32, 32)
