"""Reconstruction as a task: a loss per image, what to expect of it, and the sheet that shows it."""

import numpy as np
import pytest
import torch

from tests.models.restatements import image, randomised
from vitrail.explain import reconstruct
from vitrail.models.mae import MaskedAutoencoder, decoder_for
from vitrail.tasks.reconstruct.objective import Expected, Reconstruct, sheet, strip

TINY = {
    "image_size": (16, 24), "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "decoder_width": 12,
    "decoder_depth": 2, "decoder_heads": 3,
}  # fmt: skip


def tiny(**changes) -> MaskedAutoencoder:
    return randomised(MaskedAutoencoder(**{**TINY, **changes}))


@pytest.mark.parametrize("norm_pix", [True, False])
def test_the_loss_of_an_image_is_the_mean_squared_error_over_its_hidden_patches(norm_pix):
    model, task, x = tiny(norm_pix=norm_pix).float(), Reconstruct(), image(3, 3, 16, 24).float()
    outputs = task.outputs(model, x)
    each = task.loss(outputs, task.targets([(), (), ()]))
    target = model.target(x)
    for i in range(3):
        hidden = outputs.mask[i] > 0
        wanted = (outputs.prediction[i] - target[i])[hidden].square().mean()
        assert each[i].item() == pytest.approx(wanted.item(), rel=1e-5)
    assert each.mean().item() == pytest.approx(outputs.loss.item(), rel=1e-5)
    assert task.targets([(1,), (2,)]).shape == (2, 0)


@pytest.mark.parametrize(("ratio", "hidden"), [(0.75, 18), (0.5, 12), (0.9, 22)])
def test_each_image_hides_the_share_that_was_asked_for_and_another_part_every_time(ratio, hidden):
    model, x = tiny(mask_ratio=ratio).float(), image(2, 3, 16, 24).float()
    masks = [Reconstruct().outputs(model, x).mask for _ in range(2)]
    assert [mask.sum(1).tolist() for mask in masks] == [[hidden] * 2] * 2
    assert not torch.equal(masks[0][0], masks[0][1]) and not torch.equal(masks[0], masks[1])


def test_what_to_expect_of_the_loss_is_measured():
    model, noise = tiny().float(), torch.randn(4, 3, 16, 24)
    expected = Expected.of(model, noise)
    assert expected.nothing == pytest.approx(47 / 48, abs=1e-4)  # 48 numbers of which one mean was taken
    assert expected.good == (pytest.approx(0.5 * 47 / 48, abs=1e-4), pytest.approx(0.8 * 47 / 48, abs=1e-4))
    assert expected.beside == " (from 0.98; good: 0.49 to 0.78)"
    flat = torch.zeros(4, 3, 16, 24)
    assert Expected.of(model, torch.cat([noise, flat])).nothing == pytest.approx(47 / 96, abs=1e-4)
    assert Expected.of(tiny(norm_pix=False).float(), 2 * noise).nothing == pytest.approx(4, rel=0.1)


def test_a_model_that_knows_nothing_scores_what_is_expected():
    model, x = tiny().float(), torch.randn(8, 3, 16, 24)
    torch.nn.init.zeros_(model.decoder_predict.weight)
    torch.nn.init.zeros_(model.decoder_predict.bias)
    assert model(x).loss.item() == pytest.approx(Expected.of(model, x).nothing, rel=1e-4)


def test_the_sheet_shows_original_masked_and_reconstructed_side_by_side():
    model = tiny().float()
    x = torch.rand(3, 3, 16, 24)
    found = reconstruct(model, x, seed=3, mean=(0.0,) * 3, std=(1.0,) * 3)
    page = np.asarray(sheet(found, across=2, side=48)).astype(int)  # enlarged twice, to 32×48
    block = 3 * (48 + 4) + 16
    assert page.shape == (20 + 2 * 36 - 4, 2 * block - 20, 3)
    for number in range(3):
        row, column = divmod(number, 2)
        top, left = 20 + 36 * row, block * column
        original, masked, painted = (page[top : top + 32, left + 52 * i :][:, :48][::2, ::2] for i in range(3))
        wanted = (x[number].permute(1, 2, 0) * 255).round().numpy()
        assert np.abs(original - wanted).max() == 0
        hidden = found.mask[number].numpy().repeat(4, 0).repeat(4, 1)
        assert (masked[hidden] == 128).all() and (masked[~hidden] == original[~hidden]).all()
        assert np.abs(painted[~hidden] - original[~hidden]).max() <= 1
        assert np.abs(painted[hidden] - original[hidden]).mean() > 5


@pytest.mark.parametrize(("width", "pictures"), [(20, 1), (80, 1), (155, 2), (1000, 3)])
def test_a_strip_has_as_many_pictures_as_a_terminal_has_room_for(width, pictures):
    found = reconstruct(tiny().float(), image(3, 3, 16, 24).float(), mean=(0.5,) * 3, std=(0.5,) * 3)
    drawn = strip(found, width)
    assert drawn.height == 16 and drawn.width == pictures * (3 * 25 + 2) - 3  # 24 wide, 16 high: as they are
    pixels = np.asarray(drawn)
    assert (pixels[:, 24, 3] == 0).all() and (pixels[:, :24, 3] == 255).all()  # a gap after the first
    wanted = found.masked[0].mul(255).round().byte().permute(1, 2, 0).numpy()
    assert (pixels[:, 25:49, :3] == wanted).all()


def test_one_channel_and_large_pictures_are_drawn_too():
    model = tiny(channels=1, image_size=(64, 64)).float()
    found = reconstruct(model, torch.rand(1, 1, 64, 256), mean=(0.0,), std=(1.0,))
    assert sheet(found, side=128).size == (3 * 132 - 4, 20 + 32)


@pytest.mark.parametrize(
    ("width", "depth", "decoder"),
    [
        (64, 4, (64, 2, 2)),
        (192, 12, (128, 4, 4)),
        (384, 12, (256, 4, 8)),
        (768, 12, (512, 8, 16)),
        (1280, 32, (512, 8, 16)),
    ],
)
def test_the_decoder_follows_from_the_width_of_the_encoder(width, depth, decoder):
    assert tuple(decoder_for(width, depth).values()) == decoder
