"""The record of a study: what it has already, what is still to do, and what it says."""

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from variants import Study, Variant

from vitrail.data.sources.classification import open_source
from vitrail.environment import versions
from vitrail.models.registry import model_settings
from vitrail.training.config import TrainConfig, machine_options
from vitrail.whole import whole

Rows = dict[tuple[str, int], dict[str, Any]]  # by variant and seed


def known_rows(study: Study, record: Path, data: Path, device: str) -> Rows:
    """What a record has of this study already, by variant and seed: of these pictures, with these versions, and told
    what the variants and those that they need tell today."""
    if not record.exists():
        return {}
    found = json.loads(record.read_text())
    if found["data"]["sha256"] != digest(data):
        raise SystemExit(f"{record} is about other pictures than {data}: name another folder with --out.")
    if others := differing(found["versions"], device):
        raise SystemExit(f"{record} was measured elsewhere ({others}): name other folders with --out and --work.")
    known: Rows = {}
    for variant in (variant for wave in study.order() for variant in wave):
        for row in (row for row in found["runs"] if row["variant"] == variant.name):
            needs = [study.find(need) for need in variant.needs]
            if agrees(variant, row, data) and all((need.name, need.seed(row["seed"])) in known for need in needs):
                known[variant.name, row["seed"]] = row
    return known


def differing(was: dict[str, Any], device: str) -> str:
    """What is another version, or other hardware, here; empty where all is the same."""
    now = versions(torch.device(device))
    return "; ".join(f"{key} is {now[key]} here and was {value}" for key, value in was.items() if now[key] != value)


def keep_versions(work: Path, device: str, data: Path | None) -> None:
    """The runs in a folder are of one version, one machine and the same pictures: what is done, or half done, is taken
    for no other's."""
    path, pictures = work / "versions.json", digest(data) if data else None
    if not path.exists() and not any(work.glob("*.parts")):
        with whole(path) as unfinished:
            unfinished.write_text(json.dumps(versions(torch.device(device)) | {"pictures": pictures}) + "\n")
    was = json.loads(path.read_text()) if path.exists() else {}
    if was.pop("pictures", pictures) != pictures:
        raise SystemExit(f"{work} has runs of other pictures than {data}: name another folder with --work.")
    if others := differing(was, device) if was else "of which is not known":
        raise SystemExit(f"{work} has runs of another version ({others}): name another folder with --work.")


def check_done(study: Study, seeds: list[int], work: Path, data: Path) -> None:
    """A run that is done was told what its variant tells today."""
    for variant in study.variants:
        for file in {variant.result(work, seed) for seed in seeds if variant.verb in ("train", "pretrain")}:
            if file.exists() and not agrees(variant, json.loads(file.read_text()), data):
                raise SystemExit(
                    f'{file} is of another "{variant.name}" than that of today: remove it with its folder, or name '
                    "another one with --work."
                )


def agrees(variant: Variant, row: dict[str, Any], data: Path) -> bool:
    """Was that run told what the variant tells? What only looks at a run, or at a cost, does not say."""
    if variant.verb not in ("train", "pretrain"):
        return False
    machine = machine_options(TrainConfig("reconstruct" if variant.verb == "pretrain" else "classify"))
    learnt = f"{data.stem}-{variant.images}.npz" if variant.images else data.name
    told = {key: value for key, value in variant.options.items()
            if not str(value).startswith("run:") and key not in machine}  # fmt: skip
    starts = variant.options.get("weights", "none") != "none"  # with weights, which bring their model
    return (
        row["call"].startswith(f"vitrail.{variant.verb}({learnt!r},")
        and all(row["recipe"].get(key) == value for key, value in told.items())
        and (starts or model_settings(row["recipe"]["model"]) == model_settings(variant.named))
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


def about(data: Path) -> dict[str, Any]:
    """What a record says of the pictures."""
    splits = open_source(data).splits.items()
    return {"name": data.name, "sha256": digest(data)} | {split: len(samples) for split, samples in splits}


def record(
    study: Study, seeds: list[int], pictures: dict[str, Any] | None, work: Path, out: Path, device: str, scale: str,
    known: Rows,
) -> dict[str, Any]:  # fmt: skip
    """What is done so far, as one JSON, what was known before included."""
    seeds = sorted({*seeds, *(seed for _, seed in known)})
    files = {variant.result(work, seed): known.get((variant.name, variant.seed(seed)))
             for variant in study.variants for seed in seeds}  # fmt: skip
    rows = {file: json.loads(file.read_text()) if file.exists() else row for file, row in files.items()}
    found = {
        "study": study.name, "question": study.question, "figure": study.figure, "axis": study.axis, "x": study.x,
        "logarithmic": study.logarithmic, "beside": study.beside, "notes": study.notes, "scale": scale,
        "command": command(study), "seeds": seeds,
        "minutes_planned": study.minutes if scale == "full" else None,
        "data": pictures,
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
    with whole(path) as unfinished:
        unfinished.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def script(study: Study) -> Path:
    """The file that the study is written in: the one that was started, or what recipes/ has of that name."""
    started = sys.modules["__main__"]
    if getattr(getattr(started, "STUDY", None), "name", None) == study.name:
        return Path(str(started.__file__)).resolve()
    return Path(__file__).with_name(f"{study.name}.py")


def command(study: Study) -> str:
    """As it was typed, but for where things lie on this machine."""
    return shlex.join(["python", f"recipes/{script(study).name}", *(Path(word).name for word in sys.argv[1:])])


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
