"""Every kind of file is built here by Pillow, or by hand where Pillow cannot, and its pixels are known beforehand."""

import io
import random
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from tests.odd_files import STORED, write_odd_files
from vitrail.data.decode import open_image, open_pixels, to_image
from vitrail.errors import VitrailError, nearest


def pixels(image):
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)  # [H, W, 3]


def photograph(height=48, width=64):
    """Smooth colours, different in all four corners, so that JPEG keeps them and a turn shows."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [255 * rows / height, 255 * columns / width, 128 + 0 * rows]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_of_size(width, height):
    """A PNG of 67 bytes whose header promises any size."""

    def chunk(tag, body):
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_every_exif_orientation_comes_out_upright_and_only_once(tmp_path, kind, orientation):
    upright = np.asarray(photograph())
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    stored.save(tmp_path / "turned", kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    once = open_image(tmp_path / "turned")
    assert np.array_equal(np.asarray(once), upright)
    assert np.array_equal(np.asarray(open_image(once)), upright)


def test_an_unreadable_exif_block_does_not_lose_the_picture():
    data = encoded(photograph(), "JPEG", exif=b"Exif\0\0" + b"\xff" * 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.abs(pixels(open_image(data)) - pixels(photograph())).max() < 12


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB", "HSV"])
def test_opaque_modes_keep_their_colours(mode):
    orange = Image.new("RGB", (5, 4), (200, 100, 50))
    image = {
        "1": photograph().convert("1"),
        "P": orange.quantize(4),
        "LAB": Image.new("LAB", (5, 4), (137, 128 + 37, 128 + 46)),  # this orange's L·255/100, a + 128, b + 128
    }.get(mode) or orange.convert(mode)
    assert image.mode == mode
    expected = {"1": photograph().convert("1").convert("L"), "L": Image.new("L", (5, 4), 124)}.get(mode, orange)
    tolerance = {"YCbCr": 2, "HSV": 2, "LAB": 4}.get(mode, 0)
    assert np.abs(pixels(open_image(image)) - pixels(expected.convert("RGB"))).max() <= tolerance


def test_transparency_of_every_kind_lies_on_white(tmp_path):
    # Left: red at alpha 128. Right: fully transparent, over black that must not show.
    rgba = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    rgba.putpixel((0, 0), (255, 0, 0, 128))
    half_red = 255 * 127 / 255
    for image in (rgba, rgba.convert("RGBa")):
        assert np.abs(pixels(open_image(image)) - [[[255, half_red, half_red], [255, 255, 255]]]).max() <= 1

    grey = Image.new("LA", (2, 1), (0, 0))
    grey.putpixel((0, 0), (0, 255))
    for image in (grey, grey.convert("La")):
        assert pixels(open_image(image)).tolist() == [[[0, 0, 0], [255, 255, 255]]]

    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=1)
    palette.save(tmp_path / "palette.gif", transparency=1)
    for file in ("palette.png", "palette.gif"):
        assert pixels(open_image(tmp_path / file)).tolist() == [[[10, 20, 30], [255, 255, 255]]]

    keyed = Image.new("RGB", (2, 1), (10, 20, 30))
    keyed.putpixel((1, 0), (0, 0, 0))
    keyed.save(tmp_path / "keyed.png", transparency=(0, 0, 0))
    assert pixels(open_image(tmp_path / "keyed.png")).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_cmyk_and_ycck_jpegs_are_not_inverted():
    cmyk = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100)
    assert np.abs(pixels(open_image(cmyk)) - [255, 0, 0]).max() <= 3

    # With Adobe's transform flag at 2 the same container means YCCK: Y, Cb, Cr of 255 − the stored CMY. Photoshop
    # stores inverted ink, so those are the Y, Cb, Cr of (C, M, Y) = (0, 255, 255). Pillow inverts too: hence 255 − x.
    y, cb, cr = Image.new("RGB", (1, 1), (0, 255, 255)).convert("YCbCr").getpixel((0, 0))
    ycck = bytearray(encoded(Image.new("CMYK", (16, 16), (255 - y, 255 - cb, 255 - cr, 0)), "JPEG", quality=100))
    flag = ycck.index(b"Adobe") + 11
    assert ycck[flag] == 0
    ycck[flag] = 2
    assert np.abs(pixels(open_image(bytes(ycck))) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("kind", ["png", "tiff", "big-endian tiff", "pgm", "memory"])
def test_sixteen_bit_grey_is_divided_by_257(tmp_path, kind):
    values = np.array([[0, 128, 129, 257], [32768, 65279, 65406, 65535]], np.uint16)
    expected = [[0, 0, 1, 1], [128, 254, 254, 255]]
    source = Image.fromarray(values)
    if kind == "memory":
        source = Image.fromarray(values.astype(np.int32))
        assert source.mode == "I"
    elif kind == "big-endian tiff":
        source = tmp_path / "grey.tiff"
        Image.frombytes("I;16B", (4, 2), values.astype(">u2").tobytes()).save(source)
        assert Image.open(source).mode == "I;16B"
    else:
        Image.fromarray(values).save(tmp_path / f"grey.{kind}")
        source = tmp_path / f"grey.{kind}"
    result = pixels(open_image(source))
    assert result[..., 0].tolist() == expected
    assert (result == result[..., :1]).all()


def test_values_without_a_known_scale_are_stretched_and_floats_with_one_are_not():
    def grey(values, kind):
        return pixels(open_image(Image.fromarray(np.array([values], kind))))[0, :, 0].tolist()

    assert grey([-100, 0, 300], np.int32) == [0, 64, 255]
    assert grey([0, 20_000, 100_000], np.int32) == [0, 51, 255]
    assert grey([-1.0, 0.0, 3.0], np.float32) == [0, 64, 255]
    assert grey([0.0, 0.2, 1.0], np.float32) == [0, 51, 255]
    assert grey([0.0, 51.0, 200.0], np.float32) == [0, 51, 200]
    assert grey([7000.0, 7000.0], np.float32) == [0, 0]
    with pytest.raises(VitrailError, match="not finite"):
        grey([0.0, np.nan], np.float32)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_gives_its_first_frame(kind):
    red, blue = Image.new("RGB", (6, 5), (255, 0, 0)), Image.new("RGB", (6, 5), (0, 0, 255))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(red, kind, save_all=True, append_images=[blue], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 2
    assert (pixels(open_image(data)) == [255, 0, 0]).all()


@pytest.mark.parametrize("kind", ["JPEG", "progressive", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.95])
def test_a_truncated_file_is_an_error_and_not_half_a_picture(tmp_path, kind, kept):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 80, 3), np.uint8))
    options = {"progressive": True} if kind == "progressive" else {}
    data = encoded(noise, "JPEG" if kind == "progressive" else kind, **options)
    assert open_image(data).size == (80, 80)
    (tmp_path / "cut.jpg").write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(VitrailError, match=r"cut\.jpg is "):
        open_image(tmp_path / "cut.jpg")


def test_damaged_bytes_raise_no_other_kind_of_error():
    chance = random.Random(0)
    outcomes = set()
    for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "ICO", "TGA", "PPM"):
        whole = encoded(photograph(32, 32), kind)
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(chance.choice([1, 4, 30])):
                damaged[chance.randrange(min(len(damaged), chance.choice([40, 4000])))] = chance.randrange(256)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    outcomes.add(open_image(bytes(damaged)).mode)
                except VitrailError as error:
                    assert str(error).startswith(f"The image of {len(damaged)} bytes ") and "\n" not in str(error)
                    outcomes.add("error")
    assert outcomes == {"RGB", "error"}


def test_what_is_not_an_image_is_named_in_one_sentence(tmp_path):
    (tmp_path / "page.jpg").write_text("<!doctype html><html>not found</html>")
    (tmp_path / "empty.png").touch()
    (tmp_path / "drawing.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    found = {
        "page.jpg": "page.jpg is not an image of a known format",
        "empty.png": r"empty.png is empty \(0 bytes\)",
        "drawing.jpg": "drawing.jpg is not an image of a known format",  # EPS would start Ghostscript
        "absent.png": "absent.png was not found",
        ".": "cannot be opened",
    }
    for file, message in found.items():
        with pytest.raises(VitrailError, match=message):
            open_image(tmp_path / file)
    with pytest.raises(VitrailError, match="The image of 0 bytes is empty"):
        open_image(b"")
    with pytest.raises(VitrailError, match="The int is not an image: pass a path"):
        open_image(3)
    with pytest.raises(VitrailError, match="cannot be read as a binary file"):
        open_image(io.StringIO("text"))


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"hevc", b"mif1"])
def test_what_a_phone_writes_is_told_to_be_converted(brand, tmp_path):
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(100))
    with pytest.raises(VitrailError) as refused:
        open_image(tmp_path / "phone.heic")
    assert str(refused.value) == f"{tmp_path / 'phone.heic'} is HEIC, which can't be read here: convert it to JPEG."
    avif = encoded(photograph(), "AVIF")
    assert avif[4:8] == b"ftyp" and open_image(avif).size == (64, 48)  # of the same family, and read


def test_an_enormous_image_is_refused_from_its_header(tmp_path):
    limit = Image.MAX_IMAGE_PIXELS
    (tmp_path / "bomb.png").write_bytes(png_of_size(60_000, 50_000))
    with pytest.raises(VitrailError, match=r"bomb\.png has 3,000,000,000 pixels \(60000×50000\)"):
        open_image(tmp_path / "bomb.png")
    with pytest.raises(VitrailError, match="200,010,000 pixels"):
        open_image(png_of_size(20_001, 10_000))
    with warnings.catch_warnings():  # within the limit: no word from Pillow, only the missing pixels are the trouble
        warnings.simplefilter("error")
        with pytest.raises(VitrailError, match="damaged or incomplete"):
            open_image(png_of_size(20_000, 10_000))
    assert limit == Image.MAX_IMAGE_PIXELS and not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize(
    ("screen", "frame"), [((12_000, 12_000), (1, 1)), ((1, 1), (12_000, 12_000))], ids=["screen", "frame"]
)
def test_a_gif_is_measured_before_pillow_fills_a_frame_of_its_size(screen, frame):
    """What follows the frame's header is missing: had Pillow been asked first, it would have said so."""
    control = b"!\xf9\x04\x09\x00\x00\x00\x00"  # replaced by the background: Pillow fills that at once
    palette = bytes(range(12)) * 2
    header = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x82, 0, 0) + palette + control + b"x"  # a stray byte
    content = header + b"," + struct.pack("<4HB", 0, 0, *frame, 0)
    with pytest.raises(VitrailError, match=r"144,000,000 pixels \(12000×12000\), and the limit is 50,000,000"):
        open_image(content, limit=50_000_000)


