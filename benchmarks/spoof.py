"""Face anti-spoofing on NUAA: frozen DeiT-Ti with adapters beside head-only and full fine-tuning, as the figures fall.

    python benchmarks/spoof.py nuaa --weights deit_tiny.safetensors --seeds 0 1 2 --out records/spoof

DATA is a folder with NUAA's own lists (client_train_raw.txt, …) and pictures. Each method is trained and tested twice:

    official   the lists as they are; their train and test share subjects, which is said and recorded
    folds      the union of both, three folds by subject; each fold has development subjects of its own

NUAA's pictures show the hands that hold a photograph, which is easy. With --boxes, a table of face boxes, and
--margin 0 nothing but the face is left, which is the harder and the more honest question.

The threshold is chosen on the development subjects, and the test set is looked at once. `shuffled` is the check against
leakage: the same with the labels shuffled within train, development and test must be near chance. (Against the true
labels, which are told beside it, a model that knows nothing may still lie far off: the faces of a kind are alike, so
that whatever it says, it says of most of them.)

A finished run is kept as OUT/runs/NAME.json, with its scores, and not made again. OUT/spoof.json has the summary,
OUT/histograms.png and OUT/det.png the scores and the trade-offs of all runs.
"""

import argparse
import contextlib
import csv
import json
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from record import keep

import vitrail
from vitrail.data.sources.faces import open_faces, write_faces
from vitrail.data.sources.faces.samples import MARGIN
from vitrail.environment import versions
from vitrail.models.tuning import learns
from vitrail.tasks.spoof.evaluate import scored_faces
from vitrail.tasks.spoof.metrics import Scored, attack_scores

METHODS = ("full", "head", "adapter")
FIGURES = ("eer", "hter", "acer", "auc", "apcer", "bpcer", "bpcer_at_apcer_1", "bpcer_at_apcer_5", "bpcer_at_apcer_10")


def protocols(folds: int) -> dict[str, dict[str, Any]]:
    parts = {f"fold {i} of {folds}": {"fold": f"{i}/{folds}"} for i in range(1, folds + 1)}
    return {"official": {"protocol": "official"}} | parts


def shuffled_table(split: Path, table: Path, seed: int) -> Path:
    """The faces of a run, with their labels shuffled within each split."""
    with split.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rng = np.random.default_rng(seed)
    for part in ("train", "val", "test"):
        own = [row for row in rows if row["split"] == part]
        labels = [(row["label"], row["attack"]) for row in own]
        for row, place in zip(own, rng.permutation(len(own)), strict=True):
            row["label"], row["attack"] = labels[place]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return table


