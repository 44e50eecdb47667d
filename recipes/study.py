"""One runner for all studies: named variants × seeds → runs → one record, which `plot.py` draws.

    python recipes/positions.py --data cifar10.npz --jobs 3           all of it
    python recipes/positions.py --data cifar10.npz --minutes 9        what can be begun in nine minutes; again to go on
    python recipes/positions.py --data cifar10.npz --small --jobs 2   the same question for two CPU cores
    python recipes/positions.py --toy                                 on 8×8 digits, in seconds: does all of it work?
    python recipes/positions.py --list                                what would be run, and the minutes planned
    python recipes/study.py                                           all studies, with their questions

A run that is finished is kept, as JSON beside its folder, and one that was interrupted is resumed. The record is
written after each. What it has already, with the same settings and pictures, is not run again, on another machine
either. Every run learns from train/ alone, of which `vitrail.train` holds out its own validation images; test/ is read
once, at the end.
"""

import argparse
import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import scales
import torch
from ledger import Rows, about, check_done, keep_versions, known_rows, record, script, show, to_do
from processes import Command, as_ctrl_c, run_all
from variants import Study, Variant

import vitrail
from vitrail import VitrailError
from vitrail.cli.pictures import to_nobody
from vitrail.training.signals import Stopped
from vitrail.whole import whole

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "records" / "studies"
PATIENCE = 300.0  # seconds without a word of a run on a GPU, where nothing is silent for so long


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
        with whole(path) as unfinished, unfinished.open("wb") as file:  # several processes may make it at once
            np.savez(file, **saved)
    return path


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
            options["model"] = variant.named
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
        row["figures"] = measure.cost(variant.named, options, device)
    elif variant.verb != "pretrain":
        row["figures"] = getattr(measure, variant.measure)(
            looked, data, device, **({} if looked == folder else options)
        )
    seen = [json.loads(study.find(name).result(work, seed).read_text()).get("images_seen", 0)
            for name in variant.starts]  # fmt: skip
    row["images_seen"] = row.get("images_seen", 0) + sum(seen) + measure.seen_by(variant.options.get("weights", "none"))
    row.setdefault("seconds", round(time.monotonic() - began, 1))
    if variant.x == "parameters":
        row["x"] = round(row["parameters"] / 1e6, 3)
    with whole(kept) as unfinished:
        unfinished.write_text(json.dumps(row, indent=1) + "\n")
    return row


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
    """The record; whatever ends it does so in a sentence."""
    try:
        found = _main(study, options(study).parse_args(arguments))
        sys.stdout.flush()
        return found
    except (KeyboardInterrupt, Stopped):
        sys.exit("Stopped; what was under way has saved what it had. The same command goes on.")
    except BrokenPipeError:  # as `head` leaves
        to_nobody(sys.stdout)
        sys.exit(141)
    except VitrailError as error:
        sys.exit(str(error))


def _main(study: Study, asked: argparse.Namespace) -> dict[str, Any] | None:
    name = f"{study.name}-toy" if asked.scale == "toy" else study.name
    work = asked.work or ROOT / "runs" / "studies" / name
    out = asked.out or (work if asked.scale == "toy" else RECORDS)
    if asked.scale == "small":  # never beside the runs and the record of the whole
        out, work = out / "small", work if asked.one else work / "small"
    if asked.scale != "full":
        study = scales.toy(study) if asked.scale == "toy" else scales.small(study, asked.data)
    asked.seeds = asked.seeds or [*study.seeds]
    asked.data = work / "digits.npz" if asked.scale == "toy" else asked.data or Path(study.data)
    study = scales.told(study, asked.data)
    if asked.scale == "toy" and not asked.data.exists():
        scales.toy_data(asked.data)
    if asked.one:
        run_one(study, study.find(asked.one[0]), int(asked.one[1]), asked.data, work, asked.device, asked.jobs)
        return None
    waves = study.order()
    if asked.only:
        wanted = set(asked.only)
        if unknown := wanted - {variant.name for variant in study.variants}:
            names = ", ".join(f'"{variant.name}"' for variant in study.variants)
            raise SystemExit(f'There is no variant "{sorted(unknown)[0]}": {study.name} has {names}.')
        for wave in reversed(waves):
            wanted |= {need for variant in wave if variant.name in wanted for need in variant.needs}
        waves = [[variant for variant in wave if variant.name in wanted] for wave in waves]
    before = out / f"{study.name}.json"
    if not (asked.data.is_file() or asked.list or study.without_data):
        what = "is a folder" if asked.data.is_dir() else "is not there"
        raise SystemExit(f"{asked.data} {what}: name the pictures with --data, an .npz as docs/studies.md says.")
    known: Rows = {}
    if asked.scale != "toy" and asked.data.exists() and not study.without_data:
        try:
            known = known_rows(study, before, asked.data, asked.device)
        except SystemExit as why:
            if not asked.list:
                raise
            print(why)
    if asked.list and before.exists() and not asked.data.exists() and not study.without_data:
        print(f"There is no {asked.data} to compare {before.name} with: what that has already is listed, too.")
    check_done(study, asked.seeds, work, asked.data)
    todo = to_do(study, waves, asked.seeds, work, known)
    planned = {
        "full": f"{study.minutes:g} minutes planned on one H200 for all",
        "small": "small: minutes each on a CPU core",
        "toy": "toy size: seconds each",
    }[asked.scale]
    begun = sum((variant.place(work, seed) / "run.json").exists() for variant, seed in todo)
    there = (f", {begun} of them begun" if begun else "") + (f", {len(known)} are in {before}" if known else "")
    print(f"{study.name}: {study.question} {len(todo)} runs to do{there}; {planned}.")
    if asked.list:
        for variant, seed in todo:
            told = " ".join(f"{key}={value}" for key, value in variant.options.items())
            named = "" if variant.options.get("weights", "none") != "none" else f" {variant.named}"
            print(f"  {variant.name:<28} seed {seed}  {variant.verb}{named} {told}".rstrip())
        return None
    pictures = None if study.without_data else about(asked.data)  # that there are some, before anything is written
    work.mkdir(parents=True, exist_ok=True)
    if asked.scale != "toy":
        keep_versions(work, asked.device, None if study.without_data else asked.data)
    end = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    write = partial(record, study, asked.seeds, pictures, work, out, asked.device, asked.scale, known)
    run = _one_by_one if asked.jobs <= 1 or study.without_data else _at_once
    failed = run(study, sorted(todo, key=lambda job: job[1]), asked, work, end, write)  # the first seed of all first
    found = write()
    show(found)
    print(f"  Record: {before}; python recipes/plot.py {before} draws it.")
    if failed:
        sys.exit(f"{', '.join(failed)} failed: see above.")
    return found


