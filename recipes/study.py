"""One runner for all studies: named variants × seeds → runs → one record, which `plot.py` draws.

    python recipes/positions.py --data cifar10.npz --jobs 3           all of it
    python recipes/positions.py --data cifar10.npz --minutes 9        what can be begun in nine minutes; again to go on
    python recipes/positions.py --data cifar10.npz --small --jobs 2   the same question for two CPU cores
    python recipes/positions.py --toy                                 on 8×8 digits, in seconds: does all of it work?
    python recipes/positions.py --list                                what would be run, and the minutes planned
    python recipes/study.py                                           all studies, with their questions

A run that is finished is kept, as JSON beside its folder, and one that was interrupted is resumed. What the record has
already, with the same settings and pictures, is not run again, on another machine either. Every run learns
from train/ alone, of which `vitrail.train` holds out its own validation images; test/ is read once, at the end.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measure
import numpy as np
import scales
import torch

import vitrail
from vitrail.data.sources import open_source
from vitrail.models.catalog import model_settings
from vitrail.train.record import versions

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "records" / "studies"
Rows = dict[tuple[str, int], dict[str, Any]]  # by variant and seed


@dataclass(frozen=True)
class Variant:
    """One thing to try. In `options`, "run:NAME" stands for the run of another variant, of the same seed."""

    name: str
    model: str = "vit_mini4"
    settings: dict[str, Any] = field(default_factory=dict)  # of the model, by name
    options: dict[str, Any] = field(default_factory=dict)  # of vitrail.train, or vitrail.pretrain
    verb: str = "train"  # train | pretrain | look (at the run that `of` names) | cost
    of: str = ""
    images: int | None = None  # to learn from: a part of train/, of every class its share
    measure: str = "accuracy"  # a function of measure.py
    line: str = ""  # in the plot: which line, or which group of bars
    x: float | str | None = None  # "parameters": millions of them, as the run has them
    means: bool = False  # a means, such as a teacher: in the record, not in the plot
    once: bool = False  # one run, of seed 0, that serves all seeds

    def seed(self, asked: int) -> int:
        return 0 if self.once else asked

    def place(self, work: Path, seed: int) -> Path:
        return work / f"{slug(self.name)}-{self.seed(seed)}"

    def result(self, work: Path, seed: int) -> Path:
        """Its row, once it is done."""
        place = self.place(work, seed)
        return place.with_name(f"{place.name}.json")

    @property
    def needs(self) -> set[str]:
        named = {value[4:] for value in self.options.values() if isinstance(value, str) and value.startswith("run:")}
        return named | ({self.of} if self.of else set())

    @property
    def starts(self) -> set[str]:
        """Whose weights it has to begin with: what those have seen counts as seen. A teacher's eyes are its own."""
        weights = str(self.options.get("weights", ""))
        return {weights[4:]} if weights.startswith("run:") else {self.of} - {""}


