"""A model as an ONNX graph: any batch, and for the Vision Transformer any height and width, in one file.

The graph has one input, `images` [B, C, H, W], normalised, and the outputs `logits` [B, classes] and `features` [B, D];
that of a segmenter has `logits` [B, classes, H, W] alone, for one height and width. That of a detector takes one
image of any height and width, and has `boxes` [n, 4], `scores` [n], `labels` [n] and, of a Mask R-CNN, `masks`
[n, 28, 28]. What an image needs before and its classes' names after travel in the file's metadata.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from vitrail.errors import VitrailError, extra
from vitrail.tasks.exporting import Graph
from vitrail.weights.header import HEADER

OPSET = 20  # the first with GELU as one operator
ONE_FILE = 1_900_000_000  # bytes; an ONNX file beyond 2 GB must keep its weights in a second one


def require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise VitrailError(f"ONNX files are written with onnx and onnxscript: {extra('onnx')}.") from None


def write_onnx(graph: Graph, path: Path, header: str) -> None:
    """Writes a graph; beyond 2 GB with its weights beside it, in `<name>.data`."""
    module = graph.module.eval().requires_grad_(False)
    try:
        with quiet(), torch.no_grad():
            program = _program(module, graph.example, graph.sizes)
    except Exception as error:  # the exporter's own kinds, and the compiler's
        reason = str(error).strip().splitlines()[0]
        raise VitrailError(f"This model can't be written as an ONNX graph: {reason}") from error
    _name_sizes(program.model, graph.rows)
    _without_traces(program.model)
    for name, value in getattr(module, "named", {}).items():
        _give(program.model, name, value)
    program.model.metadata_props[HEADER] = header
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    program.save(str(path), external_data=weights > ONE_FILE)


def _program(both: Any, x: Tensor, sizes: dict[int, Dim]) -> Any:
    # On its way through the layers a size grows into terms of which the exporter can't prove what is plain to see, such
    # as that a map is not smaller than one row of it. It may note these things and need not refuse them.
    with ByProducts():
        exported = torch.export.export(
            both, (x,), dynamic_shapes=(sizes,), prefer_deferred_runtime_asserts_over_guards=True
        )
    return torch.onnx.export(
        exported, dynamo=True, opset_version=OPSET, input_names=["images"], output_names=list(both.names), verbose=False
    )


class ByProducts(TorchFunctionMode):
    """While a model is traced, its tables of positions are resized by `resize_by_products`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.interpolate and kwargs.get("antialias"):
            return resize_by_products(args[0], kwargs["size"])
        return func(*args, **kwargs)


def resize_by_products(table: Tensor, size: Sequence[int]) -> Tensor:
    """Bicubic resizing with antialiasing, [1, D, h0, w0] -> [1, D, h, w], as two matrix products.

    ONNX has an operator for it that runtimes disagree about: onnxruntime on a GPU has another kernel than on a CPU, and
    OpenVINO leaves the antialiasing out. Products are the same to all.
    """
    down, across = (_cubic_weights(table, new, old) for new, old in zip(size, table.shape[-2:], strict=True))
    return down @ table @ across.transpose(0, 1)


def _cubic_weights(like: Tensor, new: Any, old: Any) -> Tensor:
    """How much each of the old places gives to each of the new: [new, old], rows that sum to 1."""
    step = old / torch.scalar_tensor(new, dtype=torch.float32)  # places of the old grid per place of the new
    centre = (torch.arange(new, dtype=torch.float32)[:, None] + 0.5) * step
    distance = (torch.arange(old, dtype=torch.float32) + 0.5 - centre).abs() / step.clamp(min=1)
    # The cubic kernel with a = -1/2, as in Pillow and in PyTorch's antialiased modes.
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    return (weights / weights.sum(dim=1, keepdim=True)).to(like.dtype)


def _name_sizes(model: Any, first: str) -> None:
    """The open sizes under names that a reader of the graph understands, not s34. `first` is of what the outputs have
    one row each."""
    import onnx_ir

    for values, one in ((model.graph.inputs, "batch"), (model.graph.outputs, first)):
        for value in values:
            names = (one, "channels", "height", "width")
            value.shape = onnx_ir.Shape(
                [size if isinstance(size, int) else name for size, name in zip(value.shape, names, strict=False)]
            )


def _give(model: Any, name: str, value: Tensor) -> None:
    """Another value to one of the numbers in the file."""
    import onnx_ir

    model.graph.initializers[name].const_value = onnx_ir.tensor(value.numpy(), name=name)


def _without_traces(model: Any) -> None:
    """The exporter notes in every node from which line of which file of this machine it came: not for others to read,
    and a tenth of a small file."""
    import onnx_ir

    model.metadata_props.clear()
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in onnx_ir.traversal.RecursiveGraphIterator(graph):
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter's remarks are about its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
