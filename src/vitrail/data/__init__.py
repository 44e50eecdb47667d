"""From files on a disk to tensors that a model takes."""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy

if TYPE_CHECKING:
    from vitrail.data.decode import open_image, to_image
    from vitrail.data.preprocess import fit_image, prepare, several, to_tensor
    from vitrail.data.transforming import transforms
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "vitrail.data.decode": ("open_image", "to_image"),
            "vitrail.data.preprocess": ("fit_image", "prepare", "several", "to_tensor"),
            "vitrail.data.transforming": ("transforms",),
        },
    )

__all__ = ["fit_image", "open_image", "prepare", "several", "to_image", "to_tensor", "transforms"]