def one_run(task: dict[str, Any]) -> dict[str, Any]:
    """Trains, and measures the test faces at the threshold of the development faces."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp()) / "run"
    options = dict(task["options"])
    data, true = task["data"], {}
    if task["shuffled"]:
        cut = {name: options.pop(name) for name in ("boxes", "margin") if name in options}
        source = open_faces(data, fold=options.pop("fold"), seed=options["seed"], **cut)
        options |= {"margin": cut["margin"]} if "margin" in cut else {}  # the boxes are in the table
        true = {str(face.where): face.attack for face in source.splits["test"]}
        plain = write_faces(folder.parent / "plain.csv", source.splits)
        data = str(shuffled_table(plain, folder.parent / "shuffled.csv", options["seed"]))
    with open(task["log"], "w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        run = vitrail.train(data, task="spoof", out=folder, **options)
    trained = time.monotonic() - began
    predictor = vitrail.load(run, device=options.get("device"))
    # The table of a run has its faces, with their subjects, as it used them.
    margin = predictor.about["protocol"].get("margin", MARGIN)
    faces = open_faces(folder / "split.csv", margin=margin, training=False).splits["test"]
    rows = torch.stack([one.values for one in predictor.stream(faces, batch_size=256)])
    scored = scored_faces(attack_scores(rows.numpy()), faces)
    threshold = predictor.about["threshold"]
    record = json.loads((folder / "run.json").read_text())
    kind = options["tune"]
    weights = [(name, p.numel()) for name, p in predictor.model.named_parameters()]
    result = {
        "name": task["name"],
        "facts": facts(),
        "method": kind,
        "protocol": task["protocol"],
        "seed": options["seed"],
        "shuffled": task["shuffled"],
        "test": scored.figures(threshold),
        "test_by_true_labels": Scored(scored.scores, [true[str(f.where)] for f in faces]).curve().eer if true else None,
        "development": {k: v for k, v in run.metrics.items() if k in FIGURES or k in ("n", "subjects", "threshold")},
        "subjects": scored.by_subject(threshold),
        "record": record["protocol"],
        "recipe": {k: record["recipe"][k] for k in ("epochs", "batch_size", "lr", "tune", "augment", "balance")},
        "kept": {k: predictor.about["metrics"].get(k) for k in ("epoch", "share")},
        "learnt": sum(count for name, count in weights if learns(name, kind)),
        "parameters": sum(count for _, count in weights),
        "seconds": round(trained, 1),
        "scores": [round(float(s), 8) for s in scored.scores],
        "attacks": scored.attacks.tolist(),
    }
    shutil.rmtree(folder.parent)
    return result


def facts() -> dict[str, str]:
    return versions(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per method: the official lists, mean and spread over seeds; the folds, mean and spread over folds of the mean
    over seeds, so that a spread says how much depends on whose faces are tested."""
    rows = []
    for shuffled in (False, True):
        for method in METHODS:
            for official in (True, False):
                own = [
                    r for r in results
                    if r["method"] == method and r["shuffled"] == shuffled and (r["protocol"] == "official") == official
                ]  # fmt: skip
                if not own:
                    continue
                row = {"method": method, "protocol": "official" if official else "folds", "shuffled": shuffled}
                row |= {"runs": len(own), "learnt": own[0]["learnt"], "seconds": np.mean([r["seconds"] for r in own])}
                for part in ("test", "development"):
                    for name in FIGURES:
                        groups: dict[str, list[float]] = {}
                        for r in own:
                            key = str(r["seed"]) if official or shuffled else r["protocol"]
                            groups.setdefault(key, []).append(r[part].get(name, float("nan")))
                        means = [float(np.mean(values)) for values in groups.values()]
                        row[f"{part}_{name}"] = float(np.mean(means))
                        row[f"{part}_{name}_spread"] = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                rows.append(row)
    return rows


