"""What was computed of one image, and of the model alone: arrays by name, and how they lie over the image."""

from dataclasses import dataclass

from matplotlib.figure import Figure
from torch import Tensor

from vitrail.explain import figures
from vitrail.explain.deletion_insertion import Curves
from vitrail.explain.drawing import Array, as_bytes, enlarged, over_pixels, overlay, pixels
from vitrail.explain.looking import Grid
from vitrail.explain.tokens import Reconstruction


@dataclass(frozen=True, repr=False)
class ImageMaps:
    """What a model made of one image. Tensors are float32 on the CPU; h×w is a grid of patches."""

    name: str
    picture: Array  # uint8 H W C, as the model saw it
    # Label and probability: the five likeliest, then the one asked about if it is none of them; none without classes.
    classes: list[tuple[str, float]]
    target: str | None  # the class that was asked about
    share: float | None  # and its probability
    maps: dict[str, Tensor]  # by method, [h, w]
    curves: dict[str, Curves]  # by method, and of random order
    attention: list[Tensor]  # by layer, [H, h, w], of the class token or of the mean patch
    attention_of: str  # which of the two
    layer: int  # of raw attention among the maps, and of the token colours; from 0, where images say block 1
    pca: Tensor  # [h, w, 3], the patch tokens as colours
    distance: Tensor  # [L, H] in pixels
    entropy: Tensor  # [L, H] in nats
    farthest: float | None  # that distance, were all patches attended to alike; None in Swin
    most: float | None  # and that entropy
    reconstruction: Reconstruction | None  # of a masked autoencoder
    cells: dict[Grid, Grid]  # by grid, the pixels that one of its cells stands for
    model: str = ""  # its name, where it has one

    def cell(self, values: Tensor) -> Grid:
        """How many pixels a cell of this map [..., h, w] stands for."""
        return self.cells[(values.shape[-2], values.shape[-1])]

    def overlays(self, zoom: int = 1) -> dict[str, Array]:
        """The image, each map over it, and the tokens as colours: uint8 [H, W, 3], each side `zoom` times as long."""
        light = enlarged(as_bytes(pixels(self.picture)), zoom)

        def cell(values: Tensor) -> Grid:
            high, wide = self.cell(values)
            return high * zoom, wide * zoom

        found = {"picture": light}
        found |= {method: overlay(light, values, cell(values)) for method, values in self.maps.items()}
        tokens = over_pixels(self.pca.numpy(), cell(self.pca[..., 0]), light.shape[:2])
        return found | {"tokens": as_bytes(tokens)}


@dataclass(frozen=True)
class Portrait:
    """What can be said of the model alone."""

    positions: Tensor | None  # [h, w, h, w]; None where a place has no vector
    filters: tuple[Tensor, Tensor] | None  # None where patches are cut from a stem's features
    farthest: float | None  # the distance in pixels of attending to all patches alike
    most: float | None  # the entropy in nats of attending to all tokens alike

    def figures(self) -> dict[str, Figure]:
        found = {}
        if self.positions is not None:
            found["position_similarity"] = figures.position_figure(self.positions)
        if self.filters is not None:
            found["patch_filters"] = figures.filters_figure(*self.filters)
        return found


def percent(share: float) -> str:
    """51.3%; of what is nearly nothing, its first digit that is not 0."""
    if share >= 0.0005 or share == 0:
        return f"{share:.1%}"
    return f"{100 * share:.1g}%" if share >= 1e-6 else "<0.0001%"
