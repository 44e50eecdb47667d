"""How long a transformer takes to an accuracy, from scratch on one GPU: the same recipe with several seeds.

    python recipes/speedrun.py --data cifar10.npz --validate 0.1 --seeds 0 --set epochs=40       to tune, without test/
    python recipes/speedrun.py --data cifar10.npz --json records/speedrun/cifar10.json            for the record

The time that counts is that of all epochs. The first one also waits for the compiler: what it takes longer than the
median of the others is taken off and stated apart, and so is the whole of the call, with reading and writing. test/ is
read once, after the last epoch, whose weights are kept.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from ast import literal_eval
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from vitrail.models.cost import cost
from vitrail.train.record import versions

MODEL = "hybrid_mini4"
RECIPE: dict[str, Any] = {
    "epochs": 60, "batch_size": 1024, "lr": 4e-3, "optimizer": "muon", "augment": "medium", "mixup": 0.0, "cutmix": 0.0,
    "drop_path": 0.0, "warmup": 3.0,
}  # fmt: skip


def blocks_share(model: str) -> float:
    """Of the multiply-adds, the part in attention and MLP; the rest is the stem's and the head's."""
    name, _, rest = model.partition(":")
    kept = [word for word in rest.split(",") if word and not word.startswith("depth=")]
    one, two = (cost(f"{name}:{','.join([*kept, f'depth={depth}'])}").multiply_adds for depth in (1, 2))
    return 1 - (one - (two - one)) / cost(model).multiply_adds


def run(data: Path, model: str, recipe: dict[str, Any], seed: int, validate: float, device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = vitrail.train(
            str(data), model=model, weights="none", seed=seed, val=validate, device=device, out=Path(folder) / "run",
            **recipe,
        )  # fmt: skip
        wall = time.monotonic() - began
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
        seconds = [row["seconds"] for row in rows]
        # The first epoch waits for the compiler; it would have taken what the others take.
        compiled = max(0.0, seconds[0] - float(np.median(seconds[1:]))) if len(seconds) > 1 else 0.0
        figures = {"accuracy": rows[-1].get("val_top1"), "of": "validation"}
        if not validate:
            plain, both = (
                vitrail.evaluate(done, str(data), "test", flip=flip, batch_size=500) for flip in (False, True)
            )
            figures = {"accuracy": plain["top1"], "accuracy_with_mirror_images": both["top1"], "of": "test"}
    return {
        "seed": seed, **figures, "epochs": len(rows),
        "seconds": round(sum(seconds) - compiled, 2), "compile_seconds": round(compiled, 2),
        "wall_seconds": round(wall, 2), "images_seen": sum(row["images"] for row in rows),
        "images_per_second": round(float(np.median([row["images_per_second"] for row in rows[1:] or rows]))),
    }  # fmt: skip


def words(runs: list[dict[str, Any]]) -> str:
    name = "accuracy_with_mirror_images" if "accuracy_with_mirror_images" in runs[0] else "accuracy"
    right, seconds = (np.array([row[each] for row in runs]) for each in (name, "seconds"))
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
    asked = parser.parse_args(arguments)
    recipe = dict(RECIPE)
    for word in asked.set:
        name, _, value = word.partition("=")
        with suppress(ValueError, SyntaxError):  # a bare word is itself
            value = literal_eval(value)
        recipe[name] = value
    found: dict[str, Any] = {
        "command": shlex.join(["python", "recipes/speedrun.py", *(sys.argv[1:] if arguments is None else arguments)]),
        "model": asked.model, "parameters": cost(asked.model).parameters, "recipe": recipe, "runs": [],
        "share_of_blocks": round(blocks_share(asked.model), 4), "versions": versions(torch.device(asked.device)),
    }  # fmt: skip
    print(
        f"{asked.model}: {found['parameters'] / 1e6:.2f} M, {found['share_of_blocks']:.1%} of its arithmetic in blocks"
    )
    for seed in asked.seeds:
        row = run(asked.data, asked.model, recipe, seed, asked.validate, asked.device)
        found["runs"].append(row)
        print(
            f"  seed {seed}: {row['accuracy']:.2%}, {row['seconds']:.1f} s, compiled in {row['compile_seconds']:.1f}, "
            f"{row['images_per_second']:,} images/s",
            flush=True,
        )
        if asked.json:
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(found, indent=1) + "\n")
    print(words(found["runs"]))
    return found


if __name__ == "__main__":
    main()
