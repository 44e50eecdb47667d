"""The command line: one thin file per verb, over functions that Python users call too."""

import sys
import warnings
from typing import Any

from vitrail.errors import VitrailError


def main(arguments: list[str] | None = None) -> None:
    """Runs one verb. A mistake that a person can mend is one sentence and exit code 2, never a traceback."""
    import tyro

    from vitrail.cli.data import data
    from vitrail.cli.demo import demo
    from vitrail.cli.doctor import doctor
    from vitrail.cli.embed import embed
    from vitrail.cli.evaluate import evaluate
    from vitrail.cli.explain import explain
    from vitrail.cli.export import export
    from vitrail.cli.models import models
    from vitrail.cli.predict import predict
    from vitrail.cli.pretrain import pretrain
    from vitrail.cli.studio import studio
    from vitrail.cli.train import train

    warnings.showwarning = _one_line
    verbs: dict[str, Any] = {
        "train": train,
        "pretrain": pretrain,
        "evaluate": evaluate,
        "predict": predict,
        "embed": embed,
        "explain": explain,
        "studio": studio,
        "doctor": doctor,
        "export": export,
        "data": data,
        "models": models,
        "demo": demo,
    }
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            verbs,
            prog="vitrail",
            description="Train, evaluate, use and ship Vision Transformers, from a folder of images.",
            args=arguments,
        )
    except VitrailError as error:
        print(f"vitrail: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of a pipe has left, as `head` does
        sys.stderr.close()
        code = 0
    sys.exit(code or 0)


def _one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"vitrail: note: {message}", file=sys.stderr)