@dataclass(frozen=True)
class Study:
    name: str
    question: str
    variants: list[Variant]
    minutes: float  # planned, for all seeds, on one H200
    data: str = "cifar10.npz"
    seeds: tuple[int, ...] = (0,)
    figure: str = "top1"  # what is drawn
    axis: str = "accuracy on test images, %"
    x: str = ""  # what the horizontal axis says; without it, bars
    logarithmic: str = ""  # which axes: x, y or xy; with both, the plot fits exponents
    beside: tuple[str, str] = ()  # type: ignore[assignment]  # another figure and its axis, for a second panel
    notes: str = ""

    @property
    def without_data(self) -> bool:
        """What a model costs needs no pictures."""
        return all(variant.verb == "cost" for variant in self.variants)

    def find(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def order(self) -> list[list[Variant]]:
        """In waves: each needs only what the ones before have made."""
        waves: list[list[Variant]] = []
        done: set[str] = set()
        while rest := [variant for variant in self.variants if variant.name not in done]:
            wave = [variant for variant in rest if variant.needs <= done]
            if not wave:
                raise ValueError(f"{rest[0].name} needs {rest[0].needs - done}, which nothing makes")
            waves.append(wave)
            done |= {variant.name for variant in wave}
        return waves


def slug(name: str) -> str:
    """The name of a variant as that of a folder."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")


def part(data: Path, count: int, folder: Path) -> Path:
    """So many of the training images, of every class its share; the test images stay. The same for every seed."""
    path = folder / f"{data.stem}-{count}.npz"
    if not path.exists():
        with np.load(data) as arrays:
            saved = {key: arrays[key] for key in arrays.files}
        labels = saved["train_labels"].reshape(-1)
        shuffled = np.random.default_rng(0).permutation(len(labels))
        rank = np.empty(len(labels), dtype=np.int64)  # of each image within its class
        for label in np.unique(labels):
            mine = shuffled[labels[shuffled] == label]
            rank[mine] = np.arange(len(mine))
        chosen = np.sort(np.lexsort((shuffled.argsort(), rank))[:count])
        saved |= {key: saved[key][chosen] for key in ("train_images", "train_labels")}
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(whole := path.with_suffix(f".{os.getpid()}.npz"), **saved)
        whole.replace(path)  # several processes may make it at once, each in a file of its own
    return path


def named(variant: Variant) -> str:
    """The model with its settings, as `--model` takes it."""
    words = ",".join(f"{key}={value}" for key, value in variant.settings.items())
    return f"{variant.model}:{words}" if words else variant.model


def run_one(
    study: Study, variant: Variant, seed: int, data: Path, work: Path, device: str, jobs: int = 1
) -> dict[str, Any]:
    """The row of one variant and seed, from its file where it is done. `jobs` is how many run at a time, of which the
    row has one for each part of a run that was interrupted."""
    folder, kept = variant.place(work, seed), variant.result(work, seed)
    if kept.exists():
        return json.loads(kept.read_text())
    began, row = time.monotonic(), {"variant": variant.name, "seed": seed, "line": variant.line, "x": variant.x}
    parts = work / f"{folder.name}.parts"
    with parts.open("a") as file:
        file.write(f"{jobs}\n")
    row |= {"means": variant.means, "jobs": [int(word) for word in parts.read_text().split()]}
    options = {key: str(study.find(value[4:]).place(work, seed)) if str(value).startswith("run:") else value
               for key, value in variant.options.items()}  # fmt: skip
    looked = study.find(variant.of).place(work, seed) if variant.of else folder
    if variant.verb in ("train", "pretrain"):
        learnt = part(data, variant.images, work / "data") if variant.images else data
        if options.get("weights", "none") == "none":
            options["model"] = named(variant)
        options = {"weights": "none", **options, "seed": seed, "out": str(folder), "device": device}
        verb = getattr(vitrail, variant.verb)
        if (folder / "run.json").exists():
            row["resumed"] = True
            verb(resume=True, out=str(folder), device=device)
        else:
            verb(str(learnt), **options)
        shown = {key: Path(value).name if "/" in str(value) else value for key, value in options.items()}
        row["call"] = f"vitrail.{variant.verb}({learnt.name!r}, {', '.join(f'{k}={v!r}' for k, v in shown.items())})"
        row |= measure.of_run(folder)
    if variant.verb == "cost":
        row["figures"] = measure.cost(named(variant), options, device)
    elif variant.verb != "pretrain":
        row["figures"] = getattr(measure, variant.measure)(
            looked, data, device, **({} if looked == folder else options)
        )
    seen = [json.loads(study.find(name).result(work, seed).read_text()).get("images_seen", 0)
            for name in variant.starts]  # fmt: skip
    row["images_seen"] = row.get("images_seen", 0) + sum(seen)
    row.setdefault("seconds", round(time.monotonic() - began, 1))
    if variant.x == "parameters":
        row["x"] = round(row["parameters"] / 1e6, 3)
    temporary = kept.with_suffix(".part")
    temporary.write_text(json.dumps(row, indent=1) + "\n")
    temporary.replace(kept)
    return row


def known_rows(study: Study, record: Path, data: Path, device: str) -> Rows:
    """What a record has of this study already, by variant and seed: of these pictures, with these versions, and told
    what the variants and those that they need tell today."""
    if not record.exists():
        return {}
    found, now = json.loads(record.read_text()), versions(torch.device(device))
    if found["data"]["sha256"] != digest(data):
        raise SystemExit(f"{record} is about other pictures than {data}: name another folder with --out.")
    if others := [
        f"{key} is {now[key]} here and was {was}" for key, was in found["versions"].items() if now[key] != was
    ]:
        raise SystemExit(f"{record} was measured elsewhere ({'; '.join(others)}): name another folder with --out.")
    known: Rows = {}
    for variant in (variant for wave in study.order() for variant in wave):
        for row in (row for row in found["runs"] if row["variant"] == variant.name):
            needs = [study.find(need) for need in variant.needs]
            if agrees(variant, row, data) and all((need.name, need.seed(row["seed"])) in known for need in needs):
                known[variant.name, row["seed"]] = row
    return known


def agrees(variant: Variant, row: dict[str, Any], data: Path) -> bool:
    """Was that run told what the variant tells? What only looks at a run, or at a cost, does not say."""
    if variant.verb not in ("train", "pretrain"):
        return False
    learnt = f"{data.stem}-{variant.images}.npz" if variant.images else data.name
    told = {key: value for key, value in variant.options.items() if not str(value).startswith("run:")}
    return (
        row["call"].startswith(f"vitrail.{variant.verb}({learnt!r},")
        and all(row["recipe"].get(key) == value for key, value in told.items())
        and (bool(variant.starts) or model_settings(row["recipe"]["model"]) == model_settings(named(variant)))
    )


def to_do(
    study: Study, waves: list[list[Variant]], seeds: list[int], work: Path, known: Rows
) -> list[tuple[Variant, int]]:
    """What has no row yet; and what has one in the record alone where its weights are wanted, which that has not."""
    found, wanted = [], set()
    for variant in (variant for wave in reversed(waves) for variant in reversed(wave)):
        for seed in reversed(dict.fromkeys(map(variant.seed, seeds))):
            recorded = (variant.name, seed) in known and (variant.name, seed) not in wanted
            if not recorded and not variant.result(work, seed).exists():
                found.append((variant, seed))
                wanted |= {(need, study.find(need).seed(seed)) for need in variant.needs}
    return found[::-1]


def digest(path: Path) -> str:
    """Of all of the file, so that a record says which pictures it is about."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def record(
    study: Study, seeds: list[int], data: Path, work: Path, out: Path, device: str, scale: str,
    known: Rows,
) -> dict[str, Any]:  # fmt: skip
    """What is done so far, as one JSON, what was known before included."""
    seeds = sorted({*seeds, *(seed for _, seed in known)})
    files = {variant.result(work, seed): known.get((variant.name, variant.seed(seed)))
             for variant in study.variants for seed in seeds}  # fmt: skip
    rows = {file: json.loads(file.read_text()) if file.exists() else row for file, row in files.items()}
    about = None if study.without_data else {"name": data.name, "sha256": digest(data)} | {
        split: len(samples) for split, samples in open_source(data).splits.items()
    }  # fmt: skip
    found = {
        "study": study.name, "question": study.question, "figure": study.figure, "axis": study.axis, "x": study.x,
        "logarithmic": study.logarithmic, "beside": study.beside, "notes": study.notes, "scale": scale,
        "command": command(study), "seeds": seeds,
        "minutes_planned": study.minutes if scale == "full" else None,
        "data": about,
        "versions": versions(torch.device(device)),
        "runs": [row for row in rows.values() if row],
        "missing": [file.stem for file, row in rows.items() if not row],
    }  # fmt: skip
    found["training_minutes"] = round(sum(row["seconds"] for row in found["runs"]) / 60, 2)  # of all runs, one by one
    path = out / f"{study.name}.json"
    if path.exists() and all(
        (old := json.loads(path.read_text())).get(key) == found[key] for key in ("runs", "missing")
    ):
        return old  # nothing new: what it says of how it was made stays true
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def command(study: Study) -> str:
    """As it was typed, but for where things lie on this machine."""
    return shlex.join(["python", f"recipes/{study.name}.py", *(Path(word).name for word in sys.argv[1:])])


