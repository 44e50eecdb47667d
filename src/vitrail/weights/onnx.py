"""A model in an ONNX file that `vitrail export` wrote, run by onnxruntime behind the interface of our models."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError, extra
from vitrail.models import dense
from vitrail.models.checks import check_image
from vitrail.models.dense.settings import DetectorSettings
from vitrail.weights.header import DENSE, HEADER, read_header


class OnnxModel(nn.Module):
    """Images [B, C, H, W] to logits [B, classes], of a segmenter [B, classes, H, W]; `features` to the pooled vectors.
    Of a detector, images [C, h, w] of any size each to what is found on each, as of a `Detector`.
    It has no parameters: what needs the inside of a model is refused in one sentence."""

    def __init__(
        self,
        path: str | PathLike[str],
        device: str | torch.device | None = None,
        instead: Mapping[str, np.ndarray] | None = None,
    ):
        """`instead` has values in place of some that the file holds, by their names."""
        super().__init__()
        self.path = Path(path).expanduser()
        self._session, self._instead = _open(self.path, device, instead or {})
        text = self._session.get_modelmeta().custom_metadata_map.get(HEADER)
        if text is None:
            raise VitrailError(
                f"{path} was not written by `vitrail export`: it says nothing of its labels and preprocessing."
            )
        header = read_header(self.path, text)
        self.settings, self.preprocessing = header.settings, header.preprocessing
        self.labels, self.name, self.about = header.labels, header.name, header.about
        self.outputs = [output.name for output in self._session.get_outputs()]
        self.provider: str = self._session.get_providers()[0]
        height, width = self._session.get_inputs()[0].shape[2:]
        # (height, width) if the graph is for one size alone, as Swin's is.
        self.fixed_size = (height, width) if isinstance(height, int) and isinstance(width, int) else None

    def forward(self, x: Any) -> Any:
        if isinstance(self.settings, DetectorSettings):
            return self._detect(x)
        return self._run(self.outputs[:1], x)[0]

    def look_at(self, short_side: int) -> None:
        """Of a detector: images in another size from now on."""
        self.settings = self.settings.looking_at(short_side)  # type: ignore[union-attr]

    def _detect(self, images: Iterable[Tensor]) -> list[dict[str, Tensor]]:
        """One image after the other, brought to the size in which it is looked at; boxes back to its own."""
        frame, every = dense.detector.Frame(*self.settings.image_size).eval(), []
        for image in images:
            viewed = frame.resize(image)[0]
            found = dict(zip(self.outputs, self._run(self.outputs, viewed[None]), strict=True))
            sizes = [(each.shape[-2], each.shape[-1]) for each in (viewed, image)]
            every.append({**found, "boxes": dense.detector.scaled(found["boxes"], *sizes)})
        return every

    def features(self, x: Tensor, layers: Iterable[int] | int = ()) -> dict[str, Tensor]:
        """`pooled` [B, D], as in our models; the layers are inside the graph."""
        if isinstance(layers, int) or tuple(layers):
            self._refuse("The layers")
        if "features" not in self.outputs:
            raise VitrailError(f"{self.path} gives no features to embed with; export the run again, or load the run.")
        return {"pooled": self._run(["features"], x)[0]}

    def _run(self, outputs: list[str], x: Tensor) -> list[Tensor]:
        settings = self.settings.backbone if isinstance(self.settings, DENSE) else self.settings
        pads = isinstance(self.settings, DetectorSettings)  # to more than a patch, whatever it is
        check_image(x, settings.channels, (1, 1) if pads else settings.patch_size)
        size = (x.shape[2], x.shape[3])
        if self.fixed_size and size != self.fixed_size:
            height, width = self.fixed_size
            raise VitrailError(
                f"{self.path} takes images of {height}×{width} only, got {size[0]}×{size[1]}; export the run again"
                f" with --image-size, or load the run itself."
            )
        pixels = x.detach().float().cpu().numpy()
        try:
            values = self._session.run(outputs, {"images": pixels})
        except Exception as error:  # onnxruntime has its own kinds
            reason = " ".join(str(error).split())
            raise VitrailError(f"{self.path} can't be run on images of {size[0]}×{size[1]}: {reason}") from None
        return [torch.from_numpy(each) for each in values]

    def _refuse(self, what: str) -> NoReturn:
        raise VitrailError(f"{what} of {self.path} can't be had: an ONNX file is a closed graph; load the run itself.")

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        """What `capture` looks through for attention."""
        self._refuse("The attention")

    def state_dict(self, *_: Any, **__: Any) -> Any:
        self._refuse("The weights")


def _open(path: Path, device: str | torch.device | None, instead: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """The session, and the values that it was given, which are to be kept as long as it."""
    try:
        import onnxruntime
    except ImportError:
        raise VitrailError(f"{path} is run with onnxruntime: {extra('onnx')}.") from None
    if not path.is_file():
        raise VitrailError(f"There is no file {path}.")
    wanted = torch.device(device).type if device is not None else None
    providers = ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and wanted in (None, "cuda"):
        providers.insert(0, "CUDAExecutionProvider")
    elif wanted not in (None, "cpu"):
        raise VitrailError(f"This onnxruntime can't use the device {device}: use cpu, or install onnxruntime-gpu.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    kept = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in instead.items()}
    for name, value in kept.items():
        options.add_initializer(name, value)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers), kept
    except Exception as error:  # onnxruntime has its own kinds
        reason = " ".join(str(error).split())
        raise VitrailError(f"{path} can't be opened as an ONNX file: {reason}") from None
