"""`vitrail studio`: a page on this machine that looks into models."""

from pathlib import Path
from typing import Annotated

import tyro


def studio(
    run: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")] = [],  # noqa: B006
    mae: str | None = None,
    samples: Path | None = None,
    port: int = 7860,
    host: str = "127.0.0.1",
    browser: bool = True,
    architecture: str | None = None,
    device: str | None = None,
) -> None:
    """Opens the Studio: drop an image, and see how the model sees it. Nothing leaves this machine.

    Args:
        run: A run folder, a checkpoint, hf://org/name, or a catalog name; several can be looked at side by side. By
            default the model that ships inside.
        mae: A masked autoencoder (a run of `vitrail pretrain`, a checkpoint, …): hides patches, and paints them back.
            By default the one that ships inside.
        samples: A folder of images to choose from.
        port: Where to listen; 0 takes any free port.
        host: The address to listen on; 127.0.0.1 is reached from this machine only.
        browser: Open a browser window.
        architecture: What a bare checkpoint in RUN is a checkpoint of, where it could be several.
        device: cpu or cuda; the GPU where there is one.
    """
    from vitrail.serve import studio as serve
    from vitrail.serve.guard import is_loopback
    from vitrail.serve.run import open_browser
    from vitrail.weights.shipped import default_model

    if not run and not mae:
        run = [default_model()]

    def ready(address: str) -> None:
        print(f"Vitrail Studio is at {address} (Ctrl+C stops it).", flush=True)
        if not is_loopback(host):
            print(f"It listens on {host}: whoever can reach it can use it, for there is no password.", flush=True)
        if browser:
            open_browser(address)

    serve(run, port, host, samples, architecture, device, ready, mae)