def test_animated_gifs_of_every_kind_are_still_read():
    frames = [photograph(20, 30).rotate(90 * i).convert("P") for i in range(3)]
    for disposal in (0, 1, 2, 3):
        file = io.BytesIO()
        frames[0].save(
            file, "GIF", save_all=True, append_images=frames[1:], disposal=disposal, comment=b"c" * 600, transparency=7
        )
        assert open_image(file.getvalue()).size == frames[0].size


def icon(*inner):
    """An ICO file of any PNGs and BMPs, whatever size its directory says."""
    place, directory = 6 + 16 * len(inner), b""
    for data in inner:
        directory += struct.pack("<BBBBHHII", 32, 32, 0, 0, 1, 32, len(data), place)
        place += len(data)
    return struct.pack("<HHH", 0, 1, len(inner)) + directory + b"".join(inner)


def test_an_icon_is_measured_by_what_is_inside_it_before_any_of_it_is_decoded():
    small = encoded(photograph(32, 32), "PNG")
    assert np.array_equal(np.asarray(open_image(icon(small))), np.asarray(photograph(32, 32)))
    bitmap = open_image(encoded(photograph(32, 32), "ICO", sizes=[(32, 32)], bitmap_format="bmp"))
    assert np.array_equal(np.asarray(bitmap), np.asarray(photograph(32, 32)))
    huge = struct.pack("<IiiHHIIiiII", 40, 20_001, 20_000, 1, 32, 0, 0, 0, 0, 0, 0)  # twice the height: its mask
    for bomb in (icon(png_of_size(20_001, 10_000)), icon(small, png_of_size(20_001, 10_000)), icon(huge)):
        with pytest.raises(VitrailError, match=r"has 200,010,000 pixels \(20001×10000\), and the limit is 200,000,000"):
            open_image(bomb)
    with pytest.raises(VitrailError, match="holds 65535 icons, and the limit is 64"):
        open_image(b"\0\0\1\0\xff\xff" + bytes(100))


