"""An image on a terminal: two pixels in a character, the upper one in its colour, the lower one behind it."""

from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from rich.text import Text


def half_blocks(picture: Image.Image) -> "Text":
    """RGBA; what is transparent stays as the terminal is."""
    from rich.text import Text

    pixels, text = picture.convert("RGBA").load(), Text(no_wrap=True)
    for top in range(0, picture.height - 1, 2):
        text.append("  ")
        for left in range(picture.width):
            (*upper, seen), (*lower, _) = pixels[left, top], pixels[left, top + 1]  # type: ignore[index, misc]
            style = "rgb({},{},{}) on rgb({},{},{})".format(*upper, *lower)
            text.append("▀" if seen else " ", style if seen else "")
        text.append("\n")
    text.right_crop(1)  # the last line ends with the print
    return text
