"""From whatever holds an image (path, bytes, file, array, tensor) to an upright RGB image, or one clear sentence.

Each choice made here is made once and on purpose, because a file that is silently read wrong (sideways, clipped to
white, half grey) costs accuracy that nobody finds. ImageFile.LOAD_TRUNCATED_IMAGES is expected to be False, as Pillow
leaves it, and no global of Pillow is changed: others in the same process may rely on theirs, and threads would race.
"""

import io
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from os import PathLike
from typing import IO, Any

import numpy as np
from PIL import BmpImagePlugin, Image, PngImagePlugin

from vitrail.errors import VitrailError

# Checked against the header, before any pixel is decoded: a PNG of a few kilobytes can unfold to many gigabytes.
# 200 megapixels is the largest camera phone's photograph, 0.8 GB decoded. Inside its TIFF, GIF and WebP readers Pillow
# keeps its own limit of 179.
PIXEL_LIMIT = 200_000_000

# Formats that are not read. EPS starts Ghostscript: a program, not an image, and nothing to run because somebody
# uploaded it. The others carry a file of another format, which may be far larger than their own header says.
_REFUSED = {"EPS", "BLP", "FPX", "ICNS", "IPTC", "MIC"}
_MOST_ICONS = 64
_HEIC = (b"ftyphei", b"ftyphev", b"ftypmif1")  # how a phone's photographs begin, after four bytes; Pillow has no reader

_ORIENTATION_TAG = 0x0112
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(source: Any, at_least: tuple[int, int] | None = None, limit: int = PIXEL_LIMIT) -> Image.Image:
    """The image as upright RGB, from a path, bytes, a binary file object or a PIL image; the first frame if animated.
    A file of more than `limit` pixels is refused by its header.

    `at_least` (height, width) says that the caller will shrink the image to no less than that: a JPEG may then be
    decoded at 1/2, 1/4 or 1/8 of its size, several times faster. It is never smaller than asked, but its pixels differ
    slightly from those of a full decode, so evaluation leaves `at_least` out.
    """
    name = _name(source)
    if isinstance(source, Image.Image):  # no limit: its owner has decided to open it
        return guarded(name, lambda: _upright_rgb(source, name).copy())
    with open_stream(source, name) as stream:
        return guarded(name, lambda: _decode(stream, name, at_least, limit))


def open_pixels(source: Any, mode: str = "RGB", at_least: tuple[int, int] | None = None) -> np.ndarray:
    """What `open_image` gives, as uint8 [h, w, C] in RGB or L (grey), in less time: a plain JPEG goes through the same
    library without Pillow's detour over four bytes per pixel. The pixels are the same, bit for bit."""
    name = _name(source)
    if isinstance(source, Image.Image):
        return _array(open_image(source), mode)
    with open_stream(source, name) as stream:
        pixels = _plain_jpeg(stream, name, mode, at_least)
        image = None if pixels is not None else guarded(name, lambda: _decode(stream, name, at_least, PIXEL_LIMIT))
    return pixels if image is None else _array(image, mode)  # type: ignore[return-value]


def _array(image: Image.Image, mode: str) -> np.ndarray:
    image = image if image.mode == mode else image.convert(mode)
    return np.array(image).reshape(image.height, image.width, -1)


def _plain_jpeg(stream: IO[bytes], name: str, mode: str, at_least: tuple[int, int] | None) -> np.ndarray | None:
    """None for all that needs more care: other formats and colours, other orientations, what can be decoded at half
    size, and what is damaged, which Pillow then explains."""
    stream.seek(0)
    if mode != "RGB" or stream.read(3) != b"\xff\xd8\xff":
        return None
    try:
        image = identify(stream, name)
        if image.format != "JPEG" or image.mode != "RGB" or exif_orientation(image) != 1:
            return None
        width, height = image.size
        halves = at_least is not None and height >= 2 * at_least[0] and width >= 2 * at_least[1]
        if halves or width * height > PIXEL_LIMIT or "transparency" in image.info:
            return None
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        stream.seek(0)
        content = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8)
        return decode_jpeg(content, ImageReadMode.RGB).permute(1, 2, 0).contiguous().numpy()
    except Exception:
        return None


