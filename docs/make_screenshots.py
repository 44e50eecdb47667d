"""Takes the screenshots of README and docs from a Studio:  python docs/make_screenshots.py --weights DEIT_TINY

The photograph of Grace Hopper ships with matplotlib and is in the public domain; `--picture` takes another. Needs the
extra `test` and Chromium, as the Studio's own tests do.
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
GRACE = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
LARGEST = 400_000


def shot(page: Any, name: str) -> None:
    """With all its colours if that is small enough, else with 256, dithered."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = HERE / "pictures" / f"{name}.png"
    image.save(path, optimize=True)
    if path.stat().st_size >= LARGEST:
        palette = image.quantize(256, kmeans=4)
        image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.name}: {image.width}×{image.height}, {size / 1000:.0f} kB")
    assert size < LARGEST, f"{path} has {size} bytes"


def visit(browser: Any, address: str, picture: Path, width: int, height: int, scheme: str, scale: float = 1) -> Any:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale)
    page.goto(address)
    page.wait_for_selector("html[data-state=empty]", state="attached")
    page.set_input_files("#file", picture)
    page.wait_for_selector("html[data-state=ready]", state="attached", timeout=120_000)
    return page


def hover(page: Any, down: float, across: float) -> None:
    box = page.locator(".stage canvas").first.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    page.wait_for_timeout(400)


def slide(page: Any, name: str, value: int) -> None:
    script = "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})); }"
    page.locator(f"#{name}").evaluate(script, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="deit_ti16")
    parser.add_argument("--picture", type=Path, default=GRACE)
    options = parser.parse_args()
    (HERE / "pictures").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "vitrail", "studio", options.weights, "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://\S+", process.stdout.readline() if process.stdout else "")
        if not found:
            raise SystemExit("The Studio did not start.")
        program = shutil.which("chromium") or shutil.which("google-chrome")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = visit(browser, found[0], options.picture, 1440, 900, "light")
            slide(page, "head", 3)
            hover(page, 0.3, 0.6)
            shot(page, "studio")
            page.close()
            page = visit(browser, found[0], options.picture, 1440, 900, "dark")
            page.keyboard.press("3")
            page.wait_for_timeout(300)
            shot(page, "studio_dark")
            page.close()
            page = visit(browser, found[0], options.picture, 390, 844, "light", 2)
            slide(page, "layer", 8)
            hover(page, 0.3, 0.1)
            shot(page, "studio_phone")
            browser.close()
    finally:
        process.terminate()


if __name__ == "__main__":
    main()
