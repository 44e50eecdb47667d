"""The command line: one thin file per verb, over functions that Python users call too."""

import importlib
import os
import sys
import warnings
from typing import Any

from vitrail.errors import VitrailError, nearest
from vitrail.version import __version__

VERBS = (
    "train", "pretrain", "evaluate", "predict", "embed", "explain", "studio", "doctor", "export", "data", "models",
    "demo",
)  # fmt: skip


# These write when all is done; where one has written something before, it says so itself.
AT_THE_END = {"train", "pretrain", "evaluate", "embed", "explain", "export", "data"}


def main(arguments: list[str] | None = None) -> None:
    """Runs one verb. A mistake that a person can mend is one sentence and exit code 2, never a traceback."""
    warnings.showwarning = _one_line
    _wait_patiently()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(arguments)
        sys.stdout.flush()  # what a pipe has not taken yet, while there is someone to mind
    except VitrailError as error:
        print(f"vitrail: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt as stopped:
        unsaved = "Stopped; nothing was saved yet." if AT_THE_END.intersection(arguments[:1]) else "Stopped."
        print(f"vitrail: {str(stopped) or unsaved}", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader of a pipe has left, as `head` does: what a shell says of who was ended by that
        from vitrail.cli.pictures import to_nobody

        to_nobody(sys.stdout)
        code = 141
    sys.exit(code or 0)


def _wait_patiently() -> None:
    """PyTorch's threads spin while they wait for each other: on a machine that others use as well, for one that has no
    core, which takes twice the time. A thousand turns are enough where it is quiet. OpenMP reads this when it is
    loaded."""
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def _run(arguments: list[str]) -> Any:
    """One verb alone is read with its own options, so that what is said of a slip is about that verb."""
    if arguments == ["--version"]:
        return print(f"vitrail {__version__}")
    import tyro

    from vitrail.cli.options import registry

    verb, rest = (arguments or [""])[0], arguments[1:]
    if not verb or verb in ("-h", "--help") or verb.startswith("--tyro-"):
        return tyro.extras.subcommand_cli_from_dict(
            {verb: _verb(verb) for verb in VERBS},
            prog="vitrail",
            description="Train, evaluate, use and ship Vision Transformers, from a folder of images.\n"
            "`vitrail COMMAND --help` has a command's options; `vitrail --version` says which Vitrail this is.",
            args=arguments,
            registry=registry(),
        )
    if verb.startswith("-"):
        raise VitrailError(f"A command comes first, then its options, such as {verb}; there are {', '.join(VERBS)}.")
    if verb not in VERBS:
        raise VitrailError(f"There is no command {verb!r}; there are {', '.join(VERBS)}.{nearest(verb, VERBS)}")
    if verb == "data" and rest and not rest[0].startswith("-") and rest[0] != "inspect":
        raise VitrailError(f"There is no command 'data {rest[0]}'; there is `vitrail data inspect`.")
    module = importlib.import_module(f"vitrail.cli.{verb}")
    if hasattr(module, "command"):  # whose options depend on the arguments
        return module.command(rest, registry())
    return tyro.cli(_verb(verb), prog=f"vitrail {verb}", args=rest, registry=registry())


def _verb(name: str) -> Any:
    from vitrail.cli.options import helpful

    return helpful(getattr(importlib.import_module(f"vitrail.cli.{name}"), name))


def _one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"vitrail: note: {message}", file=sys.stderr)
