"""Numbers of a step, read while the device is already at the next one."""

import torch
from torch import Tensor


class Deferred:
    """Numbers on their way from the device, to be read when it has gone on to the next step."""

    def __init__(self, values: Tensor, step: int):
        self.step, self._values, self._arrived = step, values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def values(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()
