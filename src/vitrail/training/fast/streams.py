"""Streams of a GPU, on which work goes on beside the main one: recording a step, augmenting the next images."""

from functools import cache

import torch


@cache
def stream(device: int, use: str) -> torch.cuda.Stream:
    """One for each use, for all that this process trains, one after the other: the libraries of matrix products keep up
    to 100 MB for every stream that they have met."""
    return torch.cuda.Stream(device)
