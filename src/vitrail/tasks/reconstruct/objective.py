"""Reconstruction: paint the hidden patches of an image from those that are left. The image is its own label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from vitrail.explain.tokens import Reconstruction
from vitrail.models.mae import MAEOutput


@dataclass(frozen=True)
class Reconstruct:
    """What the loop asks of a task. Masks are drawn by the model, anew for every image and step."""

    figure: ClassVar[str] = ""  # nothing chooses between epochs: the last weights are kept, as in the paper

    def targets(self, labels: Sequence[Any], device: torch.device | None = None) -> Tensor:
        """Nothing: [n, 0]."""
        return torch.empty(len(labels), 0, device=device)

    def smoothed(self, targets: Tensor) -> Tensor:
        return targets

    def module(self, model: nn.Module) -> nn.Module:
        return model

    def outputs(self, net: nn.Module, pixels: Tensor) -> MAEOutput:
        return net(pixels)

    def loss(self, outputs: MAEOutput, targets: Tensor) -> Tensor:
        """One number per image, [B]: the mean squared error over its hidden patches."""
        return outputs.each.float()


@dataclass(frozen=True)
class Expected:
    """What the loss of a run can be compared with."""

    nothing: float  # of a model that has learned nothing but the mean
    good: tuple[float, float]  # where runs end that went well

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, x: Tensor) -> "Expected":
        """Measured on images x: the mean square of what is to be predicted. With `norm_pix` that is 1, less the share
        of patches without any contrast. The range is a part of this number, and wide: the paper's authors give about
        0.3 for plain colours at 14×14 patches; normalised ones are harder to predict, and so are those of a coarser
        grid, each of which is a larger part of the image."""
        nothing = model.target(x).square().mean().item()
        low, high = (0.4, 0.6) if model.settings.norm_pix else (0.2, 0.4)
        if model.settings.grid[0] * model.settings.grid[1] < 144:
            low, high = low + 0.1, high + 0.2
        return cls(nothing, (low * nothing, high * nothing))

    @property
    def beside(self) -> str:
        """To follow a loss in one line."""
        return f" (from {self.nothing:.2f}; good: {self.good[0]:.2f} to {self.good[1]:.2f})"

    def sentence(self, norm_pix: bool, pretrained: bool = False) -> str:
        start = "each patch in its own mean brightness" if norm_pix else "every pixel in the mean colour of all images"
        begins = "Without what it knows already the loss would start" if pretrained else "The loss starts"
        return (
            f"{begins} near {self.nothing:.2f}, which is {start}; good runs end between {self.good[0]:.2f} and "
            f"{self.good[1]:.2f}, lower with more images and smaller patches."
        )


HEADINGS, GAP, TOP = ("original", "masked", "reconstructed"), 4, 20


def sheet(found: Reconstruction, across: int = 2, side: int = 128) -> Image.Image:
    """Original, masked and reconstructed, side by side, an image per row and `across` of them in a row."""
    triples = [*zip(found.original, found.masked, found.painted, strict=True)]
    cells = [[_cell(values, side) for values in triple] for triple in triples]
    width, height = cells[0][0].size
    block, rows = 3 * (width + GAP) + 4 * GAP, -(-len(cells) // across)
    across = min(across, len(cells))
    page = Image.new("RGB", (across * block - 4 * GAP - GAP, TOP + rows * (height + GAP) - GAP), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(12)
    for number, triple in enumerate(cells):
        row, column = divmod(number, across)
        for place, cell in enumerate(triple):
            left = column * block + place * (width + GAP)
            page.paste(cell, (left, TOP + row * (height + GAP)))
            if row == 0:
                pen.text((left + width / 2, TOP / 2), HEADINGS[place], fill="#444a58", font=font, anchor="mm")
    return page


def strip(found: Reconstruction, width: int, side: int = 24) -> Image.Image:
    """The same without words, for a terminal of so many characters: as many images as fit beside each other, and at
    least one; what lies between them is transparent."""
    triples = [[_cell(values, side) for values in triple] for triple in zip(*found[:3], strict=True)]
    across, high = triples[0][0].size
    block = 3 * (across + 1) + 2
    count = max(1, min(len(triples), (width + 2) // block))
    page = Image.new("RGBA", (count * block - 3, high))
    for number, triple in enumerate(triples[:count]):
        for place, cell in enumerate(triple):
            page.paste(cell, (number * block + place * (across + 1), 0))
    return page


def _cell(values: Tensor, side: int) -> Image.Image:
    """[C, H, W] in 0 to 1, about `side` pixels large: small images enlarged in whole pixels, large ones shrunk."""
    pixels = (values.expand(3, -1, -1) if len(values) == 1 else values[:3]).mul(255).round().byte()
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    longest = max(image.size)
    if longest > side:
        scale, how = side / longest, Image.Resampling.LANCZOS
    else:
        scale, how = max(1, round(side / longest)), Image.Resampling.NEAREST
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), how)
