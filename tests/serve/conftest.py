"""A Studio of small untrained models, in a process of its own, and a browser to look at it with."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail

LABELS = ["heron", "owl", "teal", "wren", "rook"]


@dataclass
class Served:
    address: str
    process: subprocess.Popen
    model: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def memory(self) -> float:
        """Of the server, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    @contextmanager
    def growth(self) -> Iterator[list[float]]:
        """How far above its start its memory ever was inside, in MB. By looking often: the kernel's own record also
        holds what a start took."""
        before, done, most = self.memory(), threading.Event(), [0.0]

        def look() -> None:
            while not done.wait(0.002):
                most[0] = max(most[0], self.memory() - before)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield most
        finally:
            done.set()
            watcher.join()


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[Served]:
    """A Studio in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vitrail", "studio", str(model), *arguments,
         "--port", "0", "--no-browser", "--device", "cpu"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    address = re.search(r"http://\S+", process.stdout.readline())
    assert address
    try:
        yield Served(address[0], process, model)
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def served_here(predictor: vitrail.Predictor) -> Iterator[str]:
    """A Studio in a thread of this process, which has loaded torch already."""
    import uvicorn

    from vitrail.serve.app import make_app
    from vitrail.serve.run import listen
    from vitrail.serve.views import Lens

    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app([Lens(predictor)], []), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A ViT of 4 blocks with a head that is sure of itself, a Swin, and a masked autoencoder."""
    folder = tmp_path_factory.mktemp("studio")
    torch.manual_seed(0)
    vit = vitrail.create_model("vit_ti16", depth=4, image_size=96, num_classes=5)
    swin = vitrail.create_model("swin_t", width=24, depths=(1, 2), heads=(2, 4), window=6, image_size=96, num_classes=5)
    for model in (vit, swin):
        torch.nn.init.normal_(model.head.output.weight, std=0.3)
    for block in vit.blocks:  # sharp enough that a map has a peak
        torch.nn.init.normal_(block.attention.qkv.weight, std=0.08)
    mae = vitrail.create_model("mae_b16", width=48, depth=1, heads=3, decoder_width=48, decoder_depth=1,
                               decoder_heads=3, image_size=96)  # fmt: skip
    paths = []
    for name, model in (("small vit", vit), ("small swin", swin), ("small mae", mae)):
        labels = LABELS if name != "small mae" else None
        paths.append(vitrail.save_weights(model, folder / f"{name[6:]}.safetensors", labels=labels, name=name))
    with serving(paths[0], str(paths[1]), "--mae", str(paths[2])) as served:
        yield served


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128×96: a disc on a gradient, so that no two patches are alike."""
    rows, columns = np.mgrid[:96, :128]
    pixels = np.stack([2 * columns, 255 - 2 * rows, rows + columns], axis=-1).clip(0, 255)
    pixels[(rows - 40) ** 2 + (columns - 70) ** 2 < 500] = (240, 200, 30)
    path = tmp_path_factory.mktemp("pictures") / "disc.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Debian's Chromium. `scripts/setup.sh test` installs it where it can."""
    from playwright.sync_api import sync_playwright

    names = [os.environ.get("VITRAIL_BROWSER", ""), "chromium", "chromium-browser", "google-chrome"]
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: as root, run `apt-get install chromium`")
    with sync_playwright() as running:
        # Chromium's sandbox does not run as root, which is what containers do; the page is our own.
        chromium = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