def options(study: Study) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=study.question)
    parser.add_argument("--data", type=Path, help=f"an .npz, as docs/data.md says; {study.data} by default")
    parser.add_argument("--out", type=Path, help="folder of the record; records/studies by default")
    parser.add_argument("--work", type=Path, help="folder of the runs; runs/studies/NAME by default")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"by default {study.seeds}, of a small study three")
    parser.add_argument("--only", nargs="+", help="variants, and what they need")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="a GPU if there is one"
    )
    scale = parser.add_mutually_exclusive_group()
    for name, words in (("small", "for two CPU cores: less of all"), ("toy", "on 8×8 digits: does all of it work?")):
        scale.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=words)
    parser.add_argument("--list", action="store_true", help="what would be run, and nothing else")
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help=argparse.SUPPRESS)
    parser.set_defaults(scale="full")
    return parser


def main(study: Study, arguments: list[str] | None = None) -> dict[str, Any] | None:
    asked = options(study).parse_args(arguments)
    name = f"{study.name}-toy" if asked.scale == "toy" else study.name
    work = asked.work or ROOT / "runs" / "studies" / name
    out = asked.out or (work if asked.scale == "toy" else RECORDS)
    if asked.scale == "small":  # never beside the runs and the record of the whole
        out, work = out / "small", work if asked.one else work / "small"
    if asked.scale != "full":
        study = getattr(scales, asked.scale)(study)
    asked.seeds = asked.seeds or [*study.seeds]
    asked.data = work / "digits.npz" if asked.scale == "toy" else asked.data or Path(study.data)
    if asked.scale == "toy" and not asked.data.exists():
        scales.toy_data(asked.data)
    if asked.one:
        run_one(study, study.find(asked.one[0]), int(asked.one[1]), asked.data, work, asked.device, asked.jobs)
        return None
    waves = study.order()
    if asked.only:
        wanted = set(asked.only)
        for wave in reversed(waves):
            wanted |= {need for variant in wave if variant.name in wanted for need in variant.needs}
        waves = [[variant for variant in wave if variant.name in wanted] for wave in waves]
    before = out / f"{study.name}.json"
    if not (asked.data.exists() or asked.list or study.without_data):
        raise SystemExit(f"There is no {asked.data}: name the pictures with --data, an .npz as docs/data.md says.")
    known: Rows = {}
    if asked.scale != "toy" and asked.data.exists() and not study.without_data:
        try:
            known = known_rows(study, before, asked.data, asked.device)
        except SystemExit as why:
            if not asked.list:
                raise
            print(why)
    if asked.list and before.exists() and not asked.data.exists() and not study.without_data:
        print(f"There is no {asked.data}: without the pictures, what {before.name} has already is listed as well.")
    todo = to_do(study, waves, asked.seeds, work, known)
    planned = {
        "full": f"{study.minutes:g} minutes planned on one H200 for all",
        "small": "small: minutes each on a CPU core",
        "toy": "toy size: seconds each",
    }[asked.scale]
    there = f", {len(known)} are in {before}" if known else ""
    print(f"{study.name}: {study.question} {len(todo)} runs to do{there}; {planned}.")
    if asked.list:
        for variant, seed in todo:
            print(f"  {variant.name:<28} seed {seed}  {variant.verb} {named(variant)} {variant.options or ''}")
        return None
    work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    for wave in waves:
        _run_wave(study, [(v, s) for v, s in todo if v in wave], asked, work, end)
    found = record(study, asked.seeds, asked.data, work, out, asked.device, asked.scale, known)
    show(found)
    return found