def told(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'method':8} {'protocol':9} {'learnt':>10}  " + "  ".join(f"{n:>14}" for n in FIGURES[:6])]
    for row in rows:
        cells = [f"{100 * row[f'test_{n}']:6.2f} ± {100 * row[f'test_{n}_spread']:5.2f}" for n in FIGURES[:6]]
        name = row["method"] + (" (labels shuffled)" if row["shuffled"] else "")
        lines.append(f"{name:8} {row['protocol']:9} {row['learnt']:>10,}  " + "  ".join(f"{c:>14}" for c in cells))
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], out: Path) -> None:
    """Histograms of the scores by their odds, and DET curves; a fold's scores together with those of the others."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plain = [r for r in results if not r["shuffled"]]
    methods = [m for m in METHODS if any(r["method"] == m for r in plain)]
    kinds = [("official lists", True), ("folds by subject", False)]
    figure, axes = plt.subplots(len(methods), 2, figsize=(10, 2.4 * len(methods)), sharex=True, squeeze=False)
    ticks = [0.0001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999]
    for line, method in zip(axes, methods, strict=True):
        for axis, (title, official) in zip(line, kinds, strict=True):
            own = [r for r in plain if r["method"] == method and (r["protocol"] == "official") == official]
            if not own:
                axis.axis("off")
                continue
            scores, live = np.concatenate([r["scores"] for r in own]), np.concatenate([_live(r) for r in own])
            odds = np.clip(_odds(scores), -10, 10)
            for kind, name, style in ((live, "live", "step"), (~live, "attacks", "stepfilled")):
                axis.hist(odds[kind], np.linspace(-10, 10, 61), density=True, histtype=style, alpha=0.6, label=name)
            for r in own:
                axis.axvline(float(_odds(np.array([r["test"]["threshold"]]))[0]), color="black", lw=0.5, alpha=0.5)
            axis.set_title(
                f"{method}, {title}: EER {100 * np.mean([r['test']['eer'] for r in own]):.1f} %", fontsize=10
            )
            axis.set_xticks(_odds(np.array(ticks)), [f"{tick:g}" for tick in ticks])
            axis.set_yticks([])
    axes[0][0].legend(frameon=False)
    figure.supxlabel("score, 1 − P(live); fine lines: the thresholds of the development subjects", fontsize=10)
    figure.tight_layout()
    figure.savefig(out / "histograms.png", dpi=130)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True)
    deviate = np.vectorize(lambda rate: NormalDist().inv_cdf(min(max(float(rate), 5e-4), 0.95)))
    rates = [0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8]
    for axis, (title, official) in zip(axes, kinds, strict=True):
        for colour, method in zip(("C0", "C1", "C2"), METHODS, strict=True):
            own = [r for r in plain if r["method"] == method and (r["protocol"] == "official") == official]
            for number, r in enumerate(own):
                curve = Scored(np.array(r["scores"]), r["attacks"]).curve()
                label = None if number else method
                axis.plot(deviate(curve.apcer), deviate(curve.bpcer), color=colour, lw=0.9, alpha=0.7, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(deviate(rates), [f"{100 * rate:g}" for rate in rates])
        axis.set_yticks(deviate(rates), [f"{100 * rate:g}" for rate in rates])
        axis.grid(alpha=0.3)
        axis.set_xlabel("APCER: attacks that pass, %")
    axes[0].set_ylabel("BPCER: live faces turned away, %")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out / "det.png", dpi=130)


def _live(result: dict[str, Any]) -> np.ndarray:
    return np.array([not kind for kind in result["attacks"]])


def _odds(scores: np.ndarray) -> np.ndarray:
    p = np.clip(scores, 1e-6, 1 - 1e-6)
    return np.log(p / (1 - p))


def tasks_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    common = {
        name: getattr(arguments, name)
        for name in ("weights", "epochs", "batch_size", "image_size", "device", "model", "workers", "boxes", "margin")
        if getattr(arguments, name) is not None
    }
    tasks = []
    for seed in arguments.seeds:
        for protocol, chosen in protocols(arguments.folds).items():
            for method in arguments.methods:
                options = common | chosen | {"tune": method, "seed": seed}
                tasks.append({"protocol": protocol, "options": options, "shuffled": False})
                # One fold and one seed say as much as all of what can't be learned.
                if arguments.shuffled and protocol.startswith("fold 1") and seed == arguments.seeds[0]:
                    tasks.append({"protocol": protocol, "options": options, "shuffled": True})
    for task in tasks:
        words = [task["protocol"], task["options"]["tune"], f"seed {task['options']['seed']}"]
        task["name"] = "-".join(words + ["shuffled"] * task["shuffled"]).replace(" ", "_")
        task |= {"data": arguments.data, "log": str(arguments.out / "runs" / f"{task['name']}.log")}
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--model", default=None)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--boxes", help="a table of face boxes; without it, the whole pictures")
    parser.add_argument("--margin", type=float, help="around a face box; 0 leaves the face alone")
    parser.add_argument("--shuffled", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=Path("records/spoof"))
    arguments = parser.parse_args()
    arguments.data = str(Path(arguments.data).absolute())
    (arguments.out / "runs").mkdir(parents=True, exist_ok=True)
    tasks = tasks_of(arguments)
    kept = {task["name"]: arguments.out / "runs" / f"{task['name']}.json" for task in tasks}
    missing = [task for task in tasks if not kept[task["name"]].exists()]
    print(f"{len(tasks)} runs, {len(tasks) - len(missing)} of them done before", flush=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(one_run, task) for task in missing]):
            result = done.result()
            kept[result["name"]].write_text(json.dumps(result))
            test, development = result["test"], result["development"]
            shown = "  ".join(f"{name.upper()} {test[name]:6.2%}" for name in FIGURES[:4])
            by_true = f"; by the true labels EER {result['test_by_true_labels']:.2%}" if result["shuffled"] else ""
            print(
                f"{result['name']:36} {shown}; development EER {development['eer']:6.2%}, "
                f"{development['subjects']} subjects; kept {result['kept']}, {result['seconds']:.0f} s{by_true}",
                flush=True,
            )
    results = [json.loads(path.read_text()) for path in kept.values()]
    rows = summary(results)
    runs = [{k: v for k, v in r.items() if k not in ("scores", "attacks")} for r in results]
    paths = {name: Path(getattr(arguments, name) or "").name for name in ("data", "weights", "boxes", "out")}
    whole = {"arguments": vars(arguments) | paths, "summary": rows, "runs": runs}
    keep(arguments.out / "spoof.json", whole, arguments.device)
    draw(results, arguments.out)
    print(told(rows), flush=True)


if __name__ == "__main__":
    main()
