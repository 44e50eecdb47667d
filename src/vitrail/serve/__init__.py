"""HTTP: the Studio, a page that looks into models (needs the extra `studio`)."""

from vitrail.serve.run import studio

__all__ = ["studio"]
