"""The Studio as its visitor waits for it, measured in a real browser.

    python benchmarks/studio.py --model deit_tiny.safetensors --pictures photos/

Two times, both taken by the page itself. `drawn`: from the drop of a picture until everything is on the screen, that is
classes, the strip, all attention maps, rollout, relevance, plots and positions, and the frame after them. `hover`: from
the movement of the pointer, as the browser stamps it, until the overlay and all the small maps of the heads are drawn.
The server and the browser share the machine, as they do on a laptop. Each picture is new to the server. There is no
peer to run beside: none draws this. `--json FILE` keeps the numbers.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

WANTED = {"drawn": 2000.0, "hover": 50.0}  # milliseconds, on two cores with DeiT-Ti


def serve(model: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "vitrail", "studio", model, "--port", "0", "--no-browser", "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline() if process.stdout else ""
    if not (found := re.search(r"http://\S+", line)):
        raise SystemExit(f"The Studio did not start: {line}")
    return process, found[0]


def measure(page: Any, pictures: list[Path], hovers: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"drawn": [], "hover": []}
    for number, path in enumerate(pictures):
        page.set_input_files("#file", path)
        page.wait_for_selector("html[data-state=busy]", state="attached")
        page.wait_for_selector("html[data-state=ready]", state="attached", timeout=120_000)
        times["drawn"].append(last(page, "drawn"))
        box = page.locator(".stage canvas").bounding_box()
        for step in range(hovers):
            # A walk that never stays on one patch.
            across, down = ((3 * step + number) % 14 + 0.5) / 14, ((5 * step) % 14 + 0.5) / 14
            times["hover"].append(hover(page, box["x"] + across * box["width"], box["y"] + down * box["height"]))
            page.wait_for_timeout(20)
    return times


def last(page: Any, name: str) -> Any:
    """Milliseconds, or None."""
    return page.evaluate(f"performance.getEntriesByName('{name}').at(-1)?.duration ?? null")


def hover(page: Any, x: float, y: float, seconds: float = 10) -> float:
    """Of this movement: the measure before is cleared first, so that a slow one is waited for and not passed over."""
    page.evaluate("performance.clearMeasures('hover')")
    page.mouse.move(x, y)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if (found := last(page, "hover")) is not None:
            return found
        page.wait_for_timeout(10)
    raise SystemExit(f"A movement of the pointer to {x:.0f}, {y:.0f} drew nothing in {seconds:.0f} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pictures", type=Path, required=True, help="a folder of photographs")
    parser.add_argument("--count", type=int, default=20, help="how many of them, after two to warm up")
    parser.add_argument("--hovers", type=int, default=20, help="movements over each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    pictures = sorted(p for p in options.pictures.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    step = max(1, len(pictures) // (options.count + 2))
    pictures = pictures[::step][: options.count + 2]
    program = shutil.which("chromium") or shutil.which("google-chrome")
    process, address = serve(options.model)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(address)
            page.wait_for_selector("html[data-state=empty]", state="attached")
            measure(page, pictures[:2], 5)
            start = time.perf_counter()
            times = measure(page, pictures[2:], options.hovers)
            version = browser.version
            browser.close()
    finally:
        process.terminate()
    print(f"{options.model}: {len(pictures) - 2} pictures, {time.perf_counter() - start:.0f} s, Chromium {version}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {platform.machine()}\n")
    result: dict[str, Any] = {"model": options.model, "cores": os.cpu_count(), "chromium": version}
    for name, values in times.items():
        values.sort()
        figures = {
            "median": statistics.median(values), "p95": values[int(0.95 * (len(values) - 1))], "worst": values[-1],
        }  # fmt: skip
        result[name] = {key: round(value, 1) for key, value in figures.items()} | {"n": len(values)}
        held = "holds" if figures["worst"] <= WANTED[name] else "does not hold"
        said = ", ".join(f"{key} {value:,.0f} ms" for key, value in figures.items())
        print(f"{name:6} {said} (n = {len(values)}); at most {WANTED[name]:,.0f} ms: {held}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
