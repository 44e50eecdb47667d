"""Odd and damaged picture files, made anew each time: what a folder from the wild holds.

`write_odd_files` makes one of each kind; `write_hard_folder` a class folder that is two fifths odd or damaged, from
which a classifier can still be learnt.
"""

import io
import os
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112
# Orientation tag → how the file's rows lie, given the upright picture.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}
DAMAGED = "is a damaged or incomplete image"
UNKNOWN = "is not an image of a known format"


def photograph(number: int = 0, height: int = 36, width: int = 48, hue: float | None = None) -> Image.Image:
    """Smooth colours that differ from number to number, and at all four corners. `hue` (0 to 1) tells classes apart."""
    chance = np.random.default_rng(number)
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    shifts = chance.uniform(0, 0.2, 3)
    turn = 2 * np.pi * (chance.uniform() if hue is None else hue)
    tint = 0.5 + 0.35 * np.cos(turn + np.array([0, 2, 4]))
    waves = np.cos(6 * np.pi * (rows * np.cos(turn) + columns * np.sin(turn) + shifts[0]))
    value = tint + 0.15 * waves[..., None] + (0.1 * rows + 0.05 * columns)[..., None] + shifts - 0.1
    noise = chance.normal(0, 0.02, (height, width, 3))
    return Image.fromarray((255 * np.clip(value + noise, 0, 1)).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(image: Image.Image, orientation: int, kind: str = "JPEG", **options) -> bytes:
    """The picture stored on its side, and a tag that says so."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](np.asarray(image))))
    return encoded(stored, kind, exif=exif, **options)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG of 67 bytes whose header promises any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0")) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(tag: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))


def good_files(number: int = 0, hue: float | None = None) -> dict[str, Callable[[], bytes]]:
    """Name → content, when called for, of files that are odd, and all right: each must be read."""
    image = photograph(number, hue=hue)
    grey = image.convert("L")
    alpha = Image.fromarray(np.tile(np.linspace(60, 255, image.width).astype(np.uint8), (image.height, 1)))
    sixteen = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    clear = Image.merge("RGBA", (*image.split(), alpha))
    frames = {"save_all": True, "append_images": [image.rotate(90 * turn) for turn in (1, 2)]}
    upright = {f"exif_{turn}.jpg": partial(turned, image, turn, quality=95) for turn in STORED}
    return upright | {
        "exif_6.png": lambda: turned(image, 6, "PNG"),
        "exif_3.webp": lambda: turned(image, 3, "WEBP"),
        "palette.png": lambda: encoded(image.quantize(64), "PNG"),
        "palette_transparent.png": lambda: encoded(image.quantize(64), "PNG", transparency=3),
        "cmyk.jpg": lambda: encoded(image.convert("CMYK"), "JPEG"),
        "sixteen_bits.png": lambda: encoded(sixteen, "PNG"),
        "sixteen_bits.tif": lambda: encoded(sixteen, "TIFF"),
        "floating_point.tiff": lambda: encoded(Image.fromarray(np.asarray(grey).astype(np.float32) / 255), "TIFF"),
        "grey.jpg": lambda: encoded(grey, "JPEG"),
        "black_and_white.png": lambda: encoded(image.convert("1"), "PNG"),
        "grey_alpha.png": lambda: encoded(Image.merge("LA", (grey, alpha)), "PNG"),
        "alpha.png": lambda: encoded(clear, "PNG"),
        "alpha.webp": lambda: encoded(clear, "WEBP", lossless=True),
        "animated.gif": lambda: encoded(image, "GIF", **frames),
        "animated.webp": lambda: encoded(image, "WEBP", **frames),
        "animated.png": lambda: encoded(image, "PNG", **frames),
        "progressive.jpg": lambda: encoded(image, "JPEG", progressive=True),
        "bitmap.bmp": lambda: encoded(image, "BMP"),
        "portable.ppm": lambda: encoded(image, "PPM"),
        "compressed.tif": lambda: encoded(image, "TIFF", compression="tiff_lzw"),
        "pages.tif": lambda: encoded(image, "TIFF", **frames),
        "a_png_called.jpg": lambda: encoded(image, "PNG"),
        "a_jpeg_called.png": lambda: encoded(image, "JPEG"),
        "CAPITALS.JPG": lambda: encoded(image, "JPEG"),
        "ünïcode 猫.jpg": lambda: encoded(image, "JPEG"),
        " spaces and, commas .png": lambda: encoded(image, "PNG"),
        'quote".png': lambda: encoded(image, "PNG"),
        "bad_exif.jpg": lambda: encoded(image, "JPEG", exif=b"Exif\0\0" + b"\xff" * 40),
        "after_the_end.jpg": lambda: encoded(image, "JPEG") + b"\0" * 100,
    }


def bad_files(number: int = 0) -> dict[str, tuple[bytes, str]]:
    """Name → (content, part of the reason) of files that nobody can read."""
    image = photograph(number)
    noise = Image.fromarray(np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8))
    jpeg, png = encoded(noise, "JPEG", quality=90), encoded(noise, "PNG")
    data = png.index(b"IDAT") + 4
    return {
        "empty.jpg": (b"", "is empty (0 bytes)"),
        "empty.png": (b"", "is empty (0 bytes)"),
        "text.jpg": (f"a list of {number} things to do\n".encode(), UNKNOWN),
        "page.png": (b"<!doctype html><html><body>404 Not Found</body></html>", UNKNOWN),
        "script.gif": (b"#!/bin/sh\necho hello\n", UNKNOWN),
        "zeros.jpg": (bytes(2000), UNKNOWN),
        "postscript.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", UNKNOWN),
        "archive.jpg": (b"PK\x03\x04" + bytes(100), UNKNOWN),
        "bomb.png": (png_of_size(60_000, 50_000), "has 3,000,000,000 pixels (60000×50000)"),
        "promise.png": (png_of_size(500, 400), DAMAGED),
        "magic_only.jpg": (jpeg[:3], UNKNOWN),
        "header_only.png": (png[:20], DAMAGED),
        "cut_10.jpg": (jpeg[: len(jpeg) // 10], DAMAGED),
        "cut_50.jpg": (jpeg[: len(jpeg) // 2], DAMAGED),
        "cut_90.jpg": (jpeg[: len(jpeg) * 9 // 10], DAMAGED),
        "cut_30.png": (png[: len(png) * 3 // 10], DAMAGED),
        "cut_90.png": (png[: len(png) * 9 // 10], DAMAGED),
        "wrong_checksum.png": (png[:29] + bytes(4) + png[33:], UNKNOWN),
        "scrambled.png": (png[: data + 2] + png[data + 40 : data + 2 : -1] + png[data + 40 :], DAMAGED),
        "cut.webp": (encoded(noise, "WEBP")[:400], DAMAGED),
        "cut.gif": (encoded(image, "GIF")[:-200], DAMAGED),
        "cut.bmp": (encoded(image, "BMP")[:2000], DAMAGED),
        "cut.tif": (encoded(image, "TIFF")[:-1500], DAMAGED),
    }


def write_odd_files(folder: Path, number: int = 0, hue: float | None = None) -> tuple[dict[str, tuple], dict[str, str]]:
    """One of each, in a folder: (name → (height, width) of those that must be read, name → part of the reason of those
    that can't be)."""
    folder.mkdir(parents=True, exist_ok=True)
    good, bad = {}, {}
    for name, make in good_files(number, hue).items():
        (folder / name).write_bytes(make())
        good[name] = (36, 48)
    for name, size in (("one_pixel.png", (1, 1)), ("one_row.png", (1, 300)), ("one_column.png", (300, 1))):
        photograph(number, *size, hue=hue).save(folder / name)
        good[name] = size
    for name, (content, reason) in bad_files(number).items():
        (folder / name).write_bytes(content)
        bad[name] = reason
    (folder / "folder.jpg").mkdir()
    bad["folder.jpg"] = "cannot be opened (Is a directory): expected a picture, not a folder"
    (folder / "nowhere.jpg").symlink_to(folder / "there is no such file")
    bad["nowhere.jpg"] = "was not found"
    if os.geteuid():  # root may read everything
        (folder / "secret.jpg").write_bytes(encoded(photograph(), "JPEG"))
        (folder / "secret.jpg").chmod(0)
        bad["secret.jpg"] = "cannot be opened (Permission denied)"
    return good, bad


def write_hard_folder(
    folder: Path, good: int = 300, odd: int = 200, classes: int = 4
) -> tuple[dict[str, str], dict[str, str]]:
    """Class folders of `good` plain pictures with `odd` others among them: half of these odd, half damaged.

    Gives (name → class of every picture that must be read, odd ones included; name → part of the reason of every one
    that can't be). Names are relative to the folder. Classes differ by colour and texture.
    """
    labels = [f"class {chr(ord('a') + index)}" for index in range(classes)]
    for label in labels:
        (folder / label).mkdir(parents=True)
    readable, unreadable = {}, {}
    for number in range(good):
        index = number % classes
        name = f"{labels[index]}/plain_{number:03d}.jpg"
        size = ((48, 64), (64, 48), (56, 56))[number // classes % 3]
        photograph(number, *size, hue=index / classes).save(folder / name, quality=92)
        readable[name] = labels[index]
    (folder / labels[0] / "folder.jpg").mkdir()
    unreadable[f"{labels[0]}/folder.jpg"] = "cannot be opened (Is a directory)"
    (folder / labels[-1] / "nowhere.jpg").symlink_to("there is no such file")
    unreadable[f"{labels[-1]}/nowhere.jpg"] = "was not found"
    for number in range(2, odd):
        index = number % classes
        label = labels[index]
        if number // classes % 2:
            kinds = good_files(number, index / classes)
            name = list(kinds)[(len(readable) - good) % len(kinds)]
            content = kinds[name]()
            readable[f"{label}/{number:03d} {name}"] = label
        else:
            damaged = bad_files(number)
            name = list(damaged)[len(unreadable) % len(damaged)]
            content, unreadable[f"{label}/{number:03d} {name}"] = damaged[name]
        (folder / label / f"{number:03d} {name}").write_bytes(content)
    return readable, unreadable
