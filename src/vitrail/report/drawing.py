"""What images drawn with Pillow share: fonts, names that fit, and bytes for files, notebooks and pages."""

import base64
import io
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, ImageFont


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    # Comes with matplotlib, and has Greek and Cyrillic; Pillow's own has Latin alone.
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)


def shortened(text: str, letters: ImageFont.FreeTypeFont, width: float) -> str:
    """As much of the text as has room."""
    if letters.getlength(text) <= width:
        return text
    while text and letters.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as the content of a file, PNG or JPEG."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(image: Image.Image) -> bytes:
    return encoded(image, "PNG")


def data_uri(content: bytes, kind: str) -> str:
    """The address of an image that is inside the page itself."""
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"


def thumbnail(image: Image.Image, side: int = 160) -> str:
    """The image, at most `side` pixels wide and high, as a data URI: JPEG, or PNG where so small that JPEG would blur.

    Transparency is laid on white.
    """
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    kind, options = ("PNG", {}) if max(image.size) <= 64 else ("JPEG", {"quality": 80})
    return data_uri(encoded(image, kind, optimize=True, **options), kind)
