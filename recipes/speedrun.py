"""How long a transformer takes to an accuracy, from scratch on one GPU: the same recipe with several seeds.

    python recipes/speedrun.py --data cifar10.npz --validate 0.1 --seeds 0 --set epochs=30       to tune, without test/
    python recipes/speedrun.py --data cifar10.npz --json records/speedrun/cifar10.json            for the record

The time that counts is that of all epochs. The first one also waits for the compiler: what it takes longer than the
median of the others is taken off and stated apart, and so is the whole of the call, with reading and writing. test/ is
looked at after the last epoch alone, whose weights are kept: as it is, and with the mean of mirror images. A record
that is there already is added to: the seeds that it has are not run again.
"""

import argparse
import hashlib
import json
import shlex
import sys
import tempfile
import time
from ast import literal_eval
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from vitrail.data.sources.classification import open_source
from vitrail.environment import versions
from vitrail.models.cost import cost
from vitrail.models.registry import model_settings
from vitrail.whole import whole

MODEL = "hybrid_mini4"
RECIPE: dict[str, Any] = {
    "epochs": 44, "batch_size": 512, "lr": 4e-3, "optimizer": "muon", "weight_decay": 0.3, "warmup": 2.0,
    "drop_path": 0.1, "augment": "medium", "mixup": 0.0, "cutmix": 1.0, "calm": 12, "compile": "on",
}  # fmt: skip


def blocks_share(model: str) -> float:
    """Of the multiply-adds, the part in attention and MLP; the rest is the stem's and the head's."""
    name, _, rest = model.partition(":")
    kept = [word for word in rest.split(",") if word and not word.startswith("depth=")]
    one, two = (cost(f"{name}:{','.join([*kept, f'depth={depth}'])}").multiply_adds for depth in (1, 2))
    return 1 - (one - (two - one)) / cost(model).multiply_adds


def digest(data: Path) -> str:
    """Of the arrays, however the file was packed."""
    total = hashlib.sha256()
    with np.load(data) as arrays:
        for name in sorted(arrays.files):
            total.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()[:16]


def run(
    data: Path, model: str, recipe: dict[str, Any], seed: int, validate: float, device: str, out: Path
) -> dict[str, Any]:
    """One row of the record. What was interrupted in `out` is resumed; `wall_seconds` has not the time before that."""
    asked = recipe | {"model": model, "weights": "none", "seed": seed, "val": validate}
    began, resumed = time.monotonic(), (out / "run.json").exists()
    if resumed:
        kept = json.loads((out / "run.json").read_text(encoding="utf-8"))
        others = [name for name, value in asked.items() if kept["given"].get(name) != value]
        if others or Path(kept["data"]) != data.absolute():
            raise SystemExit(f"{out} holds a run with another {[*others, 'data'][0]}: give --keep another folder.")
        done = vitrail.train(resume=True, out=out, device=device)
    else:
        done = vitrail.train(str(data), device=device, out=out, **asked)
    wall = time.monotonic() - began
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in rows]
    # The first epoch waits for the compiler; it would have taken what the others take.
    compiled = max(0.0, seconds[0] - float(np.median(seconds[1:]))) if len(seconds) > 1 else 0.0
    figures = {"top1": rows[-1].get("val_top1")}
    if not validate:
        names = {"top1": False, "top1_with_mirror_images": True}
        figures = {
            name: vitrail.evaluate(done, str(data), "test", flip=flip, batch_size=500)["top1"]
            for name, flip in names.items()
        }
    return {
        "seed": seed, "figures": figures, "of": "validation" if validate else "test", "epochs": len(rows),
        "seconds": round(sum(seconds) - compiled, 2), "compile_seconds": round(compiled, 2),
        "wall_seconds": round(wall, 2), "images_seen": sum(row["images"] for row in rows),
        "images_per_second": round(float(np.median([row["images_per_second"] for row in rows[1:] or rows]))),
    } | ({"resumed": True} if resumed else {})  # fmt: skip


def words(runs: list[dict[str, Any]]) -> str:
    right, seconds = np.array([row["figures"]["top1"] for row in runs]), np.array([row["seconds"] for row in runs])
    spread = f" ± {100 * right.std(ddof=1):.2f}" if len(runs) > 1 else ""
    return (
        f"{len(runs)} seeds: {100 * right.mean():.2f}{spread} % ({100 * right.min():.2f} to {100 * right.max():.2f}) "
        f"of {runs[0]['of']} images right after {seconds.mean():.1f} s ({seconds.min():.1f} to {seconds.max():.1f}), "
        f"{runs[0]['images_seen'] / 1e6:.2f} M images"
    )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of vitrail.train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--validate", type=float, default=0.0, help="part of train/ to hold out and measure on instead")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the runs, which are removed otherwise; again to go on")
    asked = parser.parse_args(arguments)
    recipe = dict(RECIPE)
    for word in asked.set:
        name, _, value = word.partition("=")
        with suppress(ValueError, SyntaxError):  # a bare word is itself
            value = literal_eval(value)
        recipe[name] = value
    settings = model_settings(asked.model, num_classes=len(open_source(asked.data).classes))
    found: dict[str, Any] = {
        "commands": [shlex.join(["python", "recipes/speedrun.py", *(arguments or sys.argv[1:])])],
        "data": {"name": asked.data.name, "sha256": digest(asked.data)}, "validate": asked.validate,
        "model": asked.model, "parameters": cost(settings).parameters, "recipe": recipe, "runs": [],
        "share_of_blocks": round(blocks_share(asked.model), 4), "versions": versions(torch.device(asked.device)),
    }  # fmt: skip
    print(
        f"{asked.model}: {found['parameters'] / 1e6:.2f} M, {found['share_of_blocks']:.1%} of its arithmetic in blocks"
    )
    if asked.json and asked.json.exists():
        before = json.loads(asked.json.read_text())
        for name in ("model", "recipe", "data", "validate", "versions"):
            if before[name] != found[name]:
                raise SystemExit(
                    f"{asked.json} has runs with another {name}, {before[name]}: give this one another name."
                )
        found |= {"runs": before["runs"], "commands": before["commands"] + found["commands"]}
    for seed in (seed for seed in asked.seeds if all(row["seed"] != seed for row in found["runs"])):
        with nullcontext(asked.keep) if asked.keep else tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / f"seed-{seed}"
            row = run(asked.data, asked.model, recipe, seed, asked.validate, asked.device, out)
        found["runs"].append(row)
        print(
            f"  seed {seed}: {row['figures']['top1']:.2%}, {row['seconds']:.1f} s, compiled in "
            f"{row['compile_seconds']:.1f}, {row['images_per_second']:,} images/s",
            flush=True,
        )
        if asked.json:
            with whole(asked.json) as unfinished:
                unfinished.write_text(json.dumps(found, indent=1) + "\n")
    print(words(found["runs"]))
    return found


if __name__ == "__main__":
    main()
