"""`vitrail embed`: the features of images, as a table of numbers."""

from pathlib import Path
from typing import IO, Annotated, Any, Literal

import tyro


def embed(
    images: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES ...", help_behavior_hint="")],
    out: Path,
    model: str | None = None,
    flip: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    crops: Literal[1, 5, 9] = 1,
    fit: Literal["crop", "pad", "stretch", "native"] | None = None,
    architecture: str | None = None,
    image_size: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> int:
    """Turns images into vectors, for search, clustering or a classifier of your own.

    Images that can't be used are named and skipped, and the exit code is then 1.

    Args:
        images: Images, or folders of images.
        out: FILE.npz with the arrays paths and embeddings, or FILE.parquet with the columns path and embedding.
        model: A run folder, a checkpoint, an ONNX file, hf://org/name, or a catalog name; by default the model that
            ships inside.
        flip: Also show the model the mirror image, and take the mean of the vectors.
        crops: Views of each image to take the mean of: the centre, or 5 with the corners, or 9 with the edges too.
        fit: How an image is brought to the model's size; as the model was trained by default.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        image_size: Side to which images are brought; the model's own by default.
        batch_size: Images per forward pass.
        device: cpu or cuda; the GPU where there is one.
    """
    import numpy as np

    from vitrail.cli.pictures import collect, needed, progress, report_skipped, writing
    from vitrail.data.samples import plural
    from vitrail.errors import VitrailError

    write = {".npz": write_npz, ".parquet": write_parquet}.get(out.suffix)
    if write is None:
        raise VitrailError(f"--out must end in .npz or .parquet, got {out}.")
    if write is write_parquet:
        pyarrow()
    if batch_size < 1:
        raise VitrailError(f"--batch-size must be at least 1, got {batch_size}.")
    paths = collect(images)
    from vitrail.predict import load  # brings torch

    good: list[str] = []
    rows: list[np.ndarray] = []
    bad: list[str] = []
    with writing(out, "wb") as file:
        predictor = load(needed(model), architecture, image_size, device, fit)
        with progress(len(paths), batch_size) as advance:
            for path, one in zip(paths, predictor.stream(paths, "features", batch_size, flip, crops), strict=True):
                advance()
                if one.values is None:
                    bad.append(str(one.error))
                else:
                    good.append(str(path))
                    rows.append(one.values.numpy())
        code = report_skipped(bad, len(paths), out)
        write(file, good, np.stack(rows))  # type: ignore[arg-type]
    print(f"{out}: {plural(len(rows), 'picture')}, {rows[0].size:,} numbers each")
    return code


def write_npz(file: IO[Any], paths: list[str], embeddings: Any) -> None:
    import numpy as np

    np.savez(file, paths=np.array(paths), embeddings=embeddings)


def write_parquet(file: IO[Any], paths: list[str], embeddings: Any) -> None:
    arrow, parquet = pyarrow()
    numbers = arrow.FixedSizeListArray.from_arrays(arrow.array(embeddings.ravel()), embeddings.shape[1])
    parquet.write_table(arrow.table({"path": paths, "embedding": numbers}), file)


def pyarrow() -> tuple[Any, Any]:
    from vitrail.errors import VitrailError, extra

    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise VitrailError(f"Parquet files are written with pyarrow: {extra('parquet')}.") from None
    return pyarrow, pyarrow.parquet
