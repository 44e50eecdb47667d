"""A drawing as bytes, for notebooks and pages."""

import io

from PIL import Image


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
