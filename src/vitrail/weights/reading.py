"""A checkpoint of any kind from its file, with what has to be said about it said once."""

import warnings
from os import PathLike
from typing import Any

from vitrail.weights.adapter_file import complete
from vitrail.weights.checkpoint import Checkpoint, understand
from vitrail.weights.files import read_source
from vitrail.weights.header import ADAPTER
from vitrail.weights.rules import group_names


def read_checkpoint(
    source: str | PathLike[str], architecture: str | None = None, base: str | PathLike[str] | None = None, **facts: Any
) -> Checkpoint:
    """Reads a checkpoint of any dialect: a file, a folder, or `hf://org/name`.

    What a file can't tell is said by `architecture`, the name of one in the catalog, or by single `facts` about it,
    such as `heads=12`. What has to be assumed all the same is said in one warning. An adapter.safetensors is read with
    its base, which is found beside it or in the hub's cache, or named by `base`.
    """
    raw = read_source(source)
    if ADAPTER in raw.metadata:
        return complete(raw, base)
    checkpoint = understand(raw, architecture, facts)
    if checkpoint.doubt:
        warnings.warn(checkpoint.doubt, stacklevel=3)  # the line that called `vitrail.load`
    if checkpoint.unknown:
        warnings.warn(f"{checkpoint.path}: left out, unknown here: {group_names(checkpoint.unknown)}.", stacklevel=2)
    return checkpoint