def to_image(value: Any) -> Image.Image:
    """As `open_image`, and also from a NumPy array [H, W] or [H, W, 1|3|4] or a tensor [H, W] or [1|3|4, H, W].

    Numbers are uint8, or floating point from 0 to 1.
    """
    if _is_tensor(value):
        if value.ndim != 2 and (value.ndim != 3 or value.shape[0] not in (1, 3, 4)):
            advice = "tensor.permute(2, 0, 1)" if value.ndim == 3 and value.shape[-1] in (1, 3, 4) else "one image"
            raise VitrailError(
                f"A tensor of shape {list(value.shape)} was given, but an image tensor is channels first, "
                f"[1, 3 or 4, height, width]: pass {advice}."
            )
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value  # NumPy has no bfloat16
        return _from_array(value.numpy() if value.ndim == 2 else value.permute(1, 2, 0).numpy())
    if isinstance(value, np.ndarray):
        if value.ndim != 2 and (value.ndim != 3 or value.shape[-1] not in (1, 3, 4)):
            advice = "array.transpose(1, 2, 0)" if value.ndim == 3 and value.shape[0] in (1, 3, 4) else "one image"
            raise VitrailError(
                f"An array of shape {list(value.shape)} was given, but an image array is channels last, "
                f"[height, width] or [height, width, 1, 3 or 4]: pass {advice}."
            )
        return _from_array(value)
    return open_image(value)


def _is_tensor(value: Any) -> bool:
    """Whoever has a tensor has imported torch: to ask for one is no reason to."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _from_array(array: np.ndarray) -> Image.Image:
    """[H, W] or [H, W, 1|3|4] → RGB."""
    if array.size == 0:
        raise VitrailError(f"An image of shape {list(array.shape)} has no pixels: pass one of at least 1×1.")
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        # Resizing overshoots by rounding errors; a normalised image overshoots by far more. NaN fails here too.
        if not (low >= -1e-4 and high <= 1 + 1e-4):
            raise VitrailError(
                f"A floating-point image holds values from 0 to 1, but {low:.4g} to {high:.4g} was given: "
                "divide by 255, or undo the normalisation."
            )
        array = np.rint(array.clip(0, 1) * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise VitrailError(f"Pixels of type {array.dtype} were given: pass uint8, or floating point from 0 to 1.")
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    return _upright_rgb(Image.fromarray(np.ascontiguousarray(array)), "The array")


def _name(source: Any) -> str:
    """How an error calls the source."""
    if isinstance(source, str | PathLike):
        return str(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return f"The image of {len(source)} bytes"
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return str(name) if name else f"The {type(source).__name__}"


def open_stream(source: Any, name: str) -> Any:
    """A context manager that gives a seekable binary file, closed afterwards if it was opened here."""
    try:
        if isinstance(source, str | PathLike):
            return open(source, "rb")
        if isinstance(source, bytes | bytearray | memoryview):
            return io.BytesIO(source)
        if callable(getattr(source, "read", None)):
            if hasattr(source, "seekable") and source.seekable() and not isinstance(source, io.TextIOBase):
                return nullcontext(source)
            return io.BytesIO(source.read())
    except FileNotFoundError:
        raise VitrailError(f"{name} was not found: check the path.") from None
    except OSError as error:
        expected = "a picture, not a folder" if isinstance(error, IsADirectoryError) else "a readable file"
        raise VitrailError(f"{name} cannot be opened ({error.strerror or error}): expected {expected}.") from error
    except (TypeError, ValueError) as error:
        raise VitrailError(f"{name} cannot be read as a binary file ({error}).") from error
    raise VitrailError(f"{name} is not an image: pass a path, bytes, a file, a PIL image, an array or a tensor.")


def guarded(name: str, work: Callable[[], Image.Image]) -> Image.Image:
    """Run a decoder on bytes nobody vouches for: Pillow's readers then raise almost any type, so all are caught."""
    try:
        return work()
    except VitrailError:
        raise
    except (Image.DecompressionBombError, MemoryError) as error:
        raise VitrailError(f"{name} is too large to decode ({error or 'out of memory'}): shrink it.") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise VitrailError(f"{name} is a damaged or incomplete image ({reason}): replace or remove it.") from error


def _decode(stream: IO[bytes], name: str, at_least: tuple[int, int] | None, limit: int) -> Image.Image:
    image = identify(stream, name, limit)
    _check_size(*image.size, name, limit)
    if at_least is not None and image.format in ("JPEG", "MPO"):
        sideways = exif_orientation(image) >= 5
        smallest_height, smallest_width = at_least[::-1] if sideways else at_least
        image.draft(None, (max(1, smallest_width), max(1, smallest_height)))
    return _upright_rgb(image, name)


def _check_size(width: int, height: int, name: str, limit: int) -> None:
    if width * height > limit:
        raise VitrailError(
            f"{name} has {width * height:,} pixels ({width}×{height}), and the limit is {limit:,}: shrink it."
        )