def test_a_smaller_limit_can_be_asked_for():
    assert open_image(encoded(photograph(), "PNG"), limit=64 * 48).size == (64, 48)
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        with pytest.raises(VitrailError, match=r"has 3,072 pixels \(64×48\), and the limit is 3,071: shrink it"):
            open_image(encoded(photograph(), kind), limit=64 * 48 - 1)


def test_formats_that_hold_a_file_of_another_are_not_read():
    """A Macintosh icon says 1024×1024, and Pillow would decode whatever PNG is inside."""
    inner = png_of_size(13_000, 13_000)
    icns = b"icns" + struct.pack(">I", 16 + len(inner)) + b"ic10" + struct.pack(">I", 8 + len(inner)) + inner
    assert Image.open(io.BytesIO(icns)).size == (1024, 1024)
    with pytest.raises(VitrailError, match="not an image of a known format"):
        open_image(icns)


@pytest.mark.parametrize(
    ("at_least", "decoded"),
    [(None, (800, 1200)), ((800, 1200), (800, 1200)), ((401, 100), (800, 1200)), ((400, 600), (400, 600)),
     ((224, 224), (400, 600)), ((200, 300), (200, 300)), ((100, 1), (100, 150)), ((1, 1), (100, 150)),
     ((2000, 10), (800, 1200))],
)  # fmt: skip
def test_a_jpeg_is_decoded_smaller_but_never_below_what_was_asked(at_least, decoded):
    data = encoded(photograph(800, 1200), "JPEG")
    image = open_image(data, at_least=at_least)
    assert (image.height, image.width) == decoded
    small = photograph(800, 1200).resize(image.size, Image.Resampling.BOX)
    assert np.abs(pixels(image) - pixels(small)).mean() < 2