def _run_wave(study: Study, jobs: list[tuple[Variant, int]], asked: argparse.Namespace, work: Path, end: float) -> None:
    """In this process, or as many at a time as was asked for; a run that fails is named, and the others go on. What a
    model costs is measured alone."""
    if asked.jobs <= 1 or any(variant.verb == "cost" for variant, _ in jobs):
        for variant, seed in jobs:
            if time.monotonic() < end and _ready(study, variant, seed, work):
                run_one(study, variant, seed, asked.data, work, asked.device)
        return
    running: list[tuple[str, subprocess.Popen]] = []
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // asked.jobs))}
    waiting = [(variant, seed) for variant, seed in jobs if _ready(study, variant, seed, work)]
    while waiting or running:
        while waiting and len(running) < asked.jobs and time.monotonic() < end:
            variant, seed = waiting.pop(0)
            script = ROOT / "recipes" / f"{study.name}.py"
            given = {"--data": asked.data, "--work": work, "--device": asked.device, "--jobs": asked.jobs}
            words = [sys.executable, str(script), *(str(word) for pair in given.items() for word in pair)]
            words += [*([] if asked.scale == "full" else [f"--{asked.scale}"]), "--one", variant.name, str(seed)]
            name = variant.place(work, seed).name
            with (work / f"{name}.log").open("a") as log:
                running.append((name, subprocess.Popen(words, stdout=log, stderr=log, env=environment)))
        time.sleep(0.2)
        for name, process in [one for one in running if one[1].poll() is not None]:
            running.remove((name, process))
            print(f"  {name}: {'done' if process.returncode == 0 else f'failed, see {work / name}.log'}", flush=True)
        if time.monotonic() >= end:
            waiting = []


