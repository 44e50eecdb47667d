"""The models that ship inside the package: what is used where a person names none, without any network.

Each is one bundle of ours in half precision, with its labels, recipe and figures in the header; `recipes/ship.py`
writes them. Their model card is docs/model-card.md.
"""

from pathlib import Path

from vitrail.errors import VitrailError

FOLDER = Path(__file__).resolve().parents[1] / "shipped"
CLASSIFIER, AUTOENCODER = "vitrail_tiny", "vitrail_tiny_mae"
LARGEST = {CLASSIFIER: 12_000_000, AUTOENCODER: 6_000_000}  # bytes: a package that is quick to install


def shipped(name: str = CLASSIFIER, folder: Path | None = None) -> Path | None:
    """The file of a model that ships inside, by its name; None where there is none of that name."""
    path = (folder or FOLDER) / f"{name}.safetensors"
    return path if name in LARGEST and path.is_file() else None


def shipped_names(folder: Path | None = None) -> list[str]:
    return [name for name in LARGEST if shipped(name, folder)]


def check_architecture(architecture: str | None, instead: str | None = None) -> None:
    """Refuses a model that ships where an architecture is named; `instead` is the one to start from, if not itself."""
    if architecture is not None and shipped(architecture):
        raise VitrailError(
            f"{architecture} is a trained model and no architecture: leave --model out, and start from --weights "
            f"{instead or architecture}."
        )


def default_model(folder: Path | None = None) -> str:
    """The name of the model that is used where none is named."""
    if shipped(CLASSIFIER, folder) is None:
        raise VitrailError(
            "No model ships inside this copy of vitrail: name a run folder, a checkpoint, an ONNX file, hf://org/name "
            "or a catalog name (`vitrail models`)."
        )
    return CLASSIFIER
