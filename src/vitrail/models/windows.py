"""Images larger than a model can take at once, in overlapping windows.

In the overlaps the logits of neighbours are blended with weights that fall off linearly and add up to one; a pixel that
one window alone covers keeps that window's logits to the bit. Windows are taken in bands from top to bottom, and a band
is handed out as soon as no later window touches it. So besides the image there is never more in memory than twice the
logits of one band, classes × window height × image width, and what the model needs for one window.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.checks import pair

Prepare = Callable[[Tensor], Tensor]


def bands(
    model: nn.Module,
    x: Tensor,
    window: int | tuple[int, int],
    overlap: float = 0.25,
    prepare: Prepare | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """(first row, logits [B, classes, rows, W]), from top to bottom, on the device of `x`.

    `overlap` is the least share of a window that its neighbour sees too. `prepare` is applied to each window before the
    model, such as a normalisation, so that the image itself may stay in bytes. Windows go to the model's device.
    """
    size = pair(window, "window")
    if not 0 <= overlap < 1:
        raise VitrailError(f"The overlap is {overlap}: expected a share of the window, from 0 to less than 1.")
    if x.ndim != 4:
        raise VitrailError(f"Expected pictures [B, C, H, W], got a tensor of shape {list(x.shape)}.")
    height, width = x.shape[-2:]
    tops, tall, row_weights = _axis(height, size[0], overlap)
    lefts, wide, column_weights = _axis(width, size[1], overlap)
    parameter = next(model.parameters(), None)
    device = x.device if parameter is None else parameter.device
    open_rows: Tensor | None = None  # the logits of rows `done` onwards that later windows may add to
    done = 0
    for number, top in enumerate(tops):
        for left, across in zip(lefts, column_weights, strict=True):
            part = x[..., top : top + tall, left : left + wide].to(device)
            part = part if prepare is None else prepare(part)
            with torch.no_grad():
                logits = model(part).float()
            logits = logits * (row_weights[number][:, None] * across).to(device)
            if open_rows is None:
                open_rows = torch.zeros(len(x), logits.shape[1], tall, width, device=x.device)
            open_rows[..., top - done : top - done + tall, left : left + wide] += logits.to(x.device)
        assert open_rows is not None
        until = tops[number + 1] if number + 1 < len(tops) else height
        yield done, open_rows[..., : until - done, :]
        later = torch.zeros_like(open_rows)
        later[..., : done + tall - until, :] = open_rows[..., until - done :, :]
        open_rows, done = later, until


def window_labels(
    model: nn.Module,
    x: Tensor,
    window: int | tuple[int, int],
    overlap: float = 0.25,
    prepare: Prepare | None = None,
) -> Tensor:
    """The likeliest class of every pixel, uint8 [B, H, W] (int64 beyond 256 classes): a byte a pixel, and one band."""
    found = []
    for _, rows in bands(model, x, window, overlap, prepare):
        labels = rows.argmax(dim=1)
        found.append(labels.to(torch.uint8) if rows.shape[1] <= 256 else labels)
    return torch.cat(found, dim=1)


def _axis(length: int, window: int, overlap: float) -> tuple[list[int], int, list[Tensor]]:
    """Where the windows begin along one side, how long they are, and their weights [window], which add up to one."""
    window = min(window, length)
    shared = min(math.ceil(window * overlap), window - 1)
    count = 1 + math.ceil((length - window) / (window - shared))
    starts = [round(i * (length - window) / max(1, count - 1)) for i in range(count)]
    # Never 0, so that where two windows meet without overlap each pixel still has one.
    edge = torch.arange(1, window + 1, dtype=torch.float64)
    ramp = torch.minimum(edge, edge.flip(0)).clamp(max=shared + 1)
    total = torch.zeros(length, dtype=torch.float64)
    for start in starts:
        total[start : start + window] += ramp
    return starts, window, [(ramp / total[start : start + window]).float() for start in starts]
