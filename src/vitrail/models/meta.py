"""Models that are built to look at their names and shapes, or to be filled at once."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class ParametersOnMeta(TorchFunctionMode):
    """Parameters without memory, and real buffers and other numbers: torchvision's RegNets compute their widths with
    tensors. Under `torch.device("meta")` buffers would be computed there too, and the first arithmetic on that device
    imports half of torch's compiler: seven seconds before a Swin is loaded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones, torch.full):
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)