def test_the_smallest_size_is_that_of_the_upright_image():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = open_image(encoded(photograph(800, 1200), "JPEG", exif=exif), at_least=(600, 300))
    assert (image.height, image.width) == (600, 400)


def test_every_kind_of_source_gives_the_same_picture(tmp_path):
    photograph().save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    pipe = io.BytesIO(data)
    pipe.seekable = lambda: False
    with open(tmp_path / "a.png", "rb") as file:
        file.seek(10)
        sources = [tmp_path / "a.png", str(tmp_path / "a.png"), data, bytearray(data), memoryview(data), file, pipe,
                   Image.open(tmp_path / "a.png"), photograph()]  # fmt: skip
        for source in sources:
            assert np.array_equal(np.asarray(open_image(source)), np.asarray(photograph()))


def test_the_callers_own_image_is_not_shared():
    mine = photograph()
    open_image(mine).paste((0, 0, 0), (0, 0, 64, 48))
    assert np.array_equal(np.asarray(mine), np.asarray(photograph()))


def test_threads_read_different_files_at_once():
    files = [encoded(Image.new("RGB", (40, 30), (shade, 0, 0)), "PNG") for shade in range(32)]
    seen = [None] * 32

    def read(index):
        seen[index] = open_image(files[index]).getpixel((39, 29))

    threads = [threading.Thread(target=read, args=(index,)) for index in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(shade, 0, 0) for shade in range(32)]


