"""`vitrail doctor`: what may be wrong with a model, its images and its labels."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

COLOURS = {"ok": "green", "skipped": "dim", "warn": "yellow", "fault": "bold red"}


def doctor(
    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None,
    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = None,
    image_size: int | None = None,
    images: int = 64,
    lr: float | None = None,
    out: Path | None = None,
    json: Path | None = None,
    architecture: str | None = None,
    device: str | None = None,
) -> int:
    """Examines a model, and the images and labels it is to work with, one line per check. Exit code 1 if a fault is
    found.

    Args:
        run: A run folder, a bundle, a checkpoint, hf://org/name, or a catalog name.
        data: Labelled images, as for `train`, or a folder of images; of a run, its own by default, else made-up ones.
        image_size: Side to which images are brought; the model's own by default.
        images: How many images to look at.
        lr: A learning rate to try; of a run, its own by default.
        out: Also draw a page, doctor.html, into this folder.
        json: Also write the findings, as JSON.
        architecture: What a bare checkpoint is a checkpoint of, where it could be several.
        device: cpu or cuda; the GPU where there is one.
    """
    from vitrail.cli.pictures import writing
    from vitrail.data.existence import check_exists
    from vitrail.data.kinds import ANY
    from vitrail.weights.shipped import default_model

    if data is not None:
        check_exists(data, ANY)
    from vitrail.doctor import diagnose  # brings torch

    with writing(json) as file:
        found = diagnose(run or default_model(), data, image_size, images, lr, architecture, device, _printer())
        if file is not None:
            jsonlib.dump(found.as_dict(), file, indent=2, ensure_ascii=False)
    print(found.verdict)
    if out is not None:
        print(f"Page: {found.save(out)}")
    return 1 if found.faults else 0


def _printer() -> Any:
    """A line as it comes, its first word in colour on a terminal."""
    console: Any = None
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)

    def show(finding: Any) -> None:
        line = str(finding)
        if console is None:
            print(line, flush=True)
        else:
            start = finding.severity
            console.print(f"[{COLOURS[start]}]{start}[/]", end="")
            console.print(line.removeprefix(start), markup=False, soft_wrap=True)

    return show
