"""From files on a disk to tensors that a model takes."""

from vitrail.data.decode import open_image, to_image
from vitrail.data.preprocess import fit_image, prepare, several, to_tensor

__all__ = ["fit_image", "open_image", "prepare", "several", "to_image", "to_tensor"]
