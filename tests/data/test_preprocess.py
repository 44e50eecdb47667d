"""`crop` is held to timm's own transform, bit for bit; the other fits to pixels that follow from their definition."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from vitrail.data.preprocess import fit_image, prepare, to_tensor
from vitrail.errors import VitrailError
from vitrail.models.preprocessing import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def preprocessing(**changes):
    settings = dict(size=(32, 32), mean=MEAN, std=STD, crop=0.875, interpolation="bicubic", fit="crop")
    return Preprocessing(**{**settings, **changes})


def noise(height, width):
    return Image.fromarray(np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8))


SQUARE = [(size, name) for size in [(32, 32), (33, 33)] for name in ("bicubic", "bilinear", "lanczos", "nearest")]
NOT_SQUARE = [(size, "bilinear") for size in [(32, 48), (49, 31)]]  # whatever is asked, timm takes bilinear here


@pytest.mark.parametrize("crop", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize(("size", "interpolation"), SQUARE + NOT_SQUARE)
def test_crop_equals_timm_bit_for_bit(size, crop, interpolation):
    pre = preprocessing(size=size, crop=crop, interpolation=interpolation)
    theirs = create_transform(
        input_size=(3, *size), is_training=False, crop_pct=crop, crop_mode="center",
        interpolation=interpolation, mean=MEAN, std=STD,
    )  # fmt: skip
    # wide, tall, odd, square, exactly the resized size, smaller than the crop, one pixel
    sizes = [(75, 100), (101, 67), (63, 64), (50, 50), (36, 36), (36, 57), (17, 20), (9, 5), (1, 1), (3, 90)]
    for height, width in sizes:
        image = noise(height, width)
        ours = prepare([image], pre)
        assert ours.shape == (1, 3, *size) and ours.dtype == torch.float32
        assert torch.equal(ours[0], theirs(image)), (height, width)


def test_a_non_square_crop_keeps_the_aspect_and_honours_the_interpolation():
    circle = Image.fromarray(np.hypot(*(np.mgrid[0:200, 0:300] - np.array([99.5, 149.5])[:, None, None])) < 50)
    fitted = np.asarray(fit_image(circle.convert("RGB"), preprocessing(size=(64, 128), crop=1.0)))[..., 0] > 127
    assert fitted.shape == (64, 128)
    rows, columns = fitted.any(1).sum(), fitted.any(0).sum()
    assert abs(columns - 100 * 128 / 300) <= 1 and abs(rows - columns) <= 1
    smooth, blocky = (
        np.asarray(fit_image(noise(20, 30), preprocessing(size=(64, 128), interpolation=name)))
        for name in ("bicubic", "nearest")
    )
    assert set(blocky[..., 0].ravel()) <= set(np.asarray(noise(20, 30))[..., 0].ravel())
    assert not np.array_equal(smooth, blocky)


def test_pad_keeps_the_whole_image_centred_on_the_mean_colour():
    pre = preprocessing(fit="pad", size=(32, 40))
    fitted = np.asarray(fit_image(Image.new("RGB", (100, 50), (255, 255, 255)), pre))  # 50×100 → 20×40
    assert fitted.shape == (32, 40, 3)
    assert (fitted[6:26] == 255).all()
    border = np.concatenate([fitted[:6], fitted[26:]])
    assert (border == [round(255 * mean) for mean in MEAN]).all()
    # half a grey level is all that the rounding of the mean colour leaves of the padding
    padding = prepare([Image.new("RGB", (100, 50))], pre)[0, :, :6]
    assert padding.abs().max() <= 0.5 / 255 / min(STD)

    sliver = np.asarray(fit_image(Image.new("RGB", (1, 1000), (255, 255, 255)), pre))
    assert (sliver == 255).all(-1).sum(1).tolist() == [1] * 32


def test_stretch_resizes_both_sides_to_the_size():
    image = noise(30, 70)
    fitted = fit_image(image, preprocessing(fit="stretch", size=(20, 50), interpolation="lanczos"))
    assert np.array_equal(np.asarray(fitted), np.asarray(image.resize((50, 20), Image.Resampling.LANCZOS)))


def test_native_leaves_the_pixels_alone_and_batches_only_equal_sizes():
    pre = preprocessing(fit="native", size=(32, 32))
    image = noise(19, 23)
    tensor = prepare(image, pre)
    assert tensor.shape == (1, 3, 19, 23)
    restored = tensor[0] * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    assert np.array_equal((restored * 255).round().byte().permute(1, 2, 0).numpy(), np.asarray(image))
    assert prepare([image, image], pre).shape == (2, 3, 19, 23)
    with pytest.raises(VitrailError, match=r"Image 0 is 19×23 and image 2 is 23×19 \(height×width\)"):
        prepare([image, image, noise(23, 19)], pre)


def test_one_mean_makes_a_grey_tensor():
    pre = preprocessing(mean=(0.5,), std=(0.25,), fit="pad", size=(8, 16))
    tensor = prepare([Image.new("RGB", (8, 8), (255, 0, 0))], pre)
    assert tensor.shape == (1, 1, 8, 16)
    assert tensor[0, 0, 4, 8].item() == pytest.approx((76 / 255 - 0.5) / 0.25)  # ITU-R 601: 0.299 · 255
    assert tensor[0, 0, 4, 0].item() == pytest.approx((128 / 255 - 0.5) / 0.25, abs=1e-6)


def test_to_tensor_normalises_and_leaves_the_size_alone():
    tensor = to_tensor(Image.new("RGB", (5, 4), (0, 255, 51)), preprocessing())
    assert tensor.shape == (3, 4, 5) and tensor.is_contiguous()
    expected = [(0 - 0.485) / 0.229, (1 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    assert tensor[:, 3, 4].tolist() == pytest.approx(expected, rel=1e-6)
    assert to_tensor(Image.new("L", (5, 4), 255), preprocessing()).shape == (3, 4, 5)


def test_prepare_takes_one_or_many_of_anything_in_order(tmp_path):
    pre = preprocessing(size=(24, 24), crop=1.0)
    image = noise(24, 24)
    image.save(tmp_path / "a.png")
    array = np.asarray(image)
    buffer = io.BytesIO((tmp_path / "a.png").read_bytes())
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    single = to_tensor(image, pre)[None]
    for value in (image, tmp_path / "a.png", str(tmp_path / "a.png"), buffer, buffer.getvalue(), array, tensor):
        assert torch.equal(prepare(value, pre), single)
    other = Image.new("RGB", (24, 24))
    two = torch.cat([single, to_tensor(other, pre)[None]])
    assert torch.equal(prepare([tmp_path / "a.png", other], pre), two)
    assert torch.equal(prepare((value for value in (array, other)), pre), two)
    assert torch.equal(prepare(np.stack([array, np.zeros_like(array)]), pre), two)
    assert torch.equal(prepare(torch.stack([tensor, torch.zeros_like(tensor)]), pre), two)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fit": "cropp"}, 'use crop, pad, stretch or native. Did you mean "crop"'),
        ({"interpolation": "cubic"}, 'use bicubic, .* Did you mean "bicubic"'),
        ({"mean": (0.5, 0.5)}, "2 means and 3 standard deviations: expected 3 of each"),
        ({"crop": 1.5}, "The crop is 1.5"),
    ],
)
def test_a_setting_that_means_nothing_is_named(changes, message):
    with pytest.raises(VitrailError, match=message):
        prepare([noise(40, 40)], preprocessing(**changes))


def test_what_cannot_make_a_batch_is_refused():
    with pytest.raises(VitrailError, match="No images were given"):
        prepare([], preprocessing())
    with pytest.raises(VitrailError, match=r"10000×1 \(height×width\) would need 2560000×256.*pad"):
        prepare([Image.new("RGB", (1, 10_000))], preprocessing(size=(224, 224)))