def _ready(study: Study, variant: Variant, seed: int, work: Path) -> bool:
    """Is there what it needs? Not where that has failed, or was not begun in time."""
    return all(study.find(need).result(work, seed).exists() for need in variant.needs)


def show(found: dict[str, Any]) -> None:
    for name in dict.fromkeys(row["variant"] for row in found["runs"]):
        rows = [row for row in found["runs"] if row["variant"] == name]
        values = [row["figures"][found["figure"]] for row in rows if found["figure"] in row.get("figures", {})]
        if values:
            spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
            seconds = np.mean([row["seconds"] for row in rows])
            figure = f"{found['figure']} {np.mean(values):.4f}{spread}"
            beside = max(job for row in rows for job in row["jobs"])
            shared = f", {beside} at a time" if beside > 1 else ""
            seen = np.mean([row["images_seen"] for row in rows])
            images = f", {seen:,.0f} images seen" if seen else ""
            print(f"  {name:<28} {figure}  (n = {len(values)}, {seconds:.0f} s each{shared}{images})")
    if found["scale"] == "toy":
        print("  Toy size: that all of it runs is all that these figures say.")
    if found["missing"]:
        print(f"  still to do: {', '.join(found['missing'])}")


def overview() -> None:
    """A line for each study beside this file."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if re.search("^STUDY = ", path.read_text(encoding="utf-8"), re.MULTILINE):
            study = importlib.import_module(path.stem).STUDY
            count = sum(1 if variant.once else len(study.seeds) for variant in study.variants)
            print(f"{study.name:<14} {f'{count} runs, {study.minutes:g} minutes on one H200':<32} {study.question}")


if __name__ == "__main__":
    argparse.ArgumentParser(description="Lists the studies; each is a script of its own, with options.").parse_args()
    overview()