Jobs = list[tuple[Variant, int]]  # with their seeds
Write = Callable[[], dict[str, Any]]  # the record, after each run


def _one_by_one(study: Study, todo: Jobs, asked: argparse.Namespace, work: Path, end: float, write: Write) -> list[str]:
    """In this process, which a run that fails ends. What a model costs is always measured so."""
    for variant, seed in todo:
        if time.monotonic() < end and _ready(study, variant, seed, work):
            began, name = time.monotonic(), variant.place(work, seed).name
            with _apart(work / f"{name}.log" if asked.scale == "toy" else None):
                run_one(study, variant, seed, asked.data, work, asked.device)
            if asked.scale == "toy":
                print(f"  {name}: done in {time.monotonic() - began:.0f} s", flush=True)
            write()
    return []


@contextmanager
def _apart(log: Path | None) -> Iterator[None]:
    """What runs of some seconds say would bury what came of them: it goes into a file."""
    if log is None:
        yield
    else:
        with log.open("a", encoding="utf-8") as file, redirect_stdout(file):
            yield


def _at_once(study: Study, todo: Jobs, asked: argparse.Namespace, work: Path, end: float, write: Write) -> list[str]:
    """As many processes at a time as was asked for. Gives the names of those that failed; the others go on."""
    given = {"--data": asked.data, "--work": work, "--device": asked.device, "--jobs": asked.jobs}
    words = [sys.executable, "-X", "faulthandler", str(script(study))]
    words += [str(word) for pair in given.items() for word in pair]
    words += [] if asked.scale == "full" else [f"--{asked.scale}"]
    commands = []
    for variant, seed in todo:
        name, ready = variant.place(work, seed).name, partial(_ready, study, variant, seed, work)
        commands.append(Command(name, [*words, "--one", variant.name, str(seed)], work / f"{name}.log", ready))
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // asked.jobs))}
    patience = PATIENCE if asked.device.startswith("cuda") else float("inf")
    print(f"  What each run says goes into {work}{os.sep}NAME.log.", flush=True)
    outcomes = run_all(commands, asked.jobs, environment, end, patience)
    failed: list[str] = []
    with as_ctrl_c(signal.SIGTERM, signal.SIGHUP), closing(outcomes):
        for command, words, fails in outcomes:
            print(f"  {command.name}: {words}", flush=True)
            failed += [command.name] * fails
            write()
    return failed


def _ready(study: Study, variant: Variant, seed: int, work: Path) -> bool:
    """Is there what it needs? Not where that has failed, or was not begun in time."""
    return all(study.find(need).result(work, seed).exists() for need in variant.needs)


def overview() -> None:
    """A line for each study beside this file; the minutes are those of one H200."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if re.search("^STUDY = ", path.read_text(encoding="utf-8"), re.MULTILINE):
            study = importlib.import_module(path.stem).STUDY
            count = sum(1 if variant.once else len(study.seeds) for variant in study.variants)
            print(f"{study.name:<14} {f'{count} runs, {study.minutes:g} minutes planned':<28} {study.question}")


if __name__ == "__main__":
    argparse.ArgumentParser(description="Lists the studies; each is a script of its own, with options.").parse_args()
    overview()
