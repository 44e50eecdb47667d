"""Writes the tables of results in README.md, README.zh.md and records/README.md from the records, between two markers.

    python recipes/table.py            writes all three
    python recipes/table.py --check    says whether they are in step, and writes nothing

records/headlines.json has the rows in their order. All of them are in records/README.md, with their caveats; the two
READMEs show those that have a "short" form, with one comparison each:

    {"record": "studies/pretraining.json", "en": "Tiny-ImageNet, after MAE, …", "zh": "…", "beside": "57.07, …",
     "variant": "MAE", "figure": "top1", "form": "{:.2f} %", "scale": 100,
     "short": {"en": "Tiny-ImageNet, after MAE", "zh": "…", "beside": {"en": "57.07 published", "zh": "…"}}}

Their numbers are those of `runs` with that variant, `figure` inside their `figures`; or of `results`, which a benchmark
keeps under VARIANT/SEED; or `numbers`, a list, where a record has neither. They are shown as their mean, ± their
standard deviation where there are several, and n. In `beside`, {VARIANT} stands for the numbers of another, with n
where it differs.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results: written by recipes/table.py -->", "<!-- /results -->"
HEADS = {
    "README.md": ("en", "| what | Vitrail | beside | record |"),
    "README.zh.md": ("zh", "| 项目 | Vitrail | 对照 | 记录 |"),
    "records/README.md": ("en", "| what | Vitrail | beside | record |"),
}


def numbers(record: dict[str, Any], headline: dict[str, Any]) -> list[float]:
    if "numbers" in headline:
        return [float(value) for value in headline["numbers"]]
    kept = [{"variant": key.rpartition("/")[0], **row} for key, row in record.get("results", {}).items()]
    runs = [run for run in record.get("runs", kept) if headline.get("variant") in (None, run.get("variant"))]
    return [run["figures"][headline["figure"]] for run in runs if headline["figure"] in run.get("figures", {})]


def shown(values: list[float], form: str, scale: float) -> str:
    """Mean ± standard deviation (n), the spread in the form of the mean but without its unit."""
    values = [scale * value for value in values]
    mean = form.format(statistics.fmean(values))
    if len(values) == 1:
        return mean
    number, unit = form[: form.index("}") + 1], form[form.index("}") + 1 :]
    spread = number.format(statistics.stdev(values))
    return f"{mean.removesuffix(unit)} ± {spread}{unit} (n = {len(values)})"


def rows(language: str, records: Path, short: bool) -> list[str]:
    found, headlines = [], records / "headlines.json"
    for headline in json.loads(headlines.read_text(encoding="utf-8")) if headlines.exists() else []:
        path = records / headline["record"]
        record = json.loads(path.read_text(encoding="utf-8"))
        if short and "short" not in headline:
            continue
        words = headline["short"] if short else headline
        if not (values := numbers(record, headline)):
            raise SystemExit(f"{path} has no numbers for the row that headlines.json asks for, {headline['en']}.")
        value = shown(values, headline.get("form", "{:.2f} %"), headline.get("scale", 1))
        beside = words.get("beside", "")
        beside = beside if isinstance(beside, str) else beside[language]
        for variant in re.findall(r"\{([^}]+)\}", beside):
            others = numbers(record, {**headline, "variant": variant})
            told = shown(others, headline.get("form", "{:.2f} %"), headline.get("scale", 1))
            told = told.partition(" (n")[0] if len(others) == len(values) else told
            beside = beside.replace(f"{{{variant}}}", told)
        link = f"[{path.stem}]({path.relative_to(records.parent if short else records).as_posix()})"
        found.append(f"| {words[language]} | {value} | {beside} | {link} |")
    return found


def table(name: str, records: Path) -> str:
    language, head = HEADS[name]
    lines = rows(language, records, short="/" not in name)
    return "\n".join([head, "| --- | --- | --- | --- |", *lines]) if lines else ""


def written(text: str, name: str, records: Path) -> str:
    """The page with the table in its place."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{name} has no place for the table: put {BEGIN} and {END} on lines of their own.")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(name, records)}\n{END}{rest.split(END)[1]}".replace(f"{BEGIN}\n\n", f"{BEGIN}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    asked = parser.parse_args(arguments)
    stale = []
    for name in HEADS:
        path = asked.root / name
        text = path.read_text(encoding="utf-8")
        new = written(text, name, asked.root / "records")
        if new != text:
            stale.append(name)
            if not asked.check:
                path.write_text(new, encoding="utf-8")
                print(path)
    if asked.check and stale:
        print(f"{' and '.join(stale)}: not in step with the records; run python recipes/table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
