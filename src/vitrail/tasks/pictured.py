"""What drawings of masks and boxes share: letters, names that fit, and bytes for notebooks and pages."""

import io
from functools import cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageFont


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    # Comes with matplotlib, and has Greek and Cyrillic; Pillow's own has Latin alone.
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)


def shortened(text: str, letters: ImageFont.FreeTypeFont, width: float) -> str:
    """As much of it as has room."""
    if letters.getlength(text) <= width:
        return text
    while text and letters.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