def identify(stream: IO[bytes], name: str, limit: int = PIXEL_LIMIT) -> Image.Image:
    """Read the header alone; in place of Image.open, whose size limit is a variable of the whole process."""
    stream.seek(0)
    prefix = stream.read(16)
    if not prefix:
        raise VitrailError(f"{name} is empty (0 bytes): replace or remove it.")
    tried = set(_REFUSED)
    for load_plugins in (Image.preinit, Image.init):  # the five common formats first, the rest only when needed
        load_plugins()
        for kind in [kind for kind in Image.ID if kind not in tried]:
            tried.add(kind)
            factory, accept = Image.OPEN[kind]
            try:
                accepted = accept(prefix) if accept else True
                if accepted and not isinstance(accepted, str):  # str: built without this format
                    if kind in _MEASURED:
                        _MEASURED[kind](stream, name, limit)
                    stream.seek(0)
                    return factory(stream, "")
            except (SyntaxError, IndexError, TypeError, struct.error):
                continue  # not this format after all
    if prefix[4:].startswith(_HEIC):
        raise VitrailError(f"{name} is HEIC, which can't be read here: convert it to JPEG.")
    raise VitrailError(f"{name} is not an image of a known format (it begins with {prefix!r}): replace or remove it.")


def _check_icons(stream: IO[bytes], name: str, limit: int) -> None:
    """Pillow decodes an icon while it opens it, and the PNG or BMP inside may have any size: each is measured first."""
    stream.seek(4)
    (count,) = struct.unpack("<H", stream.read(2))
    if count > _MOST_ICONS:
        raise VitrailError(f"{name} says that it holds {count} icons, and the limit is {_MOST_ICONS}: remove it.")
    for place in {struct.unpack("<12xI", stream.read(16))[0] for _ in range(count)}:
        stream.seek(place)
        png = stream.read(8) == b"\x89PNG\r\n\x1a\n"
        stream.seek(place)
        if png:
            width, height = PngImagePlugin.PngImageFile(stream).size
        else:
            width, height = BmpImagePlugin.DibImageFile(stream).size
            height //= 2  # a bitmap and its mask
        _check_size(width, height, name, limit)


def _check_gif(stream: IO[bytes], name: str, limit: int) -> None:
    """Pillow fills an image of the first frame's size while it opens a GIF, and a frame may reach beyond the screen."""
    stream.seek(6)
    width, height, flags = struct.unpack("<HHBxx", stream.read(7))
    stream.seek(3 << ((flags & 7) + 1) if flags & 128 else 0, io.SEEK_CUR)  # the palette
    while (mark := stream.read(1)) not in (b"", b";", b","):  # extensions, in blocks; other bytes are passed over
        if mark == b"!":
            stream.seek(1, io.SEEK_CUR)
            while block := ord(stream.read(1) or b"\0"):
                stream.seek(block, io.SEEK_CUR)
    if mark == b",":
        left, top, across, down = struct.unpack("<4H", stream.read(8))
        width, height = max(width, left + across), max(height, top + down)
    _check_size(width, height, name, limit)


# Formats of which Pillow decodes or fills something while it opens them.
_MEASURED = {"ICO": _check_icons, "GIF": _check_gif}


def exif_orientation(image: Image.Image) -> int:
    """EXIF's 1 to 8; 1, upright, where there is none or it cannot be parsed, since the pixels are still good."""
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        return 1
    return value if value in _TO_UPRIGHT else 1


def _upright_rgb(image: Image.Image, name: str) -> Image.Image:
    image.load()
    orientation = exif_orientation(image)  # after load: Pillow turns a TIFF upright by itself
    rgb = _rgb(image, name)
    if orientation == 1:
        return rgb
    rgb = rgb.transpose(_TO_UPRIGHT[orientation])
    rgb.info = {}  # it holds the old orientation, which must not be applied a second time
    return rgb


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode[0] in "IF":  # "I", "I;16", "I;16B", "F"
        return Image.fromarray(_eight_bits(np.asarray(image), name)).convert("RGB")
    if image.has_transparency_data:
        # Dropping alpha would show whatever colour the transparent pixels happen to hold, often black or noise.
        # White is the page that logos and cut-outs were drawn for.
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        on_white = Image.new("RGB", image.size, "white")
        on_white.paste(rgba, mask=rgba.getchannel("A"))
        return on_white
    return image.convert("RGB")  # CMYK arrives un-inverted, and YCCK as CMYK, from Pillow's JPEG reader


def _eight_bits(values: np.ndarray, name: str) -> np.ndarray:
    """[H, W] of 16-bit, 32-bit or floating-point grey → uint8; Pillow's own conversion clips all above 255 to white.

    16 bits are divided by 257, which takes 0 to 0 and 65535 to 255 and is the same for every file: a stretch between
    the darkest and the brightest pixel would make one grey level mean different things in different images. It is left
    for values without a known scale: integers beyond 16 bits, and floats outside both 0 to 1 and 0 to 255.
    """
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():
        raise VitrailError(f"{name} holds pixels that are not finite numbers: replace them.")
    if np.issubdtype(values.dtype, np.integer) and low >= 0 and high <= 65535:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if low < 0 or high > 255 or np.issubdtype(values.dtype, np.integer):
        return np.rint((values.astype(np.float64) - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return np.rint(values * 255 if high <= 1 else values).astype(np.uint8)
