"""`vitrail export`: a model for other programs."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro


def export(
    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None,
    to: Literal["onnx", "timm", "hf", "torchvision"] = "onnx",
    out: Path | None = None,
    architecture: str | None = None,
    image_size: int | None = None,
) -> None:
    """Writes a model for other programs, and checks that the file computes what the model computes.

    ONNX takes any batch and, but for Swin and for segmenters, any height and width; from a detector, one image at a
    time, of any height and width; from a masked autoencoder, its encoder. `--model FILE.onnx` is then as good as the
    run for predict, embed and evaluate.

    Args:
        run: A run folder, a checkpoint, hf://org/name, or a catalog name; by default the model that ships inside.
        to: An ONNX file, or weights for timm, transformers (hf, a folder) or torchvision.
        out: Where to write; beside the model by default.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        image_size: Side of the images it will get; the model's own by default.
    """
    from vitrail.exporters import export as write
    from vitrail.weights.shipped import default_model

    def tell(words: str) -> None:
        print(f"vitrail: {words}", file=sys.stderr)

    done = write(run or default_model(), to, out, image_size=image_size, model=architecture, told=tell)
    print(f"{done.path}: {done.megabytes:,.1f} MB, in {done.seconds:.1f} s")
    print(done.compared)
    for note in done.notes:
        print(note)