def test_arrays_and_tensors_of_every_layout_give_the_same_pixels():
    expected = np.asarray(photograph())
    as_float = expected / 255
    opaque = np.concatenate([expected, np.full((48, 64, 1), 255, np.uint8)], -1)
    chw = torch.from_numpy(expected.copy()).permute(2, 0, 1)
    for value in (expected, as_float, as_float.astype(np.float32), opaque, expected[:, ::-1][:, ::-1], chw, chw / 255):
        assert np.array_equal(np.asarray(to_image(value)), expected)
    grey = expected[..., 0]
    for value in (grey, grey[..., None], torch.from_numpy(grey.copy()), torch.from_numpy(grey.copy())[None]):
        assert np.array_equal(np.asarray(to_image(value)), np.stack([grey] * 3, -1))
    half = torch.full((1, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert to_image(half).getpixel((0, 0)) == (128, 128, 128)
    clear = np.zeros((1, 1, 4), np.uint8)
    assert to_image(clear).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(8, 9, 3), r"shape \[8, 9, 3\].*channels first.*pass tensor\.permute\(2, 0, 1\)"),
        (torch.zeros(2, 3, 8, 9), r"shape \[2, 3, 8, 9\].*pass one image"),
        (np.zeros((3, 8, 9)), r"shape \[3, 8, 9\].*channels last.*pass array\.transpose\(1, 2, 0\)"),
        (np.zeros((8, 9, 2)), r"shape \[8, 9, 2\].*pass one image"),
        (np.full((2, 2), 255.0), "values from 0 to 1, but 255 to 255 was given"),
        (np.full((2, 2), np.nan), "but nan to nan"),
        (np.zeros((2, 2), np.int64), "type int64"),
        (torch.zeros(3, 0, 4), "has no pixels"),
    ],
)
def test_a_wrong_array_is_told_what_was_expected(value, message):
    with pytest.raises(VitrailError, match=message):
        to_image(value)


def test_a_misspelt_word_gets_the_nearest_choice():
    assert nearest("ViT_B16", ["vit_b16", "swin_t"]) == ' Did you mean "vit_b16"?'
    assert nearest("resnet", ["vit_b16", "swin_t"]) == ""


def test_pixels_are_those_of_the_image_bit_for_bit_whatever_the_file(tmp_path):
    """Plain JPEGs take another way through the same library."""
    good, bad = write_odd_files(tmp_path)
    for name in good:
        expected = np.array(open_image(tmp_path / name))
        assert np.array_equal(open_pixels(tmp_path / name), expected), name
        assert np.array_equal(
            open_pixels(tmp_path / name, "L")[..., 0], np.array(open_image(tmp_path / name).convert("L"))
        )
    for name in bad:
        with pytest.raises(VitrailError) as expected_error:
            open_image(tmp_path / name)
        with pytest.raises(VitrailError) as error:
            open_pixels(tmp_path / name)
        assert str(error.value) == str(expected_error.value)


@pytest.mark.parametrize("quality", [60, 95])
@pytest.mark.parametrize("subsampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
def test_a_plain_jpeg_has_the_same_pixels_either_way(quality, subsampling, tmp_path):
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (37, 53, 3), dtype=np.uint8)).resize((301, 203))
    for progressive in (False, True):
        path = tmp_path / "photo.jpg"
        noise.save(path, quality=quality, subsampling=subsampling, progressive=progressive)
        for at_least in (None, (100, 100), (20, 20)):
            assert np.array_equal(open_pixels(path, at_least=at_least), np.array(open_image(path, at_least)))
